"""The benchmarks run, on tiny inputs, and count what they say they count."""

import importlib.util
import json
import random
import sys
from array import array

import numpy as np
import pytest

from benchmarks import report
from benchmarks.trace import replay
from benchmarks.tree import curves, match_floor, run
from benchmarks.tree.radixcache_tree import RadixcacheTree

BENCH = report.SHARED / "bench" / "tree" / "bench_tree.py"
needs_bench = pytest.mark.skipif(not BENCH.is_file(), reason="the shared folder is not there")


def leaf_lru_hits(requests, capacity):
    """Blocks found when whole requests are accounted: the definition, as slow as it is plain."""
    recency, hits, tick = {}, 0, 0
    for request in requests:
        found = next((i for i, one in enumerate(request) if one not in recency), len(request))
        hits += found
        for one in reversed(request):
            tick += 1
            recency[one] = tick
        for one in sorted(recency, key=recency.get)[: max(0, len(recency) - capacity)]:
            del recency[one]
    return hits


def made_up_requests(num_requests):
    """Conversations over a few prompts, as lists of ids that name their prefix."""
    rng, talks, fresh = random.Random(7), [[0], [0, 1], [2]], iter(range(3, 10**6))
    requests = []
    for _ in range(num_requests):
        talk = list(rng.choice(talks[-12:]))[: rng.randrange(1, 9)]
        talk += [next(fresh) for _ in range(rng.randrange(4))]
        talks.append(talk)
        requests.append(talk)
    return requests


@pytest.fixture
def trace_file(tmp_path):
    """A trace of 150 requests in the format of the real one."""
    path = tmp_path / "trace.jsonl"
    records = [
        {"timestamp": 50 * n, "hash_ids": ids} for n, ids in enumerate(made_up_requests(150))
    ]
    lines = [json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def saved(folder, name):
    """The one result of that name."""
    (path,) = folder.glob(f"{name}-????-??-??.json")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("block_size", [16, 64, 256])
def test_replay_hits_exactly_what_leaf_lru_hits(trace_file, tmp_path, block_size, capsys):
    """Every capacity hits the very blocks of an exact simulation, whatever the block size."""
    options = ["--trace", str(trace_file), "--block-size", str(block_size), "--no-simulation"]
    replay.main([*options, "--capacities", "5,10,30,100", "--out", str(tmp_path)])

    trace = replay.Trace(trace_file)
    results = saved(tmp_path, f"trace-replay-{block_size}")["results"]
    expected = [
        leaf_lru_hits([ids for _, ids in trace.requests], trace.capacity(run["percent"]))
        for run in results
    ]
    assert [run["hits"] for run in results] == expected
    assert expected == sorted(expected)
    assert expected[0] < expected[-1]
    assert "check() passed" in capsys.readouterr().out


def test_replay_counts_a_request_larger_than_the_pool(trace_file, tmp_path):
    """A request that can never fit is counted as refused, and nothing of it stays behind."""
    trace = replay.Trace(trace_file)
    longest = max(len(ids) for _, ids in trace.requests)
    percent = 100 * (longest - 1) / trace.num_distinct

    assert replay.replay(trace, percent, 16, "lru")["refused"] > 0


def test_replay_profile_prints_the_costliest_functions(trace_file, tmp_path, capsys):
    """--profile shows functions and writes no results."""
    options = ["--trace", str(trace_file), "--capacities", "10", "--requests", "20"]
    replay.main([*options, "--no-simulation", "--profile", "--out", str(tmp_path / "none")])

    assert "acquire" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_tokens_of_a_hash_id_are_its_own(trace_file):
    """Equal ids give equal tokens, different ids differ within their first block."""
    trace = replay.Trace(trace_file)
    again = replay.Trace(trace_file)
    firsts = {bytes(row[:16]) for row in trace._tokens}

    assert list(trace.sequences()) == list(again.sequences())
    assert len(firsts) == trace.num_distinct
    assert trace._tokens.min() >= 0
    assert trace._tokens.max() < replay.VOCABULARY


def test_curves_measure_every_operation(tmp_path, capsys):
    """A run over two sizes has a figure for each operation that the sizes allow."""
    curves.main(["--sizes", "300,600", "--out", str(tmp_path)])

    small, large = saved(tmp_path, "tree-curves")["results"]
    assert small["nodes"] < large["nodes"]
    assert {"match 128 tokens", "lock + unlock", "extend by a block"} <= set(small["us"])
    assert set(large["us"]) - set(small["us"]) == {"evict 100 leaves in one call"}
    assert "growth" in capsys.readouterr().out


def test_match_floor_measures_what_it_says(tmp_path, capsys):
    """The path has its nodes, each with a sibling, and every row has a figure."""
    tokens = array("i", range(3200))
    assert match_floor.tree_of(tokens, 16, 200).num_nodes == 200 + 199 + 1
    assert match_floor.tree_of(tokens, 16, 1).num_nodes == 1

    match_floor.main(["--tokens", "3200", "--out", str(tmp_path)])
    for run_of_size in saved(tmp_path, "tree-match")["results"]:
        assert len(run_of_size["us"]) == 4
        assert run_of_size["us"]["match, 200 nodes"] > run_of_size["us"]["match, 1 node"] > 0
    assert "plain comparison" in capsys.readouterr().out


@pytest.mark.parametrize("page", [1, 16])
def test_adapter_hands_out_slots_and_locks(page):
    """Indices are the slots of the matched tokens; a lock taken by a handle stops eviction."""
    tree = RadixcacheTree(page)
    key = tree.prep(array("q", range(100, 164)))
    assert tree.insert(key, tree.vals(32, 64))[0] == 0

    matched, handle = tree.match(tree.prep(array("q", range(100, 148))))
    assert matched == 48
    assert list(tree.indices(handle, 48)) == list(range(32, 80))
    lock = tree.lock(handle)
    assert tree.evict(1000) == 16
    tree.unlock(lock)
    present, handle = tree.insert(key, tree.vals(1000 * page, 64))
    assert present == 48
    lock = tree.lock(handle)
    assert tree.evict(1000) == 0
    tree.unlock(lock)
    assert tree.evict(1000) == tree.size() + 64 == 64


@needs_bench
@pytest.mark.parametrize("page", [1, 16])
def test_adapter_does_the_agent_workload(page):
    """The benchmark's own agent case finds what it must find and holds what was added."""
    spec = importlib.util.spec_from_file_location("bench_tree", BENCH)
    bench_tree = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench_tree)
    tree = RadixcacheTree(page)
    tree.insert(tree.prep(range(10**6, 10**6 + 64)), tree.vals(0, 64))  # as the benchmark does
    found = bench_tree.case_agent(tree, page, np.random.default_rng(1), conv=6, turns=3, nsys=2)

    held = 64 + 2 * 2000 + 6 * 3 * 200
    assert held - 6 * page < found["tokens_held"] <= held
    assert found["hit_rate"] > 0.7


