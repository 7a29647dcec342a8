"""What other prefix caches' own tests and bug reports expect of a radix tree."""

import random
import tracemalloc
from array import array

import pytest

from radixcache.errors import InvalidRequestError, LockError
from radixcache.tree import Lock, RadixTree
from radixcache.types import PUBLIC, Namespace

NS = "model"


def put(tree, tokens, block_ids, namespace=NS):
    """Insert."""
    return tree.insert(tokens, block_ids, namespace=namespace)


def get(tree, tokens, namespace=NS):
    """Block ids of a match."""
    return tree.match(tokens, namespace=namespace).block_ids


def held_bytes(tree):
    """Memory behind the keys and block ids of all nodes."""
    return sum(n.key.__alloc__() + n.ids.__alloc__() for n in tree._forest.nodes())


class TestMatchAndInsert:
    def test_insert_then_match_whole_and_part(self):
        """Case M1: nothing was present; the whole key and any prefix match."""
        tree = RadixTree(1)

        assert put(tree, [1, 2, 3], [10, 20, 30]).num_present == 0
        assert tree.num_blocks == tree.num_evictable_blocks == 3
        assert get(tree, [1, 2, 3]) == [10, 20, 30]
        assert get(tree, [1, 2]) == [10, 20]

    def test_total_size_adds_up(self):
        """Case M4: two keys without a common prefix add their sizes."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3], [1, 2, 3])
        put(tree, [4, 5], [4, 5])

        assert tree.num_blocks == 5

    def test_flush_empties(self):
        """Case M5: after a flush every size is 0."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3], [1, 2, 3])

        assert sorted(tree.flush()) == [1, 2, 3]
        assert (tree.num_blocks, tree.num_evictable_blocks, tree.num_locked_blocks) == (0, 0, 0)
        assert tree.num_nodes == 0

    @pytest.mark.parametrize("size", [1, 2])
    def test_splits_copy_nothing_and_lose_nothing(self, size):
        """Cases M6–M8: a branch splits a node; matches that end mid-node leave the total alone."""
        tree = RadixTree(size)
        long, branch = [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 9, 10]
        blocks = list(range(10, 90, 10))[: 8 // size]
        put(tree, long, blocks)
        branch_blocks = [10, 90] if size == 2 else [10, 20, 90, 100]
        put(tree, branch, branch_blocks)
        total = 10 // size

        assert tree.num_blocks == total
        assert get(tree, [1, 2, 3, 4, 999, 1000]) == blocks[: 4 // size]
        assert get(tree, long) == blocks
        assert get(tree, [1, 2, 3, 4, 5, 6, 777, 888]) == blocks[: 6 // size]
        assert get(tree, branch) == branch_blocks
        assert tree.num_blocks == total

    @pytest.mark.parametrize(("size", "length", "want"), [(1, 5, 5), (2, 5, 4), (4, 6, 4)])
    def test_matches_are_whole_blocks(self, size, length, want):
        """Case M9: a key matches itself down to the block below its end."""
        tree = RadixTree(size)
        tokens = list(range(length))
        put(tree, tokens, list(range(length // size)))

        assert tree.match(tokens, namespace=NS).num_tokens == want
        assert tree.match_len(tokens, namespace=NS) == want

    def test_nodes_keep_no_views_of_what_was_inserted(self):
        """Case M10: 2,000 keys with one long common prefix hold what is new of each, no more."""
        tree = RadixTree(1)
        numbers = array("i", range(210_000))
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for start in range(10_000, 210_000, 100):
            tokens = numbers[:10_000] + numbers[start : start + 100]
            put(tree, tokens, tokens)
        held = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()

        assert held < 2 * tree.num_blocks * 8

    def test_every_block_is_listed(self):
        """Case M11: the blocks of all keys, in any order."""
        tree = RadixTree(1)
        put(tree, [1, 2], [5, 6])
        put(tree, [3, 4], [7, 8])

        assert sorted(tree.all_block_ids()) == [5, 6, 7, 8]

    def test_insert_returns_the_canonical_blocks(self):
        """Case M12: of a present prefix the tree's blocks come back, the duplicates stay out."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3], [10, 20, 30])
        inserted = put(tree, [1, 2, 3, 4], [11, 21, 31, 41])

        assert inserted == (3, [10, 20, 30, 41])
        assert sorted(tree.all_block_ids()) == [10, 20, 30, 41]

    def test_empty_and_short_keys_match_nothing(self):
        """Case M13: fewer tokens than a block match nothing and lock the root."""
        tree = RadixTree(4)
        put(tree, [1, 2, 3, 4], [9])

        for tokens in ([], [1], [1, 2, 3]):
            assert tree.match(tokens, namespace=NS) == (0, [])
            lock = tree.lock(tokens, namespace=NS)
            assert (lock.num_tokens, lock.block_ids) == (0, [])
            tree.check()
            assert tree.unlock(lock) == []

    @pytest.mark.parametrize("length", [0, 1, 3])
    def test_a_key_below_a_block_inserts_nothing(self, length):
        """Case 47: no empty node; the caller keeps its blocks, and no root is left behind."""
        tree = RadixTree(4)

        assert put(tree, list(range(length)), [77]) == (0, [])
        assert (tree.num_nodes, tree.num_blocks) == (0, 0)
        tree.check()

    def test_a_partial_block_is_left_out(self):
        """Case 47: seven tokens of block size 4 are one block; sizes follow, eviction is exact."""
        tree = RadixTree(4)
        assert put(tree, [1, 2, 3, 4, 5, 6, 7], [70, 71]) == (0, [70])

        assert tree.num_blocks == 1
        assert tree.evict(5) == [70]
        assert tree.num_blocks == 0
        tree.check()

    def test_a_view_one_token_short_matches_no_block(self):
        """Case 48: 15 of 16 tokens are no block; nothing empty appears, eviction ends clean."""
        tree = RadixTree(16)
        tokens = array("i", range(16))
        put(tree, tokens, [3])

        assert tree.match(memoryview(tokens)[:15], namespace=NS).num_tokens == 0
        assert tree.lock(tokens, namespace=NS, max_tokens=15).num_tokens == 0
        assert put(tree, memoryview(tokens)[:15], []) == (0, [])
        assert tree.evict(99) == [3]
        tree.check()

    def test_too_few_block_ids_change_nothing(self):
        """Each whole block needs its block id."""
        tree = RadixTree(2)

        with pytest.raises(InvalidRequestError, match=r"len\(block_ids\): got 1.*2 whole blocks"):
            put(tree, [1, 2, 3, 4, 5], [8])
        assert tree.num_nodes == 0

    @pytest.mark.parametrize("size", [1, 4, 16])
    def test_nodes_stay_under_their_first_block(self, size):
        """Cases 49 and I3: after thousands of splits every node is where its key says."""
        tree, dice = RadixTree(size), random.Random(size)
        blocks = iter(range(10**9))
        for step in range(3_000):
            words = [dice.randrange(3) for _ in range(dice.randrange(1, 12))]
            tokens = [word for word in words for _ in range(size)]
            put(tree, tokens, [next(blocks) for _ in words])
            tree.unlock(tree.lock(tokens[: dice.randrange(len(tokens) + 1)], namespace=NS))
            if step % 100 == 0:
                tree.evict(20)
                tree.check()
        tree.check()

    def test_equal_hashes_are_not_equal_keys(self):
        """Case 21: keys with equal Python hashes, or shifted by amounts that cancel, differ."""
        assert hash((-1,)) == hash((-2,))
        tree = RadixTree(1)
        put(tree, [-1, 5], [1, 2])

        assert get(tree, [-2, 5]) == []
        base, mod = 31, 2**32
        left, right = [10, 40], [11, 40 - base]
        assert sum(t * base**i for i, t in enumerate(left[::-1])) % mod == (
            sum(t * base**i for i, t in enumerate(right[::-1])) % mod
        )
        put(tree, left, [3, 4])
        assert get(tree, right) == []

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_a_match_is_the_longest_common_prefix(self, size):
        """Case 21: the result always equals a direct comparison with everything inserted."""
        dice, tree, known = random.Random(size), RadixTree(size), []
        for _ in range(300):
            tokens = [dice.randrange(3) for _ in range(dice.randrange(12))]
            put(tree, tokens, [dice.randrange(10**6) for _ in tokens])
            known.append(tokens[: len(tokens) // size * size])
            asked = [dice.randrange(3) for _ in range(dice.randrange(12))]
            best = 0
            for other in known:
                equal = [a == b for a, b in zip(asked, other, strict=False)]
                common = equal.index(False) if False in equal else len(equal)
                best = max(best, common // size * size)

            assert tree.match_len(asked, namespace=NS) == best


class TestNamespaces:
    def test_kv_keys_never_meet(self):
        """Case N1: the same tokens under three keys are three entries; another key has none."""
        tree = RadixTree(1)
        for number, key in enumerate(["key1", "key2", ""]):
            put(tree, [1, 2, 3], [number * 10 + 1, number * 10 + 2, number * 10 + 3], key)

        assert get(tree, [1, 2, 3], "key1") == [1, 2, 3]
        assert get(tree, [1, 2, 3], "key2") == [11, 12, 13]
        assert get(tree, [1, 2, 3], "") == [21, 22, 23]
        assert get(tree, [1, 2, 3], "nonexistent") == []

    @pytest.mark.parametrize("call", ["match", "match_len", "lock"])
    def test_a_namespace_cannot_be_left_out(self, call):
        """Cases 15 and K8: omission is a TypeError, never a silent shared default."""
        tree = RadixTree(1)

        with pytest.raises(TypeError):
            getattr(tree, call)([1])
        with pytest.raises(TypeError, match="namespace: got None"):
            getattr(tree, call)([1], namespace=None)
        with pytest.raises(TypeError):
            tree.insert([1], [1])

    def test_what_a_tenant_publishes_stays_its_own(self):
        """Case 15: insert, lock and extend under a scope; nothing shows from PUBLIC or another."""
        tree = RadixTree(1)
        tenant = Namespace(NS, "t1")
        put(tree, [1, 2], [1, 2], tenant)
        lock = tree.lock([1, 2], namespace=tenant)
        tree.extend(lock, [3], [3])

        assert get(tree, [1, 2, 3], tenant) == [1, 2, 3]
        for stranger in (NS, Namespace(NS, PUBLIC), Namespace(NS, "t2"), Namespace("other", "t1")):
            assert get(tree, [1, 2, 3], stranger) == []

    def test_a_scope_sees_public_and_itself(self):
        """A private path hangs below the PUBLIC one it continues."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3, 4], [1, 2, 3, 4])
        inserted = put(tree, [1, 2, 9], [91, 92, 93], Namespace(NS, "a"))

        assert inserted == (2, [1, 2, 93])
        assert get(tree, [1, 2, 9], Namespace(NS, "a")) == [1, 2, 93]
        assert get(tree, [1, 2, 3], Namespace(NS, "a")) == [1, 2, 3]
        assert get(tree, [1, 2, 9]) == [1, 2]
        tree.check()

    def test_the_longest_visible_path_wins(self):
        """A private path published before a shorter, then a longer PUBLIC one."""
        tree, tenant = RadixTree(1), Namespace(NS, "a")
        put(tree, [1, 2, 3, 4], [11, 12, 13, 14], tenant)
        put(tree, [1, 2], [21, 22])
        assert get(tree, [1, 2, 3, 4, 5], tenant) == [11, 12, 13, 14]

        put(tree, [1, 2, 3, 4, 5], [21, 22, 23, 24, 25])
        assert get(tree, [1, 2, 3, 4, 5], tenant) == [21, 22, 23, 24, 25]
        assert get(tree, [1, 2, 3, 4], tenant) in ([11, 12, 13, 14], [21, 22, 23, 24])
        tree.check()

    def test_a_detour_leaves_the_public_path_anywhere(self):
        """Private branches from several PUBLIC nodes are all looked at."""
        tree, tenant = RadixTree(1), Namespace(NS, "a")
        put(tree, [1], [1])
        put(tree, [1, 2, 3], [1, 12, 13], tenant)  # leaves after 1
        put(tree, [1, 2], [1, 2])
        put(tree, [1, 2, 4, 5], [1, 2, 14, 15], tenant)  # leaves after 1, 2
        put(tree, [1, 2, 4, 6, 7], [1, 2, 24, 26, 27])

        assert get(tree, [1, 2, 3], tenant) == [1, 12, 13]
        assert get(tree, [1, 2, 4, 5], tenant) == [1, 2, 14, 15]
        assert get(tree, [1, 2, 4, 6, 7], tenant) == [1, 2, 24, 26, 27]
        assert get(tree, [1, 2, 4, 5]) == [1, 2, 24]
        tree.check()


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
        forged = Lock(RadixTree(1), lock._node, lock.namespace, 1)

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


def test_emptied_namespaces_cost_nothing():
    """A root goes with its last node and its last lock."""
    tree = RadixTree(1)
    for number in range(100):
        key = f"k{number}"
        put(tree, [1], [number], key)
        lock = tree.lock([], namespace=key)
        tree.evict(1)
        tree.check()
        tree.unlock(lock)

    assert tree._forest.roots == {}


@pytest.mark.parametrize("size", [0, 257, -1, 1.5, "16", None])
def test_block_sizes_are_limited(size):
    """1 to 256 tokens a block."""
    with pytest.raises(InvalidRequestError, match="block_size"):
        RadixTree(size)


def test_results_print_what_they_hold():
    """Handles and results are readable in a debugger."""
    tree = RadixTree(1)
    put(tree, [1, 2], [8, 9])
    lock = tree.lock([1, 2], namespace=NS)

    assert repr(tree.match([1], namespace=NS)) == "Match(num_tokens=1, block_ids=BlockIds([8]))"
    assert repr(lock) == "<Lock on 2 tokens, live>"
    tree.unlock(lock)
    assert repr(lock) == "<Lock on 2 tokens, ended>"
    assert get(tree, [1]) != [9]
    assert get(tree, [1]) != (8,)
    assert "num_nodes=1, num_blocks=2" in repr(tree)
