"""How long work reports that it moves on; the command line shows it as bars."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

__all__ = ["SILENT", "Progress", "SilentProgress", "Task"]


class Task(Protocol):
    """One piece of work under way."""

    def advance(self, amount: int) -> None:
        """Report ``amount`` more units done (bytes, files, steps)."""
        ...


class Progress(Protocol):
    """Where pieces of work are reported."""

    def task(self, description: str, total: int | None) -> AbstractContextManager[Task]:
        """Start a piece of work; leaving the context ends it, done or not.

        Args:
            description: what is being done, for a person to read.
            total: units the whole takes; None when nobody knows.
        """
        ...


class SilentProgress:
    """Shows nothing: the default for library use and tests."""

    def task(self, description: str, total: int | None) -> AbstractContextManager[Task]:
        """See :class:`Progress`."""
        return nullcontext(self)

    def advance(self, amount: int) -> None:
        """See :class:`Task`."""


SILENT: Progress = SilentProgress()
"""The progress that shows nothing; it has no state, so all may share it."""
