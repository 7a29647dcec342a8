"""Locks and extensions: what other prefix caches' tests and bug reports expect."""

import pytest

from radixcache.errors import InvalidRequestError, LockError
from radixcache.tree import Lock, RadixTree
from radixcache.types import Namespace
from tests.tree_forms import NS, get, put


class TestLocks:
    def test_a_lock_moves_blocks_from_evictable_to_locked(self):
        """Cases L1 and L2."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3], [1, 2, 3])
        lock = tree.lock([1, 2, 3], namespace=NS)

        assert (tree.num_evictable_blocks, tree.num_locked_blocks) == (0, 3)
        assert tree.evict(3) == []
        tree.unlock(lock)
        assert (tree.num_evictable_blocks, tree.num_locked_blocks) == (3, 0)

    def test_two_locks_need_two_unlocks(self):
        """Case L3: the whole path stays until the second unlock."""
        tree = RadixTree(1)
        put(tree, [1, 2], [1, 2])
        put(tree, [1, 2, 3], [1, 2, 3])
        put(tree, [1, 2, 4], [1, 2, 4])
        first = tree.lock([1, 2, 3], namespace=NS)
        second = tree.lock([1, 2, 3], namespace=NS)

        tree.unlock(first)
        assert tree.num_locked_blocks == 3
        assert tree.evict(9) == [4]
        tree.unlock(second)
        assert tree.num_locked_blocks == 0

    @pytest.mark.parametrize("how", ["lock", "insert"])
    def test_a_split_keeps_a_lock_whole(self, how):
        """Case L4: the new upper part inherits the count; the old handle releases both."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3, 4], [1, 2, 3, 4])
        lock = tree.lock([1, 2, 3, 4], namespace=NS)
        if how == "lock":
            tree.unlock(tree.lock([1, 2], namespace=NS))
        else:
            put(tree, [1, 2, 9], [1, 2, 9])

        assert tree.num_locked_blocks == 4
        assert lock.block_ids == [1, 2, 3, 4]
        tree.check()
        tree.unlock(lock)
        assert tree.num_locked_blocks == 0
        tree.check()

    def test_a_lock_is_used_once(self):
        """Cases 78 and L5: a second unlock raises and changes nothing; the next lock protects."""
        tree = RadixTree(1)
        put(tree, [1, 2], [1, 2])
        lock = tree.lock([1, 2], namespace=NS)
        tree.unlock(lock)

        for use in (tree.unlock, tree.share, lambda spent: tree.extend(spent, [3], [3])):
            with pytest.raises(LockError, match="used after its end"):
                use(lock)
        with pytest.raises(LockError, match="no longer guarded"):
            _ = lock.block_ids
        tree.check()
        again = tree.lock([1, 2], namespace=NS)
        assert tree.evict(2) == []
        tree.unlock(again)
        assert tree.evict(2) == [1, 2]

    def test_a_lock_of_another_tree_is_refused(self):
        """Case L5: a handle works only where it was made."""
        one, two = RadixTree(1), RadixTree(1)
        put(one, [1], [1])
        lock = one.lock([1], namespace=NS)

        with pytest.raises(LockError, match="another tree"):
            two.unlock(lock)
        assert lock.live
        one.unlock(lock)

    def test_a_lock_never_taken_is_refused(self):
        """Case 78: a handle that the tree did not make."""
        tree = RadixTree(1)
        put(tree, [1], [1])
        lock = tree.lock([1], namespace=NS)
        forged = Lock(RadixTree(1), lock._node, lock._account, 1, 0)

        with pytest.raises(LockError):
            tree.unlock(forged)
        tree.check()

    def test_an_extension_ends_the_old_lock(self):
        """Extend hands back a new lock on the new end; the old one is spent."""
        tree = RadixTree(2)
        lock = tree.lock([], namespace=NS)
        extended = tree.extend(lock, [1, 2, 3, 4, 5], [7, 8])

        assert extended[1:] == (0, [7, 8])
        assert (extended.lock.num_tokens, extended.lock.block_ids) == (4, [7, 8])
        assert not lock.live
        tree.check()
        tree.unlock(extended.lock)
        assert tree.evict(9) == [7, 8]

    def test_a_refused_extension_changes_nothing(self):
        """Too few block ids: the lock lives on."""
        tree = RadixTree(1)
        lock = tree.lock([], namespace=NS)

        with pytest.raises(InvalidRequestError, match="block_ids"):
            tree.extend(lock, [1, 2], [7])
        with pytest.raises(InvalidRequestError, match="tokens"):
            tree.extend(lock, ["x"], [7])
        assert lock.live
        assert tree.num_blocks == 0
        tree.check()

    def test_a_conversation_stays_one_node(self):
        """Turn by turn under one lock the leaf grows in place."""
        tree = RadixTree(1)
        lock = tree.lock([], namespace=NS)
        for turn in range(50):
            lock = tree.extend(lock, [turn, turn + 1], [2 * turn, 2 * turn + 1]).lock

        assert tree.num_nodes == 1
        assert lock.block_ids == list(range(100))
        tree.check()

    def test_a_leaf_that_others_hold_does_not_grow(self):
        """A second lock keeps its end: the new blocks become a child, evictable by itself."""
        tree = RadixTree(1)
        put(tree, [1, 2], [1, 2])
        one, two = (tree.lock([1, 2], namespace=NS) for _ in range(2))
        one = tree.extend(one, [3], [3]).lock
        tree.unlock(one)

        assert tree.num_nodes == 2
        assert tree.evict(9) == [3]
        assert two.block_ids == [1, 2]

    def test_a_tenant_does_not_grow_a_public_leaf(self):
        """Case 15: in-place growth stays within one scope."""
        tree, tenant = RadixTree(1), Namespace(NS, "a")
        put(tree, [1], [1])
        lock = tree.lock([1], namespace=tenant)
        tree.extend(lock, [2], [2])

        assert get(tree, [1, 2], tenant) == [1, 2]
        assert get(tree, [1, 2]) == [1]

    def test_share_guards_part_of_the_path(self):
        """A second lock on a shorter prefix outlives the first."""
        tree = RadixTree(2)
        put(tree, [1, 2, 3, 4, 5, 6], [1, 2, 3])
        lock = tree.lock([1, 2, 3, 4, 5, 6], namespace=NS)
        part, nothing = tree.share(lock, 4), tree.share(lock, 0)
        tree.unlock(lock)

        assert (part.num_tokens, part.block_ids) == (4, [1, 2])
        assert nothing.block_ids == []
        tree.check()
        assert tree.evict(9) == [3]
        for wrong in (1, 6, -2):
            with pytest.raises(InvalidRequestError, match="num_tokens"):
                tree.share(part, wrong)
        tree.unlock(part)
        tree.unlock(nothing)
        tree.check()

    def test_a_limit_behaves_like_a_shorter_key(self):
        """Case K7: max_tokens = L is tokens[:L], for every L."""
        tree = RadixTree(2)
        tokens = list(range(9))
        put(tree, tokens, [1, 2, 3, 4])
        for limit in range(12):
            limited = tree.lock(tokens, namespace=NS, max_tokens=limit)
            cut = tree.lock(tokens[:limit], namespace=NS)

            assert limited.num_tokens == cut.num_tokens == min(limit, 8) // 2 * 2


