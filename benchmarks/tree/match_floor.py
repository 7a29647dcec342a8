"""A match of 100,000 warm tokens against a plain comparison of the same bytes.

    python -m benchmarks.tree.match_floor

One node costs the comparison and one step; a path of 200 nodes, each with a sibling so that none
can be one with the next, costs the comparison and 200 steps. CPU time, median over batches.
"""

import argparse
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, machine, machine_line, median, save, table
from radixcache import RadixTree
from radixcache.types import PUBLIC, Namespace

TOKENS = 96_000  # 200 nodes of whole blocks at every block size measured
NODES = 200
BLOCK_SIZES = (1, 16)
BATCHES = 25
BATCH = 20
SPACE = Namespace("bench", PUBLIC)


def timed_us(call: Callable[[], object]) -> float:
    """Return the CPU time of one call in µs."""
    spent = []
    for _ in range(BATCHES):
        start = time.process_time()
        for _ in range(BATCH):
            call()
        spent.append((time.process_time() - start) / BATCH * 1e6)
    return median(spent)


def tree_of(tokens: "array[int]", block_size: int, nodes: int) -> RadixTree:
    """Return a tree that holds ``tokens`` as a path of so many nodes, each with a sibling."""
    tree = RadixTree(block_size)
    step = len(tokens) // nodes
    for end in range(step, len(tokens) + 1, step):
        fork = tokens[: end - step] + array("i", [-1] * block_size)
        for path in (tokens[:end], fork) if nodes > 1 else (tokens[:end],):
            ids = array("i", range(len(path) // block_size))
            tree.insert(path, ids, namespace=SPACE)
    return tree


def measure(block_size: int, num_tokens: int = TOKENS, nodes: int = NODES) -> dict[str, Any]:
    """Return the figures of one block size."""
    rng = np.random.default_rng(1)
    tokens = array("i", rng.integers(0, 128_000, num_tokens, dtype=np.int32).tobytes())
    asked = tokens + array("i", range(block_size * 2))  # a further turn asks for more
    view = memoryview(asked).cast("B")[: num_tokens * 4]
    held = bytearray(view)
    one, path = tree_of(tokens, block_size, 1), tree_of(tokens, block_size, nodes)
    for tree in (one, path):
        found = tree.match(asked, namespace=SPACE).num_tokens
        if found != num_tokens:
            raise SystemExit(f"matched {found} of {num_tokens} tokens")
    figures = {
        "plain comparison": timed_us(lambda: held == view),
        "match, 1 node": timed_us(lambda: one.match(asked, namespace=SPACE)),
        "match + block ids, 1 node": timed_us(lambda: one.match(asked, namespace=SPACE).block_ids),
        f"match, {nodes} nodes": timed_us(lambda: path.match(asked, namespace=SPACE)),
    }
    steps = figures[f"match, {nodes} nodes"] - figures["plain comparison"]
    return {
        "block_size": block_size,
        "us": {name: round(value, 2) for name, value in figures.items()},
        "ratio": round(figures["match, 1 node"] / figures["plain comparison"], 2),
        "us_per_node": round(steps / nodes, 3),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the table and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=TOKENS, help="a multiple of 3200")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args(argv)
    facts = machine()
    results = [measure(size, args.tokens) for size in BLOCK_SIZES]
    rows = [[name, *(run["us"][name] for run in results)] for name in results[0]["us"]]
    rows.append(["1 node over plain, ×", *(run["ratio"] for run in results)])
    rows.append(["a node beyond plain, µs", *(run["us_per_node"] for run in results)])
    head = ["µs", *(f"block size {run['block_size']}" for run in results)]
    text = "\n\n".join(("# A warm match against its floor", machine_line(facts), table(head, rows)))
    print(text)
    save(
        "tree-match", {"machine": facts, "tokens": args.tokens, "results": results}, text, args.out
    )


if __name__ == "__main__":
    main()
