"""The calls being served, so that a stop can wait for them and then end the rest."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from radixcache.errors import EngineStoppedError

__all__ = ["OpenCalls"]

_OWN_METHODS = "/radixcache."


class OpenCalls:
    """Running calls of one event loop.

    Health and reflection calls may last for ever: they are ended, but not waited for.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._num_own = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether :meth:`end_all` was called."""
        return self._ended

    @contextmanager
    def track(self, method: str) -> Iterator[None]:
        """Count the current task as a call of ``method`` (its full name on the wire).

        Raises:
            EngineStoppedError: calls are no longer served.
        """
        task = asyncio.current_task()
        if self._ended or task is None:
            raise EngineStoppedError("the server is stopping")
        own = method.startswith(_OWN_METHODS)
        self._tasks.add(task)
        self._count(own)
        try:
            yield
        finally:
            self._tasks.discard(task)
            self._count(-own)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until none of our own calls runs; return whether that came true in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def end_all(self) -> None:
        """End every call; each client is told that the server is stopping."""
        self._ended = True
        for task in self._tasks:
            task.cancel()

    def _count(self, change: int) -> None:
        self._num_own += change
        if self._num_own:
            self._idle.clear()
        else:
            self._idle.set()
