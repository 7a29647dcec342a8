"""Explanations and the memory of evicted prefixes against a naive record of every block."""

import random

import pytest

from radixcache.explanation import MissCause
from radixcache.tree.lost import LostPrefixes, covers
from radixcache.types import PUBLIC, Namespace
from tests.tree_driver import TreeDriver, tokens_of
from tests.tree_steps import BUSY_SPACES, random_step


class ExplainDriver(TreeDriver):
    """Remembers of each evicted block, by owner and path of tokens, when and why it went last."""

    def __init__(self, block_size, **bounds):
        super().__init__(block_size)
        self.now = 0.0
        self.gone = {}  # (kv_key, scope, path) -> (time, cause)
        self.bounds = bounds
        forest = self.tree._forest
        forest.clock = lambda: self.now
        if bounds:
            forest.lost = LostPrefixes(forest.unit, **({"max_tokens": 2**20} | bounds))

    def _paths(self):
        blocks = [b for b in self.model.blocks.values() if not b.detached]
        return {(b.kv_key, b.scope, tuple(part.tokens for part in b.path())) for b in blocks}

    def evict(self, num_blocks, asker=None):
        """Evict and take down what went."""
        self.now += 1
        cause = f"cause {self.now}"
        before = self._paths()
        super().evict(num_blocks, asker, cause=cause)
        self.gone |= dict.fromkeys(before - self._paths(), (self.now, cause))

    def trim(self):
        """The same, for what is above quotas."""
        self.now += 1
        before = self._paths()
        super().trim()
        for kv_key, scope, path in before - self._paths():
            limit = self.model.quotas[kv_key, scope][0]
            cause = f"the namespace's quota of {limit} blocks was reached"
            self.gone[kv_key, scope, path] = (self.now, cause)

    def flush(self, space):
        """Flush; what was lost before goes with it."""
        super().flush(space)
        for key in list(self.gone):
            if space is None or covers(space, Namespace(*key[:2])):
                del self.gone[key]

    def note_cached(self):
        """What is cached again is not lost any more."""
        for key in self._paths():
            self.gone.pop(key, None)

    def explain(self, space, tokens):
        """Compare an explanation; it must change nothing."""
        before, lost = self._shape(), list(self.tree._forest.lost._order)
        found = self.tree.explain(tokens, namespace=space)
        assert self._shape() == before
        assert list(self.tree._forest.lost._order) == lost
        assert found.summary
        parts = tuple(self.model.whole(tokens))
        root = self.model.root(space.kv_key)
        depth = self.model.longest_len(root, parts, space.scope)
        assert (found.prompt_tokens, found.matched_tokens) == (len(tokens), depth * self.size)
        if depth == len(parts):
            assert found.cause is (MissCause.ALIGNMENT if found.tail_tokens else MissCause.HIT)
            assert (found.evicted, found.diverged) == (None, None)
            return found
        self._verify_evicted(found, space, parts, depth)
        self._verify_diverged(found, space, tokens, depth)
        return found

    def _evictions(self, space, path):
        scopes = {PUBLIC, space.scope}
        return [self.gone[key] for s in scopes if (key := (space.kv_key, s, path)) in self.gone]

    def _verify_evicted(self, found, space, parts, depth):
        known = self._evictions(space, parts[: depth + 1])
        assert (found.cause is MissCause.EVICTED) == (found.evicted is not None)
        if found.evicted is None:
            assert self.bounds or not known
            return
        assert known
        if self.bounds:
            return
        assert (self.now - found.evicted.evicted_s, found.evicted.evicted_by) == max(known)
        run = depth
        while run < len(parts) and self._evictions(space, parts[: run + 1]):
            run += 1
        if space.scope == PUBLIC:
            assert found.evicted.num_tokens == (run - depth) * self.size
        assert self.size <= found.evicted.num_tokens <= (run - depth) * self.size

    def _verify_diverged(self, found, space, tokens, depth):
        best = 0
        for kv_key, scope, path in self._paths():
            if kv_key != space.kv_key or scope not in (PUBLIC, space.scope):
                continue
            cached = [token for part in path for token in part]
            agreed = next(
                (i for i, (a, b) in enumerate(zip(cached, tokens, strict=False)) if a != b), 0
            )
            best = max(best, agreed)
        if best >= depth * self.size and best:
            fork = found.diverged
            assert fork.at == best
            assert fork.asked_token_ids == tuple(tokens[best : best + 16])
            assert fork.cached_token_ids[0] != fork.asked_token_ids[0]
        else:
            assert found.diverged is None


def random_explained_step(driver, dice):
    """One random operation, then one random question."""
    random_step(driver, dice)
    driver.note_cached()
    space = dice.choice(BUSY_SPACES)
    words = [dice.randrange(4) for _ in range(dice.randrange(9))]
    return driver.explain(space, tokens_of(words, driver.size, dice.randrange(4)))


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_what_was_evicted_is_known_and_nothing_else(block_size):
    """With room for all, EVICTED is said exactly of what went and did not return."""
    driver, dice = ExplainDriver(block_size), random.Random(block_size)
    causes = []
    for _ in range(1_000):
        causes.append(random_explained_step(driver, dice).cause)
        driver.tree._forest.lost.check()
    driver.check()

    assert causes.count(MissCause.EVICTED) > 100
    assert causes.count(MissCause.DIVERGED) > 20
    assert causes.count(MissCause.NEVER_SEEN) > 20


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize(
    "bounds", [{"max_records": 3}, {"max_tokens": 40}, {"max_tokens": 0}, {"max_records": 1}]
)
def test_a_small_memory_only_forgets(block_size, bounds):
    """Within any bounds nothing is said to be evicted that was not."""
    driver, dice = ExplainDriver(block_size, **bounds), random.Random(block_size)
    lost = driver.tree._forest.lost
    for _ in range(400):
        random_explained_step(driver, dice)
        lost.check()
        assert len(lost) <= bounds.get("max_records", 2**16)
        assert lost.num_tokens <= bounds.get("max_tokens", 2**20)
        assert len(lost._order) <= 2 * len(lost) + 16
    driver.check()


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("bounds", [{}, {"max_records": 9, "max_tokens": 200}])
def test_the_memory_stays_exact_over_a_long_run(block_size, bounds):
    """The same, 20,000 times."""
    driver, dice = ExplainDriver(block_size, **bounds), random.Random(77 + block_size)
    for _ in range(20_000):
        random_explained_step(driver, dice)
        driver.tree._forest.lost.check()
