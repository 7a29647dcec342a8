"""``radixcache.LLM``: the engine in this process, for offline use.

The same engine, the same methods and the same answers as :class:`radixcache.Client`, without a
server between. Thread-safe: concurrent calls are batched together and share their prefixes.
"""

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, cast, overload

from radixcache.errors import InvalidRequestError, RadixCacheError, RequestAbortedError
from radixcache.types import (
    Answer,
    CacheMode,
    ChatMessage,
    Delta,
    FlushResult,
    MatchResult,
    ModelInfo,
    SamplingParams,
    Stats,
    TreeView,
    Usage,
)
from radixcache_engine.config import DEFAULT_MODEL, EngineConfig
from radixcache_engine.core.build import build_engine
from radixcache_engine.front.front import Front
from radixcache_engine.front.stream import Stream
from radixcache_engine.front.tokenizer import Tokenizer
from radixcache_engine.models.progress import SILENT, Progress
from radixcache_engine.models.registry import resolve
from radixcache_engine.types import GenerateRequest

__all__ = ["LLM", "LLMStream", "State"]

Message = ChatMessage | Mapping[str, str]
_MAX_OPEN = 1024


class State(Answer):
    """An answer that can be continued: pass it to ``generate`` in place of a prompt.

    Its prompt and output stay locked in the cache while the state lives (choice 0). Under memory
    pressure the oldest states yield their lock; continuing one then computes its prefix again and
    gives the same text.

    Attributes:
        prompt_token_ids: what the answer was generated from.
    """

    prompt_token_ids: tuple[int, ...]

    @classmethod
    def of(cls, answer: Answer, prompt_token_ids: Sequence[int]) -> "State":
        """Add the prompt to an answer."""
        state = cls(
            request_id=answer.request_id,
            model=answer.model,
            choices=answer.choices,
            usage=answer.usage,
        )
        object.__setattr__(state, "prompt_token_ids", tuple(prompt_token_ids))
        return state

    @property
    def all_token_ids(self) -> tuple[int, ...]:
        """Prompt and output of choice 0."""
        return self.prompt_token_ids + self.token_ids


class LLM:
    """A model with its cache, in this process.

    Args:
        model: a known name (``"smollm2"``) or a path to a Hugging Face folder or a GGUF file.
        progress: told of downloads, conversion and loading; silent by default.
        **settings: any field of :class:`radixcache_engine.config.EngineConfig` (``dtype``,
            ``block_size``, ``kv_tokens``, ``device``, ``threads``, ``max_batch_tokens``, ...).

    Raises:
        InvalidRequestError: an unknown setting, or a value out of range.
        ModelNotFoundError: no such model.
        ModelRefusedError: a model that cannot be run exactly.
        ModelLoadError: broken files, or not enough memory.
    """

    def __init__(
        self, model: str = DEFAULT_MODEL, *, progress: Progress = SILENT, **settings: Any
    ) -> None:
        config = EngineConfig.from_kwargs(model=str(model), **settings)
        folder = resolve(config.model, progress)
        tokenizer = Tokenizer.load(folder.path)
        self._engine = build_engine(config, folder, tokenizer.token_bytes, progress)
        self._front = Front(self._engine, tokenizer)
        # So many of a list's prompts are open at a time: enough to group them by prefix, and the
        # queue never refuses the rest.
        self._max_open = min(config.max_waiting, _MAX_OPEN)
        # Runs at exit too: a step thread in the middle of a forward must not outlive Python.
        self._closer = weakref.finalize(self, self._engine.close)

    # ── generation ──────────────────────────────────────────────────────────────────────────

    @overload
    def generate(self, prompt: Sequence[str], **options: Any) -> list[Answer]: ...
    @overload
    def generate(self, prompt: "str | State | None" = None, **options: Any) -> State: ...
    def generate(
        self, prompt: "str | State | Sequence[str] | None" = None, **options: Any
    ) -> "State | list[Answer]":
        """Generate from a prompt, a list of prompts, token ids, messages or an earlier state.

        Args:
            prompt: text; or a list of texts, run together; or a :class:`State` to go on from.
            **options: ``token_ids`` or ``messages`` in place of ``prompt``, every field of
                :class:`radixcache.types.SamplingParams`, and ``cache``, ``timeout``,
                ``request_id``, ``model``.

        Returns:
            A state, which is an answer; for a list of prompts a list of answers in its order.
            Answers of a list hold nothing in the cache; a state does, while it lives.

        Raises:
            InvalidRequestError: a value out of range, naming field, value and range.
            RadixCacheError: the request failed, was aborted or passed its deadline.
        """
        if isinstance(prompt, str | State) or prompt is None:
            return self._generate_one(_request(prompt, options))
        return self._generate_all([_request(p, options) for p in prompt])

    def stream(self, prompt: "str | State | None" = None, **options: Any) -> "LLMStream":
        """Yield deltas as they are drawn. The request starts at once.

        Takes what ``generate`` takes, one prompt at a time, and raises the same errors. Leaving
        the loop, ``close`` and losing the last reference abort the request.
        """
        return LLMStream(self, self._front, _request(prompt, options))

    def chat(self, messages: Sequence[Message], **options: Any) -> State:
        """Answer a conversation: a list of messages with ``role`` and ``content``."""
        return self.generate(None, messages=messages, **options)

    # ── the cache and the engine ────────────────────────────────────────────────────────────

    def match(self, prompt: str | None = None, **options: Any) -> MatchResult:
        """Return how much of a prompt the cache holds; changes nothing."""
        return self._front.match(_request(prompt, options)).result()

    def stats(self) -> Stats:
        """Return counters since start and sizes now."""
        return self._engine.stats()

    def flush(self) -> FlushResult:
        """Forget every cached prefix."""
        return self._engine.flush().result()

    def tree(self, max_nodes: int = 100) -> TreeView:
        """Return a bounded picture of the prefix tree."""
        return self._front.tree(max_nodes).result()

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        return self._front.tokenize(text)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return self._front.detokenize(token_ids)

    def models(self) -> list[ModelInfo]:
        """Return the loaded model, as a list like the client's."""
        return [self._engine.model]

    def abort(self, request_id: str) -> int:
        """Abort running requests with this id; return how many there were."""
        return self._front.abort(request_id)

    def check(self) -> None:
        """Verify every invariant of the cache.

        Raises:
            CacheCorruptionError: naming the broken one.
        """
        self._engine.check().result()

    def close(self) -> None:
        """End open requests and free the model. Idempotent."""
        self._closer()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _generate_one(self, request: GenerateRequest) -> State:
        with LLMStream(self, self._front, request, hold=True) as stream:
            answer = stream.answer()
            state = State.of(answer, stream.prompt_token_ids)
            if stream.hold_id is not None:
                weakref.finalize(state, self._engine.release_hold, stream.hold_id)
        return state

    def _generate_all(self, requests: list[GenerateRequest]) -> list[Answer]:
        answers: list[Answer] = []
        open_: deque[LLMStream] = deque()
        try:
            for request in requests:
                if len(open_) >= self._max_open:
                    answers.append(open_.popleft().answer())
                open_.append(LLMStream(self, self._front, request))
            while open_:
                answers.append(open_.popleft().answer())
        finally:
            for stream in open_:
                stream.close()
        return answers


