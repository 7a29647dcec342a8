"""Match, insert and namespaces: what other prefix caches' tests and bug reports expect."""

import random
import tracemalloc
from array import array

import pytest

from radixcache.errors import InvalidRequestError, LockError
from radixcache.tree import RadixTree
from radixcache.types import PUBLIC, Namespace
from tests.tree_forms import NS, get, put


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

        assert (inserted.num_present, inserted.block_ids) == (3, [10, 20, 30, 41])
        assert sorted(tree.all_block_ids()) == [10, 20, 30, 41]

    def test_empty_and_short_keys_match_nothing(self):
        """Case M13: fewer tokens than a block match nothing and lock the root."""
        tree = RadixTree(4)
        put(tree, [1, 2, 3, 4], [9])

        for tokens in ([], [1], [1, 2, 3]):
            assert (tree.match_len(tokens, namespace=NS), get(tree, tokens)) == (0, [])
            lock = tree.lock(tokens, namespace=NS)
            assert (lock.num_tokens, lock.block_ids) == (0, [])
            tree.check()
            assert tree.unlock(lock) == []

    @pytest.mark.parametrize("length", [0, 1, 3])
    def test_a_key_below_a_block_inserts_nothing(self, length):
        """Case 47: no empty node; the caller keeps its blocks, and no root is left behind."""
        tree = RadixTree(4)

        done = put(tree, list(range(length)), [77])
        assert (done.num_present, done.block_ids) == (0, [])
        assert (tree.num_nodes, tree.num_blocks) == (0, 0)
        tree.check()

    def test_a_partial_block_is_left_out(self):
        """Case 47: seven tokens of block size 4 are one block; sizes follow, eviction is exact."""
        tree = RadixTree(4)
        done = put(tree, [1, 2, 3, 4, 5, 6, 7], [70, 71])
        assert (done.num_present, done.num_tokens, done.block_ids) == (0, 4, [70])

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
        done = put(tree, memoryview(tokens)[:15], [])
        assert (done.num_present, done.block_ids) == (0, [])
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

        assert (inserted.num_present, inserted.block_ids) == (2, [1, 2, 93])
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

    assert repr(tree.match([1], namespace=NS)) == "<Match of 1 tokens>"
    assert repr(lock) == "<Lock on 2 tokens, live>"
    tree.unlock(lock)
    assert repr(lock) == "<Lock on 2 tokens, ended>"
    assert get(tree, [1]) != [9]
    assert get(tree, [1]) != (8,)
    assert "num_nodes=1, num_blocks=2" in repr(tree)


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.evict(1),
        lambda tree: tree.flush(),
        lambda tree: tree.lock([1, 2], namespace=NS),
    ],
    ids=["evict", "flush", "split"],
)
def test_a_match_read_after_its_blocks_moved_is_refused(change):
    """A look-up guards nothing; ids that may be somebody else's by now are not handed out."""
    tree = RadixTree(1)
    put(tree, [1, 2, 3], [8, 9, 10])
    read, unread = tree.match([1, 2, 3], namespace=NS), tree.match([1, 2, 3], namespace=NS)
    assert read.block_ids == [8, 9, 10]
    change(tree)

    assert read.block_ids == [8, 9, 10]
    assert unread.num_tokens == 3
    with pytest.raises(LockError, match="changed since"):
        _ = unread.block_ids


def test_a_match_read_after_two_nodes_became_one_is_refused():
    """It ended in the lower one, which is no more."""
    tree = RadixTree(1)
    put(tree, [1, 2], [8, 9])
    upper = tree.lock([1, 2], namespace=NS)
    put(tree, [1, 2, 3], [8, 9, 10])
    lower = tree.lock([1, 2, 3], namespace=NS)
    found = tree.match([1, 2, 3], namespace=NS)
    tree.unlock(upper)
    tree.unlock(lower)
    assert tree.num_nodes == 1

    with pytest.raises(LockError, match="changed since"):
        _ = found.block_ids


def test_a_match_may_be_read_after_growth():
    """What was added behind or beside a prefix does not move its blocks."""
    tree = RadixTree(1)
    put(tree, [1, 2, 3], [8, 9, 10])
    found = tree.match([1, 2, 3], namespace=NS)
    put(tree, [1, 2, 3, 4], [8, 9, 10, 11])
    put(tree, [5], [12])

    assert found.block_ids == [8, 9, 10]
