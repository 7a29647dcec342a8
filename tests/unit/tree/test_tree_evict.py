"""Eviction and flush: what other prefix caches' tests and bug reports expect."""

from array import array

import pytest

from radixcache.errors import InvalidRequestError
from radixcache.tree import RadixTree
from radixcache.types import Namespace
from tests.tree_forms import NS, get, held_bytes, put


class TestEviction:
    def test_the_older_leaf_goes_first(self):
        """Case E1."""
        tree = RadixTree(1)
        put(tree, [1, 2], [10, 20])
        put(tree, [3, 4], [30, 40])

        assert sorted(tree.evict(2)) == [10, 20]
        assert tree.num_blocks == 2

    def test_eviction_trims_tails_and_never_overshoots(self):
        """Case E3, exact: leaves lose blocks from their end, one by one if need be."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5])

        assert tree.evict(1) == [5]
        assert tree.evict(2) == [3, 4]
        assert get(tree, [1, 2, 3, 4, 5]) == [1, 2]
        tree.check()
        assert tree.evict(99) == [1, 2]
        assert tree.num_nodes == 0

    def test_a_trimmed_leaf_grows_again(self):
        """What grows back after a trim is the new content, not the old."""
        tree = RadixTree(2)
        put(tree, [1, 1, 2, 2, 3, 3], [1, 2, 3])
        tree.evict(2)
        put(tree, [1, 1, 4, 4], [1, 9])

        assert get(tree, [1, 1, 2, 2, 3, 3]) == [1]
        assert get(tree, [1, 1, 4, 4]) == [1, 9]
        assert tree.num_nodes == 1
        tree.check()

    def test_a_bared_parent_joins_the_same_pass(self):
        """Case E4: with its own recency, so an older stranger goes before it."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3], [1, 2, 3])
        put(tree, [1, 2, 4], [1, 2, 4])
        put(tree, [9], [9])
        tree.unlock(tree.lock([1, 2], namespace=NS))

        assert list(tree.evict(3)) == [3, 4, 9]
        assert sorted(tree.evict(2)) == [1, 2]

    def test_locked_leaves_are_passed_over(self):
        """Case 80: 20 leaves, 15 of them locked; five can go, and five go."""
        tree = RadixTree(1)
        for leaf in range(20):
            put(tree, [leaf], [leaf])
        kept = [leaf for leaf in range(20) if leaf % 4]
        locks = [tree.lock([leaf], namespace=NS) for leaf in kept]

        assert tree.evict(5) == [0, 4, 8, 12, 16]
        assert tree.evict(5) == []
        assert len(locks) == tree.num_blocks == 15

    def test_the_deepest_block_goes_first(self):
        """Case 110: a chain loses its tail, never its middle, a hundred times over."""
        for _ in range(100):
            tree = RadixTree(2)
            tokens = list(range(10))
            put(tree, tokens, [1, 2, 3, 4, 5])

            assert tree.evict(2) == [4, 5]
            assert tree.match_len(tokens, namespace=NS) == 6

    @pytest.mark.parametrize("how", ["lock", "insert", "extend"])
    def test_a_touch_refreshes_the_whole_path(self, how):
        """Case 110: after a child is used, neither it nor what it stands on goes first."""
        tree = RadixTree(1)
        put(tree, [1, 2], [1, 2])
        lock = tree.lock([1, 2], namespace=NS)
        put(tree, [1, 2, 3], [1, 2, 3])
        put(tree, [7, 8], [7, 8])
        if how == "lock":
            tree.unlock(tree.lock([1, 2, 3], namespace=NS))
        elif how == "insert":
            put(tree, [1, 2, 3], [1, 2, 3])
        else:
            lock = tree.extend(lock, [3], [3]).lock
        tree.unlock(lock)
        put(tree, [5], [5])

        assert sorted(tree.evict(2)) == [7, 8]
        assert list(tree.evict(1)) == [3]
        assert sorted(tree.evict(2)) == [1, 2]

    def test_looking_does_not_touch(self):
        """Match keeps nothing alive: recency belongs to lock, insert and extend."""
        tree = RadixTree(1)
        put(tree, [1], [1])
        put(tree, [2], [2])
        for _ in range(5):
            tree.match([1], namespace=NS)
            tree.match_len([1], namespace=NS)
        tree.view(10)

        assert tree.evict(1) == [1]

    def test_one_request_counts_one_hit_a_node(self):
        """Case E7: a request that publishes three chunks hits what was there once."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3, 4], [1, 2, 3, 4])
        before = tree.view(1).nodes[0].num_hits
        lock = tree.lock([1, 2, 3, 4], namespace=NS)
        for token in (5, 6, 7):
            lock = tree.extend(lock, [token], [token]).lock

        assert tree.view(1).nodes[0].num_hits == before + 1

    def test_unknown_policies_are_named(self):
        """Case E5: the error says what was asked for and what there is."""
        with pytest.raises(InvalidRequestError, match="policy: got 'lru2', allowed: lru"):
            RadixTree(policy="lru2")

    def test_negative_counts_are_refused(self):
        """Evict and view take 0 or more."""
        tree = RadixTree(1)

        with pytest.raises(InvalidRequestError, match="num_blocks"):
            tree.evict(-1)
        with pytest.raises(InvalidRequestError, match="max_nodes"):
            tree.view(-1)
        assert tree.evict(0) == []

    def test_split_parts_do_not_hold_each_others_memory(self):
        """Case 83: a 10,000-token entry in 10,000 nodes holds at most twice what it stores."""
        tree = RadixTree(1)
        tokens = array("i", range(10_000))
        put(tree, tokens, tokens)
        first = tree.lock(tokens[:1], namespace=NS)
        # From the front, which leaves the long rest behind, then from the back.
        for end in [*range(2, 100), *range(9_999, 99, -1)]:
            tree.unlock(tree.lock(tokens, namespace=NS, max_tokens=end))
            if end in (99, 5_000, 100):
                assert held_bytes(tree) <= 2 * 8 * tree.num_blocks + 16 * tree.num_nodes
        assert tree.num_nodes == 10_000

        assert len(tree.evict(10**9)) == 9_999
        assert held_bytes(tree) <= 2 * 8 + 16
        tree.check()
        tree.unlock(first)


class TestFlush:
    def test_a_locked_path_outlives_a_flush_unseen(self):
        """Case 54: unlocked nodes go at once; the rest with its last lock; the tree starts anew."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3], [1, 2, 3])
        lock = tree.lock([1, 2], namespace=NS)
        twin = tree.share(lock)

        assert tree.flush() == [3]
        assert get(tree, [1, 2, 3]) == []
        assert lock.block_ids == [1, 2]
        assert (tree.num_locked_blocks, tree.num_evictable_blocks) == (2, 0)
        put(tree, [1, 2, 3], [11, 12, 13])
        tree.check()
        assert tree.unlock(lock) == []
        assert sorted(tree.unlock(twin)) == [1, 2]
        assert get(tree, [1, 2, 3]) == [11, 12, 13]
        tree.check()

    @pytest.mark.parametrize("prefix", [[], [1, 2]])
    def test_what_is_published_after_a_flush_is_not_found(self, prefix):
        """Cases 16 and 54: KV computed before the flush never becomes findable after it."""
        tree = RadixTree(1)
        put(tree, prefix, prefix)
        lock = tree.lock(prefix, namespace=NS)
        tree.flush()
        lock = tree.extend(lock, [7, 8], [7, 8]).lock
        lock = tree.extend(lock, [9], [9]).lock
        tree.check()

        assert tree.match_len([*prefix, 7, 8, 9], namespace=NS) == 0
        assert lock.block_ids == [*prefix, 7, 8, 9]
        assert sorted(tree.unlock(lock)) == [*prefix, 7, 8, 9]
        assert tree.num_blocks == 0
        tree.check()

    def test_a_scope_is_flushed_alone(self):
        """A tenant's flush takes its own nodes, below PUBLIC ones and at the root, no others."""
        tree, a, b = RadixTree(1), Namespace(NS, "a"), Namespace(NS, "b")
        put(tree, [1], [1])
        put(tree, [1, 2], [1, 2], a)
        put(tree, [1, 3], [1, 3], b)
        put(tree, [5], [5], a)

        assert sorted(tree.flush(a)) == [2, 5]
        assert get(tree, [1, 2], a) == [1]
        assert get(tree, [1, 3], b) == [1, 3]
        tree.check()

    def test_a_scoped_flush_detaches_what_is_locked(self):
        """The PUBLIC part stays findable; the private part is gone for everyone, its owner too."""
        tree, a = RadixTree(1), Namespace(NS, "a")
        put(tree, [1], [1])
        put(tree, [1, 2], [1, 2], a)
        lock = tree.lock([1, 2], namespace=a)

        assert tree.flush(a) == []
        assert get(tree, [1, 2], a) == [1]
        lock = tree.extend(lock, [3], [3]).lock
        assert get(tree, [1, 2, 3], a) == [1]
        tree.check()
        assert sorted(tree.unlock(lock)) == [2, 3]
        assert tree.evict(9) == [1]
        tree.check()

    def test_a_flushed_private_path_hands_its_recency_up(self):
        """Case 110: extending a private path had touched the PUBLIC block it stands on."""
        tree, a = RadixTree(1), Namespace(NS, "a")
        put(tree, [1], [1])
        put(tree, [1, 2], [1, 2], a)
        lock = tree.lock([1, 2], namespace=a)
        put(tree, [1, 2, 4], [1, 2, 4], a)
        put(tree, [9], [9])
        tree.unlock(tree.extend(lock, [3], [3]).lock)

        assert sorted(tree.flush(a)) == [2, 3, 4]
        assert tree.evict(1) == [9]

    def test_what_is_published_after_a_flush_keeps_the_public_path_recent(self):
        """Case 110: a tenant whose part was flushed goes on using the PUBLIC block it stands on."""
        tree, a = RadixTree(1), Namespace(NS, "a")
        put(tree, [1], [1])
        lock = tree.lock([1], namespace=a)
        tree.flush(a)
        put(tree, [9], [9])
        assert tree.unlock(tree.extend(lock, [3], [3]).lock) == [3]

        assert tree.evict(1) == [9]
        tree.check()

    def test_other_kv_keys_are_left_alone(self):
        """A bare string flushes one kv_key, private paths included."""
        tree = RadixTree(1)
        put(tree, [1], [1], "m")
        put(tree, [2], [2], Namespace("m", "a"))
        put(tree, [1], [3], "n")

        assert sorted(tree.flush("m")) == [1, 2]
        assert get(tree, [1], "n") == [3]
        assert tree.flush("unknown") == []
        tree.check()
