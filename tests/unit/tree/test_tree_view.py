"""The bounded picture of the tree."""

from radixcache.tree import RadixTree
from radixcache.tree import view as view_module
from radixcache.types import Namespace


class FakeClock:
    """Seconds that pass when told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def sample(clock):
    """Two PUBLIC branches of 10 and 3 tokens under a stem of 2, and a private leaf."""
    tree = RadixTree(1, clock=clock)
    tree.insert([1, 2, *range(10, 20)], list(range(12)), namespace="m")
    tree.insert([1, 2, 30, 31, 32], [0, 1, 30, 31, 32], namespace="m")
    clock.now += 5
    tree.insert([7], [7], namespace=Namespace("n", "tenant"))
    return tree


def test_parents_stand_before_children_and_large_subtrees_first():
    """The order of the nodes, and who their parents are."""
    view = sample(FakeClock()).view(10)

    assert [node.num_tokens for node in view.nodes] == [2, 10, 3, 1]
    stem = view.nodes[0]
    assert [node.parent_id for node in view.nodes] == [0, stem.node_id, stem.node_id, 0]
    assert (view.total_nodes, view.total_tokens) == (4, 16)


def test_a_node_says_what_and_whose_it_is():
    """Namespace, scope, first tokens, age, hits and locks."""
    clock = FakeClock()
    tree = sample(clock)
    tree.lock([7], namespace=Namespace("n", "tenant"))
    clock.now += 2
    view = tree.view(10)
    private, stem = view.nodes[-1], view.nodes[0]

    assert (private.namespace, private.scope) == ("n", "tenant")
    assert (private.token_ids, private.num_locks, private.num_hits) == ((7,), 1, 1)
    assert (private.last_access_s, stem.last_access_s) == (2.0, 7.0)
    assert stem.num_hits == 1


def test_both_parts_of_a_split_keep_age_and_hits():
    """A cut that is no use of the prefix does not change what people see."""
    clock = FakeClock()
    tree = RadixTree(1, clock=clock)
    tree.insert([1, 2, 3, 4], [1, 2, 3, 4], namespace="m")
    lock = tree.lock([1, 2, 3, 4], namespace="m")
    clock.now += 3
    tree.share(lock, 2)

    shown = [(n.num_tokens, n.last_access_s, n.num_hits, n.num_locks) for n in tree.view(9).nodes]
    assert shown == [(2, 3.0, 1, 2), (2, 3.0, 1, 1)]


def test_the_picture_is_bounded():
    """No more nodes than asked for, no more tokens of a node than a person reads."""
    tree = sample(FakeClock())

    assert [node.num_tokens for node in tree.view(2).nodes] == [2, 10]
    assert tree.view(0).nodes == ()
    tree.insert(range(1000, 2000), range(1000), namespace="m")
    assert len(tree.view(1).nodes[0].token_ids) == 32


def test_a_flushed_path_is_not_shown():
    """What nobody can find is not in the picture."""
    tree = sample(FakeClock())
    tree.lock([1, 2], namespace="m")
    tree.flush("m")

    assert [node.namespace for node in tree.view(9).nodes] == ["n"]


def test_a_very_large_tree_is_ranked_by_own_size(monkeypatch):
    """Beyond the exact limit the same rules hold without summing the whole tree."""
    monkeypatch.setattr(view_module, "_EXACT_NODES", 0)
    view = sample(FakeClock()).view(3)

    assert [node.num_tokens for node in view.nodes] == [2, 10, 3]
