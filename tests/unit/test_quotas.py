"""Quotas and guarantees of namespaces: what one tenant may hold, and what others must leave it."""

import pytest

from radixcache.cache import PrefixCache
from radixcache.errors import InvalidRequestError, OutOfBlocksError
from radixcache.tree import RadixTree
from radixcache.tree.policies import POLICIES
from radixcache.types import Namespace

NS = "model"
A, B, C = (Namespace(NS, scope) for scope in "abc")


def serve(cache, tokens, namespace):
    """Publish a sequence; return its lease."""
    lease = cache.acquire(namespace, tokens)
    lease.extend(len(tokens))
    lease.commit(tokens, len(tokens))
    return lease


def warm(cache, tokens, namespace):
    """Publish a sequence and let it go."""
    serve(cache, tokens, namespace).release()


def held(cache, namespace, *prompts):
    """Blocks that a namespace finds of its prompts, block size 1."""
    return sum(cache.match_len(namespace, prompt) for prompt in prompts)


class TestLimit:
    def test_a_namespace_stays_within_its_limit(self):
        """Its own least recent leaf goes, trimmed by exactly the excess; nobody else's does."""
        cache = PrefixCache(65, block_size=1)
        warm(cache, [9, 9, 9], B)
        cache.set_quota(A, max_tokens=5)
        warm(cache, [1, 1, 1], A)
        warm(cache, [2, 2, 2], A)

        assert (held(cache, A, [1, 1, 1]), held(cache, A, [2, 2, 2])) == (2, 3)
        assert held(cache, B, [9, 9, 9]) == 3
        assert cache.counters.evicted_blocks == 1
        cache.check()

    def test_a_running_sequence_pushes_out_what_is_not_locked(self):
        """At its commit, not only when it ends."""
        cache = PrefixCache(65, block_size=1)
        warm(cache, [1, 1, 1], A)
        cache.set_quota(A, max_tokens=4)
        lease = serve(cache, [2, 2, 2], A)

        assert (held(cache, A, [1, 1, 1]), held(cache, A, [2, 2, 2])) == (1, 3)
        lease.release()
        cache.check()

    def test_only_locked_blocks_exceed_it_and_go_when_unlocked(self):
        """A running sequence keeps what it has published; its end brings the namespace down."""
        cache = PrefixCache(65, block_size=1)
        cache.set_quota(A, max_tokens=3)
        lease = serve(cache, [1, 2, 3, 4, 5], A)
        hold = lease.hold()

        assert cache.match_len(A, [1, 2, 3, 4, 5]) == 5
        lease.release()
        assert cache.match_len(A, [1, 2, 3, 4, 5]) == 5
        cache.check()
        cache.release_hold(hold)
        assert cache.match_len(A, [1, 2, 3, 4, 5]) == 3
        cache.check()

    def test_a_limit_set_later_acts_at_once(self):
        """Content was there first; lowering it acts too, lifting it brings nothing back."""
        cache = PrefixCache(65, block_size=1)
        warm(cache, [1, 2, 3, 4, 5], A)
        cache.set_quota(A, max_tokens=4)
        assert held(cache, A, [1, 2, 3, 4, 5]) == 4
        cache.set_quota(A, max_tokens=2)
        assert held(cache, A, [1, 2, 3, 4, 5]) == 2
        cache.set_quota(A)

        warm(cache, [1, 2, 3, 4, 5], A)
        assert held(cache, A, [1, 2, 3, 4, 5]) == 5
        cache.check()

    def test_a_limit_of_nothing(self):
        """Sequences run, and leave nothing behind."""
        cache = PrefixCache(9, block_size=1)
        cache.set_quota(A, max_tokens=0)
        for _ in range(3):
            lease = serve(cache, [1, 2, 3], A)
            assert cache.match_len(A, [1, 2, 3]) == 3
            lease.release()

        assert cache.num_free_blocks == 8
        cache.check()

    def test_it_is_rounded_down_to_blocks(self):
        """Seven tokens are one block of four."""
        cache = PrefixCache(9, block_size=4)
        cache.set_quota(A, max_tokens=7)
        warm(cache, list(range(8)), A)

        assert cache.match_len(A, list(range(8))) == 4

    def test_public_blocks_that_others_stand_on_stay_until_those_go(self):
        """The limit of the PUBLIC part cannot cut a path that leads to private blocks."""
        cache = PrefixCache(65, block_size=1)
        warm(cache, [1, 2, 3], NS)
        warm(cache, [1, 2, 3, 4, 5], A)
        cache.set_quota(NS, max_tokens=1)
        assert cache.match_len(A, [1, 2, 3, 4, 5]) == 5
        cache.evict(2)

        assert cache.match_len(NS, [1, 2, 3]) == 1
        cache.check()

    def test_public_goes_down_after_the_private_part_on_it(self):
        """One release brings both to their limits, whichever was set first."""
        cache = PrefixCache(65, block_size=1)
        cache.set_quota(NS, max_tokens=1)
        cache.set_quota(A, max_tokens=0)
        public = serve(cache, [1, 2, 3], NS)
        private = serve(cache, [1, 2, 3, 4, 5], A)
        public.release()
        assert cache.match_len(A, [1, 2, 3, 4, 5]) == 5
        private.release()

        assert cache.num_free_blocks == 63
        cache.check()

    def test_flushing_the_private_part_brings_public_to_its_limit(self):
        """What stood on it is gone."""
        cache = PrefixCache(65, block_size=1)
        warm(cache, [1, 2, 3], NS)
        warm(cache, [1, 2, 3, 4], A)
        cache.set_quota(NS, max_tokens=1)
        cache.flush(A)

        assert cache.match_len(NS, [1, 2, 3]) == 1
        cache.check()


