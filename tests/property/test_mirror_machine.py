"""After every random step a mirror that only reads events equals the tree."""

import random

import pytest
from hypothesis.stateful import rule

from radixcache.errors import EventsLostError
from radixcache.events import EventLog, Mirror
from tests.mirror_driver import MirrorCacheDriver, MirrorDriver
from tests.property import test_cache_machine
from tests.property.test_cache_machine import CacheMachine
from tests.property.test_tree_machine import TreeMachine
from tests.tree_driver import TreeDriver
from tests.tree_steps import random_step


class MirrorMachine(TreeMachine):
    """Every operation of the tree, quotas too, with mirrors from the start and late ones."""

    block_size = 1

    def __init__(self):
        super().__init__(self.block_size)
        self.driver = MirrorDriver(self.block_size)

    @rule()
    def join(self):
        self.driver.followers.join()


class MirrorMachine16(MirrorMachine):
    block_size = 16


class MirrorCacheMachine(CacheMachine):
    """What an engine does with its cache, on a pool so short that ids are used again at once."""

    make_driver = MirrorCacheDriver

    @rule()
    def join(self):
        self.driver.followers.join()


TestMirror1 = MirrorMachine.TestCase
TestMirror16 = MirrorMachine16.TestCase
TestMirrorCache = MirrorCacheMachine.TestCase


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_mirrors_follow_a_tree_through_random_operations(block_size):
    """Cases V6 and 113: 700 random operations; after each the mirrors equal tree and model."""
    driver, dice = MirrorDriver(block_size), random.Random(block_size)
    for _ in range(700):
        if dice.random() < 0.05:
            driver.followers.join()
        random_step(driver, dice)
        driver.check()

    assert driver.followers.num_resyncs > 0


@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 24), (16, 16)])
def test_mirrors_follow_a_cache_through_random_steps(block_size, num_blocks):
    """Case V6: block ids return to the pool and into the tree; no mirror is ever misled."""
    driver, dice = MirrorCacheDriver(num_blocks, block_size), random.Random(block_size)
    for step in range(2_000):
        if step % 50 == 0:
            driver.followers.join()
        test_cache_machine.random_step(driver, dice)
        driver.check()

    counters = driver.cache.counters
    assert min(counters.evicted_blocks, counters.flushed_blocks) > 0
    assert counters.published_blocks > 4 * num_blocks
    driver.finish()
    driver.followers.catch_up()
    assert not driver.followers.first.blocks


def follow_slowly(driver, log, dice, num_steps):
    """Read now and then from a short log; a snapshot when it was too long ago. Count both."""
    mirror, num_snapshots, num_reads = Mirror(), 0, 0
    for _ in range(num_steps):
        random_step(driver, dice)
        if dice.random() > 0.1:
            continue
        try:
            events = log.since(mirror.seq)
            num_reads += 1
        except EventsLostError:
            assert mirror.seq + 1 < log.first_seq
            mirror.load(log.snapshot(driver.tree))
            events = []
            num_snapshots += 1
        for event in events:
            mirror.apply(event)
        assert mirror.difference(log.snapshot(driver.tree)) is None
    return num_snapshots, num_reads


@pytest.mark.parametrize("block_size", [1, 16])
def test_a_slow_reader_of_a_short_log_ends_up_right(block_size):
    """Case 113: whether the events are still there or only a snapshot, the copy is exact."""
    driver, dice = TreeDriver(block_size), random.Random(block_size)
    log = EventLog(max_events=12, max_ids=40 * (block_size + 1))
    driver.tree.watch(log)
    num_snapshots, num_reads = follow_slowly(driver, log, dice, 1_500)

    assert min(num_snapshots, num_reads) > 10


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [1, 16])
def test_a_slow_reader_over_a_hundred_thousand_operations(block_size):
    """The same for long."""
    driver, dice = TreeDriver(block_size), random.Random(50 + block_size)
    log = EventLog(max_events=12, max_ids=40 * (block_size + 1))
    driver.tree.watch(log)
    assert min(follow_slowly(driver, log, dice, 100_000)) > 500
