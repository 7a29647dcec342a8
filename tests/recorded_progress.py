"""A progress that remembers what it was told."""

from collections.abc import Iterator
from contextlib import contextmanager


class RecordedTask:
    """One piece of work, as reported."""

    def __init__(self, description: str, total: int | None) -> None:
        self.description, self.total, self.done = description, total, 0

    def advance(self, amount: int) -> None:
        """Count."""
        self.done += amount


class RecordedProgress:
    """Keeps every task in order."""

    def __init__(self) -> None:
        self.tasks: list[RecordedTask] = []

    @contextmanager
    def task(self, description: str, total: int | None) -> Iterator[RecordedTask]:
        """Start one."""
        self.tasks.append(RecordedTask(description, total))
        yield self.tasks[-1]

    def named(self, word: str) -> list[RecordedTask]:
        """Tasks whose description holds the word."""
        return [task for task in self.tasks if word in task.description]
