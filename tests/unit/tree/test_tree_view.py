"""The bounded picture of the tree."""

import pytest

from radixcache.errors import InvalidRequestError
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


def test_both_parts_of_a_split_keep_their_place_among_others():
    """A cut that is no use of the prefix leaves it before what is older."""
    tree = RadixTree(1)
    tree.insert([9], [9], namespace="m")
    tree.insert([1, 2, 3, 4], [1, 2, 3, 4], namespace="m")
    tree.share(tree.lock([1, 2, 3, 4], namespace="m"), 2)

    assert [n.token_ids[0] for n in tree.view(9, order="recent").nodes] == [1, 3, 9]


def test_a_prefix_is_as_young_as_what_was_published_below_it():
    """When the tail goes, the prefix that it extended has been used as lately as the tail."""
    clock = FakeClock()
    tree = RadixTree(1, clock=clock)
    tree.insert([1], [1], namespace="m")
    lock, other = (tree.lock([1], namespace="m") for _ in range(2))
    clock.now += 7
    tree.unlock(tree.extend(lock, [2], [2]).lock)
    tree.evict(1)
    clock.now += 1
    tree.unlock(other)

    assert [node.last_access_s for node in tree.view(9).nodes] == [1.0]


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


@pytest.mark.parametrize(
    ("order", "first_tokens"),
    [
        ("tokens", [10, 1, 50]),
        ("hits", [50, 10, 1]),
        ("recent", [1, 50, 10]),
        ("oldest", [10, 50, 1]),
    ],
)
def test_the_picture_begins_with_what_was_asked_for(order, first_tokens):
    """By size of the whole subtree, hits or age."""
    tree = RadixTree(1)
    tree.insert(range(10, 20), range(10), namespace="m")
    tree.insert(range(50, 52), range(50, 52), namespace="m")
    for _ in range(3):
        tree.unlock(tree.lock(range(50, 52), namespace="m"))
    tree.insert(range(1, 4), range(20, 23), namespace="m")

    assert [n.token_ids[0] for n in tree.view(9, order=order).nodes] == first_tokens
    with pytest.raises(InvalidRequestError, match=r"order: got 'best', allowed: tokens \| hits"):
        tree.view(9, order="best")


def test_a_subtree_counts_all_below_it_through_every_change():
    """A small node with much below it comes before a large one with nothing below."""
    tree = RadixTree(1)
    tree.insert([1, 2], [1, 2], namespace="m")
    tree.insert([9] * 5, range(100, 105), namespace="m")
    for i in range(4):
        tree.insert([1, 2, 10 + i], [1, 2, 10 + i], namespace="m")

    def sizes():
        return [(n.token_ids[0], n.num_tokens, n.subtree_tokens) for n in tree.view(2).nodes]

    assert sizes() == [(1, 2, 6), (9, 5, 5)]
    lock = tree.lock([9] * 5, namespace="m")
    tree.evict(2)
    assert sizes() == [(9, 5, 5), (1, 2, 4)]
    tree.extend(lock, [7, 8], [107, 108])
    assert sizes()[0] == (9, 7, 7)
    tree.flush("m")
    assert tree.view(2).nodes == ()


def test_with_very_many_branches_the_picture_says_that_it_is_not_complete(monkeypatch):
    """The oldest and newest are compared, and the reader learns that others were not."""
    monkeypatch.setattr(view_module, "_MAX_LOOKED_AT", 10)
    tree = RadixTree(1)
    for i in range(30):
        tree.insert([i] * (i + 1), range(100 * i, 101 * i + 1), namespace="m")

    assert [n.num_tokens for n in tree.view(3).nodes] == [30, 29, 28]
    assert not tree.view(3).complete
    assert sample(FakeClock()).view(2).complete


def test_a_wide_fork_is_looked_at_from_both_ends_and_every_root_gets_its_share(monkeypatch):
    """The newest branch is not hidden behind older ones, nor a namespace behind another."""
    monkeypatch.setattr(view_module, "_MAX_LOOKED_AT", 20)
    tree = RadixTree(1)
    for i in range(200):
        tree.insert([i], [i], namespace="m")
    tree.insert([999, 1, 2], [900, 901, 902], namespace="m")
    tree.insert([7, 7], [950, 951], namespace="late")
    view = tree.view(3)

    assert [(n.namespace, n.num_tokens) for n in view.nodes[:2]] == [("m", 3), ("late", 2)]
    assert not view.complete
