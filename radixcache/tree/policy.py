"""Which evictable leaf goes first. Policies are objects; ``tree.policies`` names them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sortedcontainers import SortedList  # type: ignore[import-untyped]  # ships no types

from radixcache.errors import CacheCorruptionError
from radixcache.tree.lost import Lost
from radixcache.tree.node import Node

__all__ = [
    "EvictionPolicy",
    "FifoPolicy",
    "LfuPolicy",
    "LruPolicy",
    "PriorityPolicy",
    "SlruPolicy",
    "SortedPolicy",
]


_UNSORTED: Final = "not in order yet"
_MAX_UNSORTED: Final = 1_000
"""Leaves that may wait; more would make the first eviction of a large tree a long one."""


class EvictionPolicy(ABC):
    """Holds the evictable leaves in order.

    ``leaf.entry`` is the policy's to use, and never None while the leaf is held. The tree takes a
    leaf out before it changes anything the order depends on, and puts it back after.
    """

    __slots__ = ()

    @abstractmethod
    def add(self, leaf: Node) -> None:
        """Take in a leaf that has become evictable."""

    @abstractmethod
    def remove(self, leaf: Node) -> None:
        """Give up a leaf that was taken in."""

    @abstractmethod
    def victim(self) -> Node | None:
        """Return the leaf to evict next, without giving it up; None when there is none."""

    @abstractmethod
    def joins(self, upper: Node, lower: Node) -> bool:
        """Whether two unlocked nodes, the lower one the only child, may become one.

        The joined node has the recency of ``lower`` and all else of ``upper``; a policy agrees
        when its order stays as it was.
        """

    def hit(self, node: Node, num_blocks: int) -> None:  # noqa: B027  most need not know
        """Learn that a look-up ended ``num_blocks`` into ``node``, before it is cut there.

        A node that was held is given up next if the look-up ended at its end; if it ended inside,
        the upper part is cut off it and the lower part stays held.
        """

    def stored(self, node: Node, num_blocks: int, ghosts: Sequence[Lost]) -> None:  # noqa: B027
        """Learn that blocks were added at the end of ``node``.

        Args:
            node: the node that ends with them.
            num_blocks: how many.
            ghosts: the pieces in which the same continuation of the same prefix was lost before,
                as far as that is still known; the nearest first.
        """

    def evicted(self, leaf: Node, num_blocks: int) -> object:
        """Learn that blocks leave the tail of a held leaf, before they do.

        Returns:
            What the policy wants to find in ``Lost.note`` if they come back.
        """
        return None

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of leaves held."""

    @abstractmethod
    def __iter__(self) -> Iterator[Node]:
        """Yield the leaves in eviction order."""

    @abstractmethod
    def check(self) -> None:
        """Raise CacheCorruptionError if the container is out of order."""


