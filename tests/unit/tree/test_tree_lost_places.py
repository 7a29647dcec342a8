"""What the memory of evicted prefixes finds again, what it forgets, and what that is worth."""

from array import array

import pytest

from radixcache.tree import RadixTree
from radixcache.tree.lost import LostPrefixes, owner_id
from radixcache.tree.node import longest
from radixcache.types import Namespace
from tests.tree_forms import NS, put

A = Namespace(NS, "a")


def lost_run(tree, tokens, space=A):
    """Key ids of the evicted pieces that ``tokens`` would have continued with, piece by piece."""
    forest = tree._forest
    view = memoryview(array("i", tokens)).cast("B")
    root = forest.root(space.kv_key)
    node, inside, depth = longest(root, view, space.scope, forest.unit)
    assert inside == len(node.key), "nothing can be lost inside a node"
    tag = forest.account(root, space.scope).tag
    found = forest.lost.find_run(owner_id(node), depth, tag, view[depth:])
    forest.drop_root(root)
    return [array("i", bytes(lost.key)).tolist() for lost, _, _ in found]


@pytest.mark.parametrize("space", [Namespace(NS, ""), A], ids=["public", "scoped"])
class TestFinding:
    def test_trimmed_tails_are_found_nearest_first(self, space):
        """What was trimmed off a leaf in several steps comes back as one run."""
        tree = RadixTree(1)
        put(tree, range(9), range(9), space)
        for _ in range(3):
            tree.evict(2)

        assert lost_run(tree, range(9), space) == [[3, 4], [5, 6], [7, 8]]
        assert lost_run(tree, [0, 1, 2, 3, 4, 99], space) == [[3, 4]]
        assert lost_run(tree, [0, 1, 2, 3, 99], space) == [[3, 4]]
        assert lost_run(tree, [0, 1, 2, 99], space) == []

    def test_a_whole_path_is_found_from_its_root(self, space):
        """Although nodes and root are gone; a piece that differs ends the run."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3, 4], [1, 2, 3, 4], space)
        put(tree, [1, 2, 8, 9], [1, 2, 8, 9], space)
        tree.evict(99)
        assert tree._forest.roots == {}

        assert lost_run(tree, [1, 2, 3, 4], space) == [[1, 2], [3, 4]]
        assert lost_run(tree, [1, 2, 8, 7, 6], space) == [[1, 2], [8, 9]]
        assert lost_run(tree, [1, 7, 3, 4], space) == [[1, 2]]

    def test_a_cut_keeps_what_hung_above_and_below(self, space):
        """Pieces lost below a node, at its middle and at its end stay findable when it is cut."""
        tree = RadixTree(1)
        put(tree, [1, 2, 3, 4, 5, 6], range(6), space)
        put(tree, [1, 2, 7], [0, 1, 7], space)
        tree.unlock(tree.lock([1, 2, 3, 4, 5, 6], namespace=space))
        tree.evict(1)  # 7, below [1, 2]
        tree.evict(2)  # [5, 6], off the tail
        for end in (3, 1):
            tree.unlock(tree.lock([1, 2, 3, 4], namespace=space, max_tokens=end))

        assert lost_run(tree, [1, 2, 7], space) == [[7]]
        assert lost_run(tree, [1, 2, 3, 4, 5, 6], space) == [[5, 6]]

    def test_what_hung_where_a_node_is_cut_stays_above_the_cut(self, space):
        """A joined node is cut again at the very place where a branch had been lost."""
        tree = RadixTree(1)
        put(tree, [1, 2], [1, 2], space)
        hold = tree.lock([1, 2], namespace=space)
        put(tree, [1, 2, 9], [1, 2, 9], space)
        tree.evict(1)
        lock = tree.extend(tree.share(hold), [3, 4], [3, 4]).lock
        tree.unlock(hold)
        tree.unlock(lock)
        assert tree.num_nodes == 1
        assert tree.lock([1, 2], namespace=space).num_tokens == 2
        assert tree.num_nodes == 2

        assert lost_run(tree, [1, 2, 9], space) == [[9]]

    def test_a_join_keeps_what_hung_below_its_pieces(self, space):
        """The conversation becomes one node; the branch that a turn had lost is still known."""
        tree = RadixTree(1)
        put(tree, [1, 2], [1, 2], space)
        old = tree.lock([1, 2], namespace=space)
        new = tree.extend(tree.share(old), [3], [3]).lock
        put(tree, [1, 2, 3, 9], [1, 2, 3, 9], space)
        tree.evict(1)
        last = tree.lock([1, 2, 3], namespace=space)
        last = tree.extend(last, [4], [4]).lock
        for lock in (old, new, last):
            tree.unlock(lock)
        assert tree.num_nodes == 1
        tree.unlock(tree.lock([1, 2, 3, 4], namespace=space, max_tokens=3))

        assert lost_run(tree, [1, 2, 3, 9], space) == [[9]]


def test_what_comes_back_keeps_its_hits():
    """A prefix used before its eviction is no newcomer; the next piece's hits are not its own."""
    tree = RadixTree(1, policy="lfu")
    put(tree, [1, 2, 3, 4], [1, 2, 3, 4])
    for _ in range(3):
        tree.unlock(tree.lock([1, 2], namespace=NS))
    tree.evict(99)
    put(tree, [8], [8])
    put(tree, [1, 2, 3, 4], [1, 2, 3, 4])
    put(tree, [9, 9], [90, 91])

    assert {n.key[0]: n.num_hits for n in tree._forest.nodes()} == {1: 4, 8: 0, 9: 0}
    assert sorted(tree.evict(3)) == [8, 90, 91]


