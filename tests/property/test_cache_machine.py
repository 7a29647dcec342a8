"""PrefixCache and leases under pressure, with a store that catches every wrong read."""

import random
from collections import Counter
from dataclasses import asdict

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from radixcache.tree.policies import POLICIES
from radixcache.types import PUBLIC, Namespace
from tests.cache_driver import CacheDriver
from tests.tree_driver import tokens_of

SIZES = [(1, 14), (16, 14), (64, 8)]  # block size, blocks
SPACES = [Namespace(kv, scope) for kv in ("m", "n") for scope in (PUBLIC, "a", "b")]
spaces = st.sampled_from(SPACES[:3] * 3 + SPACES[3:])
prompts = st.tuples(st.lists(st.integers(0, 2), max_size=5), st.integers(0, 3))
which = st.integers(0, 99)
seconds = st.integers(1, 20).map(float)
small = st.integers(0, 4)
lengths = st.integers(1, 400)


class CacheMachine(RuleBasedStateMachine):
    """What an engine does with its cache, in any order, on a pool that is always short."""

    make_driver = CacheDriver

    @initialize(size=st.sampled_from(SIZES), policy=st.sampled_from(sorted(POLICIES)))
    def start(self, size, policy):
        self.block_size, num_blocks = size
        self.driver = self.make_driver(num_blocks, self.block_size, policy)

    def tokens(self, prompt):
        """Tokens of a prompt; never none."""
        words, tail = prompt
        return tokens_of(words, self.block_size, tail) or [5]

    @rule(
        space=spaces,
        prompt=prompts,
        read=st.sampled_from([True, True, True, False]),
        publish=st.sampled_from([True, True, True, False]),
        priority=st.integers(0, 2),
    )
    def acquire(self, space, prompt, read, publish, priority):
        tokens = self.tokens(prompt)
        self.driver.acquire(space, tokens, read=read, publish=publish, priority=priority)

    @rule(space=spaces, prompt=prompts, stays=st.booleans())
    def serve(self, space, prompt, stays):
        """Compute and publish a whole prompt: what most others need to have anything to do."""
        self.driver.serve(space, self.tokens(prompt), stays=stays)

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

    @precondition(lambda self: self.driver.cache.num_evictable_blocks)
    @rule(num_blocks=st.integers(0, 20))
    def evict(self, num_blocks):
        self.driver.evict(num_blocks)

    @precondition(lambda self: self.driver.cache.num_nodes)
    @rule(space=st.none() | spaces)
    def flush(self, space):
        self.driver.flush(space)

    @precondition(lambda self: self.driver.served)
    @rule(prompt=which, length=lengths, ttl_s=seconds, priority=st.integers(0, 2))
    def pin(self, prompt, length, ttl_s, priority):
        self.driver.pin_served(prompt, length, ttl_s, priority)

    @precondition(lambda self: self.driver.pins)
    @rule(pin=which, ttl_s=st.none() | seconds, priority=st.none() | st.integers(0, 2))
    def change_pin(self, pin, ttl_s, priority):
        if ttl_s is None:
            self.driver.delete_pin(pin)
        else:
            self.driver.update_pin(pin, ttl_s, priority)

    @rule(seconds=seconds)
    def wait(self, seconds):
        self.driver.wait(seconds)

    @rule(space=st.none() | spaces, num_blocks=st.none() | st.integers(0, 5))
    def set_pin_quota(self, space, num_blocks):
        self.driver.set_pin_quota(space, num_blocks)

    @rule(space=spaces, limits=st.none() | st.tuples(st.none() | st.integers(0, 9), small))
    def set_quota(self, space, limits):
        if limits is None:
            self.driver.remove_quota(space)
        else:
            self.driver.set_quota(space, *limits)

    @invariant()
    def check(self):
        self.driver.check()

    def teardown(self):
        self.driver.finish()


TestCache = CacheMachine.TestCase


def random_step(driver, dice):
    """One engine-like step; sequences mostly run to their end."""
    space = dice.choice(SPACES[:3] * 3 + SPACES[3:])
    words = [dice.randrange(3) for _ in range(dice.randrange(6))]
    tokens = tokens_of(words, driver.size, dice.randrange(4)) or [5]
    if len(driver.holds) > 4:
        driver.release_hold(dice.randrange(5))
    if dice.random() < 0.15:
        random_right(driver, dice, space)
        return
    if len(driver.running) < 3 or (len(driver.running) < 7 and dice.random() < 0.1):
        read, publish = dice.random() < 0.9, dice.random() < 0.9
        driver.acquire(space, tokens, read=read, publish=publish, priority=dice.randrange(3))
        return
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


def random_right(driver, dice, space):
    """Somebody sets, uses or gives up what they are entitled to; or time passes."""
    chance, ttl_s = dice.random(), float(dice.randrange(1, 40))
    if chance < 0.4 and driver.served:
        length = dice.randrange(1, 5 * driver.size)
        driver.pin_served(dice.randrange(8), length, ttl_s, dice.randrange(3))
    elif chance < 0.5 and driver.pins:
        driver.update_pin(dice.randrange(9), ttl_s, dice.choice([None, 1]))
    elif chance < 0.55 and driver.pins:
        driver.delete_pin(dice.randrange(9))
    elif chance < 0.8:
        driver.wait(float(dice.randrange(10)))
    elif chance < 0.85:
        driver.set_pin_quota(dice.choice([None, space]), dice.choice([None, 2, 4]))
    elif chance < 0.95:
        driver.set_quota(space, dice.choice([None, 2, 5]), dice.choice([0, 1, 3]))
    else:
        driver.remove_quota(space)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_random_engine_steps_keep_every_read_right(policy):
    """Cases 7 and I1: random steps on a short pool; every sequence and pin reads its own tokens."""
    seen = Counter()
    for block_size, num_blocks in ((1, 24), (4, 16), (16, 16)):
        driver, dice = CacheDriver(num_blocks, block_size, policy), random.Random(block_size)
        for _ in range(250):
            random_step(driver, dice)
            driver.check()
        seen.update(asdict(driver.cache.counters))
        seen.update(expired=driver.num_expired, displaced=driver.num_displaced)
        driver.finish()
    del seen["flushed_blocks"]  # rare
    assert min(seen.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("block_size", [1, 16])
def test_many_random_engine_steps(block_size, policy):
    """The same, 60,000 times for each policy, with a full check every 20 steps."""
    driver, dice = CacheDriver(20, block_size, policy), random.Random(7 + block_size)
    for step in range(60_000):
        random_step(driver, dice)
        if step % 20 == 0:
            driver.check()
    assert min(driver.num_displaced, driver.cache.counters.duplicate_blocks) > 0
    driver.finish()