class SortedPolicy(EvictionPolicy):
    """Evicts the leaf with the smallest rank, the older node where two are equal.

    Most leaves are taken out again, by the next request on their path, before anything has to be
    evicted. So a leaf is put into order only when somebody asks for the order, or many wait.
    """

    __slots__ = ("_entries", "_unsorted")

    def __init__(self) -> None:
        # Node ids are unique, so comparing two entries never reaches the nodes.
        self._entries: SortedList = SortedList()
        self._unsorted: dict[Node, None] = {}

    @abstractmethod
    def rank(self, leaf: Node) -> Any:
        """Return what the order goes by; it changes only while the leaf is not held."""

    def add(self, leaf: Node) -> None:
        """Take in a leaf. Cost, now or later: logarithmic in the number of leaves."""
        leaf.entry = _UNSORTED
        self._unsorted[leaf] = None
        if len(self._unsorted) > _MAX_UNSORTED:
            self._sort()

    def remove(self, leaf: Node) -> None:
        """Give up a leaf. Cost: at most logarithmic in the number of leaves."""
        entry = leaf.entry
        leaf.entry = None
        if entry is _UNSORTED:
            del self._unsorted[leaf]
        elif entry is self._entries[0]:  # a victim, mostly: known to be the first
            self._entries.pop(0)
        else:
            self._entries.remove(entry)

    def victim(self) -> Node | None:
        """Return the leaf of the smallest rank, or None."""
        if self._unsorted:
            self._sort()
        if not self._entries:
            return None
        leaf: Node = self._entries[0][2]
        return leaf

    def _sort(self) -> None:
        for leaf in self._unsorted:
            leaf.entry = (self.rank(leaf), leaf.node_id, leaf)
            self._entries.add(leaf.entry)
        self._unsorted.clear()

    def __len__(self) -> int:
        return len(self._entries) + len(self._unsorted)

    def __iter__(self) -> Iterator[Node]:
        self._sort()
        return (entry[2] for entry in self._entries)

    def check(self) -> None:
        """Raise CacheCorruptionError if the container is out of order or an entry out of date."""
        self._sort()
        previous: Any = None
        for entry in self._entries:
            leaf = entry[2]
            if leaf.entry is not entry:
                raise CacheCorruptionError(
                    f"sorted container: {leaf!r}: its entry is not the one held"
                )
            if entry[:2] != (self.rank(leaf), leaf.node_id):
                raise CacheCorruptionError(f"sorted container: {leaf!r}: entry out of date")
            if previous is not None and entry[:2] <= previous:
                raise CacheCorruptionError(f"sorted container: {leaf!r}: out of order")
            previous = entry[:2]


class LruPolicy(SortedPolicy):
    """Evicts the leaf whose last access lies furthest back."""

    __slots__ = ()

    def rank(self, leaf: Node) -> Any:
        """Return the tick of the last access."""
        return leaf.last_access

    def joins(self, upper: Node, lower: Node) -> bool:
        """Agree unless the upper part was used after the lower one."""
        return upper.last_access <= lower.last_access


class LfuPolicy(SortedPolicy):
    """Evicts the leaf with the fewest hits, of these the least recent."""

    __slots__ = ()

    def rank(self, leaf: Node) -> Any:
        """Return hits, then the tick of the last access."""
        return (leaf.num_hits, leaf.last_access)

    def joins(self, upper: Node, lower: Node) -> bool:
        """Agree when both were hit as often."""
        return upper.num_hits == lower.num_hits and upper.last_access <= lower.last_access


class SlruPolicy(SortedPolicy):
    """Segmented LRU: leaves below a number of hits go before all others.

    Args:
        threshold: hits from which a leaf is protected. The first use after it was stored is
            hit 1.
    """

    __slots__ = ("threshold",)

    def __init__(self, threshold: int = 1) -> None:
        super().__init__()
        self.threshold = threshold

    def rank(self, leaf: Node) -> Any:
        """Return the segment, then the tick of the last access."""
        return (leaf.num_hits >= self.threshold, leaf.last_access)

    def joins(self, upper: Node, lower: Node) -> bool:
        """Agree within a segment."""
        same = (upper.num_hits >= self.threshold) == (lower.num_hits >= self.threshold)
        return same and upper.last_access <= lower.last_access


class FifoPolicy(SortedPolicy):
    """Evicts the leaf that was stored first, however much it is used."""

    __slots__ = ()

    def rank(self, leaf: Node) -> Any:
        """Return the tick of its first block."""
        return leaf.created

    def joins(self, upper: Node, lower: Node) -> bool:
        """Agree when both came with the same request."""
        return upper.created == lower.created and upper.last_access <= lower.last_access


class PriorityPolicy(SortedPolicy):
    """Evicts the leaf of the lowest priority, of these the least recent."""

    __slots__ = ()

    def rank(self, leaf: Node) -> Any:
        """Return the priority, then the tick of the last access."""
        return (leaf.priority, leaf.last_access)

    def joins(self, upper: Node, lower: Node) -> bool:
        """Agree when both have the same priority."""
        return upper.priority == lower.priority and upper.last_access <= lower.last_access
