"""The radix tree against a naive dictionary model, step by random step."""

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from radixcache.types import PUBLIC, Namespace
from tests.tree_driver import TreeDriver, tokens_of

SPACES = [Namespace(kv, scope) for kv in ("m", "n") for scope in (PUBLIC, "a", "b")]
# Most of the traffic meets in one place, or nothing interesting happens.
spaces = st.sampled_from(SPACES[:3] * 3 + SPACES[3:])
symbols = st.lists(st.integers(0, 3), max_size=7)
tails = st.integers(0, 3)
which = st.integers(0, 99)


class TreeMachine(RuleBasedStateMachine):
    """Every public operation, in any order."""

    block_size = 1

    def __init__(self):
        super().__init__()
        self.driver = TreeDriver(self.block_size)

    def tokens(self, words, tail=0):
        """Tokens of this machine's block size."""
        return tokens_of(words, self.block_size, tail)

    @rule(space=spaces, words=symbols, tail=tails)
    def insert(self, space, words, tail):
        self.driver.insert(space, self.tokens(words, tail))

    @rule(space=spaces, words=symbols, tail=tails)
    def match(self, space, words, tail):
        self.driver.match(space, self.tokens(words, tail))

    @rule(space=spaces, words=symbols, limit=st.none() | st.integers(0, 40))
    def lock(self, space, words, limit):
        self.driver.lock(space, self.tokens(words), limit)

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

    @rule(num_blocks=st.integers(0, 6) | st.just(10**9))
    def evict(self, num_blocks):
        self.driver.evict(num_blocks)

    @rule(space=st.none() | spaces)
    def flush(self, space):
        self.driver.flush(space)

    @invariant()
    def check(self):
        self.driver.check()


class TreeMachine16(TreeMachine):
    block_size = 16


class TreeMachine64(TreeMachine):
    block_size = 64


TestTree1 = TreeMachine.TestCase
TestTree16 = TreeMachine16.TestCase
TestTree64 = TreeMachine64.TestCase


def random_step(driver, dice, *, num_symbols=4, max_blocks=8):
    """One random operation, flushes rare; keeps the tree small enough to be hit often."""
    if len(driver.locks) > 12:
        driver.unlock(dice.randrange(13))
    if driver.tree.num_blocks > 80:
        driver.evict(dice.randrange(20))
    space = dice.choice(SPACES[:3] * 3 + SPACES[3:])
    words = [dice.randrange(num_symbols) for _ in range(dice.randrange(max_blocks))]
    tokens = tokens_of(words, driver.size, dice.randrange(4))
    choice = dice.random()
    if choice < 0.25:
        driver.insert(space, tokens)
    elif choice < 0.35:
        driver.match(space, tokens)
    elif choice < 0.5:
        driver.lock(space, tokens)
    elif choice < 0.88 and driver.locks:
        act = dice.choice(["extend", "extend", "share", "unlock", "unlock", "unlock"])
        which = dice.randrange(len(driver.locks))
        args = {"extend": (tokens,), "share": (dice.randrange(9),), "unlock": ()}[act]
        getattr(driver, act)(which, *args)
    elif choice < 0.995:
        driver.evict(dice.randrange(6))
    else:
        driver.flush(dice.choice([None, space, space]))


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_random_operations_agree_with_the_model(block_size):
    """Case I5: 1,500 random operations; the tree checks out after each."""
    driver, dice = TreeDriver(block_size), random.Random(block_size)
    for _ in range(1_500):
        random_step(driver, dice)
        driver.check()


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_a_million_random_operations_agree_with_the_model(block_size):
    """The same, a million times, with a full check every 50 operations."""
    driver, dice = TreeDriver(block_size), random.Random(100 + block_size)
    for step in range(1_000_000 // 3):
        random_step(driver, dice)
        if step % 50 == 0:
            driver.check()
