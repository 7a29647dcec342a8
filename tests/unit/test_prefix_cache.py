"""The cache as its engine sees it: room, flush, holds, books."""

import doctest
import importlib
import subprocess
import sys

import pytest

from radixcache.cache import PrefixCache
from radixcache.errors import CacheCorruptionError, InvalidRequestError, OutOfBlocksError
from radixcache.types import Namespace
from tests.cache_driver import ContentStore

NS = "model"


def warm(cache, tokens, namespace=NS):
    """Publish a sequence and let it go."""
    lease = cache.acquire(namespace, tokens)
    lease.extend(len(tokens))
    lease.commit(tokens, len(tokens))
    lease.release()


def test_eviction_makes_exactly_the_room_that_lacks():
    """Free blocks first, then as many cached ones as are missing, never more."""
    cache = PrefixCache(11, block_size=1)
    warm(cache, [1, 2, 3, 4, 5, 6])
    lease = cache.acquire(NS, [9] * 7)
    lease.extend(7)

    assert cache.counters.evicted_blocks == 3
    assert cache.match_len(NS, [1, 2, 3, 4, 5, 6]) == 3
    assert (cache.num_free_blocks, cache.num_leased_blocks) == (0, 7)
    cache.check()


def test_can_allocate_tells_the_truth():
    """It promises what extend then does, up to the last block."""
    cache = PrefixCache(9, block_size=1)
    warm(cache, [1, 2, 3])
    hold = cache.hold(NS, [1, 2])

    assert cache.can_allocate(6)
    assert not cache.can_allocate(7)
    lease = cache.acquire(NS, [9] * 6)
    lease.extend(6)
    assert not cache.can_allocate(1)
    assert cache.can_allocate(0)
    cache.release_hold(hold)
    assert cache.can_allocate(2)


def test_the_store_learns_of_every_freed_block_once():
    """Eviction, release, duplicates and flush go through one release function."""
    freed = []

    class Listener(ContentStore):
        def on_free(self, block_ids):
            freed.extend(block_ids)

    cache = PrefixCache(33, block_size=2, store=Listener(2))
    tokens = list(range(8))
    warm(cache, tokens)
    assert freed == []
    twin = cache.acquire(NS, [*tokens, 1], read=False)
    twin.extend(9)
    own = list(twin.block_table)
    twin.commit([*tokens, 1], 9)
    assert freed == own[:4]
    twin.release()
    assert freed == own
    cache.evict(1)
    cache.flush()

    assert len(freed) == 9
    assert cache.num_free_blocks == 32
    cache.check()


def test_flush_under_load():
    """Case 54: flush in mid-generation; the sequence ends, nothing leaks, the next run works."""
    cache, tokens = PrefixCache(65, block_size=2), list(range(40))
    warm(cache, [500, 501, 502])
    lease = cache.acquire(NS, tokens)
    lease.extend(40)
    lease.commit(tokens, 20)
    assert cache.flush() == 11
    cache.check()
    assert cache.match_len(NS, tokens) == 0
    lease.commit(tokens, 40)
    assert cache.match_len(NS, tokens) == 0
    twin = lease.fork(39)
    cache.check()
    lease.release()
    cache.check()
    twin.release()

    assert cache.num_free_blocks == 64
    assert cache.counters.flushed_blocks == 11
    warm(cache, tokens)
    assert cache.match_len(NS, tokens) == 40
    cache.check()


def test_flush_of_one_namespace():
    """Only what is asked for goes, and only that is counted."""
    cache = PrefixCache(33, block_size=1)
    warm(cache, [1, 2], NS)
    warm(cache, [1, 2, 3], Namespace(NS, "a"))
    warm(cache, [1, 2], "other")

    assert cache.flush(Namespace(NS, "a")) == 1
    assert cache.flush(NS) == 2
    assert cache.match_len("other", [1, 2]) == 2
    assert cache.flush() == 2
    assert cache.flush() == 0