def records(limits, lengths):
    """Evict branches of these lengths under a memory of these limits; return it."""
    tree = RadixTree(1)
    tree._forest.lost = lost = LostPrefixes(4, **({"max_tokens": 2**20} | limits))
    for number, length in enumerate(lengths):
        tokens = [number, *range(100, 99 + length)]
        put(tree, tokens, range(1000 * number, 1000 * number + length))
    tree.evict(10**6)
    return lost, tree


class TestForgetting:
    def test_it_keeps_so_many_key_ids(self):
        """The oldest go first, and their places with them."""
        lost, tree = records({"max_tokens": 10}, [4, 4, 4])

        assert (len(lost), lost.num_tokens) == (2, 8)
        assert lost_run(tree, [0, 100, 101, 102]) == []
        assert sum(len(f) for forks in lost._forks.values() for f in forks.values()) == 2

    def test_it_keeps_so_many_records(self):
        """However short they are."""
        lost, tree = records({"max_records": 2}, [1, 1, 1, 1])

        assert (len(lost), lost.num_tokens) == (2, 2)
        assert lost_run(tree, [3], Namespace(NS, "")) == [[3]]
        assert lost_run(tree, [1], Namespace(NS, "")) == []

    def test_a_piece_larger_than_the_memory_is_not_kept(self):
        """And the memory goes on working."""
        lost, tree = records({"max_tokens": 3}, [9, 2])

        assert lost_run(tree, [1, 100], Namespace(NS, "")) == [[1, 100]]
        assert (len(lost), lost.num_tokens) == (1, 2)

    def test_forgetting_an_old_record_spares_the_new_one_of_its_place(self):
        """The same prefix evicted again and again is remembered as of the last time."""
        tree = RadixTree(1)
        tree._forest.lost = lost = LostPrefixes(4, max_tokens=2**20, max_records=3)
        for _ in range(3):
            put(tree, [5], [5])
            tree.evict(1)
        put(tree, [6], [6])
        tree.evict(1)

        assert lost_run(tree, [5], Namespace(NS, "")) == [[5]]
        assert len(lost) == 2

    def test_nothing_is_left_of_what_was_forgotten(self):
        """Records that splits and joins have moved are forgotten where they are then."""
        tree = RadixTree(1)
        tree._forest.lost = lost = LostPrefixes(4, max_tokens=2**20, max_records=1)
        put(tree, [1, 2, 3], [1, 2, 3])
        put(tree, [1, 2, 9], [1, 2, 9])
        tree.unlock(tree.lock([1, 2, 3], namespace=NS))
        tree.evict(1)
        tree.unlock(tree.lock([1, 2], namespace=NS, max_tokens=1))
        tree.unlock(tree.lock([1, 2], namespace=NS))
        tree.unlock(tree.lock([1, 2, 3], namespace=NS))
        tree.evict(1)

        assert len(lost) == 1
        assert [len(places) for places in lost._forks.values()] == [1]