@needs_bench
def test_run_names_peers_that_are_not_installed(tmp_path, monkeypatch, capsys):
    """A run without peers measures ours, says which peer is absent and why, and writes results."""
    monkeypatch.setenv("DYNAMO_DIR", str(tmp_path))
    options = ["--peers", "dynamo", "--cases", "match", "--pages", "16", "--repeats", "1"]
    run.main([*options, "--out", str(tmp_path), "--bench", str(BENCH), "--python", sys.executable])

    printed = capsys.readouterr()
    assert "NOT INSTALLED: dynamo" in printed.err
    assert "Not installed: **dynamo**" in printed.out
    assert str(tmp_path) in printed.out
    (record,) = saved(tmp_path, "tree")["records"]
    assert record["impl"] == "radixcache"
    assert record["1node_match_us"] > 0


def test_run_refuses_a_missing_benchmark(tmp_path):
    """Without bench_tree.py the message says how to name it."""
    with pytest.raises(SystemExit, match="--bench"):
        run.main(["--bench", str(tmp_path / "none.py")])


def test_report_takes_medians_and_tells_losses_from_gains():
    """More is better for rates, less for times; the index-only peer stands apart."""
    records = [
        {"impl": name, "case": case, "page": 1, "round": turn, field: value}
        for case, field, values in [
            (
                "evict",
                "evict_1M_ms",
                {"radixcache": (4, 9, 5), "sgl-py": (10,) * 3, "dynamo": (1,)},
            ),
            ("insert", "ops_per_s", {"radixcache": (50,), "sgl-py": (100,), "dynamo": (10,)}),
            ("mem", "py_bytes_per_token", {"radixcache": (8,), "sgl-py": (2,)}),
        ]
        for name, found in values.items()
        for turn, value in enumerate(found)
    ]
    text = run.report(records, ["radixcache", "sgl-py", "dynamo"], {}, report.machine())

    lines = [[cell.strip() for cell in line.split("|")[2:-1]] for line in text.splitlines()]
    assert ["5", "10", "1", "2.0", "0.2"] in lines
    assert ["50", "100", "10", "0.5", "0.5"] in lines
    assert ["8", "2", "–", "–", "–"] in lines
