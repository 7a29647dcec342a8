"""Long runs: what a tree keeps does not grow with what it has done."""

import random
import resource
import sys
from array import array

import pytest

from radixcache.cache import PrefixCache
from radixcache.tree import RadixTree
from radixcache.tree.policies import POLICIES
from radixcache.types import Namespace

SIZE = 4
REMEMBERED = 2**16  # so few that the memory of lost prefixes is soon full


class Churn:
    """Cheap random calls on a tree of some two thousand blocks; namespaces come and go."""

    def __init__(self, policy, seed):
        self.tree = RadixTree(SIZE, policy=policy, remembered_tokens=REMEMBERED)
        self.dice = random.Random(seed)
        stems = [array("i", [stem] * SIZE * 3) for stem in range(40)]
        self.prompts = [
            stem
            + array("i", [self.dice.randrange(50) for _ in range(SIZE * self.dice.randrange(4))])
            for stem in stems
            for _ in range(25)
        ]
        self.locks = []
        self.num_calls = 0
        self.next_id = 0
        self.free = []

    def ids(self, num_blocks):
        """Block ids that nobody has; freed ones are used again, as a pool does."""
        while len(self.free) < num_blocks:
            self.free.append(self.next_id)
            self.next_id += 1
        taken, self.free = self.free[-num_blocks:], self.free[:-num_blocks]
        return array("i", taken) if num_blocks else array("i")

    def space(self):
        """Mostly one of a few; now and then one that never was before and never will be again."""
        kind = self.dice.random()
        if kind < 0.9:
            return Namespace("m", "abc"[int(kind * 3.3)] if kind > 0.3 else "")
        number = self.num_calls // 200
        return Namespace(f"m{number}" if kind > 0.97 else "m", f"t{number}")

    def insert(self, space, tokens):
        """Publish, and give back what was there."""
        mine = self.ids(len(tokens) // SIZE)
        inserted = self.tree.insert(tokens, mine, namespace=space)
        self.free.extend(mine[: inserted.num_present // SIZE])

    def run(self, num_calls):
        """Make that many calls of the tree."""
        target = self.num_calls + num_calls
        while self.num_calls < target:
            self.turn()

    def turn(self):
        """One request: look up, publish, go on from there, let go; and make room."""
        tree, dice, locks = self.tree, self.dice, self.locks
        space, tokens = self.space(), dice.choice(self.prompts)
        tree.match_len(tokens, namespace=space)
        self.insert(space, tokens)
        lock = tree.lock(tokens, namespace=space)
        more = array("i", [dice.randrange(9)] * SIZE)
        mine = self.ids(1)
        extended = tree.extend(lock, more, mine)
        if extended.num_present:
            self.free.extend(mine)
        locks.append(extended.lock)
        self.num_calls += 4
        while len(locks) > 8:
            self.free.extend(tree.unlock(locks.pop(dice.randrange(len(locks)))))
            self.num_calls += 1
        if tree.num_blocks > 2_000:
            self.free.extend(tree.evict(dice.randrange(1, 40), namespace=space))
            self.num_calls += 1
        if dice.random() < 0.002:
            self.rare(space)

    def rare(self, space):
        """Flushes, quotas, pictures."""
        kind = self.dice.randrange(5)
        if kind == 0:
            self.free.extend(self.tree.flush(space))
        elif kind == 1:
            self.tree.set_quota(space, max_blocks=self.dice.randrange(20, 600))
        elif kind == 2:
            for known in [*self.tree._forest.quotas]:
                self.tree.remove_quota(known)
        elif kind == 3:
            self.free.extend(self.tree.trim())
        else:
            self.tree.view(20)
        self.num_calls += 1

    def kept(self):
        """How much is in each structure that could grow for ever."""
        forest = self.tree._forest
        lost = forest.lost
        return {
            "block ids in use": self.next_id,
            "lost records": len(lost),
            "places of lost records": sum(len(places) for places in lost._forks.values()),
            "key ids of lost records": lost.num_tokens,
            "debtors": len(forest.sizes._debtors),
            "roots": len(forest.roots),
            "accounts": sum(len(root.accounts) for root in forest.roots.values()),
            "quotas": len(forest.quotas),
            "tops": len(forest.tops),
            "leaves": len(forest.policy),
            "nodes": self.tree.num_nodes,
            "locks": self.tree.num_locks,
        }


LIMITS = {
    "block ids in use": 2_400,
    "lost records": REMEMBERED // SIZE,
    "places of lost records": REMEMBERED // SIZE,
    "key ids of lost records": REMEMBERED,
    "debtors": 1_000,
    "roots": 600,
    "accounts": 1_200,
    "quotas": 2_000,
    "tops": 40,
    "leaves": 2_200,
    "nodes": 2_400,
    "locks": 9,
}


def max_rss_bytes():
    """The most memory this process has ever had."""
    kilo = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilo


def soak(policy, num_calls, warm_up):
    """Run; after the warm-up nothing may grow. Returns the growth of memory since then."""
    churn = Churn(policy, seed=3)
    churn.run(warm_up)
    churn.tree.check()  # takes room of its own, once
    assert warm_up < 10**6 or churn.tree._forest.lost.forgotten_s is not None
    before = max_rss_bytes()
    while churn.num_calls < num_calls:
        churn.run(num_calls // 20)
        for name, size in churn.kept().items():
            assert size <= LIMITS[name], name
        churn.tree.check()
    for lock in churn.locks:
        churn.free.extend(churn.tree.unlock(lock))
    churn.free.extend(churn.tree.flush())
    assert (churn.tree.num_nodes, churn.tree.num_blocks) == (0, 0)
    assert sorted(churn.free) == list(range(churn.next_id))
    return max_rss_bytes() - before


@pytest.mark.parametrize("policy", POLICIES)
def test_no_structure_grows_in_a_hundred_thousand_calls(policy):
    """The quick form: every size stays within its bound, and every block comes back."""
    soak(policy, 100_000, warm_up=20_000)


@pytest.mark.slow
def test_memory_is_stable_over_ten_million_calls():
    """After the memory of lost prefixes has filled up, the process grows by 16 MB at most."""
    assert soak("lru", 10_000_000, warm_up=2_000_000) < 16 * 2**20


@pytest.mark.slow
def test_a_cache_is_stable_over_a_million_leases():
    """Tree, pool and leases: free lists come back whole, the process grows by 16 MB at most."""
    cache, dice = PrefixCache(600, block_size=SIZE), random.Random(5)
    prompts = [[stem] * 8 + [dice.randrange(30) for _ in range(9)] for stem in range(200)]
    before = 0
    for number in range(1_000_000):
        tokens = dice.choice(prompts)
        lease = cache.acquire(Namespace("m", f"t{number // 5_000}"), tokens)
        lease.extend(len(tokens))
        lease.commit(tokens, len(tokens))
        lease.release()
        if number == 400_000:
            before = max_rss_bytes()
    cache.check()
    assert max_rss_bytes() - before < 16 * 2**20
    cache.evict(10**6)
    assert cache.num_free_blocks == cache.num_blocks - 1