class LLMStream(Iterator[Delta]):
    """The deltas of one request of this process as they come; one reader.

    Leaving a ``for`` loop over it, ``close``, the end of a ``with`` block and losing the last
    reference all end the request. ``next(stream)`` takes one delta and keeps it open.
    """

    def __init__(
        self, owner: LLM, front: Front, request: GenerateRequest, *, hold: bool = False
    ) -> None:
        self._owner = owner  # whose engine ends with its last reference
        self._news = threading.Event()
        self._pending: deque[Delta] = deque()
        self._is_over = False
        self._answer: Answer | None = None
        self._error: RadixCacheError | None = None
        self._stream: Stream | None = None
        self._stream = front.open(request, self._news.set, hold=hold)

    @property
    def usage(self) -> Usage | None:
        """What the request cost; None until its end."""
        return self._answer.usage if self._answer is not None else None

    @property
    def hold_id(self) -> str | None:
        """What releases the finished prefix of a request opened with ``hold``."""
        return self._stream.hold_id if self._stream is not None else None

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The prompt as the model sees it."""
        return self._stream.prompt_token_ids if self._stream is not None else ()

    def answer(self) -> Answer:
        """Read what is left; return the whole answer.

        Raises:
            RadixCacheError: the request failed, or the stream was closed before its end.
        """
        try:
            while self._next() is not None:
                pass
        finally:
            self.close()
        if self._answer is None:
            raise RequestAbortedError("the stream was closed before its end")
        return self._answer

    def close(self) -> None:
        """End the request, if it has not ended. Idempotent."""
        if not self._is_over:
            self._is_over = True
            if self._stream is not None:
                self._stream.abort()

    def __iter__(self) -> Iterator[Delta]:
        try:
            while (delta := self._next()) is not None:
                yield delta
        finally:
            self.close()

    def __next__(self) -> Delta:
        delta = self._next()
        if delta is None:
            raise StopIteration
        return delta

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _next(self) -> Delta | None:
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self._is_over or self._stream is None:
                return None
            self._news.wait()
            self._news.clear()
            self._poll(self._stream)
        return self._pending.popleft()

    def _poll(self, stream: Stream) -> None:
        update = stream.poll()
        self._pending.extend(update.deltas)
        if update.is_last:
            self._is_over = True
            self._answer, self._error = update.answer, update.error


def _request(prompt: "str | State | None", options: Mapping[str, Any]) -> GenerateRequest:
    options = dict(options)
    fields: dict[str, Any] = {
        "model": options.pop("model", ""),
        "token_ids": options.pop("token_ids", None),
        "messages": _messages(options.pop("messages", None)),
        "cache_mode": _cache_mode(options.pop("cache", "write")),
        "request_id": options.pop("request_id", ""),
        "timeout_s": options.pop("timeout", None),
    }
    if isinstance(prompt, State):
        if fields["token_ids"] is not None or fields["messages"] is not None:
            allowed = "a state alone, without token_ids or messages"
            raise InvalidRequestError("prompt", "a state and another prompt", allowed)
        fields["token_ids"] = prompt.all_token_ids
    else:
        fields["prompt"] = prompt
    stop = options.get("stop")
    if isinstance(stop, str):
        options["stop"] = (stop,)
    try:
        sampling = SamplingParams(**{k: v for k, v in options.items() if v is not None})
    except TypeError as error:
        raise TypeError(str(error).replace("SamplingParams.__init__()", "generate()")) from None
    return GenerateRequest(sampling=sampling, **fields)


def _messages(messages: Sequence[Message] | None) -> list[ChatMessage] | None:
    if messages is None:
        return None
    return [
        m if isinstance(m, ChatMessage) else ChatMessage(**cast("dict[str, str]", dict(m)))
        for m in messages
    ]


def _cache_mode(value: str) -> CacheMode:
    try:
        return CacheMode(value)
    except ValueError:
        raise InvalidRequestError("cache", value, "off | read | write") from None
