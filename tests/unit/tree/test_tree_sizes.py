"""How many blocks lie below a node: exact when asked for, cheap until then."""

import pytest

from radixcache.tree import RadixTree
from radixcache.tree import sizes as sizes_module
from radixcache.types import Namespace
from tests.tree_forms import NS, put


def below(tree):
    """Subtree tokens of each node, by its first block; sizes settled."""
    ids = {n.node_id: memoryview(n.ids).cast("i")[0] for n in tree._forest.nodes()}
    return {ids[n.node_id]: n.subtree_tokens for n in tree.view(10**6).nodes}


def stairs(tree, depth):
    """A path of ``depth`` nodes of one block, with a leaf beside each."""
    for end in range(depth):
        path = list(range(end))
        put(tree, [*path, 100 + end], [*path, 100 + end])
    return list(range(depth - 1))


def test_growth_at_the_bottom_reaches_every_node_above():
    """Each node counts itself and all below, before and after a picture."""
    tree = RadixTree(1)
    path = stairs(tree, 6)
    assert below(tree)[0] == 10
    put(tree, [*path, 50, 51], [*path, 50, 51])
    found = below(tree)

    assert [found[node] for node in path] == [12, 10, 8, 6, 4]


def test_a_cut_passes_on_what_was_not_reported_yet():
    """A node that owes is split, and its upper part pays once."""
    tree = RadixTree(1)
    put(tree, [1, 2], [1, 2])
    put(tree, [1, 3], [1, 3])
    below(tree)
    lock = tree.lock([1, 2], namespace=NS)
    lock = tree.extend(lock, [4, 5], [4, 5]).lock
    tree.check()
    tree.unlock(tree.lock([1, 2, 4], namespace=NS))
    tree.check()

    assert below(tree) == {1: 5, 2: 3, 5: 1, 3: 1}


def test_a_join_passes_on_what_its_pieces_owe():
    """Three pieces that grew become one, which owes the sum."""
    tree = RadixTree(1)
    put(tree, [1], [1])
    put(tree, [1, 9], [1, 9])
    below(tree)
    locks = [tree.lock([1], namespace=NS)]
    for token in (2, 3, 4):
        locks.append(tree.extend(tree.share(locks[-1]), [token], [token]).lock)
    for lock in locks:
        tree.unlock(lock)
    tree.check()

    assert below(tree) == {1: 5, 2: 3, 9: 1}


def test_a_leaf_that_goes_takes_only_what_it_had_reported():
    """It grew since the last picture, and is gone before the next."""
    tree = RadixTree(1)
    put(tree, [1, 2], [1, 2])
    put(tree, [1, 3], [1, 3])
    below(tree)
    put(tree, [1, 3, 4], [1, 3, 4])
    tree.unlock(tree.lock([1, 2], namespace=NS))
    assert sorted(tree.evict(2)) == [3, 4]
    tree.check()

    assert below(tree) == {1: 2, 2: 1}
    assert not any(node.owed for node in tree._forest.sizes._debtors)


def test_a_flush_leaves_no_debts_of_what_is_gone():
    """A tenant's part is flushed below a PUBLIC node that owes."""
    tree, tenant = RadixTree(1), Namespace(NS, "a")
    put(tree, [1], [1])
    put(tree, [1, 2, 3], [1, 2, 3], tenant)
    put(tree, [1, 2, 4], [1, 2, 4], tenant)
    lock = tree.lock([1, 2, 4], namespace=tenant)
    tree.flush(tenant)
    tree.check()
    assert below(tree) == {1: 1}
    tree.unlock(lock)
    tree.check()

    assert len(tree._forest.sizes._debtors) == 0


@pytest.mark.parametrize("limit", [0, 3])
def test_the_list_of_debtors_is_bounded(limit, monkeypatch):
    """Above so many, debts are reported; sizes stay exact whatever the bound."""
    monkeypatch.setattr(sizes_module, "_MAX_DEBTORS", limit)
    tree = RadixTree(1)
    for group in range(4):
        for token in range(5):
            put(tree, [group, 10 + token], [group, 10 + 10 * group + token])
            assert len(tree._forest.sizes._debtors) <= limit
            tree.check()

    assert [below(tree)[group] for group in range(4)] == [6, 6, 6, 6]


def test_debts_wait_by_the_thousand():
    """The bound that a tree really has."""
    tree = RadixTree(1)
    for token in range(1_500):
        put(tree, [token], [token])
        put(tree, [token, 1], [token, 10_000 + token])
        put(tree, [token, 2], [token, 20_000 + token])

    assert 0 < len(tree._forest.sizes._debtors) <= 1_000
    tree.check()


def test_what_is_gone_owes_nothing():
    """A node that was evicted before it had reported is not kept alive by its debt."""
    tree = RadixTree(1)
    put(tree, [1], [1])
    (leaf,) = tree._forest.nodes()
    assert tree._forest.sizes.owes(leaf)
    tree.evict(1)

    assert not tree._forest.sizes.owes(leaf)


def test_debts_along_a_deep_path_meet(monkeypatch):
    """Each edge is crossed once, however many owe below it: a picture of a deep tree is cheap."""
    tree = RadixTree(1)
    for end in range(600):
        put(tree, [*range(end), 10_000 + end], [*range(end), 10_000 + end])
    tree._forest.sizes.settle()
    for end in range(0, 600, 3):
        put(tree, [*range(end), 20_000 + end], [*range(end), 20_000 + end])
    sizes, crossed = tree._forest.sizes, []
    pop = sizes_module.heappop
    monkeypatch.setattr(sizes_module, "heappop", lambda heap: crossed.append(1) or pop(heap))
    sizes.settle()

    assert 200 < len(crossed) <= 600 + 200
    tree.check()
