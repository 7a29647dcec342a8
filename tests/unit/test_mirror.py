"""A subscriber's copy: what it takes over, what it refuses, and what it answers."""

from array import array

import pytest

from radixcache.errors import EventsLostError, InvalidRequestError
from radixcache.events import BlocksRemoved, BlocksStored, Cleared, EventLog, Mirror, Snapshot
from radixcache.tree import RadixTree
from radixcache.types import PUBLIC, Namespace
from tests.tree_forms import NS, put

SPACE = Namespace.of(NS)
TENANT = Namespace(NS, "a")


def packed(*ids):
    """Ids as an event carries them."""
    return array("i", ids).tobytes()


def stored(seq, ids, tokens, parent=None, space=SPACE):
    """A stored event."""
    return BlocksStored(seq, space, parent, packed(*ids), packed(*tokens))


def mirror_of(*events):
    """A mirror that has these events."""
    mirror = Mirror()
    for event in events:
        assert mirror.apply(event)
    return mirror


def state(mirror):
    """All that a mirror knows."""
    return (mirror.seq, dict(mirror.blocks), mirror.match(NS, [1, 2]), mirror.match(TENANT, [1, 2]))


def test_events_build_the_tree():
    """Parents, owners and tokens of every block."""
    mirror = mirror_of(
        stored(1, [10, 20], [1, 2, 3, 4]),
        stored(2, [30], [5, 6], parent=10, space=TENANT),
        BlocksRemoved(3, packed(20)),
    )

    assert {i: (b.parent_block_id, b.namespace, b.token_ids) for i, b in mirror.blocks.items()} == {
        10: (None, SPACE, (1, 2)),
        30: (10, TENANT, (5, 6)),
    }
    assert mirror.seq == 3


def test_repeats_are_harmless():
    """Case 113: an event seen before changes nothing, even one that would not fit any more."""
    first, second = stored(1, [10], [1]), BlocksRemoved(2, packed(10))
    mirror = mirror_of(first, second)
    before = state(mirror)

    assert [mirror.apply(event) for event in (first, second, first)] == [False] * 3
    assert state(mirror) == before


def test_gaps_are_noticed():
    """Case 113: a missing event is named; once it has come, all go in."""
    first, second, third = (stored(n, [n * 10], [n]) for n in (1, 2, 3))
    mirror = mirror_of(first)
    with pytest.raises(EventsLostError, match=r"events 2 to 2 are missing.*since\(1\).*snapshot"):
        mirror.apply(third)
    assert (mirror.seq, len(mirror.blocks)) == (1, 1)

    assert mirror.apply(second)
    assert mirror.apply(third)
    assert not mirror.apply(second)


MISFITS = {
    "unknown parent": stored(3, [30], [3], parent=99),
    "parent of another scope": stored(3, [30], [3], parent=20),
    "parent of another kv_key": stored(3, [30], [3], parent=10, space=Namespace("n", PUBLIC)),
    "block size": stored(3, [30], [3, 4]),
    "half a block": stored(3, [30, 40], [3, 4, 5]),
    "block there": stored(3, [30, 20], [3, 4]),
    "block twice": stored(3, [30, 30], [3, 4]),
    "place taken": stored(3, [30], [1]),
    "unknown block removed": BlocksRemoved(3, packed(20, 99)),
    "block removed twice": BlocksRemoved(3, packed(20, 20)),
}


