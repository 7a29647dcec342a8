"""S3-FIFO over leaves: a short queue on trial, a long queue of what was asked for again."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from sortedcontainers import SortedList  # type: ignore[import-untyped]  # ships no types

from radixcache.errors import CacheCorruptionError
from radixcache.tree.lost import Lost
from radixcache.tree.node import Node
from radixcache.tree.policy import EvictionPolicy

__all__ = ["S3FifoPolicy"]

_SMALL_SHARE: Final = 0.1
_MAX_CREDIT: Final = 3  # turns in the main queue that hits can earn
_MIN_AWAY: Final = 1024


class _Entry:
    """A leaf's place. ``spent``: hits that have already earned it a turn."""

    __slots__ = ("key", "main", "num_blocks", "spent")

    def __init__(self, key: tuple[int, int, Node], main: bool, spent: int, num_blocks: int) -> None:
        self.key = key  # place in the queue, node id, leaf
        self.main = main
        self.spent = spent
        self.num_blocks = num_blocks


class S3FifoPolicy(EvictionPolicy):
    """Evicts from the trial queue while it is over its share, else from the main queue.

    A leaf at the head of either queue that was hit meanwhile goes to the end of the main queue
    instead; so does, at once, a leaf that was evicted before and has come back. Within a queue
    the order is that of arrival: hits do not move a leaf.

    Args:
        small_share: share of the evictable blocks that the trial queue may keep, 0 to 1.
    """

    __slots__ = (
        "_away",
        "_main",
        "_main_blocks",
        "_num_evicted",
        "_place",
        "_small",
        "_small_blocks",
        "_small_share",
    )

    def __init__(self, small_share: float = _SMALL_SHARE) -> None:
        self._small_share = small_share
        self._small: SortedList = SortedList()
        self._main: SortedList = SortedList()
        self._small_blocks = self._main_blocks = 0
        self._place = self._num_evicted = 0
        # Places in the main queue of leaves in use: node id -> (place, spent). Nodes that never
        # come back leave one behind, so the oldest go.
        self._away: OrderedDict[int, tuple[int, int]] = OrderedDict()

    def add(self, leaf: Node) -> None:
        """Take in a leaf where it was before. Cost: logarithmic in the number of leaves."""
        kept = self._away.pop(leaf.node_id, None)
        if kept is None:
            self._insert(leaf, leaf.created, main=False, spent=0)
        else:
            self._insert(leaf, kept[0], main=True, spent=kept[1])

    def remove(self, leaf: Node) -> None:
        """Give up a leaf. Cost: logarithmic in the number of leaves."""
        entry = self._take_out(leaf)
        if entry.main and entry.num_blocks:
            self._keep_place(leaf, entry.key[0], entry.spent)

    def victim(self) -> Node | None:
        """Return the leaf to evict next, or None; moves on those whose hits earned them a turn.

        Cost: logarithmic for each leaf moved, and each hit moves a leaf at most once.
        """
        while self._small or self._main:
            total = self._small_blocks + self._main_blocks
            trial = bool(self._small) and (
                not self._main or self._small_blocks > self._small_share * total
            )
            leaf: Node = (self._small if trial else self._main)[0][2]
            entry = _entry(leaf)
            credit = leaf.num_hits - entry.spent
            if credit <= 0:
                return leaf
            self._take_out(leaf)
            spent = leaf.num_hits - min(credit, _MAX_CREDIT) + 1
            self._insert(
                leaf, self._next_place(), main=True, spent=leaf.num_hits if trial else spent
            )
        return None

    def joins(self, upper: Node, lower: Node) -> bool:
        """Agree when both came with the same request."""
        return upper.created == lower.created

    def hit(self, node: Node, num_blocks: int) -> None:
        """Let go of the blocks that a cut will take from a held leaf."""
        if node.entry is not None:
            self._shrink(_entry(node), num_blocks)

    def stored(self, node: Node, num_blocks: int, ghosts: Sequence[Lost]) -> None:
        """Send a node that was evicted not long ago to the main queue.

        Not long: no more blocks have gone since than are held, which is the memory that S3-FIFO
        gives to ghosts.
        """
        if not ghosts or num_blocks < node.num_blocks:
            return
        note = ghosts[0].note
        held = self._small_blocks + self._main_blocks
        if isinstance(note, int) and self._num_evicted - note <= held + num_blocks:
            self._keep_place(node, self._next_place(), node.num_hits)

    def evicted(self, leaf: Node, num_blocks: int) -> object:
        """Let go of the blocks that leave a held leaf; note how many had gone by then."""
        self._shrink(_entry(leaf), num_blocks)
        self._num_evicted += num_blocks
        return self._num_evicted

    def _insert(self, leaf: Node, place: int, *, main: bool, spent: int) -> None:
        entry = _Entry((place, leaf.node_id, leaf), main, spent, leaf.num_blocks)
        leaf.entry = entry
        (self._main if main else self._small).add(entry.key)
        self._shrink(entry, -entry.num_blocks, held=False)

    def _take_out(self, leaf: Node) -> _Entry:
        entry = _entry(leaf)
        leaf.entry = None
        (self._main if entry.main else self._small).remove(entry.key)
        self._shrink(entry, entry.num_blocks, held=False)
        return entry

    def _shrink(self, entry: _Entry, num_blocks: int, *, held: bool = True) -> None:
        if held:
            entry.num_blocks -= num_blocks
        if entry.main:
            self._main_blocks -= num_blocks
        else:
            self._small_blocks -= num_blocks

    def _next_place(self) -> int:
        self._place += 1
        return self._place

    def _keep_place(self, leaf: Node, place: int, spent: int) -> None:
        self._away[leaf.node_id] = (place, spent)
        while len(self._away) > max(_MIN_AWAY, len(self)):
            self._away.popitem(last=False)

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def __iter__(self) -> Iterator[Node]:
        """Yield the leaves as they stand in the queues, trial first; hits may still move them."""
        for queue in (self._small, self._main):
            yield from (key[2] for key in queue)

    def check(self) -> None:
        """Raise CacheCorruptionError if a queue is out of order or a count is wrong."""
        counted = ((self._small, False, self._small_blocks), (self._main, True, self._main_blocks))
        for queue, main, expected in counted:
            num_blocks = 0
            previous = (-1, -1)
            for key in queue:
                leaf = key[2]
                entry = leaf.entry
                if not isinstance(entry, _Entry) or entry.key is not key or entry.main != main:
                    fault = "its entry is not the one held"
                    raise CacheCorruptionError(f"sorted container: {leaf!r}: {fault}")
                if key[:2] <= previous or entry.num_blocks != leaf.num_blocks:
                    raise CacheCorruptionError(f"sorted container: {leaf!r}: out of order")
                previous = key[:2]
                num_blocks += leaf.num_blocks
            if num_blocks != expected:
                fault = f"{num_blocks} blocks are held, {expected} counted"
                raise CacheCorruptionError(f"S3-FIFO: {fault}")


def _entry(leaf: Node) -> _Entry:
    entry = leaf.entry
    if not isinstance(entry, _Entry):
        raise CacheCorruptionError(f"sorted container: {leaf!r} is not held")
    return entry
