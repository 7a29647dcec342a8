"""The one door into the engine: gRPC, HTTP and the in-process LLM all call this.

Messages are plain data, so the caller may sit in this process or in another one.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from radixcache.types import FlushResult, MatchResult, ModelInfo, Stats, TreeView
from radixcache_engine.types import EngineRequest, SequenceOutput, Terminal

__all__ = ["Drained", "EngineAPI", "OutputBuffer"]


@dataclass(frozen=True, slots=True)
class Drained:
    """What a request's buffer held. ``terminal`` is set once, in the last drain."""

    outputs: list[SequenceOutput]
    terminal: Terminal | None


class OutputBuffer(Protocol):
    """Where the step loop leaves a request's results; one reader.

    Results of several steps merge into one :class:`SequenceOutput` a sequence, so a slow reader
    holds one growing list of ids, bounded by ``max_tokens``, never a queue of messages.
    """

    def drain(self) -> Drained:
        """Take what is there, without waiting; empty when nothing is new. Any thread."""
        ...


class EngineAPI(Protocol):
    """The engine as its servers see it. Every method may be called from any thread."""

    @property
    def model(self) -> ModelInfo:
        """The loaded model."""
        ...

    def submit(self, request: EngineRequest, notify: Callable[[], None]) -> OutputBuffer:
        """Queue a validated request.

        Args:
            request: in tokens, with every limit already checked by the front.
            notify: called by the step thread when the buffer turned from empty to not empty.
                Must return at once and must not raise.

        Raises:
            EngineStoppedError: the engine is draining or stopped.
            OutOfBlocksError: the waiting queue is full (``max_waiting``).
        """
        ...

    def abort(self, request_id: str, *, reason: str = "aborted by its owner") -> None:
        """Ask for a request's end. Idempotent, safe in finalizers; unknown ids are no error.

        The request's terminal message then carries ``RequestAbortedError`` unless it finished
        first. What a finished request with ``hold`` kept is released.
        """
        ...

    def match(self, token_ids: Sequence[int], scope: str) -> "Future[MatchResult]":
        """Look a prompt up in the cache; changes nothing, not even recency."""
        ...

    def stats(self) -> Stats:
        """Return counters and sizes as of the last step; never waits for the step loop."""
        ...

    def flush(self) -> "Future[FlushResult]":
        """Forget every cached prefix. Running requests keep theirs until they end."""
        ...

    def tree(self, max_nodes: int) -> "Future[TreeView]":
        """Return a bounded picture of the tree, the largest subtrees first."""
        ...

    def release_hold(self, hold_id: str) -> None:
        """Unlock what a finished request with ``hold`` kept. Idempotent, safe in finalizers."""
        ...

    def heartbeat_age_s(self) -> float:
        """Seconds since the step loop last came round; grows when it hangs."""
        ...

    def close(self, drain_s: float = 0.0) -> None:
        """Stop admitting, let running requests finish for ``drain_s``, abort the rest, end.

        Idempotent. Every open request gets its terminal message before this returns.
        """
        ...
