"""The adaptive policy: how long each class of leaf is worth its room, learned while it runs.

Leaves fall into a few classes by what is known of them without a look at the future: how often
they were asked for, and whether what they continue is common to many. Each class is in order of
recency, and the policy gives it an age at which its leaves go: the victim is the leaf that has
used up the largest share of its class's age. Equal ages for all are exactly LRU.

The ages are worked out afresh now and then (:mod:`radixcache.tree.ages`) from two counts for
each class and age: blocks asked for again at that age, evicted ones included, and blocks that
lived through it. A safety stands above them: what LRU would have had at every look-up is known
(:mod:`radixcache.tree.rival`), and when the policy has fallen behind by more than a small share
of the traffic, it is LRU until that is made good.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from sortedcontainers import SortedList  # type: ignore[import-untyped]  # ships no types

from radixcache.errors import CacheCorruptionError
from radixcache.tree.ages import AgeBook
from radixcache.tree.lost import Lost
from radixcache.tree.node import Node
from radixcache.tree.policy import EvictionPolicy
from radixcache.tree.rival import LruRival

__all__ = ["AdaptivePolicy"]

_HIT_CLASSES: Final = 3  # never asked for again, once, more often
_COMMON_HITS: Final = 8  # from here on a prefix is common to many
_NUM_CLASSES: Final = 2 * _HIT_CLASSES
_MAX_LOSS: Final = 0.004  # share of the traffic that learning may cost against LRU
_LOSS_MEMORY: Final = 64  # half-life of gain and loss, in ages that LRU reaches
_MIN_HORIZON: Final = 64  # ticks


class _Entry:
    """What the policy knows of a held leaf."""

    __slots__ = ("group", "key", "num_blocks")

    def __init__(self, key: tuple[int, int, Node], group: int, num_blocks: int) -> None:
        self.key = key  # last access, node id, leaf
        self.group = group
        self.num_blocks = num_blocks


class _Note:
    """What is remembered of blocks that were evicted."""

    __slots__ = ("group", "last_access", "num_blocks")

    def __init__(self, group: int, last_access: int, num_blocks: int) -> None:
        self.group = group
        self.last_access = last_access
        self.num_blocks = num_blocks  # not yet stored again


class AdaptivePolicy(EvictionPolicy):
    """Evicts by age, where each class of leaves has an age limit of its own.

    Deterministic: the same calls give the same order. Memory: the leaves held, and what
    :class:`LruRival` keeps.

    Args:
        max_loss: share of all blocks asked for that it may fall behind LRU before it stops
            deviating from it. Below 0 it is LRU.
    """

    __slots__ = (
        "_ages",
        "_book",
        "_groups",
        "_max_loss",
        "_next_fit",
        "_now",
        "_num_blocks",
        "_num_leaves",
        "_rival",
        "_since",
    )

    def __init__(self, max_loss: float = _MAX_LOSS) -> None:
        self._max_loss = max_loss
        self._groups: list[SortedList] = [SortedList() for _ in range(_NUM_CLASSES)]
        self._ages = [1.0] * _NUM_CLASSES
        self._book = AgeBook(_NUM_CLASSES)
        self._rival = LruRival()
        self._now = 0
        self._since = 0  # tick of the first leaf, where that is late: a quota set on the way
        self._next_fit = _MIN_HORIZON
        self._num_leaves = 0
        self._num_blocks = 0

    # -- leaves ------------------------------------------------------------------------------

    def add(self, leaf: Node) -> None:
        """Take in a leaf. Cost: logarithmic in the number of leaves."""
        if leaf.last_access > self._now:
            self._advance(leaf.last_access)
        num_blocks = leaf.num_blocks
        entry = _Entry((leaf.last_access, leaf.node_id, leaf), _group(leaf), num_blocks)
        leaf.entry = entry
        self._groups[entry.group].add(entry.key)
        self._book.enter(entry.group, leaf.last_access, num_blocks)
        self._rival.cached(leaf.last_access, num_blocks)
        self._num_leaves += 1
        self._num_blocks += num_blocks

    def remove(self, leaf: Node) -> None:
        """Give up a leaf. Cost: logarithmic in the number of leaves."""
        entry = _entry(leaf)
        self._groups[entry.group].remove(entry.key)
        leaf.entry = None
        self._num_leaves -= 1
        if entry.num_blocks:
            self._book.leave(entry.group, entry.key[0], entry.num_blocks)
            self._take(entry, entry.num_blocks)

    def victim(self) -> Node | None:
        """Return the leaf that has used up most of its class's age, or None."""
        best: tuple[int, int, Node] | None = None
        most = 0.0
        for group, leaves in enumerate(self._groups):
            if leaves:
                key = leaves[0]
                share = (self._now + 1 - key[0]) / self._ages[group]
                if best is None or share > most or (share == most and key[:2] < best[:2]):
                    best, most = key, share
        return None if best is None else best[2]

    def joins(self, upper: Node, lower: Node) -> bool:
        """Agree unless the upper part was used after the lower one."""
        return upper.last_access <= lower.last_access

    # -- what it learns from -----------------------------------------------------------------

    def hit(self, node: Node, num_blocks: int) -> None:
        """Count a reuse, and what LRU would not have had of it."""
        if not node.num_blocks:
            return
        if not node.lock_count:
            block_bytes = len(node.key) // node.num_blocks
            self._rival.asked(node.start // block_bytes + num_blocks)
        self._count_gain(node, num_blocks)
        if node.entry is None or not num_blocks:
            return
        entry = _entry(node)
        self._book.reuse(entry.group, self._now - entry.key[0], num_blocks)
        self._book.leave(entry.group, entry.key[0], num_blocks)
        self._take(entry, num_blocks)

    def stored(self, node: Node, num_blocks: int, ghosts: Sequence[Lost]) -> None:
        """Count the reuse of blocks that were gone, and what LRU would still have had of them."""
        self._rival.asked(num_blocks)
        left = num_blocks
        for ghost in ghosts:
            note = ghost.note
            if not isinstance(note, _Note) or not left:
                break
            again = min(left, note.num_blocks)
            self._book.reuse(note.group, self._now - note.last_access, again)
            self._book.leave(note.group, note.last_access, again)
            self._rival.returned(note.last_access, again)
            note.num_blocks -= again
            left -= again

    def evicted(self, leaf: Node, num_blocks: int) -> object:
        """Note to which class the blocks belonged and how old they were."""
        entry = _entry(leaf)
        self._take(entry, num_blocks)
        self._rival.evicted(leaf.last_access, num_blocks)
        return _Note(entry.group, leaf.last_access, num_blocks)

    def _take(self, entry: _Entry, num_blocks: int) -> None:
        entry.num_blocks -= num_blocks
        self._num_blocks -= num_blocks
        self._rival.uncached(entry.key[0], num_blocks)

    def _count_gain(self, node: Node, num_blocks: int) -> None:
        """Count what was found older than LRU's memory reaches: from the end of the path up."""
        above: Node | None = node
        while above is not None and above.parent is not None:
            if above.last_access >= self._rival.horizon:
                break
            self._rival.gained(num_blocks)
            above = above.parent
            num_blocks = above.num_blocks

    def _advance(self, tick: int) -> None:
        if not self._now and tick > _MIN_HORIZON:
            self._since = tick
            self._book.begin(tick)
        self._now = tick
        memory = max(_MIN_HORIZON, tick - max(self._since, self._rival.horizon))
        self._book.advance(tick, memory)
        if tick >= self._next_fit:
            pause = max(16, memory // 8)
            self._next_fit = tick + pause
            self._rival.fade(pause / (_LOSS_MEMORY * memory))
            # Ages matter once something was evicted; until then each order is as good.
            if self._rival.horizon:
                trusted = self._rival.loss <= self._max_loss * self._rival.traffic
                self._ages = self._book.limits(self._num_blocks, uniform=not trusted)

    # -- inspection --------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._num_leaves

    def __iter__(self) -> Iterator[Node]:
        now = self._now + 1
        order = [
            ((key[0] - now) / self._ages[group], key)
            for group, leaves in enumerate(self._groups)
            for key in leaves
        ]
        return (key[2] for _, key in sorted(order, key=lambda item: (item[0], item[1][:2])))

    def check(self) -> None:
        """Raise CacheCorruptionError if a container is out of order or a count is wrong."""
        num_leaves = num_blocks = 0
        for group, leaves in enumerate(self._groups):
            previous = (-1, -1)
            for key in leaves:
                self._check_leaf(key, group, previous)
                previous = key[:2]
                num_blocks += key[2].num_blocks
            num_leaves += len(leaves)
        if (num_leaves, num_blocks) != (self._num_leaves, self._num_blocks):
            held = f"{num_leaves} leaves with {num_blocks} blocks"
            counted = f"{self._num_leaves} with {self._num_blocks}"
            raise CacheCorruptionError(f"adaptive policy: {held} are held, {counted} counted")

    @staticmethod
    def _check_leaf(key: tuple[int, int, Node], group: int, previous: tuple[int, int]) -> None:
        leaf = key[2]
        entry = leaf.entry
        if not isinstance(entry, _Entry) or entry.key is not key or entry.group != group:
            raise CacheCorruptionError(f"sorted container: {leaf!r}: its entry is not the one held")
        if key[:2] != (leaf.last_access, leaf.node_id) or entry.num_blocks != leaf.num_blocks:
            raise CacheCorruptionError(f"sorted container: {leaf!r}: entry out of date")
        if key[:2] <= previous:
            raise CacheCorruptionError(f"sorted container: {leaf!r}: out of order")


def _group(leaf: Node) -> int:
    """Return the class of a leaf: by its hits, and by whether it continues what is common."""
    parent = leaf.parent
    common = parent is None or parent.parent is None or parent.num_hits >= _COMMON_HITS
    return 2 * min(leaf.num_hits, _HIT_CLASSES - 1) + (not common)


def _entry(leaf: Node) -> _Entry:
    entry = leaf.entry
    if not isinstance(entry, _Entry):
        raise CacheCorruptionError(f"sorted container: {leaf!r} is not held")
    return entry