class TestGuarantee:
    @pytest.mark.parametrize("policy", sorted(POLICIES))
    def test_one_tenant_filling_the_cache_leaves_another_its_share(self, policy):
        """However much it publishes; what is above the share goes."""
        cache = PrefixCache(21, block_size=1, policy=policy)
        cache.set_quota(B, guaranteed_tokens=4)
        warm(cache, [9] * 3, B)
        warm(cache, [8] * 3, B)
        for first in range(50):
            warm(cache, [first, 1, 2], A)
            cache.check()

        assert held(cache, B, [9] * 3, [8] * 3) == 4

    def test_running_sequences_cannot_take_it_either(self):
        """They get OutOfBlocksError, which names the setting, and lose nothing."""
        cache = PrefixCache(11, block_size=1)
        cache.set_quota(B, guaranteed_tokens=4)
        warm(cache, [9] * 6, B)
        lease = cache.acquire(A, [1] * 10)
        lease.extend(6)
        assert held(cache, B, [9] * 6) == 4
        assert not cache.can_allocate(1, A)
        with pytest.raises(OutOfBlocksError, match=r"4 evictable ones are guaranteed.*set_quota"):
            lease.extend(7)

        assert (len(lease.block_table), cache.num_evictable_blocks) == (6, 4)
        lease.release()
        cache.check()

    def test_a_refusal_evicts_nothing(self):
        """What could go stays when it would not be enough."""
        cache = PrefixCache(11, block_size=1)
        cache.set_quota(B, guaranteed_tokens=4)
        warm(cache, [9] * 6, B)
        warm(cache, [1] * 3, C)
        lease = cache.acquire(A, [2] * 9)
        with pytest.raises(OutOfBlocksError):
            lease.extend(7)

        assert held(cache, B, [9] * 6) + held(cache, C, [1] * 3) == 9
        assert cache.can_allocate(6, A)
        lease.extend(6)
        assert held(cache, B, [9] * 6) == 4
        cache.check()

    def test_ones_own_pressure_may_take_it(self):
        """A namespace is not stopped by its own guarantee."""
        cache = PrefixCache(9, block_size=1)
        cache.set_quota(B, guaranteed_tokens=8)
        warm(cache, [9] * 8, B)
        assert not cache.can_allocate(1, A)
        assert cache.can_allocate(8, B)
        serve(cache, [1] * 5, B)

        assert held(cache, B, [9] * 8) == 3
        cache.check()

    def test_locked_blocks_count_in_it(self):
        """With four locked, of a share of five only one more is kept."""
        cache = PrefixCache(13, block_size=1)
        cache.set_quota(B, guaranteed_tokens=5)
        running = serve(cache, [8] * 4, B)
        warm(cache, [9] * 4, B)
        assert cache.can_allocate(7, A)
        assert not cache.can_allocate(8, A)
        cache.acquire(A, [1] * 8).extend(7)

        assert held(cache, B, [8] * 4, [9] * 4) == 5
        running.release()
        assert not cache.can_allocate(1, A)
        cache.check()

    def test_an_explicit_evict_honours_it(self):
        """It is nobody's pressure; a flush is an order and does not ask."""
        cache = PrefixCache(9, block_size=1)
        cache.set_quota(B, guaranteed_tokens=3)
        warm(cache, [9] * 5, B)

        assert cache.evict(99) == 2
        assert cache.evict(99) == 0
        assert cache.flush(B) == 3

    def test_it_is_rounded_up_to_blocks(self):
        """Five tokens are two blocks of four."""
        cache = PrefixCache(9, block_size=4)
        cache.set_quota(B, guaranteed_tokens=5)
        warm(cache, list(range(16)), B)

        assert cache.evict(99) == 2

    def test_public_blocks_under_a_guarantee_stay_with_it(self):
        """They cannot go before it. Foreseeing that would take a walk: extend refuses, soundly."""
        cache = PrefixCache(11, block_size=1)
        warm(cache, [1, 2, 3, 4], NS)
        warm(cache, [1, 2, 3, 4, 5, 6], B)
        warm(cache, [7, 7], A)
        cache.set_quota(B, guaranteed_tokens=2)
        lease = cache.acquire(A, [8] * 8)

        assert cache.can_allocate(8, A)
        with pytest.raises(OutOfBlocksError, match="set_quota"):
            lease.extend(8)
        assert lease.block_table == []
        assert cache.match_len(B, [1, 2, 3, 4, 5, 6]) == 6
        cache.check()
        lease.extend(4)
        lease.release()
        assert cache.evict(99) == 0
        cache.remove_quota(B)
        assert cache.evict(99) == 6
        cache.check()

    def test_a_guarantee_of_the_public_part(self):
        """It counts PUBLIC blocks only, whoever presses."""
        cache = PrefixCache(13, block_size=1)
        cache.set_quota(NS, guaranteed_tokens=3)
        warm(cache, [1, 2, 3, 4], NS)
        warm(cache, [1, 2, 3, 4, 5, 6], A)

        assert cache.evict(99) == 3
        assert (cache.match_len(NS, [1, 2, 3, 4]), cache.match_len(A, [1, 2, 3, 4, 5])) == (3, 3)
        assert not cache.can_allocate(10, A)
        assert cache.can_allocate(12, Namespace(NS, ""))
        cache.check()

    def test_guarantees_together_fit_the_pool(self):
        """The last one is told what is left; a new figure replaces the old."""
        cache = PrefixCache(9, block_size=2)
        cache.set_quota(A, guaranteed_tokens=6)
        cache.set_quota(B, guaranteed_tokens=10)
        with pytest.raises(InvalidRequestError, match=r"guaranteed_tokens: got 1, allowed: 0 to 0"):
            cache.set_quota(C, guaranteed_tokens=1)
        cache.set_quota(A, guaranteed_tokens=5)
        with pytest.raises(InvalidRequestError, match="0 to 0"):
            cache.set_quota(C, guaranteed_tokens=2)
        cache.set_quota(A, guaranteed_tokens=4)
        cache.set_quota(C, guaranteed_tokens=2)
        cache.remove_quota(B)
        cache.set_quota(C, guaranteed_tokens=12)
        cache.check()

    def test_a_guarantee_within_the_limit(self):
        """In tokens as they were given; nothing has changed."""
        cache = PrefixCache(9, block_size=2)
        cache.set_quota(A, max_tokens=8)
        warm(cache, list(range(8)), A)
        with pytest.raises(InvalidRequestError, match=r"guaranteed_tokens: got 5, allowed: 0 to 4"):
            cache.set_quota(A, max_tokens=5, guaranteed_tokens=5)

        assert cache.match_len(A, list(range(8))) == 8
        cache.set_quota(A, max_tokens=4, guaranteed_tokens=3)
        cache.check()


