"""Ctrl-C and SIGTERM of a server: the first one drains, the second one ends at once."""

import os
import signal
from queue import SimpleQueue
from types import FrameType, TracebackType

__all__ = ["StopSignals"]

_INTERRUPTED = 130


class StopSignals:
    """While the context is open, SIGINT and SIGTERM no longer end the process by themselves.

    Only the main thread may open it.
    """

    def __init__(self) -> None:
        # Its put() may run inside a signal handler; an Event's set() may deadlock there.
        self._asked: SimpleQueue[int] = SimpleQueue()
        self._is_asked = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() returned

    def wait(self) -> None:
        """Wait for the first signal."""
        self._asked.get()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_asked:
            os.write(2, b"stopped at once\n")
            os._exit(_INTERRUPTED)
        self._is_asked = True
        self._asked.put(number)
