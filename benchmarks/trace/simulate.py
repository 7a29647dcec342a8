"""Hit rates of eviction policies on the conversation trace and on made-up traffic.

``leaf_lru`` and ``offline_optimum`` are exact simulations, block by block. ``replay`` drives the
real tree, one token for each block of the trace (an id stands for its whole prefix, so the tree
has the same shape), and counts in the same way: what a request finds, then it is stored whole.

    python -m benchmarks.trace.simulate shared/data/conversation_trace.jsonl --seeds 101 102 103

prints, for each policy and each traffic, the hit rate less that of leaf LRU at 2, 5, 10, 20, 50
and 100 % of the distinct blocks.
"""

import argparse
import heapq
import json
import sys
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from benchmarks.trace.candidates import CANDIDATES
from benchmarks.trace.workloads import WORKLOADS, generate
from radixcache.tree import RadixTree
from radixcache.tree.policies import POLICIES, PolicyFactory

__all__ = ["CAPACITIES", "leaf_lru", "load", "offline_optimum", "replay"]

CAPACITIES: Final = (0.02, 0.05, 0.10, 0.20, 0.50, 1.00)

Request: TypeAlias = tuple[float, Sequence[int]]
"""Seconds since the start, hash ids."""


def load(path: Path) -> list[Request]:
    """Return the requests of a trace in the record format."""
    with path.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return [(record["timestamp"] / 1000, record["hash_ids"]) for record in records]


def num_distinct(requests: Sequence[Request]) -> int:
    """Return how many blocks there are."""
    return len({block for _, blocks in requests for block in blocks})


def leaf_lru(requests: Sequence[Request], capacity: int) -> int:
    """Return the block hits of a cache of ``capacity`` blocks that evicts the least recent leaf."""
    cached: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for _, blocks in requests:
        hits += _num_found(blocks, cached)
        # Deepest first: a block is then always older than those above it, hence a leaf.
        for block in reversed(blocks):
            cached[block] = None
            cached.move_to_end(block)
        while len(cached) > capacity:
            cached.popitem(last=False)
    return hits


def offline_optimum(requests: Sequence[Request], capacity: int) -> int:
    """Return the block hits of a cache that evicts the block which is asked for latest."""
    never = len(requests)
    upcoming: dict[int, int] = {}
    next_use: list[list[int]] = []
    for turn in range(never - 1, -1, -1):
        blocks = requests[turn][1]
        next_use.append([upcoming.get(block, never) for block in blocks])
        upcoming.update(dict.fromkeys(blocks, turn))
    cached: dict[int, int] = {}
    order: list[tuple[int, int, int]] = []
    hits = 0
    for (_, blocks), uses in zip(requests, reversed(next_use), strict=True):
        hits += _num_found(blocks, cached)
        for depth, (block, use) in enumerate(zip(blocks, uses, strict=True)):
            cached[block] = use
            heapq.heappush(order, (-use, -depth, block))
        while len(cached) > capacity:
            use, _, block = heapq.heappop(order)
            if cached.get(block) == -use:
                del cached[block]
    return hits


def _num_found(blocks: Sequence[int], cached: Mapping[int, object]) -> int:
    for depth, block in enumerate(blocks):
        if block not in cached:
            return depth
    return len(blocks)


def replay(requests: Sequence[Request], capacity: int, policy: str | PolicyFactory) -> int:
    """Return the block hits of the real tree, held to ``capacity`` blocks."""
    now = 0.0
    tree = RadixTree(1, policy=policy, clock=lambda: now)
    hits = next_id = 0
    for now, blocks in requests:  # noqa: B007  the clock reads it
        tokens = array("i", blocks)
        lock = tree.lock(tokens, namespace="trace")
        found = lock.num_tokens
        hits += found
        missing = len(tokens) - found
        room = capacity - tree.num_blocks
        if missing > room:
            room += len(tree.evict(missing - room))
        new = min(missing, room)
        if new:
            ids = array("i", range(next_id, next_id + new))
            next_id = (next_id + new) % 2**30
            lock = tree.extend(lock, tokens[found : found + new], ids).lock
        tree.unlock(lock)
    tree.check()
    return hits


def _traffic(trace: Path, seeds: Sequence[int]) -> Iterator[tuple[str, list[Request]]]:
    yield "trace", load(trace)
    for name in WORKLOADS:
        for seed in seeds:
            records = generate(name, seed)
            yield (
                f"{name} {seed}",
                [(record["timestamp"] / 1000, record["hash_ids"]) for record in records],
            )


def _report(name: str, requests: Sequence[Request], policies: Mapping[str, object]) -> None:
    total = sum(len(blocks) for _, blocks in requests)
    capacities = [max(1, int(share * num_distinct(requests))) for share in CAPACITIES]
    lru = [leaf_lru(requests, capacity) for capacity in capacities]
    best = [offline_optimum(requests, capacity) for capacity in capacities]
    for label, rates in (("leaf LRU", lru), ("offline optimum", best)):
        _row(name, label, [f"{rate / total:.3f}" for rate in rates])
    for label, policy in policies.items():
        hits = [replay(requests, capacity, policy) for capacity in capacities]  # type: ignore[arg-type]
        gains = [f"{(own - other) / total:+.4f}" for own, other in zip(hits, lru, strict=True)]
        _row(name, label, gains)


def _row(*cells: str | Sequence[str]) -> None:
    flat = [part for cell in cells for part in ([cell] if isinstance(cell, str) else cell)]
    sys.stdout.write("| " + " | ".join(flat) + " |\n")
    sys.stdout.flush()


def main() -> None:
    """Print the table."""
    known: dict[str, str | PolicyFactory] = {name: name for name in POLICIES}
    known |= CANDIDATES
    parser = argparse.ArgumentParser(description="Hit rates of eviction policies.")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--policies", nargs="*", choices=list(known), default=list(known))
    options = parser.parse_args()
    _row("traffic", "policy", [f"{share:.0%}" for share in CAPACITIES])
    _row(["---"] * 8)
    policies = {name: known[name] for name in options.policies}
    for name, requests in _traffic(options.trace, options.seeds):
        _report(name, requests, policies)


if __name__ == "__main__":
    main()
