"""Where the step loop leaves a request's results for its one reader."""

import threading
from collections.abc import Callable

from radixcache_engine.core.api import Drained
from radixcache_engine.types import SequenceOutput, Terminal

__all__ = ["RequestBuffer"]


class RequestBuffer:
    """Merges results until they are read, so that a slow reader never grows a queue.

    Args:
        notify: called when the buffer turns from empty to not empty; returns at once.
    """

    __slots__ = ("_lock", "_notify", "_outputs", "_terminal")

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._outputs: dict[int, SequenceOutput] = {}
        self._terminal: Terminal | None = None

    def put(self, outputs: list[SequenceOutput], terminal: Terminal | None = None) -> None:
        """Add what a step produced. Called by the step loop alone."""
        with self._lock:
            was_empty = not self._outputs and self._terminal is None
            for output in outputs:
                self._merge(output)
            if terminal is not None:
                self._terminal = terminal
            is_empty = not self._outputs and self._terminal is None
        if was_empty and not is_empty:
            self._notify()

    def drain(self) -> Drained:
        """Take everything that is there, without waiting."""
        with self._lock:
            drained = Drained(list(self._outputs.values()), self._terminal)
            self._outputs = {}
            self._terminal = None
        return drained

    def _merge(self, new: SequenceOutput) -> None:
        old = self._outputs.get(new.index)
        if old is None:
            self._outputs[new.index] = new
            return
        old.token_ids += new.token_ids
        old.logprobs += new.logprobs
        old.finish_reason = new.finish_reason
        old.stop_reason = new.stop_reason
        old.num_text_bytes = new.num_text_bytes