class TestRejoining:
    """Pieces that locks have cut, or kept apart, become one node again."""

    def test_the_turns_of_a_conversation_become_one_node(self):
        """Each turn locks what is there, inserts more and lets go: one node, not one a turn."""
        tree = RadixTree(1)
        put(tree, [1, 2], [1, 2])
        for turn in range(3, 30):
            old = tree.lock(range(1, turn), namespace=NS)
            put(tree, range(1, turn + 1), range(1, turn + 1))
            new = tree.lock(range(1, turn + 1), namespace=NS)
            tree.unlock(old)
            tree.unlock(new)
            tree.check()

            assert tree.num_nodes == 1
        assert get(tree, range(1, 30)) == list(range(1, 30))

    def test_a_long_chain_joins_at_once(self):
        """Pieces kept apart by several locks join when the last one goes."""
        tree = RadixTree(1)
        locks = [tree.lock([], namespace=NS)]
        for token in range(5):
            locks.append(tree.share(locks[-1]))
            locks[-1] = tree.extend(locks[-1], [token], [token]).lock
        assert tree.num_nodes == 5
        for lock in locks:
            tree.unlock(lock)
        tree.check()

        assert tree.num_nodes == 1
        assert get(tree, range(5)) == [0, 1, 2, 3, 4]

    def test_what_differs_stays_apart(self):
        """A sibling, another scope, another recency or another lock keeps two nodes two."""
        tenant = Namespace(NS, "a")
        for reason in ("sibling", "scope", "recency", "lock"):
            tree = RadixTree(1)
            put(tree, [1], [1])
            old = tree.lock([1], namespace=NS)
            put(tree, [1, 2], [1, 2], tenant if reason == "scope" else NS)
            if reason == "sibling":
                put(tree, [1, 3], [1, 3])
            new = tree.lock([1, 2], namespace=tenant)
            if reason == "recency":
                tree.unlock(new)
                new = tree.lock([1], namespace=NS)
            if reason != "lock":
                tree.unlock(old)
            tree.unlock(new)
            tree.check()

            assert tree.num_nodes >= 2, reason


