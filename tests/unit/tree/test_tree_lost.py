"""The memory of evicted prefixes, apart from what is told of it."""

import pytest

from radixcache.errors import CacheCorruptionError
from radixcache.tree import RadixTree
from radixcache.tree import lost as lost_module
from radixcache.tree.lost import LostPrefixes
from radixcache.types import Namespace
from tests.tree_forms import NS, put


def forgetful(**bounds):
    """A tree of single tokens with a small memory."""
    tree = RadixTree(1)
    tree._forest.lost = LostPrefixes(tree._forest.unit, **({"max_tokens": 2**20} | bounds))
    return tree, tree._forest.lost


def cycle(tree, first, size):
    """Cache a prefix and evict it."""
    put(tree, range(first, first + size), range(first, first + size))
    tree.evict(size)


def test_the_oldest_are_forgotten_first_by_tokens_and_by_records():
    """Both bounds hold at once."""
    tree, lost = forgetful(max_tokens=10, max_records=3)
    for first in (0, 100, 200, 300):
        cycle(tree, first, 2)
    assert (len(lost), lost.num_tokens) == (3, 6)
    cycle(tree, 400, 7)
    assert (len(lost), lost.num_tokens) == (2, 9)
    cycle(tree, 500, 11)
    assert (len(lost), lost.num_tokens) == (0, 0)
    lost.check()


def test_what_comes_and_goes_does_not_push_out_what_is_lost():
    """A prefix evicted and cached again a thousand times takes one record, then none."""
    tree, lost = forgetful(max_records=5)
    cycle(tree, 0, 2)
    for _ in range(1_000):
        cycle(tree, 100, 2)

    assert len(lost) == 2
    assert len(lost._order) < 30
    assert tree.explain([0, 1], namespace=NS).evicted is not None


def test_a_split_moves_only_the_places_of_the_upper_part():
    """A system prompt with very many lost branches is cut without a look at them all."""
    tree = RadixTree(1)
    put(tree, range(10), range(10))
    for branch in range(100, 150):
        put(tree, [*range(10), branch], [*range(10), branch])
    put(tree, range(10), range(10))
    tree.evict(50)
    forks = tree._forest.lost._forks
    before = [fork for depths in forks.values() for fork in depths.values()]
    tree.unlock(tree.share(tree.lock(range(10), namespace=NS), 4))
    after = [fork for depths in forks.values() for fork in depths.values()]

    assert [len(fork) for fork in before] == [50]
    assert [id(fork) for fork in after] == [id(fork) for fork in before]
    assert tree.explain([*range(10), 149], namespace=NS).evicted.num_tokens == 1


def test_times_of_flushes_are_bounded(monkeypatch):
    """The oldest is forgotten; a namespace flushed again counts once."""
    monkeypatch.setattr(lost_module, "_MAX_FLUSHES", 2)
    tree, lost = forgetful()
    for kv_key in ("x", "y", "x", "z"):
        tree.flush(kv_key)

    assert [space.kv_key for space in lost._flushes] == ["x", "z"]
    assert lost.flushed_s(Namespace("y", "a")) is None
    assert lost.flushed_s(Namespace("x", "a")) is not None


@pytest.mark.parametrize(
    ("break_it", "fault"),
    [
        (lambda lost, piece: setattr(piece, "fork", None), "filed at a wrong place"),
        (lambda lost, piece: setattr(piece.fork, "depth", 4), "filed at a wrong place"),
        (lambda lost, piece: piece.key.extend(b"1234"), "records and bytes"),
        (lambda lost, piece: lost._order.clear(), "records and bytes"),
        (lambda lost, piece: lost._forks.__setitem__(9, {}), "an empty place"),
    ],
)
def test_check_finds_faults(break_it, fault):
    """Places, counts, order."""
    tree, lost = forgetful()
    cycle(tree, 0, 2)
    lost.check()
    break_it(lost, lost._order[0])

    with pytest.raises(CacheCorruptionError, match=fault):
        lost.check()