class TestLife:
    def test_a_removed_quota_returns_its_leaves_to_the_common_order(self):
        """From then on the least recent goes first again, whoever owns it."""
        cache = PrefixCache(9, block_size=1)
        cache.set_quota(B, guaranteed_tokens=2, max_tokens=6)
        warm(cache, [9, 9], B)
        warm(cache, [1, 1], A)
        assert cache.evict(1) == 1
        assert held(cache, B, [9, 9]) == 2
        assert cache.remove_quota(B)
        assert not cache.remove_quota(B)
        cache.check()

        assert cache.evict(1) == 1
        assert (held(cache, A, [1, 1]), held(cache, B, [9, 9])) == (1, 1)

    def test_a_quota_moves_leaves_that_are_there(self):
        """Set after the content, with locked and private parts, and taken away again."""
        cache = PrefixCache(33, block_size=1)
        warm(cache, [1, 2, 3], NS)
        warm(cache, [1, 2, 4], NS)
        running = serve(cache, [1, 2, 3, 5], A)
        for space in (NS, A, B):
            cache.set_quota(space, guaranteed_tokens=2)
            cache.check()
        running.release()
        cache.check()
        for space in (NS, A, B):
            assert cache.remove_quota(space)
            cache.check()

        assert cache.evict(99) == 5

    @pytest.mark.parametrize("how", ["flush", "flush all", "evict", "limit 0"])
    def test_a_quota_outlives_everything_under_it(self, how):
        """A flush, or the loss of the last block and with it of the root."""
        cache = PrefixCache(17, block_size=1)
        cache.set_quota(A, max_tokens=3)
        warm(cache, [1, 2, 3], A)
        if how == "limit 0":
            cache.set_quota(A, max_tokens=0)
            cache.set_quota(A, max_tokens=3)
        else:
            {
                "flush": lambda: cache.flush(NS),
                "flush all": cache.flush,
                "evict": lambda: cache.evict(9),
            }[how]()
        assert cache.num_nodes == 0
        warm(cache, [4, 5, 6, 7, 8], A)

        assert cache.match_len(A, [4, 5, 6, 7, 8]) == 3
        cache.check()

    def test_a_flush_under_a_lock_counts_nothing_twice(self):
        """What it publishes after the flush is in no account, its end frees all of it."""
        cache = PrefixCache(17, block_size=1)
        cache.set_quota(A, max_tokens=4, guaranteed_tokens=2)
        lease = cache.acquire(A, [1, 2, 3, 4, 5])
        lease.extend(5)
        lease.commit([1, 2, 3, 4, 5], 3)
        cache.flush(A)
        lease.commit([1, 2, 3, 4, 5], 5)
        cache.check()
        warm(cache, [6, 7], A)
        assert cache.match_len(A, [6, 7]) == 2
        lease.release()

        assert cache.num_free_blocks == 14
        assert not cache.can_allocate(15, B)
        cache.check()

    def test_many_namespaces_share_as_they_were_promised(self):
        """A hundred tenants with guarantees, a crowd without: each keeps its share, none more."""
        cache = PrefixCache(401, block_size=1)
        tenants = [Namespace(f"model {n % 3}", f"tenant {n}") for n in range(100)]
        for tenant in tenants:
            cache.set_quota(tenant, max_tokens=5, guaranteed_tokens=2)
            warm(cache, [1, 2, 3, 4, 5, 6], tenant)
        assert all(2 <= held(cache, tenant, [1, 2, 3, 4, 5, 6]) <= 5 for tenant in tenants)
        for first in range(200):
            warm(cache, [first] * 10, Namespace("model 1", f"crowd {first % 7}"))
        cache.check()

        assert [held(cache, tenant, [1, 2, 3, 4, 5, 6]) for tenant in tenants] == [2] * 100
        for tenant in tenants:
            assert cache.remove_quota(tenant)
        assert cache.evict(10**6) == 400
        assert cache.num_nodes == 0
        cache.check()

    @pytest.mark.parametrize("policy", sorted(POLICIES))
    def test_what_another_order_noted_is_not_held_against_this_one(self, policy):
        """Evicted under one order, back under another: in both directions, twice."""
        cache = PrefixCache(13, block_size=1, policy=policy)
        for _ in range(2):
            for _ in range(9):
                warm(cache, [1, 2, 3], A)
            warm(cache, [5] * 12, B)
            assert held(cache, A, [1, 2, 3]) == 0
            cache.set_quota(A, max_tokens=6)
            warm(cache, [1, 2, 3], A)
            cache.check()
            warm(cache, [6] * 12, B)
            cache.remove_quota(A)
            warm(cache, [1, 2, 3], A)
            cache.check()

        assert held(cache, A, [1, 2, 3]) == 3

    @pytest.mark.parametrize("wrong", [-1, 1.5, "8"])
    def test_limits_are_whole_numbers(self, wrong):
        """Both of them, in the cache and in the tree; nothing has changed."""
        cache, tree = PrefixCache(9, block_size=1), RadixTree(1)
        with pytest.raises(InvalidRequestError, match="max_tokens"):
            cache.set_quota(A, max_tokens=wrong)
        with pytest.raises(InvalidRequestError, match="guaranteed_tokens"):
            cache.set_quota(A, guaranteed_tokens=wrong)
        with pytest.raises(InvalidRequestError, match="max_blocks"):
            tree.set_quota(A, max_blocks=wrong)
        with pytest.raises(InvalidRequestError, match="guaranteed_blocks"):
            tree.set_quota(A, guaranteed_blocks=wrong)

        assert not cache.remove_quota(A)
        with pytest.raises(TypeError, match="namespace"):
            cache.set_quota(None, max_tokens=1)

    def test_the_tree_alone_leaves_trimming_to_its_user(self):
        """Insert may exceed a quota; trim says what goes, PUBLIC after what stands on it."""
        tree = RadixTree(1)
        tree.set_quota(NS, max_blocks=1)
        tree.set_quota(A, max_blocks=1)
        tree.set_quota(B, max_blocks=0)
        tree.insert([1, 2], [1, 2], namespace=NS)
        tree.insert([1, 2, 3, 4], [1, 2, 3, 4], namespace=A)
        tree.insert([5], [5], namespace=B)
        with pytest.raises(InvalidRequestError, match="guaranteed_blocks: got 2, allowed: 0 to"):
            tree.set_quota(A, max_blocks=1, guaranteed_blocks=2)

        assert tree.trim(A) == [4]
        tree.set_quota(A, max_blocks=0)
        assert sorted(tree.trim()) == [2, 3, 5]
        assert tree.trim() == []
        tree.check()
