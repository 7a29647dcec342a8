"""``radixcache.LLM``: the engine in this process, for offline use.

The same engine, the same methods and the same answers as :class:`radixcache.Client`, without a
server between. Thread-safe: concurrent calls are batched together and share their prefixes.
"""

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast, overload

from radixcache.errors import InvalidRequestError
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
)
from radixcache_engine.config import DEFAULT_MODEL, EngineConfig
from radixcache_engine.core.build import build_engine
from radixcache_engine.front.front import Front
from radixcache_engine.front.stream import Stream
from radixcache_engine.front.tokenizer import Tokenizer
from radixcache_engine.models.progress import SILENT, Progress
from radixcache_engine.models.registry import resolve
from radixcache_engine.types import GenerateRequest

__all__ = ["LLM", "State"]

Message = ChatMessage | Mapping[str, str]


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
        requests = [_request(p, options) for p in prompt]
        calls = [_Call(self._front, request, hold=False) for request in requests]
        try:
            return [call.answer() for call in calls]
        finally:
            for call in calls:
                call.close()

    def stream(self, prompt: "str | State | None" = None, **options: Any) -> Iterator[Delta]:
        """Yield deltas as they are drawn; leaving the loop aborts the request.

        Takes what ``generate`` takes, one prompt at a time, and raises the same errors.
        """
        call = _Call(self._front, _request(prompt, options), hold=False)
        return call.deltas()

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
        self._engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _generate_one(self, request: GenerateRequest) -> State:
        call = _Call(self._front, request, hold=True)
        try:
            answer = call.answer()
        finally:
            call.close()
        state = State.of(answer, call.stream.prompt_token_ids)
        if call.hold_id is not None:
            weakref.finalize(state, self._engine.release_hold, call.hold_id)
        return state


class _Call:
    """One open request of this thread."""

    def __init__(self, front: Front, request: GenerateRequest, *, hold: bool) -> None:
        self._news = threading.Event()
        self._is_over = False
        self.hold_id: int | None = None
        self._answer: Answer | None = None
        self.stream: Stream = front.open(request, self._news.set, hold=hold)

    def deltas(self) -> Iterator[Delta]:
        """Yield deltas until the end; raise the request's error; abort when left early."""
        try:
            while not self._is_over:
                self._news.wait()
                self._news.clear()
                yield from self._poll()
        finally:
            self.close()

    def answer(self) -> Answer:
        """Wait for the whole answer."""
        for _ in self.deltas():
            pass
        if self._answer is None:
            raise InvalidRequestError("request", self.stream.request_id, "a request still open")
        return self._answer

    def close(self) -> None:
        """Abort the request unless it is over."""
        if not self._is_over:
            self._is_over = True
            self.stream.abort()

    def _poll(self) -> list[Delta]:
        update = self.stream.poll()
        if update.answer is not None or update.error is not None:
            self._is_over = True
        if update.error is not None:
            raise update.error
        if update.answer is not None:
            self._answer, self.hold_id = update.answer, self.stream.hold_id
        return update.deltas


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
