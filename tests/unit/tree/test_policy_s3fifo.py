"""S3-FIFO over leaves."""

import random

import pytest

from radixcache.errors import CacheCorruptionError
from radixcache.tree import RadixTree
from radixcache.tree.s3fifo import S3FifoPolicy


def make() -> tuple[RadixTree, S3FifoPolicy]:
    """Return a tree and its policy."""
    policy = S3FifoPolicy()
    return RadixTree(1, policy=lambda: policy), policy


def put(tree: RadixTree, first: int, num_blocks: int = 2) -> None:
    """Store a prompt whose tokens and blocks are ``first`` and on."""
    tokens = range(first, first + num_blocks)
    tree.insert(tokens, tokens, namespace="m")


def use(tree: RadixTree, first: int, num_blocks: int = 2) -> int:
    """Ask for a prompt; return how much was there."""
    lock = tree.lock(range(first, first + num_blocks), namespace="m")
    tree.unlock(lock)
    return lock.num_tokens


class TestQueues:
    def test_never_asked_for_again_goes_in_order_of_arrival(self):
        """Without hits it is FIFO."""
        tree, _ = make()
        for first in (10, 20, 30):
            put(tree, first)

        assert [sorted(tree.evict(2)) for _ in range(3)] == [[10, 11], [20, 21], [30, 31]]

    def test_a_hit_saves_from_the_trial(self):
        """What was asked for again outlives later prompts that were not."""
        tree, _ = make()
        for first in (10, 20, 30):
            put(tree, first)
        use(tree, 10)

        assert [sorted(tree.evict(2)) for _ in range(3)] == [[20, 21], [30, 31], [10, 11]]

    def test_hits_are_spent(self):
        """In the main queue a hit earns one more turn, not life for ever."""
        tree, _ = make()
        for first in (10, 20):
            put(tree, first)
            use(tree, first)
        put(tree, 30)
        assert sorted(tree.evict(2)) == [30, 31]
        assert tree.match_len([20, 21], namespace="m") == 2
        use(tree, 10)

        assert sorted(tree.evict(2)) == [20, 21]
        assert sorted(tree.evict(2)) == [10, 11]

    def test_hits_earn_three_turns_at_most(self):
        """In the main queue fifty hits are worth no more than three."""
        tree, _ = make()
        for first in (10, 20):
            put(tree, first)
            use(tree, first)
        put(tree, 30)
        assert sorted(tree.evict(2)) == [30, 31]  # both others are in the main queue now
        for first, num_hits in ((10, 50), (20, 3)):
            for _ in range(num_hits):
                use(tree, first)

        assert [sorted(tree.evict(2)) for _ in range(2)] == [[10, 11], [20, 21]]

    def test_what_comes_back_skips_the_trial(self):
        """A prompt that was evicted and is stored again outlives a newer one."""
        tree, _ = make()
        put(tree, 10)
        tree.evict(2)
        put(tree, 20)
        put(tree, 10)
        put(tree, 30)

        assert [sorted(tree.evict(2)) for _ in range(3)] == [[20, 21], [30, 31], [10, 11]]

    def test_the_trial_keeps_its_share(self):
        """A trial queue at a tenth of all blocks or less is left alone, and main gives way."""
        tree, _ = make()
        for first in range(100, 140, 2):
            put(tree, first)
            use(tree, first)
        put(tree, 20)

        assert sorted(tree.evict(2)) == [100, 101]
        assert use(tree, 20) == 2

    def test_looking_changes_nothing(self):
        """Iteration and check() move no leaf: the same goes with them and without."""
        gone = []
        for look in (False, True):
            tree, policy = make()
            for first in (10, 20, 30):
                put(tree, first)
            use(tree, 10)
            if look:
                assert len(set(map(id, policy))) == len(policy) == 3
                tree.check()
            use(tree, 20)
            gone.append([list(tree.evict(2)) for _ in range(3)])

        assert gone[0] == gone[1]


class TestCounts:
    def test_they_hold_through_cuts_trims_and_returns(self):
        """Random traffic over common prefixes, with a check after each step."""
        draw = random.Random(4)
        tree, _ = make()
        for place in range(600):
            start = draw.choice([[1], [1, 2], [3], []])
            tokens = start + [draw.randrange(5, 12) for _ in range(draw.randint(1, 6))]
            ids = range(10 * place, 10 * place + len(tokens))
            tree.insert(tokens, ids, namespace="m")
            tree.unlock(tree.lock(tokens[: draw.randint(1, len(tokens))], namespace="m"))
            tree.evict(max(0, tree.num_blocks - 30))
            tree.check()

    def test_places_of_vanished_nodes_are_forgotten(self):
        """Leaves that are flushed while in the main queue do not pile up."""
        tree, policy = make()
        for first in range(0, 6000, 2):
            put(tree, first)
            tree.evict(2)
            put(tree, first)
            tree.flush("m")

        assert len(policy) == 0
        assert len(policy._away) <= 1024

    @pytest.mark.parametrize("fault", ["size", "count"])
    def test_check_names_what_is_wrong(self, fault):
        """A leaf changed while held, and a count that does not add up, are found."""
        tree, policy = make()
        put(tree, 10)
        leaf = policy.victim()
        assert leaf is not None
        if fault == "size":
            del leaf.ids[-4:]
        else:
            policy._small_blocks += 1

        with pytest.raises(CacheCorruptionError):
            policy.check()