def test_holds_lock_what_is_cached():
    """A hold on a prompt guards its cached part, nothing if there is none."""
    cache = PrefixCache(9, block_size=2)
    warm(cache, [1, 2, 3, 4])
    hold, empty = cache.hold(NS, [1, 2, 9, 9]), cache.hold(NS, [7, 7])

    assert (hold.num_tokens, empty.num_tokens) == (2, 0)
    assert cache.evict(9) == 1
    cache.release_hold(hold)
    cache.release_hold(empty)
    assert cache.evict(9) == 1
    cache.check()


def test_looking_changes_nothing():
    """Match is pure: no recency, no allocation, no node."""
    cache = PrefixCache(9, block_size=1)
    warm(cache, [1])
    warm(cache, [2])
    for _ in range(3):
        assert cache.match(NS, [1, 5]).num_tokens == 1

    assert cache.evict(1) == 1
    assert cache.match_len(NS, [1]) == 0
    assert cache.match_len(NS, [2]) == 1


def test_sizes_name_their_parts():
    """Free, evictable, locked and leased blocks and the reserved one make up the pool."""
    cache = PrefixCache(17, block_size=2)
    warm(cache, [1, 2, 3, 4])
    lease = cache.acquire(NS, [1, 2, 9, 9, 9])
    lease.extend(5)

    sizes = (
        cache.num_free_blocks,
        cache.num_evictable_blocks,
        cache.num_locked_blocks,
        cache.num_leased_blocks,
    )
    assert sizes == (12, 1, 1, 2)
    assert cache.capacity_tokens == 32
    assert (cache.block_size, cache.num_blocks, cache.num_leases, cache.num_nodes) == (2, 17, 1, 2)
    assert cache.view(1).nodes[0].num_tokens == 2
    assert repr(cache).startswith("PrefixCache(num_blocks=17, block_size=2, free=12, evictable=1")


def test_counters_count():
    """Each counter grows by what happened, once."""
    cache = PrefixCache(17, block_size=2)
    warm(cache, [1, 2, 3, 4])
    lease = cache.acquire(NS, [1, 2, 3, 4, 5])
    lease.extend(5)
    lease.fork(5).release()

    counters = cache.counters
    assert (counters.acquired_leases, counters.published_blocks) == (2, 2)
    assert (counters.copied_blocks, counters.evicted_blocks) == (1, 0)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda cache, lease: cache._tree.evict(1), "block .* should be|lost block"),
        (lambda cache, lease: lease.block_table.pop(), "lost block: .* is leased to nobody"),
        (lambda cache, lease: lease.block_table.append(lease.block_table[-1]), "is leased twice"),
        (lambda cache, lease: cache._ledger.leases.clear(), "lost block"),
        (lambda cache, lease: cache._allocator.free([lease.block_table[-1]]), "should be leased"),
        (lambda cache, lease: setattr(lease, "num_published_tokens", 0), "its table differs"),
    ],
    ids=["tree lost one", "lease lost one", "twice", "lease lost", "freed early", "wrong length"],
)
def test_check_names_what_does_not_add_up(damage, fault):
    """Case 82: free + tree + leases + reserved = pool, or check() says what is wrong."""
    cache = PrefixCache(17, block_size=2)
    warm(cache, [7, 7])
    lease = cache.acquire(NS, [1, 2, 3, 4, 5])
    lease.extend(5)
    lease.commit([1, 2, 3, 4, 5], 5)
    cache.check()
    damage(cache, lease)

    with pytest.raises(CacheCorruptionError, match=fault):
        cache.check()


