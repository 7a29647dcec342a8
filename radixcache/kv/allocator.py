"""Who owns each block of the pool: nobody, a lease, or the tree.

::

      allocate            publish
    free ────────▶ leased ────────▶ tree
      ◀────────────  │                │
            free                      │
      ◀───────────────────────────────┘
                   reclaim

Every block has one state at any time, so a double free, a free of a block the tree owns, or a
publication of a free block is an error at once, not wrong text later.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from radixcache.errors import CacheCorruptionError, InvalidRequestError, OutOfBlocksError
from radixcache.kv.capacity import RESERVED_BLOCKS

__all__ = ["BlockAllocator"]

_FREE: Final = 0
_LEASED: Final = 1
_TREE: Final = 2
_RESERVED: Final = 3
_NAMES: Final = ("free", "leased", "owned by the tree", "reserved")
_MANY: Final = 32  # blocks from which numpy is faster than a loop


class BlockAllocator:
    """Hands out block ids 1 to ``num_blocks - 1``; block 0 is reserved for padding.

    Each operation costs time linear in the blocks it names and either succeeds or changes
    nothing.

    Args:
        num_blocks: blocks of the pool, the reserved one included; at least 2.
    """

    def __init__(self, num_blocks: int) -> None:
        if not isinstance(num_blocks, int) or num_blocks <= RESERVED_BLOCKS:
            raise InvalidRequestError("num_blocks", num_blocks, "2 or more")
        self._states = bytearray([_RESERVED]) + bytearray(num_blocks - RESERVED_BLOCKS)
        self._view = np.frombuffer(self._states, np.uint8)
        # A stack: what was freed last is warm in the processor's caches and goes out first.
        self._free = array("i", range(num_blocks - 1, RESERVED_BLOCKS - 1, -1))
        self._num_tree = 0

    def allocate(self, num_blocks: int) -> list[int]:
        """Take free blocks: free → leased.

        Raises:
            OutOfBlocksError: fewer are free; none is taken.
        """
        if num_blocks < 0:
            raise InvalidRequestError("num_blocks", num_blocks, "0 or more")
        if num_blocks > len(self._free):
            raise OutOfBlocksError(f"{num_blocks} blocks wanted, {len(self._free)} free")
        start = len(self._free) - num_blocks
        ids = self._free[start:]
        del self._free[start:]
        ids.reverse()
        if num_blocks < _MANY:
            for block in ids:
                self._states[block] = _LEASED
        else:
            self._view[np.frombuffer(ids, np.int32)] = _LEASED
        return ids.tolist()

    def free(self, block_ids: Sequence[int]) -> None:
        """Give back leased blocks: leased → free.

        Raises:
            CacheCorruptionError: one is not leased, or named twice; nothing has changed.
        """
        self._move(block_ids, _LEASED, _FREE, "free")
        self._free.extend(block_ids)

    def publish(self, block_ids: Sequence[int]) -> None:
        """Hand leased blocks to the tree: leased → tree.

        Raises:
            CacheCorruptionError: one is not leased, or named twice; nothing has changed.
        """
        self._move(block_ids, _LEASED, _TREE, "publish")
        self._num_tree += len(block_ids)

    def reclaim(self, block_ids: Sequence[int]) -> None:
        """Take back blocks that left the tree: tree → free.

        Raises:
            CacheCorruptionError: one is not the tree's, or named twice; nothing has changed.
        """
        self._move(block_ids, _TREE, _FREE, "reclaim")
        self._num_tree -= len(block_ids)
        self._free.extend(block_ids)

    def _move(self, block_ids: Sequence[int], before: int, after: int, verb: str) -> None:
        states = self._states
        if len(block_ids) >= _MANY and self._move_many(block_ids, before, after):
            return
        for done, block in enumerate(block_ids):
            if not 0 <= block < len(states) or states[block] != before:
                for moved in block_ids[:done]:
                    states[moved] = before
                raise CacheCorruptionError(f"{verb}: block {block} is {self.state(block)}")
            states[block] = after

    def _move_many(self, block_ids: Sequence[int], before: int, after: int) -> bool:
        """Do the whole move at once; False, with nothing changed, if a block stands against it."""
        ids = np.asarray(block_ids, np.int64)
        if ids.min() < 0 or ids.max() >= len(self._states):
            return False
        rising = np.count_nonzero(ids[1:] > ids[:-1]) == len(ids) - 1
        if not rising and len(np.unique(ids)) < len(ids):
            return False
        if np.count_nonzero(self._view[ids] == before) < len(ids):
            return False
        self._view[ids] = after
        return True

    def state(self, block_id: int) -> str:
        """Return a block's state in words."""
        if not 0 <= block_id < len(self._states):
            return f"not in the pool of {len(self._states)} blocks"
        return _NAMES[self._states[block_id]]

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, the reserved one included."""
        return len(self._states)

    @property
    def num_free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._free)

    @property
    def num_tree(self) -> int:
        """Blocks that the tree owns."""
        return self._num_tree

    @property
    def num_leased(self) -> int:
        """Blocks that leases own."""
        return len(self._states) - RESERVED_BLOCKS - len(self._free) - self._num_tree

    def check(
        self, *, leased: Iterable[int] | None = None, tree: Iterable[int] | None = None
    ) -> None:
        """Verify the free list, and who owns what against the owners' own records where given.

        Cost: the whole pool.

        Raises:
            CacheCorruptionError: naming the fault and the block.
        """
        self._check_owner(_FREE, self._free)
        self._check_owner(_RESERVED, range(RESERVED_BLOCKS))
        if self._states.count(_TREE) != self._num_tree:
            counted = self._states.count(_TREE)
            raise CacheCorruptionError(f"num_tree says {self._num_tree}, {counted} are the tree's")
        if leased is not None:
            self._check_owner(_LEASED, leased)
        if tree is not None:
            self._check_owner(_TREE, tree)

    def _check_owner(self, state: int, claimed: Iterable[int]) -> None:
        seen = bytearray(len(self._states))
        for block in claimed:
            if self.state(block) != _NAMES[state]:
                fault = f"block {block} should be {_NAMES[state]} but is {self.state(block)}"
                raise CacheCorruptionError(fault)
            if seen[block]:
                raise CacheCorruptionError(f"block {block} is {_NAMES[state]} twice")
            seen[block] = 1
        for block, actual in enumerate(self._states):
            if actual == state and not seen[block]:
                raise CacheCorruptionError(f"lost block: {block} is {_NAMES[state]} to nobody")