class TestLockMatch:
    def test_what_was_found_is_locked_without_finding_it_again(self):
        """A match within a node cuts it there, as lock() does, and counts the hit."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3], [7, 8, 9])
        lock = tree.lock_match(tree.match([1, 2, 5], namespace=NS), priority=3)

        assert (lock.num_tokens, lock.block_ids) == (2, [7, 8])
        assert tree.num_locked_blocks == 2
        shown = tree.view(1).nodes[0]
        assert (shown.num_tokens, shown.num_hits, shown.num_locks) == (2, 1, 1)
        tree.unlock(lock)
        tree.check()

    def test_an_insert_can_be_locked(self):
        """The path that was published, for the scope that published it."""
        tree, own = RadixTree(1), Namespace(NS, "a")
        put(tree, [1, 2], [7, 8])
        lock = tree.lock_match(put(tree, [1, 2, 3], [7, 8, 9], own))

        assert (lock.namespace, lock.num_tokens, lock.block_ids) == (own, 3, [7, 8, 9])
        lock = tree.extend(lock, [4], [10]).lock
        assert tree.match_len([1, 2, 3, 4], namespace=own) == 4
        tree.unlock(lock)
        tree.check()

    @pytest.mark.parametrize("change", ["evict", "flush", "split", "root"])
    def test_what_has_moved_since_is_refused(self, change):
        """Nothing is locked, nothing is counted."""
        tree = RadixTree(1)
        if change == "root":
            first = tree.lock([1], namespace=NS)
            found = tree.match([1], namespace=NS)
            tree.unlock(first)
        else:
            put(tree, [1, 2, 3], [7, 8, 9])
            found = tree.match([1, 2, 3], namespace=NS)
            first = tree.lock([1, 2], namespace=NS) if change == "split" else None
            if change != "split":
                getattr(tree, change)(*([1] if change == "evict" else []))

        with pytest.raises(LockError, match="changed since"):
            tree.lock_match(found)
        tree.check()
        assert tree.num_locks == (change == "split")

    def test_a_match_of_nothing_is_a_lock_on_nothing(self):
        """The first request of a service finds no root yet; its lock can be extended."""
        tree, own = RadixTree(1), Namespace(NS, "a")
        lock = tree.lock_match(tree.match([1, 2], namespace=own))
        assert (lock.num_tokens, lock.block_ids, lock.namespace) == (0, [], own)

        lock = tree.extend(lock, [1, 2], [7, 8]).lock
        assert (tree.match_len([1, 2], namespace=own), tree.match_len([1, 2], namespace=NS)) == (
            2,
            0,
        )
        tree.unlock(lock)
        tree.check()

    def test_a_match_of_another_tree_is_refused(self):
        """There is no such place here."""
        with pytest.raises(LockError, match="another tree"):
            RadixTree(1).lock_match(RadixTree(1).match([1], namespace=NS))