class TestQuotas:
    def test_a_quota_holds_at_once_and_after_each_commit_and_release(self):
        """No step leaves a namespace above its limit with blocks that nobody uses."""
        cache, tenant = PrefixCache(32, block_size=2), Namespace(NS, "a")
        warm(cache, range(12), tenant)
        cache.set_quota(tenant, max_tokens=9)
        assert (cache.match_len(tenant, range(12)), cache.num_free_blocks) == (8, 27)
        cache.check()

        tokens = list(range(50, 60))
        lease = cache.acquire(tenant, tokens)
        lease.extend(10)
        lease.commit(tokens, 4)
        assert cache.match_len(tenant, range(12)) == 4
        lease.commit(tokens, 10)
        assert cache.match_len(tenant, range(12)) == 0
        assert cache.num_locked_blocks == 5
        lease.release()
        assert (cache.num_evictable_blocks, cache.num_locked_blocks) == (4, 0)
        assert cache.counters.evicted_blocks == 2 + 2 + 2 + 1
        cache.check()
        assert cache.remove_quota(tenant)
        assert not cache.remove_quota(tenant)

    def test_a_guarantee_outlasts_others_need_but_not_its_owners(self):
        """Others get OutOfBlocksError; its owner gets the room."""
        cache, tenant = PrefixCache(9, block_size=2), Namespace(NS, "a")
        warm(cache, range(12), tenant)
        cache.set_quota(tenant, guaranteed_tokens=11)
        stranger = cache.acquire(NS, range(100, 110))
        with pytest.raises(OutOfBlocksError, match="guaranteed to other namespaces"):
            stranger.extend(10)
        assert cache.match_len(tenant, range(12)) == 12
        assert (cache.num_free_blocks, cache.counters.refused_allocations) == (2, 1)
        stranger.extend(4)
        owner = cache.acquire(tenant, range(100, 110))
        owner.extend(10)

        assert cache.match_len(tenant, range(12)) == 2
        cache.check()
        owner.release()
        stranger.release()
        cache.check()

    def test_no_more_is_guaranteed_than_there_is(self):
        """Over all namespaces; changing one's own counts it once."""
        cache = PrefixCache(9, block_size=2)
        cache.set_quota("m", guaranteed_tokens=9)
        cache.set_quota("m", guaranteed_tokens=10)
        with pytest.raises(InvalidRequestError, match=r"guaranteed_tokens: got 7.* 0 to 6"):
            cache.set_quota("n", guaranteed_tokens=7)
        cache.set_quota("n", guaranteed_tokens=6)

        with pytest.raises(InvalidRequestError, match="guaranteed_tokens"):
            cache.set_quota("o", guaranteed_tokens=1)

    def test_a_requests_priority_reaches_the_tree(self):
        """What it reads and what it publishes outlasts the rest."""
        cache = PrefixCache(8, block_size=1, policy="priority")
        warm(cache, [1, 2])
        lease = cache.acquire(NS, [1, 9, 9], priority=1)
        lease.extend(3)
        lease.commit([1, 9, 9], 2)
        lease.release()
        warm(cache, [5, 6])
        cache.evict(3)

        assert cache.match_len(NS, [1, 9]) == 2
        assert cache.match_len(NS, [1, 2]) == 1


def test_wrong_settings_are_named():
    """Pool size, block size and policy."""
    with pytest.raises(InvalidRequestError, match="num_blocks"):
        PrefixCache(1)
    with pytest.raises(InvalidRequestError, match="block_size"):
        PrefixCache(8, block_size=0)
    with pytest.raises(InvalidRequestError, match="policy"):
        PrefixCache(8, policy="mru")


def test_the_tree_needs_neither_torch_nor_grpc():
    """The library's heart imports plain integers' worth: no torch, transformers or grpc."""
    code = (
        "import sys, radixcache.cache, radixcache.lease, radixcache.tree;"
        "print([m for m in ('torch', 'transformers', 'grpc') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="."
    )

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["radixcache.cache", "radixcache.tree.tree"])
def test_examples_in_docstrings_run(module):
    """What the documentation shows is what happens."""
    result = doctest.testmod(importlib.import_module(module))
    assert (result.failed, result.attempted > 0) == (0, True)
