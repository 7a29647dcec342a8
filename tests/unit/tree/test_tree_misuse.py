"""Misuse of a tree is refused before anything changes."""

from array import array

import numpy as np
import pytest

from radixcache.errors import InvalidRequestError
from radixcache.tree import RadixTree
from radixcache.types import Namespace

NS = "model"


def state(tree):
    """Everything that misuse might change."""
    tree.check()
    nodes = [
        (n.node_id, bytes(n.key), bytes(n.ids), n.last_access, n.num_hits, n.lock_count)
        for n in tree._forest.nodes()
    ]
    return nodes, tree.num_blocks, tree.num_locks, repr(tree)


@pytest.fixture
def tree():
    """Two branches of one prompt, in three nodes."""
    tree = RadixTree(2)
    tree.insert([1, 1, 2, 2, 3, 3], [10, 11, 12], namespace=NS)
    tree.insert([1, 1, 4, 4], [10, 13], namespace=NS)
    return tree


@pytest.mark.parametrize("count", [1.5, 1.0, "1", None, -1], ids=repr)
@pytest.mark.parametrize("call", ["evict", "view"])
def test_a_count_that_is_none_changes_nothing(tree, call, count):
    """Neither a fraction nor a negative number of blocks takes a leaf before it is refused."""
    before = state(tree)
    with pytest.raises(InvalidRequestError, match=r"num_blocks|max_nodes"):
        getattr(tree, call)(count)

    assert state(tree) == before


@pytest.mark.parametrize("limit", [-3, -1, 2.0, "4"], ids=repr)
def test_a_lock_limit_that_is_none_changes_nothing(tree, limit):
    """A negative limit is no limit from the end."""
    before = state(tree)
    with pytest.raises(InvalidRequestError, match="max_tokens: got"):
        tree.lock([1, 1, 2, 2, 3, 3], namespace=NS, max_tokens=limit)

    assert state(tree) == before


@pytest.mark.parametrize("length", [2.0, -2, 1, 8, "2"], ids=repr)
def test_a_share_is_a_whole_number_of_blocks(tree, length):
    """A lock's length is an int, a multiple of the block and within the lock."""
    lock = tree.lock([1, 1, 2, 2], namespace=NS)
    before = state(tree)
    with pytest.raises(InvalidRequestError, match=r"num_tokens: got .* a multiple of 2 up to 4"):
        tree.share(lock, length)

    assert state(tree) == before


@pytest.mark.parametrize("blocks", [[-1, 20], [20, -1], [20, 20], [20]], ids=repr)
def test_block_ids_that_cannot_be_change_nothing(tree, blocks):
    """Negative, repeated and missing block ids are refused by insert and by extend."""
    lock = tree.lock([1, 1, 4, 4], namespace=NS)
    before = state(tree)
    for namespace in (NS, "nothing is cached here"):
        with pytest.raises(InvalidRequestError, match="block_ids"):
            tree.insert([8, 8, 9, 9], blocks, namespace=namespace)
    with pytest.raises(InvalidRequestError, match="block_ids"):
        tree.extend(lock, [8, 8, 9, 9], blocks)

    assert state(tree) == before
    assert lock.live


@pytest.mark.parametrize(("kv_key", "scope"), [(None, ""), ("m", None), (b"m", ""), ("m", 3)])
def test_a_namespace_is_two_strings(kv_key, scope):
    """What is no string would be a root that nobody finds again, or fail deep in a look-up."""
    with pytest.raises(TypeError, match="namespace: got"):
        Namespace(kv_key, scope)


@pytest.mark.parametrize("priority", ["high", None, [], 1.5, -1, b"x"], ids=repr)
@pytest.mark.parametrize(
    "call",
    [
        lambda tree, priority: tree.insert([1, 1, 9, 9], [1, 99], namespace=NS, priority=priority),
        lambda tree, priority: tree.lock([1, 1], namespace=NS, priority=priority),
        lambda tree, priority: tree.lock_match(tree.match([1], namespace=NS), priority=priority),
    ],
    ids=["insert", "lock", "lock_match"],
)
def test_a_priority_is_a_whole_number(tree, call, priority):
    """Nothing is locked, published or taken out of the order of eviction by one that is none."""
    before = state(tree)
    with pytest.raises(InvalidRequestError, match="priority"):
        call(tree, priority)

    assert state(tree) == before


@pytest.mark.parametrize(
    "ids",
    [
        np.array([1.0, 2.0], np.float16),
        np.array([1, 2], np.complex64),
        np.array(["1", "2"]),
        np.array([(1, 2)], [("a", "i4"), ("b", "i4")]),
        array("u", "ab"),
    ],
    ids=lambda ids: str(getattr(ids, "dtype", "u")),
)
def test_arrays_of_what_is_no_id_are_refused(tree, ids):
    """Whatever the format, it is one typed error."""
    before = state(tree)
    with pytest.raises(InvalidRequestError, match="tokens"):
        tree.match(ids, namespace=NS)

    assert state(tree) == before


@pytest.mark.parametrize("kind", [">i4", object, "<i8", "u2"])
def test_whole_numbers_of_any_format_are_ids(tree, kind):
    """Big-endian, boxed, wide and narrow ones are converted."""
    tokens = [5, 5, 6, 6]
    tree.insert(np.array(tokens, kind), [60, 61], namespace=NS)

    assert tree.match(tokens, namespace=NS).block_ids == [60, 61]
