"""Policies that were tried beside the adaptive one and did not make it. Not part of the library."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from sortedcontainers import SortedList  # type: ignore[import-untyped]  # ships no types

from radixcache.tree.adaptive import AdaptivePolicy
from radixcache.tree.lost import Lost
from radixcache.tree.node import Node
from radixcache.tree.policy import EvictionPolicy, SortedPolicy

__all__ = ["CANDIDATES"]

_TOKENS: Final = 512  # a block of the traces


class FixedScore(SortedPolicy):
    """LRU in seconds, with a bonus for each hit and a penalty for each token of the prompt."""

    def __init__(self, per_hit_s: float, per_token_s: float) -> None:
        super().__init__()
        self._per_hit_s = per_hit_s
        self._per_token_s = per_token_s

    def rank(self, leaf: Node) -> Any:
        """Return the moment of the last access, changed by bonus and penalty."""
        blocks = (leaf.start + len(leaf.key)) * leaf.num_blocks // len(leaf.key)
        score = leaf.num_hits * self._per_hit_s - blocks * _TOKENS * self._per_token_s
        return leaf.last_access_s + score

    def check(self) -> None:
        """Nothing: a trial. A trimmed leaf keeps the rank it had."""

    def joins(self, upper: Node, lower: Node) -> bool:
        """Agree unless the upper part was used after the lower one."""
        return upper.last_access <= lower.last_access


class ArcLike(EvictionPolicy):
    """Two orders of recency, hit before or not; what comes back shifts the room between them."""

    def __init__(self) -> None:
        self._orders = (SortedList(), SortedList())
        self._blocks = [0, 0]
        self._target = 0.0  # blocks that those never hit may keep
        self._ghosts = [1.0, 1.0]

    def add(self, leaf: Node) -> None:
        """Take in a leaf."""
        side = int(leaf.num_hits > 0)
        leaf.entry = (leaf.last_access, leaf.node_id, leaf, side)
        self._orders[side].add(leaf.entry)
        self._blocks[side] += leaf.num_blocks

    def remove(self, leaf: Node) -> None:
        """Give up a leaf."""
        entry: Any = leaf.entry
        self._orders[entry[3]].remove(entry)
        self._blocks[entry[3]] -= leaf.num_blocks
        leaf.entry = None

    def victim(self) -> Node | None:
        """Return the least recent leaf of the side that has more than its target."""
        side = 0 if self._blocks[0] > self._target else 1
        order = self._orders[side] or self._orders[1 - side]
        return order[0][2] if order else None

    def joins(self, upper: Node, lower: Node) -> bool:
        """Agree within a side."""
        same = (upper.num_hits > 0) == (lower.num_hits > 0)
        return same and upper.last_access <= lower.last_access

    def hit(self, node: Node, num_blocks: int) -> None:
        """Let go of the blocks that a cut takes from a held leaf; the rest of it counts on."""
        entry: Any = node.entry
        if entry is not None and num_blocks < node.num_blocks:
            self._blocks[entry[3]] -= num_blocks

    def evicted(self, leaf: Node, num_blocks: int) -> object:
        """Note the side."""
        entry: Any = leaf.entry
        if num_blocks < leaf.num_blocks:
            self._blocks[entry[3]] -= num_blocks
        self._ghosts[entry[3]] += num_blocks
        return entry[3]

    def stored(self, node: Node, num_blocks: int, ghosts: Sequence[Lost]) -> None:
        """Give the side more room from which blocks are missed."""
        for ghost in ghosts[:1]:
            other = self._ghosts[1 - int(bool(ghost.note))] / self._ghosts[int(bool(ghost.note))]
            step = num_blocks * max(1.0, min(8.0, other))
            self._target += -step if ghost.note else step
        self._target = min(max(self._target, 0.0), float(sum(self._blocks)))

    def __len__(self) -> int:
        return sum(map(len, self._orders))

    def __iter__(self) -> Iterator[Node]:
        return (entry[2] for order in self._orders for entry in order)

    def check(self) -> None:
        """Nothing: a trial."""


class HitDensity(AdaptivePolicy):
    """LHD-like: the same counts and classes, but the head with the least reuse for room goes."""

    def __init__(self) -> None:
        super().__init__()
        self._density: list[list[float]] = []
        self._density_of = -1

    def victim(self) -> Node | None:
        """Return, of the classes' heads, the one whose age promises least."""
        best: tuple[float, int, Node] | None = None
        if self._rival.horizon and self._density_of != self._next_fit:
            expected = self._book._expected_reuse() / (self._book._room + 1e-9)
            # The best that is still to come, at this age or a later one.
            self._density = np.maximum.accumulate(expected[:, ::-1], axis=1)[:, ::-1].tolist()
            self._density_of = self._next_fit
        for group, leaves in enumerate(self._groups):
            if leaves:
                key = leaves[0]
                span = min(47, int(2 * math.log2(self._now + 2 - key[0])))
                density = self._density[group][span] if self._density else 0.0
                if best is None or (density, key[0]) < best[:2]:
                    best = (density, key[0], key[2])
        return None if best is None else best[2]


CANDIDATES: Final[Mapping[str, Callable[[], EvictionPolicy]]] = MappingProxyType(
    {
        "turn bonus": lambda: FixedScore(60.0, 0.0),
        "size penalty": lambda: FixedScore(0.0, 60.0 / 10_240),
        "both, half": lambda: FixedScore(30.0, 30.0 / 10_240),
        "arc-like": ArcLike,
        "hit density": HitDensity,
        "adaptive, no safety": lambda: AdaptivePolicy(max_loss=math.inf),
    }
)
"""Every candidate by name."""