@pytest.mark.parametrize("event", MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_is_refused_whole(event):
    """It says that a snapshot is needed; nothing has changed."""
    mirror = mirror_of(stored(1, [10], [1]), stored(2, [20], [2], parent=10, space=TENANT))
    before = state(mirror)
    with pytest.raises(EventsLostError, match=r"event 3 does not fit.*load a snapshot"):
        mirror.apply(event)

    assert state(mirror) == before


@pytest.mark.parametrize(
    ("space", "left"),
    [
        (None, set()),
        (SPACE, {40, 50}),
        (Namespace(NS, "a"), {10, 30, 40, 50}),
        (Namespace("n", PUBLIC), {10, 20, 30}),
        (Namespace("x", PUBLIC), {10, 20, 30, 40, 50}),
    ],
    ids=str,
)
def test_cleared_means_what_a_flush_means(space, left):
    """None, a kv_key, a scope; the same in a tree that is flushed so."""
    tree, log = RadixTree(1), EventLog()
    tree.watch(log)
    put(tree, [1], [10])
    put(tree, [1, 2], [0, 20], Namespace(NS, "a"))
    put(tree, [1, 2], [0, 30], Namespace(NS, "b"))
    put(tree, [1], [40], "n")
    put(tree, [2], [50], Namespace("n", "a"))
    mirror = mirror_of(*log.since(0))
    tree.flush(space)
    [event] = log.since(mirror.seq)
    mirror.apply(event)

    assert event == Cleared(6, space)
    assert set(mirror.blocks) == set(tree.all_block_ids()) == left
    assert mirror.difference(log.snapshot(tree)) is None


def test_an_id_may_come_back_elsewhere():
    """Once removed or cleared it is free for any place, of another block size too if all went."""
    mirror = mirror_of(
        stored(1, [10, 20], [1, 2]),
        BlocksRemoved(2, packed(20)),
        stored(3, [20], [5], parent=10),
        Cleared(4, None),
        stored(5, [20, 10], [1, 2, 3, 4]),
    )

    assert mirror.match(NS, [1, 2, 3, 4]) == [20, 10]


def test_a_snapshot_replaces_everything():
    """Also what is newer; a snapshot that contradicts itself leaves all as it was."""
    mirror = mirror_of(stored(1, [10], [1]), stored(2, [20], [2]))
    mirror.load(Snapshot(1, (stored(1, [10], [1]),)))
    assert (mirror.seq, set(mirror.blocks)) == (1, {10})
    before = state(mirror)
    with pytest.raises(EventsLostError):
        mirror.load(Snapshot(7, (stored(7, [30], [3]), stored(7, [30], [4]))))

    assert state(mirror) == before
    assert mirror.apply(stored(2, [20], [2]))


def test_a_tenant_sees_its_own_and_public_blocks():
    """The longest of both; of two equally long paths the tree's choice; nobody else's."""
    mirror = mirror_of(
        stored(1, [10], [1]),
        stored(2, [20], [2], parent=10, space=TENANT),
        stored(3, [30], [3], parent=20, space=TENANT),
        stored(4, [40, 50], [2, 3], parent=10),
        stored(5, [60], [4], parent=30, space=TENANT),
    )

    assert mirror.match(TENANT, [1, 2, 3, 4]) == [10, 20, 30, 60]
    assert mirror.match(TENANT, [1, 2, 3]) == [10, 40, 50]
    assert mirror.match(NS, [1, 2, 3, 4]) == [10, 40, 50]
    assert mirror.match(Namespace(NS, "b"), [1, 2, 3, 4]) == [10, 40, 50]
    assert mirror.match("n", [1]) == mirror.match(NS, []) == Mirror().match(NS, [1]) == []


def test_of_equally_long_private_branches_the_trees_is_named():
    """One leaves the PUBLIC path at the root, one a block later: both say the later one."""
    tree, log = RadixTree(1), EventLog()
    tree.watch(log)
    put(tree, [1, 2, 3], [10, 20, 30], TENANT)
    put(tree, [1], [40])
    lock = tree.lock([1], namespace=TENANT)
    tree.extend(lock, [2, 3], [50, 60])
    mirror = mirror_of(*log.since(0))

    assert tree.match([1, 2, 3], namespace=TENANT).block_ids.tolist() == [40, 50, 60]
    assert mirror.match(TENANT, [1, 2, 3]) == [40, 50, 60]


def test_wrong_tokens_are_refused():
    """As the tree refuses them."""
    with pytest.raises(InvalidRequestError, match="tokens"):
        Mirror().match(NS, [2**31])
    with pytest.raises(InvalidRequestError, match="tokens"):
        Mirror().match(NS, [1.5])
    with pytest.raises(TypeError, match="namespace"):
        Mirror().match(None, [1])


@pytest.mark.parametrize(
    "other",
    [
        (stored(2, [10, 20], [1, 3]),),
        (stored(2, [10, 21], [1, 2]),),
        (stored(2, [10], [1]),),
        (stored(2, [10, 20, 30], [1, 2, 3]),),
        (stored(2, [10], [1]), stored(2, [20], [2])),
        (stored(2, [10], [1]), stored(2, [20], [2], parent=10, space=TENANT)),
        (stored(2, [10, 20], [1, 2], space=Namespace("n", PUBLIC)),),
    ],
    ids=["tokens", "block id", "fewer", "more", "parent", "scope", "kv_key"],
)
def test_every_difference_is_found(other):
    """Tokens, ids, parents, scopes: exactly equal or the first difference in words."""
    mirror = mirror_of(stored(1, [10], [1]), stored(2, [20], [2], parent=10))

    assert mirror.difference(Snapshot(2, (stored(2, [10, 20], [1, 2]),))) is None
    assert "block" in mirror.difference(Snapshot(2, other))


def test_moments_that_differ_are_not_compared():
    """Equal blocks at another event are no proof."""
    mirror = mirror_of(stored(1, [10], [1]))

    assert "at event 1, the snapshot at 2" in mirror.difference(Snapshot(2, ()))
