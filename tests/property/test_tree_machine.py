"""The radix tree against a naive dictionary model, step by random step, under every policy."""

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

from radixcache.tree.policies import POLICIES
from radixcache.tree.view import ORDERS
from tests.naive_tree import RANKS
from tests.tree_driver import TreeDriver, tokens_of
from tests.tree_steps import BUSY_SPACES, random_step

spaces = st.sampled_from(BUSY_SPACES)
symbols = st.lists(st.integers(0, 3), max_size=7)
tails = st.integers(0, 3)
which = st.integers(0, 99)
priorities = st.sampled_from([0, 0, 0, 1, 2])


class TreeMachine(RuleBasedStateMachine):
    """Every public operation, in any order."""

    def __init__(self, block_size=1, policy="lru"):
        super().__init__()
        self.driver = TreeDriver(block_size, policy)

    def tokens(self, words, tail=0):
        """Tokens of this machine's block size."""
        return tokens_of(words, self.driver.size, tail)

    @rule(space=spaces, words=symbols, tail=tails, priority=priorities)
    def insert(self, space, words, tail, priority):
        self.driver.insert(space, self.tokens(words, tail), priority)

    @rule(space=spaces, words=symbols, tail=tails)
    def match(self, space, words, tail):
        self.driver.match(space, self.tokens(words, tail))

    @rule(space=spaces, words=symbols, limit=st.none() | st.integers(0, 40), priority=priorities)
    def lock(self, space, words, limit, priority):
        self.driver.lock(space, self.tokens(words), limit, priority)

    @rule(space=spaces, words=symbols, priority=priorities)
    def lock_match(self, space, words, priority):
        self.driver.lock_match(space, self.tokens(words), priority)

    @precondition(lambda self: self.driver.locks)
    @rule(lock=which, words=symbols, tail=tails)
    def extend(self, lock, words, tail):
        self.driver.extend(lock, self.tokens(words, tail))

    @precondition(lambda self: self.driver.locks)
    @rule(lock=which, blocks=st.integers(0, 9))
    def share(self, lock, blocks):
        self.driver.share(lock, blocks)

    @precondition(lambda self: self.driver.locks)
    @rule(lock=which)
    def unlock(self, lock):
        self.driver.unlock(lock)

    @rule(num_blocks=st.integers(0, 6) | st.just(10**9), asker=st.none() | spaces)
    def evict(self, num_blocks, asker):
        self.driver.evict(num_blocks, asker)

    @rule(space=st.none() | spaces)
    def flush(self, space):
        self.driver.flush(space)

    @rule(space=spaces, guaranteed=st.integers(0, 4), room=st.none() | st.integers(0, 4))
    def set_quota(self, space, guaranteed, room):
        limit = None if room is None else guaranteed + room
        self.driver.set_quota(space, limit, guaranteed)

    @rule(space=spaces)
    def remove_quota(self, space):
        self.driver.remove_quota(space)

    @rule()
    def trim(self):
        self.driver.trim()

    @rule(order=st.sampled_from(sorted(ORDERS)))
    def view(self, order):
        self.driver.view(order)

    @invariant()
    def check(self):
        self.driver.check()


@pytest.mark.parametrize(
    ("policy", "block_size"),
    [("lru", 1), ("lru", 16), ("lru", 64), *((policy, 4) for policy in POLICIES)],
)
def test_every_operation_in_any_order_agrees_with_the_model(policy, block_size):
    """Cases I1–I4, E3–E7: look-ups, victims, quotas, pictures and sizes, after every step."""
    run_state_machine_as_test(lambda: TreeMachine(block_size, policy))


def test_every_order_that_is_exact_is_predicted():
    """The model predicts the five plain policies; what else there is, it judges."""
    assert RANKS.keys() <= POLICIES.keys()


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("policy", POLICIES)
def test_random_operations_agree_with_the_model(policy, block_size):
    """Case I5: 1,500 random operations; the tree checks out after each."""
    driver, dice = TreeDriver(block_size, policy), random.Random(block_size)
    for _ in range(1_500):
        random_step(driver, dice)
        driver.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "block_size"),
    [("lru", 1), ("lru", 16), ("lru", 64), *((policy, 4) for policy in POLICIES)],
)
def test_a_million_random_operations_agree_with_the_model(policy, block_size):
    """Case I5: a third of it each time, with quotas, a full check every 50 operations."""
    driver, dice = TreeDriver(block_size, policy), random.Random(100 + block_size)
    for step in range(1_000_000 // 3):
        random_step(driver, dice)
        if step % 50 == 0:
            driver.check()
