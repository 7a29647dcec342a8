"""PrefixCache and leases under pressure, with a store that catches every wrong read."""

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from radixcache.tree.policy import POLICIES
from radixcache.types import PUBLIC, Namespace
from tests.cache_driver import CacheDriver
from tests.tree_driver import tokens_of

SPACES = [Namespace(kv, scope) for kv in ("m", "n") for scope in (PUBLIC, "a", "b")]
spaces = st.sampled_from(SPACES[:3] * 3 + SPACES[3:])
prompts = st.tuples(st.lists(st.integers(0, 2), max_size=5), st.integers(0, 3))
which = st.integers(0, 99)


class CacheMachine(RuleBasedStateMachine):
    """What an engine does with its cache, in any order, on a pool that is always short."""

    block_size = 1
    num_blocks = 14
    policy = "lru"

    def __init__(self):
        super().__init__()
        self.driver = CacheDriver(self.num_blocks, self.block_size, self.policy)

    def tokens(self, prompt):
        """Tokens of a prompt; never none."""
        words, tail = prompt
        return tokens_of(words, self.block_size, tail) or [5]

    @rule(
        space=spaces,
        prompt=prompts,
        read=st.sampled_from([True, True, True, False]),
        publish=st.sampled_from([True, True, True, False]),
        priority=st.sampled_from([0, 0, 1]),
    )
    def acquire(self, space, prompt, read, publish, priority):
        how = {"read": read, "publish": publish, "priority": priority}
        self.driver.acquire(space, self.tokens(prompt), **how)

    @precondition(lambda self: self.driver.running)
    @rule(seq=which, blocks=st.integers(1, 4), odd=st.integers(0, 2))
    def compute(self, seq, blocks, odd):
        self.driver.compute(seq, blocks * self.block_size + odd)

    @precondition(lambda self: self.driver.running)
    @rule(seq=which)
    def commit(self, seq):
        self.driver.commit(seq)

    @precondition(lambda self: self.driver.running)
    @rule(seq=which, token=st.integers(0, 2))
    def append(self, seq, token):
        self.driver.append(seq, token)

    @precondition(lambda self: self.driver.running)
    @rule(seq=which, back=st.integers(0, 20))
    def fork(self, seq, back):
        self.driver.fork(seq, back)

    @precondition(lambda self: self.driver.running)
    @rule(seq=which, num_drafts=st.integers(1, 20))
    def reject(self, seq, num_drafts):
        self.driver.reject(seq, num_drafts)

    @precondition(lambda self: self.driver.running)
    @rule(seq=which)
    def roll_back(self, seq):
        self.driver.roll_back(seq)

    @precondition(lambda self: self.driver.running)
    @rule(seq=which)
    def release(self, seq):
        self.driver.release(seq)

    @precondition(lambda self: self.driver.running)
    @rule(seq=which)
    def hold_lease(self, seq):
        self.driver.hold_lease(seq)

    @rule(space=spaces, prompt=prompts)
    def hold(self, space, prompt):
        self.driver.hold(space, self.tokens(prompt))

    @precondition(lambda self: self.driver.holds)
    @rule(hold=which)
    def release_hold(self, hold):
        self.driver.release_hold(hold)

    @rule(num_blocks=st.integers(0, 20))
    def evict(self, num_blocks):
        self.driver.evict(num_blocks)

    @rule(space=st.none() | spaces)
    def flush(self, space):
        self.driver.flush(space)

    @rule(space=spaces, limit=st.none() | st.integers(0, 6), guaranteed=st.integers(0, 4))
    def set_quota(self, space, limit, guaranteed):
        self.driver.set_quota(space, limit, guaranteed)

    @rule(space=spaces)
    def remove_quota(self, space):
        self.driver.remove_quota(space)

    @invariant()
    def check(self):
        self.driver.check()

    def teardown(self):
        self.driver.finish()


class CacheMachine64(CacheMachine):
    block_size = 64
    num_blocks = 8


TestCache1 = CacheMachine.TestCase
TestCache64 = CacheMachine64.TestCase


@pytest.mark.parametrize("policy", POLICIES)
def test_leases_in_any_order_under_every_policy(policy):
    """Cases I1 and L: the pool adds up and every read is right, whichever leaf goes first."""

    class OfPolicy(CacheMachine):
        block_size = 16

    OfPolicy.policy = policy
    run_state_machine_as_test(OfPolicy)


def random_step(driver, dice):
    """One engine-like step; sequences mostly run to their end, quotas are rare."""
    space = dice.choice(SPACES[:3] * 3 + SPACES[3:])
    words = [dice.randrange(3) for _ in range(dice.randrange(6))]
    tokens = tokens_of(words, driver.size, dice.randrange(4)) or [5]
    if len(driver.holds) > 4:
        driver.release_hold(dice.randrange(5))
    if len(driver.running) < 3 or (len(driver.running) < 7 and dice.random() < 0.1):
        how = {"read": dice.random() < 0.9, "publish": dice.random() < 0.9}
        driver.acquire(space, tokens, **how, priority=dice.choice([0, 0, 1]))
        return
    if dice.random() < 0.02:
        limit = dice.choice([None, dice.randrange(8)])
        if dice.random() < 0.5:
            driver.set_quota(space, limit, dice.randrange(4))
        else:
            driver.remove_quota(space)
    which, chance = dice.randrange(len(driver.running)), dice.random()
    if chance < 0.35:
        driver.compute(which, dice.randrange(1, 3 * driver.size + 1))
    elif chance < 0.55:
        driver.commit(which)
    elif chance < 0.65:
        driver.append(which, dice.randrange(3))
    elif chance < 0.70:
        driver.fork(which, dice.randrange(2 * driver.size))
    elif chance < 0.75:
        driver.reject(which, dice.randrange(1, 2 * driver.size))
    elif chance < 0.78:
        driver.roll_back(which)
    elif chance < 0.90:
        driver.release(which)
    elif chance < 0.93:
        driver.hold_lease(which)
    elif chance < 0.96:
        driver.hold(space, tokens)
    elif chance < 0.99:
        driver.evict(dice.randrange(4))
    else:
        driver.flush(dice.choice([None, space, space]))


@pytest.mark.parametrize(
    ("policy", "block_size", "num_blocks"),
    [("lru", 1, 24), ("lru", 16, 16), *((policy, 4, 16) for policy in POLICIES)],
)
def test_random_engine_steps_keep_every_read_right(policy, block_size, num_blocks):
    """Cases 7 and I1: 1,500 random steps on a short pool; every sequence reads its own tokens."""
    driver, dice = CacheDriver(num_blocks, block_size, policy), random.Random(block_size)
    for _ in range(1_500):
        random_step(driver, dice)
        driver.check()
    counters = driver.cache.counters
    assert min(counters.evicted_blocks, counters.published_blocks, counters.copied_blocks) > 0
    assert min(counters.duplicate_blocks, counters.refused_allocations) > 0
    driver.finish()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "block_size"), [("lru", 1), ("lru", 16), *((policy, 4) for policy in POLICIES)]
)
def test_half_a_million_random_engine_steps(policy, block_size):
    """The same, half a million times, with a full check every 20 steps."""
    driver, dice = CacheDriver(20, block_size, policy), random.Random(7 + block_size)
    for step in range(500_000):
        random_step(driver, dice)
        if step % 20 == 0:
            driver.check()
    driver.finish()
