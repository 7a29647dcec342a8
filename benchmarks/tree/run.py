"""Our tree beside its peers, interleaved in one go: medians, and how we stand on each row.

    python -m benchmarks.tree.run                       everything that is installed
    python -m benchmarks.tree.run --cases agent --pages 16 --repeats 5

Each round starts one process for each implementation, in an order that turns with the rounds, so
that a machine that grows slower or faster in between harms all of them alike. Times are CPU time
of the process.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import RESULTS, SHARED, machine, machine_line, median, save, table

OURS = "radixcache"
ADAPTER = Path(__file__).with_name("radixcache_tree.py")
PEERS = {
    "sgl-py": ("SGLang, Python tree", "SGLANG_DIR"),
    "sgl-uni-py": ("SGLang unified, Python core", "SGLANG_DIR"),
    "sgl-uni-rust": ("SGLang unified, Rust core", "SGLANG_DIR"),
    "dynamo": ("Dynamo router index", "DYNAMO_DIR"),
}
INDEX_ONLY = {"dynamo"}  # no slots, no locks, no eviction of its own: less work, so read it apart
CASES = ("agent", "match", "insert", "evict", "mem")
PROBE = (
    "import sys, pathlib; sys.path.insert(0, str(pathlib.Path(sys.argv[1]).parent));"
    "import bench_tree; bench_tree.load(sys.argv[2])(16)"
)


class Row(NamedTuple):
    """One line of the table; ``more`` says that more is better."""

    case: str
    field: str
    label: str
    more: bool = False


ROWS = (
    Row("match", "1node_match_us", "match 100k tokens, 1 node, µs"),
    Row("match", "1node_match+indices_us", "the same + indices, µs"),
    Row("match", "200nodes_match_us", "match 100k tokens, 200 nodes, µs"),
    Row("match", "200nodes_match+indices_us", "the same + indices, µs"),
    Row("match", "miss_2k_us", "miss of 2k tokens, µs"),
    Row("insert", "ops_per_s", "inserts/s (2k tokens, 1k shared)", more=True),
    Row("insert", "p50_us", "insert p50, µs"),
    Row("evict", "evict_1M_ms", "evict 1M tokens in one call, ms"),
    Row("evict", "evict_1leaf_p50_us", "evict one leaf, µs"),
    Row("agent", "total_s", "agent workload, 10k turns, s"),
    Row("agent", "turn_p50_us", "turn p50, µs"),
    Row("agent", "turn_p99_us", "turn p99, µs"),
    Row("agent", "rss_bytes_per_token", "RSS bytes a cached token"),
    # tracemalloc sees no tensors and no Rust: shown, never compared.
    Row("mem", "py_bytes_per_token", "traced bytes a token (mem)"),
)


def probe(python: str, bench: Path, name: str) -> str | None:
    """Return None if an implementation starts, else why not, in one line."""
    command = [python, "-c", PROBE, str(bench), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or ["no message"])[-1]


def measure(python: str, bench: Path, spec: str, cases: Sequence[str], page: int) -> list[Any]:
    """Run the cases of one implementation in one process; return a record for each case."""
    command = [python, str(bench), "--impl", spec, "--case", ",".join(cases), "--page", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failed = [record for record in records if "error" in record]
    if done.returncode or failed or len(records) < len(cases):
        raise SystemExit(f"{spec}, page {page}: failed\n{failed}\n{done.stderr[-2000:]}")
    return records


def run_all(
    python: str, bench: Path, names: Sequence[str], cases: Sequence[str], page: int, repeats: int
) -> list[Any]:
    """Run every implementation ``repeats`` times, round by round."""
    specs = {name: name for name in names} | {OURS: f"{ADAPTER}:RadixcacheTree"}
    records = []
    for turn in range(repeats):
        shift = turn % len(names)
        for name in [*names[shift:], *names[:shift]]:
            print(f"page {page}, round {turn + 1} of {repeats}: {name}", file=sys.stderr)
            for record in measure(python, bench, specs[name], cases, page):
                records.append(record | {"round": turn})
    return records


def medians(records: Sequence[Any]) -> dict[tuple[str, int, str], dict[str, float]]:
    """Return for each (case, page, field) the median of each implementation."""
    values: dict[Any, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for field, value in record.items():
            if isinstance(value, (int, float)):
                key = (record["case"], record["page"], field)
                values[key][record["impl"]].append(value)
    return {
        key: {name: median(found) for name, found in by_name.items()}
        for key, by_name in values.items()
    }


def times_better(row: Row, found: dict[str, float], without: set[str]) -> float | None:
    """Return by which factor we beat the best peer on a row; below 1: we lose."""
    others = [v for name, v in found.items() if name != OURS and name not in without]
    if OURS not in found or not others or row.case == "mem":
        return None
    if row.more:
        return round(found[OURS] / max(others), 2)
    return round(min(others) / max(found[OURS], 1e-9), 2)


def page_table(records: Sequence[Any], names: Sequence[str], page: int) -> str:
    """Return the table of one page size."""
    found = medians(records)
    rows = []
    for row in ROWS:
        values = found.get((row.case, page, row.field))
        if values is not None:
            factors = [times_better(row, values, INDEX_ONLY), times_better(row, values, set())]
            rows.append([row.label, *(values.get(name) for name in names), *factors])
    return table([f"page {page}", *names, "× best tree", "× best of all"], rows)


def report(
    records: Sequence[Any], names: Sequence[str], absent: dict[str, str], facts: dict[str, Any]
) -> str:
    """Return the whole report as Markdown."""
    pages = sorted({record["page"] for record in records})
    rounds = 1 + max(record["round"] for record in records)
    parts = [
        "# Prefix trees side by side",
        machine_line(facts),
        f"Medians of {rounds} interleaved rounds, CPU time of the process. `× best tree`: how "
        f"many times better than the best peer that does the same work (without "
        f"{', '.join(sorted(INDEX_ONLY))}, an index without slots, locks or own eviction); below "
        f"1 we lose. `× best of all`: the index included.",
        *(page_table(records, names, page) for page in pages),
    ]
    parts += [f"Not installed: **{name}** ({why})." for name, why in absent.items()]
    return "\n\n".join(parts)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = SHARED / "bench" / "tree" / "bench_tree.py"
    parser.add_argument("--bench", type=Path, default=default, help="the peers' benchmark")
    parser.add_argument("--python", default=sys.executable, help="interpreter with the peers")
    parser.add_argument("--peers", default=",".join(PEERS), help="names, comma separated; or none")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--pages", default="1,16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is installed, print the table and write the results."""
    args = parse(argv)
    if not args.bench.is_file():
        raise SystemExit(f"no benchmark at {args.bench}: name it with --bench")
    facts = machine()
    names, absent = [OURS], {}
    for name in args.peers.split(",") if args.peers != "none" else []:
        title, variable = PEERS[name]
        why = probe(args.python, args.bench, name)
        if why is None:
            names.append(name)
        else:
            where = os.environ.get(variable, "not set")
            absent[name] = f"{title}; {variable}: {where}; {why}"
            print(f"NOT INSTALLED: {name}: {absent[name]}", file=sys.stderr)
    # In this order: the last one leaves tracemalloc running, which slows whatever follows it.
    cases = [case for case in CASES if case in args.cases.split(",")]
    records: list[Any] = []
    for page in map(int, args.pages.split(",")):
        records += run_all(args.python, args.bench, names, cases, page, args.repeats)
    text = report(records, names, absent, facts)
    print(text)
    data = {"machine": facts, "absent": absent, "records": records}
    print(f"\nwritten: {save('tree', data, text, args.out)}", file=sys.stderr)


if __name__ == "__main__":
    main()
