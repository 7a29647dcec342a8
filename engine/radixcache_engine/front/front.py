"""From a user's request to the engine and back: validate, tokenise, submit, decode."""

import itertools
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from radixcache.errors import InvalidRequestError, ModelNotFoundError
from radixcache.types import ChatMessage, Clock, MatchResult, ModelInfo, TreeView
from radixcache_engine.core.api import EngineAPI
from radixcache_engine.front.detokenizer import Detokenizer
from radixcache_engine.front.limits import (
    check_num_messages,
    check_num_tokens,
    check_text_size,
    checked_max_tokens,
)
from radixcache_engine.front.stream import Stream
from radixcache_engine.front.tokenizer import Tokenizer
from radixcache_engine.front.validate import (
    checked_cache_mode,
    checked_deadline,
    checked_messages,
    checked_sampling,
    checked_text,
    checked_token_ids,
)
from radixcache_engine.sampling.stop import StopSet
from radixcache_engine.types import EngineRequest, GenerateRequest

__all__ = ["Front"]


class Front:
    """What every server and the in-process LLM call. Any thread may call any method.

    Args:
        engine: the engine behind it.
        tokenizer: of the engine's model.
        scope: whose prefixes these requests see and publish.
        clock: the engine's clock.
    """

    def __init__(
        self,
        engine: EngineAPI,
        tokenizer: Tokenizer,
        *,
        scope: str = "default",
        clock: Clock = time.monotonic,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._scope = scope
        self._clock = clock
        # A random part, so that ids from before a restart never name a request of today.
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        # Weak: a caller that drops its stream without polling it to the end must not leak it.
        self._open: weakref.WeakValueDictionary[str, Stream] = weakref.WeakValueDictionary()

    @property
    def model(self) -> ModelInfo:
        """The loaded model."""
        return self._engine.model

    def open(
        self, request: GenerateRequest, notify: Callable[[], None], *, hold: bool = False
    ) -> Stream:
        """Validate a request and hand it to the engine.

        Args:
            request: what the user asks for.
            notify: called by the engine's thread when :meth:`Stream.poll` has something new. It
                may be called before this method returns. Must return at once, must not raise.
            hold: keep the finished prefix locked; ``Stream.hold_id`` then says how to release it.

        Raises:
            InvalidRequestError: a field is out of range; says which, what was got and the range.
            TooLongError: it can never fit the context or the KV pool.
            ModelNotFoundError: another model is served here.
            DeadlineError: its deadline has passed.
            EngineStoppedError: the engine is draining.
            OutOfBlocksError: the waiting queue is full.
        """
        arrival = self._clock()
        model = self._engine.model
        self._check_model(request.model)
        sampling = checked_sampling(request.sampling, vocab_size=model.vocab_size)
        cache_mode = checked_cache_mode(request.cache_mode)
        deadline = checked_deadline(request.timeout_s, arrival)
        token_ids = self.prompt_ids(request)
        max_tokens = checked_max_tokens(len(token_ids), sampling.max_tokens, model)
        if sampling.min_tokens > max_tokens:
            allowed = f"0 to max_tokens ({max_tokens:,})"
            raise InvalidRequestError("min_tokens", sampling.min_tokens, allowed)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        internal_id = f"{self._prefix}-{next(self._numbers)}"
        engine_request = EngineRequest(
            request_id=internal_id,
            token_ids=token_ids,
            sampling=replace(sampling, max_tokens=max_tokens, seed=seed),
            scope=self._scope,
            cache_mode=cache_mode,
            deadline=deadline,
            hold=hold,
            arrival=arrival,
        )
        stream = self._stream(request.request_id or internal_id, engine_request)
        with self._lock:
            self._open[internal_id] = stream
        stream.attach(self._engine.submit(engine_request, notify))
        return stream

    def abort(self, request_id: str) -> int:
        """Abort every open request of that id; return how many there were. Idempotent.

        Args:
            request_id: the client's own id, or ``Stream.request_id``.
        """
        with self._lock:
            streams = list(self._open.values())
        named = [s for s in streams if not s.ended and s.request_id == request_id]
        for stream in named:
            stream.abort()
        return len(named)

    def prompt_ids(self, request: GenerateRequest) -> list[int]:
        """Return the prompt in tokens, at least one.

        What can never fit is refused before it is read or tokenised.

        Raises:
            TooLongError: more ids, messages or text than the longest sequence has.
            InvalidRequestError: not exactly one of the three prompts, an empty one, an id outside
                the vocabulary, or messages the chat template refuses.
        """
        given = {
            "prompt": request.prompt,
            "token_ids": request.token_ids,
            "messages": request.messages,
        }
        names = [name for name, value in given.items() if value is not None]
        if len(names) != 1:
            allowed = "exactly one of prompt, token_ids, messages"
            raise InvalidRequestError("prompt", ", ".join(names) or "none", allowed)
        model = self._engine.model
        if request.token_ids is not None:
            check_num_tokens(request.token_ids, model)
            return checked_token_ids(request.token_ids, vocab_size=model.vocab_size)
        most = self._tokenizer.max_bytes_per_token
        if request.messages is not None:
            check_num_messages(request.messages, model)
            messages = checked_messages(request.messages)
            contents = (message.content for message in messages)
            check_text_size("messages", contents, model, max_bytes_per_token=most)
            return self._tokenizer.apply_chat_template(messages)
        text = checked_text(request.prompt)
        check_text_size("prompt", [text], model, max_bytes_per_token=most)
        # Also where the tokenizer would put a begin token in front: nothing was asked.
        ids = self._tokenizer.encode(text) if text else []
        if not ids:
            raise InvalidRequestError("prompt", text, "a text of at least one token")
        return ids

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the ids of a text; see :meth:`Tokenizer.encode`.

        Raises:
            InvalidRequestError: not a string of valid Unicode.
        """
        return self._tokenizer.encode(checked_text(text, field="text"), add_special=add_special)

    def chat_ids(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the ids of a chat as the model's template writes it.

        Raises:
            InvalidRequestError: no messages, an unknown role, or messages the template refuses.
        """
        return self._tokenizer.apply_chat_template(checked_messages(messages))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens left out.

        Raises:
            InvalidRequestError: no id, or one outside the vocabulary.
        """
        vocab_size = self._engine.model.vocab_size
        return self._tokenizer.decode(checked_token_ids(token_ids, vocab_size=vocab_size))

    def match(self, request: GenerateRequest) -> "Future[MatchResult]":
        """Look the request's prompt up in the cache; changes nothing.

        Raises:
            InvalidRequestError: see :meth:`prompt_ids`.
            TooLongError: see :meth:`prompt_ids`.
            ModelNotFoundError: another model is served here.
        """
        self._check_model(request.model)
        return self._engine.match(self.prompt_ids(request), self._scope)

    def tree(self, max_nodes: int) -> "Future[TreeView]":
        """Return a bounded picture of the tree with the text of its nodes."""
        decoded: Future[TreeView] = Future()

        def finish(raw: "Future[TreeView]") -> None:
            """Pass the engine's result or error on."""
            error = raw.exception()
            if error is None:
                decoded.set_result(self.with_text(raw.result()))
            else:
                decoded.set_exception(error)

        self._engine.tree(max_nodes).add_done_callback(finish)
        return decoded

    def with_text(self, view: TreeView) -> TreeView:
        """Return the view with each node's tokens decoded."""
        decode = self._tokenizer.decode
        nodes = (replace(node, text=decode(node.token_ids, continues=True)) for node in view.nodes)
        return replace(view, nodes=tuple(nodes))

    def _check_model(self, name: str) -> None:
        served = self._engine.model.name
        if name not in ("", served):
            raise ModelNotFoundError(f"no model {name!r} is served here, only {served!r}")

    def _stream(self, request_id: str, request: EngineRequest) -> Stream:
        stops = StopSet(request.sampling.stop)
        ends = () if request.sampling.ignore_eos else self._engine.model.eos_token_ids
        detokenizers = [
            Detokenizer(self._tokenizer.token_bytes, stops, ends) for _ in range(request.sampling.n)
        ]
        return Stream(
            request_id=request_id,
            internal_id=request.request_id,
            model=self._engine.model.name,
            prompt_token_ids=request.token_ids,
            detokenizers=detokenizers,
            abort=self._engine.abort,
        )
