"""Quotas and guarantees: what a namespace may hold, and what others must leave it."""

import pytest

from radixcache.errors import InvalidRequestError
from radixcache.tree import RadixTree
from radixcache.types import Namespace
from tests.tree_forms import NS, get, put

A, B = Namespace(NS, "a"), Namespace(NS, "b")


def fill(tree, space, first, count):
    """Insert single blocks, the oldest first."""
    for token in range(first, first + count):
        put(tree, [token], [token], space)


def held(tree, space):
    """Blocks that a namespace holds."""
    ids = [
        memoryview(n.ids).cast("i") for n in tree._forest.nodes() if n.account.namespace == space
    ]
    return sum(len(part) for part in ids)


class TestLimits:
    def test_a_namespace_is_trimmed_to_its_limit(self):
        """Its own leaves go, the least recent first; nobody else loses a block."""
        tree = RadixTree(1)
        fill(tree, B, 50, 3)
        fill(tree, A, 1, 5)
        tree.set_quota(A, max_blocks=2)

        assert list(tree.trim()) == [1, 2, 3]
        assert (held(tree, A), held(tree, B)) == (2, 3)
        assert tree.trim() == []
        tree.check()

    def test_what_it_held_before_counts(self):
        """A quota set late sees what is there, in order, and what comes later."""
        tree = RadixTree(1, policy="lfu")
        fill(tree, A, 1, 3)
        tree.unlock(tree.lock([1], namespace=A))
        tree.set_quota(A, max_blocks=3)
        put(tree, [9], [9], A)
        tree.check()

        assert list(tree.trim()) == [2]

    def test_a_limit_before_the_first_block(self):
        """A namespace may be limited before anything of its kv_key is cached, and after a flush."""
        tree = RadixTree(1)
        tree.set_quota(A, max_blocks=1)
        tree.set_quota("other", max_blocks=0)
        for _ in range(2):
            fill(tree, A, 1, 3)
            put(tree, [5], [5], "other")
            assert sorted(tree.trim()) == [1, 2, 5]
            tree.check()
            tree.flush()

    def test_locked_blocks_count_and_stay(self):
        """A namespace in use may exceed its limit; what is not in use goes."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3], [1, 2, 3], A)
        fill(tree, A, 7, 2)
        lock = tree.lock([1, 2, 3], namespace=A)
        tree.set_quota(A, max_blocks=2)

        assert list(tree.trim()) == [7, 8]
        assert tree.trim() == []
        tree.unlock(lock)
        assert list(tree.trim()) == [3]
        tree.check()

    def test_the_public_part_of_a_path_is_not_the_tenants(self):
        """Exactly this namespace: what a tenant reads of PUBLIC is not on its account."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3], [1, 2, 3])
        put(tree, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], A)
        tree.set_quota(A, max_blocks=1)

        assert list(tree.trim()) == [5]
        assert get(tree, [1, 2, 3]) == [1, 2, 3]

    @pytest.mark.parametrize("order", [(NS, A), (A, NS)], ids=["upper-first", "lower-first"])
    def test_a_namespace_that_stood_in_anothers_way_is_trimmed_first(self, order):
        """PUBLIC blocks under a tenant's can go once those have, in the same pass."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3], [1, 2, 3])
        put(tree, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], A)
        tree.set_quota(NS, max_blocks=2)
        assert tree.trim() == []
        tree.remove_quota(NS)
        for space in order:
            tree.set_quota(space, max_blocks=0)

        assert sorted(tree.trim()) == [1, 2, 3, 4, 5]

    def test_a_flush_clears_the_account(self):
        """What is locked and flushed is nobody's any more."""
        tree = RadixTree(1)
        tree.set_quota(A, max_blocks=3)
        fill(tree, A, 1, 2)
        lock = tree.lock([1], namespace=A)
        tree.flush(A)
        tree.check()
        fill(tree, A, 11, 3)

        assert tree.trim() == []
        tree.unlock(lock)
        tree.check()

    def test_a_removed_quota_limits_nothing(self):
        """Its leaves are everybody's again."""
        tree = RadixTree(1)
        fill(tree, A, 1, 3)
        tree.set_quota(A, max_blocks=1, guaranteed_blocks=1)

        assert tree.remove_quota(A)
        assert not tree.remove_quota(A)
        assert tree.trim() == []
        tree.check()
        assert list(tree.evict(9)) == [1, 2, 3]


class TestGuarantees:
    def test_others_cannot_go_below_it(self):
        """Pressure from outside takes what is above the guarantee, to the block."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3, 4], [1, 2, 3, 4], A)
        fill(tree, B, 50, 2)
        tree.set_quota(A, guaranteed_blocks=3)

        assert sorted(tree.evict(9, namespace=B)) == [4, 50, 51]
        assert tree.evict(9) == []
        assert get(tree, [1, 2, 3, 4], A) == [1, 2, 3]
        tree.check()

    def test_it_does_not_bind_its_owner(self):
        """Who asks for room may give up its own."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3, 4], [1, 2, 3, 4], A)
        tree.set_quota(A, guaranteed_blocks=4)

        assert tree.evict(1, namespace=B) == []
        assert list(tree.evict(1, namespace=A)) == [4]
        assert sorted(tree.evict(9, namespace=A)) == [1, 2, 3]

    def test_of_two_namespaces_the_least_recent_gives_way(self):
        """Each has its order, and between them the clock decides."""
        tree = RadixTree(1)
        for space in (A, B):
            tree.set_quota(space, max_blocks=9)
        fill(tree, A, 1, 2)
        fill(tree, B, 50, 2)
        fill(tree, Namespace(NS, "c"), 70, 1)
        tree.unlock(tree.lock([1], namespace=A))

        assert [tree.evict(1)[0] for _ in range(5)] == [2, 50, 51, 70, 1]

    def test_a_quota_may_be_guaranteed_in_full(self):
        """A guarantee up to the limit, and no further."""
        tree = RadixTree(1)
        tree.set_quota(A, max_blocks=2, guaranteed_blocks=2)
        with pytest.raises(InvalidRequestError, match=r"guaranteed_blocks: got 3.*to max_blocks"):
            tree.set_quota(A, max_blocks=2, guaranteed_blocks=3)

        fill(tree, A, 1, 3)
        assert list(tree.trim()) == [1]
        assert tree.evict(9) == []

    def test_what_is_guaranteed_adds_up(self):
        """To all but the one who asks."""
        tree = RadixTree(1)
        tree.set_quota(A, guaranteed_blocks=2)
        tree.set_quota(B, guaranteed_blocks=3)
        tree.set_quota(B, guaranteed_blocks=5)

        assert tree.num_guaranteed_blocks(besides=A) == 5
        assert tree.num_guaranteed_blocks(besides=NS) == 7

    @pytest.mark.parametrize("wrong", [-1, 1.5, "2"], ids=repr)
    def test_what_is_no_count_is_refused(self, wrong):
        """And nothing changes."""
        tree = RadixTree(1)
        for name in ("max_blocks", "guaranteed_blocks"):
            with pytest.raises(InvalidRequestError, match=f"{name}: got"):
                tree.set_quota(A, **{name: wrong})

        assert not tree.remove_quota(A)
