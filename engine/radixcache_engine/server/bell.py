"""Wakes coroutines from the step thread, many at a time."""

import asyncio
import threading

__all__ = ["Bell"]


class Bell:
    """Sets events of one loop from any thread.

    A step ends with a notification for each running request. Each would wake the loop through a
    system call of its own; here the first one does, and the others ride along.

    Args:
        loop: the loop that the events belong to.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._ringing: list[asyncio.Event] = []

    def ring(self, event: asyncio.Event) -> None:
        """Set ``event`` soon. Any thread; never blocks for long and never raises."""
        with self._lock:
            self._ringing.append(event)
            if len(self._ringing) > 1:
                return
        try:
            self._loop.call_soon_threadsafe(self._fire)
        except RuntimeError:
            # The loop is closed: the server has stopped, and nobody waits for the event any more.
            return

    def _fire(self) -> None:
        with self._lock:
            ringing, self._ringing = self._ringing, []
        for event in ringing:
            event.set()
