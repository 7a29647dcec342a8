"""One open request as its caller sees it: text and tokens, then one answer or one error."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from radixcache.errors import RadixCacheError
from radixcache.types import Answer, Choice, Delta, TokenLogprob, Usage
from radixcache_engine.core.api import Drained, OutputBuffer
from radixcache_engine.front.detokenizer import Detokenizer
from radixcache_engine.types import SequenceOutput, Terminal

__all__ = ["Stream", "StreamUpdate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamUpdate:
    """What one poll found.

    Attributes:
        deltas: at most one for each sequence, in the order of the engine.
        answer: the finished request, in the last update of one that did not fail.
        error: why it failed, in the last update of one that did.
        usage: what it cost, in the last update either way.
    """

    deltas: list[Delta] = field(default_factory=list)
    answer: Answer | None = None
    error: RadixCacheError | None = None
    usage: Usage | None = None

    @property
    def is_last(self) -> bool:
        """Whether nothing follows this update."""
        return self.usage is not None


@dataclass(slots=True)
class _Sequence:
    """What one sequence has produced so far."""

    detokenizer: Detokenizer
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, output: SequenceOutput) -> Delta:
        """Take what the engine reported; return it with the text that became certain."""
        text = self.detokenizer.feed(output)
        reason = None if output.finish_reason is None else output.finish_reason.value
        self.pieces.append(text)
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.finish_reason, self.stop_reason = reason, output.stop_reason
        return Delta(
            index=output.index,
            text=text,
            token_ids=tuple(output.token_ids),
            logprobs=tuple(output.logprobs),
            finish_reason=reason,
            stop_reason=output.stop_reason,
        )

    def choice(self, index: int) -> Choice:
        """Return the whole sequence."""
        return Choice(
            index=index,
            text="".join(self.pieces),
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            finish_reason=self.finish_reason or "",
            stop_reason=self.stop_reason,
        )


class Stream:
    """An open request. Any thread may call it.

    Attributes:
        request_id: the client's own id, or the internal one where the client gave none.
        internal_id: unique in the engine.
        prompt_token_ids: the prompt as the model sees it.
        hold_id: after the end of a request opened with ``hold``: what releases its prefix.
    """

    def __init__(
        self,
        *,
        request_id: str,
        internal_id: str,
        model: str,
        prompt_token_ids: Sequence[int],
        detokenizers: Sequence[Detokenizer],
        abort: Callable[[str], None],
    ) -> None:
        self.request_id = request_id
        self.internal_id = internal_id
        self.prompt_token_ids = tuple(prompt_token_ids)
        self.hold_id: str | None = None
        self._model = model
        self._sequences = [_Sequence(detokenizer) for detokenizer in detokenizers]
        self._abort = abort
        self._buffer: OutputBuffer | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._abort_asked = False

    def attach(self, buffer: OutputBuffer) -> None:
        """Connect the engine's buffer; once, by the front."""
        with self._lock:
            self._buffer = buffer
        if self._abort_asked:  # asked before the engine knew the request
            self._abort(self.internal_id)

    @property
    def ended(self) -> bool:
        """Whether the last update was handed out."""
        return self._ended

    def poll(self) -> StreamUpdate:
        """Take what is new, without waiting; empty when there is nothing, or after the end."""
        with self._lock:
            if self._buffer is None or self._ended:
                return StreamUpdate()
            return self._update(self._buffer.drain())

    def abort(self) -> None:
        """Ask for the end of the request. Idempotent; the last update still comes."""
        self._abort_asked = True
        if not self._ended:
            self._abort(self.internal_id)

    def _update(self, drained: Drained) -> StreamUpdate:
        deltas = [self._sequences[output.index].add(output) for output in drained.outputs]
        terminal = drained.terminal
        if terminal is None:
            return StreamUpdate(deltas=deltas)
        self._ended = True
        self.hold_id = terminal.hold_id
        answer = None if terminal.error is not None else self._answer(terminal)
        return StreamUpdate(
            deltas=deltas, answer=answer, error=terminal.error, usage=terminal.usage
        )

    def _answer(self, terminal: Terminal) -> Answer:
        return Answer(
            request_id=self.request_id,
            model=self._model,
            choices=tuple(s.choice(index) for index, s in enumerate(self._sequences)),
            usage=terminal.usage,
        )
