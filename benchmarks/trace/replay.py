"""Replays the conversation trace through the real cache: tree, allocator and leases.

    python -m benchmarks.trace.replay                                    all capacities, LRU
    python -m benchmarks.trace.replay --block-size 64 --policies lru,slru --capacities 2,5
    python -m benchmarks.trace.replay --profile --capacities 10          where the time goes

Each request acquires a lease, extends it, commits and releases it. A hash id of the trace stands
for 512 tokens made from it, the last one of a request too, and the cache is asked for all of them
but for one fresh token at the end, which it never matches. So a hit is counted exactly as in the
simulation: whole blocks of 512 that were found, of all blocks asked for. A capacity is a share of
the distinct blocks of 512 in the trace.
"""

import argparse
import cProfile
import gc
import importlib
import json
import pstats
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, SHARED, machine, machine_line, save, table
from radixcache.cache import PrefixCache
from radixcache.kv.capacity import RESERVED_BLOCKS
from radixcache.types import PUBLIC, Namespace

TRACE = SHARED / "data" / "conversation_trace.jsonl"
CAPACITIES = (2, 5, 10, 20, 50, 100)
SPAN = 512  # tokens of a hash id
VOCABULARY = 128_000
SPACE = Namespace("trace", PUBLIC)


class Trace:
    """The requests, and the tokens that their hash ids stand for."""

    def __init__(self, path: Path, num_requests: int | None = None) -> None:
        with path.open(encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        self.requests: list[tuple[float, list[int]]] = [  # seconds since the start, hash ids
            (record["timestamp"] / 1000, record["hash_ids"]) for record in records[:num_requests]
        ]
        distinct = sorted({one for _, ids in self.requests for one in ids})
        self._place = {one: place for place, one in enumerate(distinct)}
        self._tokens = _tokens_of(np.array(distinct, np.int64))
        self.num_distinct = len(distinct)
        self.num_spans = sum(len(ids) for _, ids in self.requests)

    def capacity(self, percent: float) -> int:
        """Return a share of the distinct blocks as a number of them."""
        return max(1, int(self.num_distinct * percent / 100))

    def sequences(self) -> "Iterator[tuple[float, array[int]]]":
        """Yield each request's time, and its tokens with a fresh one at the end."""
        place, tokens = self._place, self._tokens
        for seconds, ids in self.requests:
            sequence = array("i", tokens[[place[one] for one in ids]].tobytes())
            sequence.append(VOCABULARY)
            yield seconds, sequence


def _tokens_of(ids: "np.ndarray[Any, np.dtype[np.int64]]") -> "np.ndarray[Any, np.dtype[np.int32]]":
    """Return int32 [len(ids), 512]: token ids in the vocabulary's range, the same for equal ids."""
    tokens = np.empty((len(ids), SPAN), np.int32)
    for row in range(0, len(ids), 4096):  # in parts, because the products are of 64 bits
        mixed = (ids[row : row + 4096, None] * SPAN + np.arange(SPAN) + 1).astype(np.uint64)
        mixed *= np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        tokens[row : row + 4096] = (mixed >> np.uint64(33)) % np.uint64(VOCABULARY)
    return tokens


def replay(trace: Trace, percent: float, block_size: int, policy: str) -> dict[str, Any]:
    """Send the whole trace through one cache; return hits, times and what it counted."""
    capacity = trace.capacity(percent) * SPAN // block_size
    seconds = 0.0
    cache = PrefixCache(
        capacity + RESERVED_BLOCKS, block_size=block_size, policy=policy, clock=lambda: seconds
    )
    gc.collect()
    hits = refused = 0
    spent = making = 0.0
    now = time.process_time()
    for seconds, tokens in trace.sequences():  # noqa: B007  the cache's clock reads them
        before, now = now, time.process_time()
        making += now - before
        length = len(tokens) - 1
        lease = cache.acquire(SPACE, tokens)
        hits += lease.num_cached_tokens // SPAN
        if length <= capacity * block_size:
            lease.extend(length)
            lease.commit(tokens, length)
        else:
            refused += 1
        lease.release()
        before, now = now, time.process_time()
        spent += now - before
    leaked = cache.num_leased_blocks + cache.num_locked_blocks + cache.num_leases
    if leaked:
        raise SystemExit(f"leaked: {cache!r}")
    cache.check()
    return {
        "policy": policy,
        "block_size": block_size,
        "percent": percent,
        "blocks": capacity,
        "hits": hits,
        "hit_rate": round(hits / trace.num_spans, 4),
        "refused": refused,
        "cache_s": round(spent, 2),
        "tokens_s": round(making, 2),
        "us_per_request": round(spent / len(trace.requests) * 1e6, 1),
        "nodes": cache.num_nodes,
        "evicted_blocks": cache.counters.evicted_blocks,
    }


def simulated(trace: Trace, percents: Sequence[float]) -> dict[str, dict[float, float]]:
    """Return the hit rates of the exact simulations; empty where there are none."""
    try:
        simulate = importlib.import_module("benchmarks.trace.simulate")
    except ModuleNotFoundError:
        return {}
    return {
        name: {
            percent: round(run(trace.requests, trace.capacity(percent)) / trace.num_spans, 4)
            for percent in percents
        }
        for name, run in (
            ("leaf LRU", simulate.leaf_lru),
            ("offline optimum", simulate.offline_optimum),
        )
    }


def report(
    trace: Trace,
    results: Sequence[dict[str, Any]],
    expected: dict[str, dict[float, float]],
    facts: dict[str, Any],
) -> str:
    """Return the runs as Markdown."""
    rows = []
    for run in results:
        beside = [expected[name].get(run["percent"]) for name in expected]
        figures = [run["hit_rate"], *beside, run["cache_s"], run["us_per_request"], run["nodes"]]
        rows.append([run["policy"], run["block_size"], f"{run['percent']:g} %", *figures])
    head = ["policy", "block size", "capacity", "hit rate", *expected]
    summary = (
        f"{len(trace.requests):,} requests, {trace.num_spans * SPAN / 1e6:.1f} M tokens, "
        f"{trace.num_distinct:,} distinct blocks of {SPAN}. Hit rate in blocks of {SPAN}. CPU time "
        f"of the cache alone. After each run check() passed and no block was leased or locked."
    )
    return "\n\n".join(
        (
            "# The conversation trace through the real cache",
            machine_line(facts),
            summary,
            table([*head, "cache, s", "µs a request", "nodes"], rows),
        )
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--requests", type=int, help="only the first so many")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--policies", default="lru")
    parser.add_argument("--capacities", default=",".join(map(str, CAPACITIES)), help="in %%")
    parser.add_argument("--no-simulation", action="store_true", help="leave out what is expected")
    parser.add_argument("--profile", action="store_true", help="print the costliest functions")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Replay at every capacity, print the table and write the results."""
    args = parse(argv)
    facts = machine()
    trace = Trace(args.trace, args.requests)
    percents = [float(one) for one in args.capacities.split(",")]
    results = []
    profiler = cProfile.Profile()
    for policy in args.policies.split(","):
        for percent in percents:
            if args.profile:
                profiler.enable()
            results.append(replay(trace, percent, args.block_size, policy))
            profiler.disable()
            print(results[-1], file=sys.stderr)
    if args.profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    expected = {} if args.no_simulation else simulated(trace, percents)
    text = report(trace, results, expected, facts)
    print(text)
    if not args.profile:
        data = {"machine": facts, "expected": expected, "results": results}
        save(f"trace-replay-{args.block_size}", data, text, args.out)


if __name__ == "__main__":
    main()
