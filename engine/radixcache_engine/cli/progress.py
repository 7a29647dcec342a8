"""Progress of slow work (download, convert, load) on stderr.

Both classes fit ``models.progress.Progress``: ``task(description, total)`` is a context whose
value has ``advance(amount)``.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from radixcache_engine.cli.messages import note

__all__ = ["BarProgress", "LineProgress", "show_progress"]


class BarTask:
    """One bar."""

    def __init__(self, bars: Progress, task_id: TaskID) -> None:
        self._bars = bars
        self._task_id = task_id

    def advance(self, amount: float = 1) -> None:
        """Move the bar on by ``amount``, in the unit of the task's total."""
        self._bars.advance(self._task_id, amount)


class BarProgress:
    """Bars that move, for a terminal."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars

    @contextmanager
    def task(self, description: str, total: float | None = None) -> Iterator[BarTask]:
        """Show a bar while the context is open; without a total it only shows that work goes on.

        A bar that ended without an error stays, full.
        """
        task_id = self._bars.add_task(description, total=total)
        yield BarTask(self._bars, task_id)
        self._bars.update(task_id, total=total or 1, completed=total or 1)


class LineTask:
    """One piece of work in a log: says each quarter of a known total."""

    def __init__(self, description: str, total: float | None) -> None:
        self._description = description
        self._total = total
        self._done = 0.0
        self._quarters = 0

    def advance(self, amount: float = 1) -> None:
        """Count ``amount`` as done, in the unit of the task's total."""
        self._done += amount
        if not self._total:
            return
        quarters = int(4 * self._done / self._total)
        if self._quarters < quarters < 4:
            note(f"{self._description}: {25 * quarters} %")
        self._quarters = max(quarters, self._quarters)


class LineProgress:
    """A line at the start and the end of each task, for logs and pipes."""

    @contextmanager
    def task(self, description: str, total: float | None = None) -> Iterator[LineTask]:
        """Write a line now and another, with the seconds it took, when the context closes."""
        started = time.monotonic()
        note(f"{description} ...")
        yield LineTask(description, total)
        note(f"{description}: done in {time.monotonic() - started:.1f} s")


def show_progress() -> "AbstractContextManager[BarProgress | LineProgress]":
    """Choose bars on a terminal and lines elsewhere; the context ends the drawing."""
    return _bars() if sys.stderr.isatty() else _lines()


@contextmanager
def _bars() -> Iterator[BarProgress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield BarProgress(bars)


@contextmanager
def _lines() -> Iterator[LineProgress]:
    yield LineProgress()
