"""Hit rates of the real tree on real and made-up traffic, against exact simulations."""

import pytest

from benchmarks.report import SHARED
from benchmarks.trace import replay, simulate
from benchmarks.trace.workloads import WORKLOADS, generate

TRACE = SHARED / "data" / "conversation_trace.jsonl"
LEAF_LRU = {2: 0.079, 5: 0.196, 10: 0.279, 20: 0.345, 50: 0.363, 100: 0.366}
HELD_OUT_SEEDS = (101, 102, 103)
MAX_LOSS = 0.005


@pytest.fixture(scope="module")
def trace():
    """An hour of real requests."""
    return replay.Trace(TRACE)


def hit_rate(trace, percent, policy, block_size=256):
    """Blocks of 512 found, of all asked for, through cache, allocator and leases."""
    return replay.replay(trace, percent, block_size, policy)["hit_rate"]


@pytest.mark.parametrize("percent", [2, 5, pytest.param(20, marks=pytest.mark.slow)])
def test_lru_of_the_real_cache_is_leaf_lru(trace, percent):
    """The figure of the exact simulation, to three places."""
    assert round(hit_rate(trace, percent, "lru"), 3) == LEAF_LRU[percent]


@pytest.mark.parametrize(("percent", "gain"), [(2, 0.02), (5, 0.005)])
def test_the_adaptive_policy_gains_where_the_cache_is_small(trace, percent, gain):
    """What it was made for: real traffic that a small cache cannot hold."""
    assert hit_rate(trace, percent, "adaptive") >= LEAF_LRU[percent] + gain


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("percent", [10, 20, 50, 100])
def test_the_adaptive_policy_does_not_lose_on_the_trace(trace, percent, block_size):
    """Never more than 0.005 below LRU, whatever the capacity."""
    assert hit_rate(trace, percent, "adaptive", block_size) >= LEAF_LRU[percent] - MAX_LOSS


@pytest.mark.parametrize("name", sorted(WORKLOADS))
@pytest.mark.parametrize(
    ("seed", "percents"),
    [
        (HELD_OUT_SEEDS[0], (5,)),
        *(pytest.param(s, tuple(LEAF_LRU), marks=pytest.mark.slow) for s in HELD_OUT_SEEDS),
    ],
)
def test_the_adaptive_policy_does_not_lose_on_other_traffic(name, seed, percents):
    """Loop, scan, chat and agent fan-out with seeds that it was not tuned on."""
    requests = [
        (record["timestamp"] / 1000, tuple(record["hash_ids"])) for record in generate(name, seed)
    ]
    asked = sum(len(blocks) for _, blocks in requests)
    for percent in percents:
        capacity = round(simulate.num_distinct(requests) * percent / 100)
        ours = simulate.replay(requests, capacity, "adaptive")
        lru = simulate.leaf_lru(requests, capacity)
        assert (ours - lru) / asked >= -MAX_LOSS, f"{percent} %"
