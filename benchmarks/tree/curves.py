"""What each operation of the tree costs against the tree's size: 10³ to 10⁶ nodes.

    python -m benchmarks.tree.curves
    python -m benchmarks.tree.curves --sizes 1000,10000

The tree: groups of 100 leaves, 64 tokens shared by a group and 64 of each leaf, blocks of 16. Each
figure is the median over batches of the CPU time for one operation, on leaves drawn at random: a
large tree pays for memory that no cache of the processor holds, and should pay for nothing else.
What a batch adds is evicted again before the next, so the size stays.
"""

import argparse
import gc
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, machine, machine_line, median, save, table
from radixcache import RadixTree
from radixcache.types import PUBLIC, Namespace

SIZES = (1_000, 10_000, 100_000, 1_000_000)
BLOCK = 16
GROUP = 100  # leaves under one shared node
PART = 64  # tokens of a group's node and of a leaf
LEAF_BLOCKS = PART // BLOCK
SPACE = Namespace("bench", PUBLIC)
REBUILT = 10_000  # up to this size what one operation evicts would be missed by the next
BATCHES = 15
BATCH = 20


class Bed:
    """A tree of about ``num_nodes`` nodes and the keys of its leaves."""

    def __init__(self, num_nodes: int) -> None:
        self.tree = RadixTree(BLOCK)
        self._rng = np.random.default_rng(num_nodes)
        self._filler = self._rng.integers(0, 128_000, PART, dtype=np.int32)
        self._next_block = 0
        self._new_leaf = count(num_nodes)
        self.num_leaves = num_nodes * GROUP // (GROUP + 1)
        start = time.process_time()
        for leaf in range(self.num_leaves):
            self.insert(self.key(leaf))
        self.build_s = time.process_time() - start

    def key(self, leaf: int, extra: int = 0) -> "array[int]":
        """Return the tokens of a leaf: the group's, its own, and ``extra`` more."""
        part = self._filler.copy()
        part[0] = leaf // GROUP
        key = array("i", part.tobytes())
        part[1] = leaf + 1
        key.frombytes(part.tobytes())
        key.extend(range(extra))
        return key

    def blocks(self, num_blocks: int) -> "array[int]":
        """Return block ids never used before."""
        first = self._next_block
        self._next_block += num_blocks
        return array("i", range(first, first + num_blocks))

    def insert(self, key: "array[int]") -> None:
        """Insert a leaf's key with fresh blocks."""
        self.tree.insert(key, self.blocks(len(key) // BLOCK), namespace=SPACE)

    def some_keys(self, extra: int = 0) -> "list[array[int]]":
        """Return the keys of a batch of leaves that are there, drawn at random."""
        drawn = self._rng.choice(self.num_leaves, BATCH, replace=False)
        return [self.key(int(leaf), extra) for leaf in drawn]

    def new_keys(self) -> "list[array[int]]":
        """Return the keys of a batch of leaves that are not there, below groups that are."""
        return [self._fresh_key() for _ in range(BATCH)]

    def _fresh_key(self) -> "array[int]":
        key = self.key(int(self._rng.integers(self.num_leaves)))
        key[PART + 1] = next(self._new_leaf)
        return key


def timed(run: Callable[[], object], operations: int) -> float:
    """Return the CPU time of one of the operations that ``run`` does, in µs."""
    start = time.process_time()
    run()
    return (time.process_time() - start) / operations * 1e6


def time_match(bed: Bed) -> float:
    """Look up 128 tokens and read their block ids."""
    keys, match = bed.some_keys(extra=8), bed.tree.match
    return timed(lambda: [match(key, namespace=SPACE).block_ids for key in keys], BATCH)


def time_lock(bed: Bed) -> float:
    """Look up, lock and unlock."""
    keys, lock, unlock = bed.some_keys(), bed.tree.lock, bed.tree.unlock
    return timed(lambda: [unlock(lock(key, namespace=SPACE)) for key in keys], BATCH)


def time_insert(bed: Bed) -> float:
    """Add a leaf of 64 tokens; the batch is evicted again untimed."""
    keys, insert = bed.new_keys(), bed.tree.insert
    given = [(key, bed.blocks(len(key) // BLOCK)) for key in keys]
    spent = timed(lambda: [insert(key, ids, namespace=SPACE) for key, ids in given], BATCH)
    bed.tree.evict(BATCH * LEAF_BLOCKS)
    return spent


def time_extend(bed: Bed) -> float:
    """Publish one more block at the end of a locked leaf."""
    tree = bed.tree
    block = array("i", range(BLOCK))
    locks = [tree.lock(key, namespace=SPACE) for key in bed.some_keys()]
    given = [(lock, bed.blocks(1)) for lock in locks]
    moved: list[Any] = []
    spent = timed(lambda: moved.extend(tree.extend(lock, block, ids) for lock, ids in given), BATCH)
    for extended in moved:
        tree.unlock(extended.lock)
    tree.evict(BATCH)
    return spent


def time_evict_leaf(bed: Bed) -> float:
    """Evict as many blocks as one leaf has; the leaves are made up for afterwards."""
    evict = bed.tree.evict
    spent = timed(lambda: [evict(LEAF_BLOCKS) for _ in range(BATCH)], BATCH)
    for key in bed.new_keys():
        bed.insert(key)
    return spent


def evict_leaves(num_leaves: int) -> Callable[[Bed], float]:
    """Return a timer of one call that evicts the blocks of ``num_leaves`` leaves."""

    def time_evict(bed: Bed) -> float:
        spent = timed(lambda: bed.tree.evict(num_leaves * LEAF_BLOCKS), 1)
        for _ in range(num_leaves // BATCH + 1):
            for key in bed.new_keys():
                bed.insert(key)
        return spent

    return time_evict


def time_view(bed: Bed) -> float:
    """Take a picture of the 100 largest subtrees."""
    return timed(lambda: bed.tree.view(100), 1)


def time_explain(bed: Bed) -> float:
    """Say why a look-up stopped where it did."""
    explain = bed.tree.explain
    keys = bed.new_keys()
    return timed(lambda: [explain(key, namespace=SPACE) for key in keys], BATCH)


def time_collect(_: Bed) -> float:
    """Let Python's collector look at everything: the longest pause a large tree can cause."""
    return timed(gc.collect, 1)


OPERATIONS: dict[str, tuple[Callable[[Bed], float], int, int]] = {
    # name: (timer, batches, nodes below which it would empty the tree)
    "match 128 tokens": (time_match, BATCHES, 0),
    "lock + unlock": (time_lock, BATCHES, 0),
    "insert a leaf of 64 tokens": (time_insert, BATCHES, 0),
    "extend by a block": (time_extend, BATCHES, 0),
    "evict one leaf": (time_evict_leaf, BATCHES, 0),
    "evict 10 leaves in one call": (evict_leaves(10), BATCHES, 0),
    "evict 100 leaves in one call": (evict_leaves(100), 5, 500),
    "evict 1000 leaves in one call": (evict_leaves(1000), 3, 5_000),
    "view(100)": (time_view, 5, 0),
    "explain": (time_explain, BATCHES, 0),
    "(full garbage collection)": (time_collect, 3, 0),
}


def measure(num_nodes: int) -> dict[str, Any]:
    """Return the figures of one tree size, in µs by operation."""
    bed = Bed(num_nodes)
    found: dict[str, Any] = {
        "nodes": bed.tree.num_nodes,
        "build_s": round(bed.build_s, 2),
        "rss_mib": _rss_mib(),
        "us": {},
    }
    for name, (timer, batches, least) in OPERATIONS.items():
        if num_nodes < least or (name == "explain" and not hasattr(bed.tree, "explain")):
            continue
        if num_nodes <= REBUILT:
            bed = Bed(num_nodes)
        found["us"][name] = round(median([timer(bed) for _ in range(batches)]), 2)
    bed.tree.check()
    return found


def _rss_mib() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 // 2**20


def report(results: Sequence[dict[str, Any]], facts: dict[str, Any]) -> str:
    """Return the curves as Markdown; the last column is largest tree over smallest."""
    rows = []
    for name in OPERATIONS:
        costs = [result["us"].get(name) for result in results]
        known = [cost for cost in costs if cost is not None]
        if known:
            growth = f"{known[-1] / known[0]:.1f}"
            rows.append([name, *costs, growth])
    head = ["µs", *(f"{result['nodes']:,} nodes" for result in results), "growth"]
    sizes = ", ".join(
        f"{result['nodes']:,} nodes in {result['build_s']} s at {result['rss_mib']} MiB"
        for result in results
    )
    lines = (__doc__ or "").split("\n\n")
    return "\n\n".join(
        (
            "# Cost against the size of the tree",
            machine_line(facts),
            lines[-1].strip(),
            table(head, rows),
            f"Built: {sizes} of memory for the whole process.",
        )
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every size, print the table and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args(argv)
    facts = machine()
    results = []
    for size in map(int, args.sizes.split(",")):
        results.append(measure(size))
        print(f"{size:,} nodes: done", file=sys.stderr)
        gc.collect()
    text = report(results, facts)
    print(text)
    save("tree-curves", {"machine": facts, "results": results}, text, args.out)


if __name__ == "__main__":
    main()
