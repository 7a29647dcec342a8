"""The adaptive policy, and the two parts it decides by."""

import random
from array import array
from collections import OrderedDict

import numpy as np
import pytest

from radixcache.errors import CacheCorruptionError
from radixcache.tree import RadixTree
from radixcache.tree.adaptive import AdaptivePolicy
from radixcache.tree.ages import AgeBook
from radixcache.tree.policies import PolicyFactory
from radixcache.tree.policy import LruPolicy
from radixcache.tree.rival import LruRival

Prompts = list[list[int]]


def run(
    prompts: Prompts, capacity: int, make: PolicyFactory, *, check: bool = False
) -> tuple[int, list[int]]:
    """Serve prompts one after the other; return block hits, and the blocks evicted in order."""
    tree = RadixTree(1, policy=make)
    hits, next_id = 0, 0
    evicted: list[int] = []
    for prompt in prompts:
        lock = tree.lock(prompt, namespace="m")
        hits += lock.num_tokens
        rest = prompt[lock.num_tokens :]
        evicted += tree.evict(max(0, tree.num_blocks + len(rest) - capacity))
        ids = array("i", range(next_id, next_id + len(rest)))
        next_id += len(rest)
        tree.unlock(tree.extend(lock, rest, ids).lock)
        if check:
            tree.check()
    return hits, evicted


def conversations(seed: int, num: int) -> Prompts:
    """Prompts over a common start, some of them continued, most of them never."""
    draw = random.Random(seed)
    last = 10
    open_ones: Prompts = []
    prompts: Prompts = []
    for _ in range(num):
        if open_ones and draw.random() < 0.4:
            prompt = open_ones.pop(draw.randrange(len(open_ones)))
        else:
            prompt = [1, 2]
        size = draw.randint(1, 6)
        prompt = prompt + list(range(last, last + size))
        last += size
        prompts.append(prompt)
        if draw.random() < 0.5:
            open_ones.append(prompt)
    return prompts


def regulars_and_strangers(num: int) -> Prompts:
    """Twenty prompts in turn, each followed by four that are never seen again."""
    prompts: Prompts = []
    for turn in range(num):
        regular = turn % 20
        prompts.append([1000 + regular * 4 + place for place in range(4)])
        for stranger in range(4):
            first = 10_000 + (turn * 4 + stranger) * 4
            prompts.append(list(range(first, first + 4)))
    return prompts


class TestOrder:
    @pytest.mark.parametrize("seed", range(3))
    def test_without_trust_it_is_lru(self, seed):
        """Every block goes at the same moment as under LRU, ties and tails included."""
        prompts = conversations(seed, 400)
        expected = run(prompts, 120, LruPolicy)

        assert run(prompts, 120, lambda: AdaptivePolicy(max_loss=-1.0)) == expected

    def test_the_same_calls_give_the_same_order(self):
        """Nothing depends on the moment, on addresses or on chance."""
        prompts = conversations(5, 600)

        assert run(prompts, 60, AdaptivePolicy) == run(prompts, 60, AdaptivePolicy)

    def test_iteration_is_the_order_of_eviction(self):
        """Also once ages differ."""
        policy = AdaptivePolicy()
        tree = RadixTree(1, policy=lambda: policy)
        for place, prompt in enumerate(regulars_and_strangers(300)):
            tree.insert(prompt, range(4 * place, 4 * place + 4), namespace="m")
            tree.evict(max(0, tree.num_blocks - 100))
        assert len(set(policy._ages)) > 1
        order = [block for leaf in policy for block in memoryview(leaf.ids).cast("i").tolist()]

        assert [tree.evict(4)[0] for _ in range(len(policy))] == order[::4]

    def test_counts_hold_through_cuts_trims_and_returns(self):
        """Leaves cut by a look-up, trimmed by eviction and stored again keep exact counts."""
        run(conversations(9, 300), 40, AdaptivePolicy, check=True)


class TestLearning:
    def test_it_keeps_what_comes_back(self):
        """LRU's memory is too short for any of the regulars; they all fit, and come to stay."""
        prompts = regulars_and_strangers(1500)
        least, _ = run(prompts, 200, LruPolicy)
        hits, _ = run(prompts, 200, AdaptivePolicy)

        assert least == 0
        assert hits > 0.6 * 4 * 1500

    def test_its_loss_is_bounded(self):
        """When what was learned turns wrong, it is LRU again before much is lost."""
        strangers = regulars_and_strangers(1200)
        draw = random.Random(3)
        recent: Prompts = []
        for place in range(6000):
            again = recent and draw.random() < 0.7
            first = 100_000 + 4 * place
            prompt = draw.choice(recent[-25:]) if again else list(range(first, first + 4))
            recent.append(prompt)
        prompts = strangers + recent
        least, _ = run(prompts, 200, LruPolicy)
        hits, _ = run(prompts, 200, AdaptivePolicy)
        total = sum(len(prompt) for prompt in prompts)

        assert hits >= least - 0.005 * total


