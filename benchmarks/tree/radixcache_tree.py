"""Our tree on the interface of the prefix-tree benchmark (``bench_tree.py`` explains it).

Only public calls of ``RadixTree``. A key is what a request holds after tokenisation: its token
ids as ``array('i')``, which the tree views and never copies. Values are block ids; ``indices``
turns them into the slots of single tokens as the benchmark wants them, although our attention
reads block ids and never needs that step.
"""

import sys
from array import array
from pathlib import Path
from typing import Any

import numpy as np

# bench_tree.py loads this file by its path, from wherever it is started.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from radixcache import RadixTree
from radixcache.types import PUBLIC, Namespace

SPACE = Namespace("bench", PUBLIC)


class RadixcacheTree:
    """Matched tokens and handles as the benchmark asks for them."""

    name = "radixcache"

    def __init__(self, page_size: int) -> None:
        self._page = page_size
        self._tree = RadixTree(page_size)
        self._slots = np.empty((0, page_size), np.int32)  # of each block, a row

    def prep(self, tokens: Any) -> Any:
        """Return the native key of a sequence; not timed."""
        return array("i", tokens)

    def vals(self, start: int, n: int) -> Any:
        """Return the ids of the blocks of ``n`` slots; not timed."""
        first = start // self._page
        stop = first + n // self._page
        if stop > len(self._slots):  # as an engine would make it once, for its pool
            rows = max(stop, 2 * len(self._slots))
            self._slots = np.arange(rows * self._page, dtype=np.int32).reshape(rows, self._page)
        return array("i", range(first, stop))

    def match(self, key: Any) -> tuple[int, Any]:
        """Return the matched tokens and a handle to read and lock them by."""
        found = self._tree.match(key, namespace=SPACE)
        return found.num_tokens, found

    def indices(self, handle: Any, n: int) -> Any:
        """Return the slots of the matched tokens."""
        ids = handle.block_ids
        if self._page == 1:
            return ids
        # mode="clip" spares numpy a buffer; no id lies outside the table.
        return self._slots.take(np.frombuffer(ids, np.int32), axis=0, mode="clip").reshape(-1)

    def insert(self, key: Any, values: Any) -> tuple[int, Any]:
        """Insert; return the tokens that were present and a handle to lock the path by."""
        done = self._tree.insert(key, values, namespace=SPACE)
        return done.num_present, done

    def lock(self, handle: Any) -> Any:
        """Lock the path of a handle."""
        return self._tree.lock_match(handle)

    def unlock(self, lock: Any) -> None:
        """End a lock."""
        self._tree.unlock(lock)

    def evict(self, n: int) -> int:
        """Evict at least ``n`` tokens: the whole blocks that takes; return how many went."""
        return len(self._tree.evict(-(-n // self._page))) * self._page

    def size(self) -> int:
        """Return the tokens held."""
        return self._tree.num_blocks * self._page
