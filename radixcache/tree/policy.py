"""Which evictable leaf goes first. Policies are objects, chosen by name from one table."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from sortedcontainers import SortedList  # type: ignore[import-untyped]  # ships no types

from radixcache.errors import CacheCorruptionError, InvalidRequestError
from radixcache.tree.node import Node

__all__ = ["POLICIES", "EvictionPolicy", "LruPolicy", "make_policy"]


class EvictionPolicy(Protocol):
    """Holds the evictable leaves in order. ``leaf.entry`` is the policy's to use.

    The tree takes a leaf out before it changes anything the order depends on, and puts it back
    after.
    """

    def add(self, leaf: Node) -> None:
        """Take in a leaf that has become evictable."""
        ...

    def remove(self, leaf: Node) -> None:
        """Give up a leaf that was taken in."""
        ...

    def victim(self) -> Node | None:
        """Return the leaf to evict next, without giving it up; None when there is none."""
        ...

    def __len__(self) -> int:
        """Return the number of leaves held."""
        ...

    def __iter__(self) -> Iterator[Node]:
        """Yield the leaves in eviction order."""
        ...

    def check(self) -> None:
        """Raise CacheCorruptionError if the container is out of order."""
        ...


class LruPolicy:
    """Evicts the leaf whose last access lies furthest back."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        # Node ids are unique, so comparing two entries never reaches the nodes.
        self._entries: SortedList = SortedList()

    def add(self, leaf: Node) -> None:
        """Take in a leaf. Cost: logarithmic in the number of leaves."""
        leaf.entry = (leaf.last_access, leaf.node_id, leaf)
        self._entries.add(leaf.entry)

    def remove(self, leaf: Node) -> None:
        """Give up a leaf. Cost: logarithmic in the number of leaves."""
        self._entries.remove(leaf.entry)
        leaf.entry = None

    def victim(self) -> Node | None:
        """Return the least recently used leaf, or None."""
        if not self._entries:
            return None
        leaf: Node = self._entries[0][2]
        return leaf

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Node]:
        return (entry[2] for entry in self._entries)

    def check(self) -> None:
        """Raise CacheCorruptionError if the container is out of order or an entry out of date."""
        previous: tuple[int, int] = (-1, -1)
        for entry in self._entries:
            leaf = entry[2]
            if leaf.entry is not entry:
                raise CacheCorruptionError(
                    f"sorted container: {leaf!r}: its entry is not the one held"
                )
            if entry[:2] != (leaf.last_access, leaf.node_id):
                raise CacheCorruptionError(f"sorted container: {leaf!r}: entry out of date")
            if entry[:2] <= previous:
                raise CacheCorruptionError(f"sorted container: {leaf!r}: out of order")
            previous = entry[:2]


POLICIES: Final[Mapping[str, Callable[[], EvictionPolicy]]] = MappingProxyType({"lru": LruPolicy})
"""Every eviction policy by name."""


def make_policy(name: str) -> EvictionPolicy:
    """Return a new policy.

    Raises:
        InvalidRequestError: no policy has that name.
    """
    if name not in POLICIES:
        raise InvalidRequestError("policy", name, " | ".join(POLICIES))
    return POLICIES[name]()