class TestRival:
    @pytest.mark.parametrize("seed", range(3))
    def test_the_horizon_is_exact(self, seed):
        """Against a real LRU: what was accessed since the horizon is what it holds."""
        draw = random.Random(seed)
        rival, real = LruRival(), OrderedDict[int, None]()
        held: set[int] = set()
        accessed: dict[int, int] = {}
        loss = 0
        for tick in range(1, 3000):
            item = int(draw.paretovariate(0.4)) % 300
            loss += (item in real) - (item in held)
            if item in held:
                if accessed[item] < rival.horizon:
                    rival.gained(1)
                rival.uncached(accessed[item], 1)
            elif item in accessed:
                rival.returned(accessed[item], 1)
            if item not in held and len(held) == 50:
                victim = draw.choice(sorted(held))
                held.remove(victim)
                rival.uncached(accessed[victim], 1)
                rival.evicted(accessed[victim], 1)
            held.add(item)
            accessed[item] = tick
            rival.cached(tick, 1)
            real[item] = None
            real.move_to_end(item)
            if len(real) > 50:
                real.popitem(last=False)
            assert rival.loss == loss
            since = {item for item, last in accessed.items() if last >= rival.horizon}
            assert since >= set(real)
            assert len(since) <= len(real) + 1

    def test_memory_does_not_grow_with_time(self):
        """A cache that never evicts leaves no trace of past ticks."""
        rival = LruRival()
        for tick in range(1, 5000):
            rival.cached(tick, 3)
            rival.uncached(tick, 3)

        assert not rival._cached
        assert not rival._evicted


class TestAges:
    def test_room_goes_to_what_is_asked_for_again(self):
        """One class always comes back at age 40, the other never: only the first may grow old."""
        book = AgeBook(2)
        for tick in range(1, 4000):
            book.advance(tick, 64)
            book.enter(0, tick, 5)
            book.enter(1, tick, 5)
            if tick > 40:
                book.reuse(0, 39, 5)
                book.leave(0, tick - 40, 5)
        limits = book.limits(5 * 60, uniform=False)

        assert limits[0] >= 40
        assert limits[1] < 30
        assert book.limits(5 * 60, uniform=True) == [1.0, 1.0]

    def test_passing_time_counts_room(self):
        """Blocks times ticks, whether time passes in one step or in many."""
        stepwise, at_once = AgeBook(1), AgeBook(1)
        for book in (stepwise, at_once):
            book.enter(0, 0, 7)
        for tick in range(0, 101, 2):
            stepwise.advance(tick, 64)
        at_once.advance(100, 64)

        # The past fades: what was counted stepwise has had time to.
        assert float(at_once._room.sum()) == pytest.approx(700.0)
        assert 600.0 < float(stepwise._room.sum()) < 700.0

    def test_wider_periods_lose_no_block(self):
        """As LRU's memory grows, the same blocks are followed in fewer, wider periods."""
        book = AgeBook(1)
        for tick in range(300):
            book.advance(tick, 64)
            book.enter(0, tick, 1)
        width = book._width
        book.advance(300, 300)

        assert book._width > width
        assert float(book._alive.sum()) == 300.0
        for tick in range(300):
            book.leave(0, tick, 1)
        assert not np.any(book._alive)


class TestCheck:
    @pytest.mark.parametrize("fault", ["order", "size", "count"])
    def test_it_names_what_is_wrong(self, fault):
        """A leaf changed while held, and a count that does not add up, are found."""
        policy = AdaptivePolicy()
        tree = RadixTree(1, policy=lambda: policy)
        tree.insert([1, 2], [1, 2], namespace="m")
        tree.insert([3, 4], [3, 4], namespace="m")
        leaf = next(iter(policy))
        if fault == "order":
            leaf.last_access += 5
        elif fault == "size":
            del leaf.ids[-4:]
        else:
            policy._num_blocks += 1

        with pytest.raises(CacheCorruptionError):
            policy.check()


def test_a_namespace_that_gets_its_quota_late_learns_as_one_that_had_it_from_the_start():
    """Its own order begins at that tick: the same ages in the end, and no walk through the past."""
    ages = []
    for late in (0, 10**15):
        tree = RadixTree(1, policy="adaptive")
        tree._forest.tick = late
        tree.set_quota("m", max_blocks=150)
        for turn, prompt in enumerate(conversations(3, 1_500)):
            tree.insert(prompt, range(turn * 10_000, turn * 10_000 + len(prompt)), namespace="m")
            tree.trim()
        [account] = tree._forest.quotas.values()
        tree.check()
        ages.append(account.policy._ages)

    assert len(set(ages[0])) > 1
    assert ages[1] == pytest.approx(ages[0], rel=0.05)
