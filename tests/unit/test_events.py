"""Events, their log and snapshots: what a subscriber is told, and when it must begin anew.

The cases of tree.md speak of block hashes. Here a block is named by its id, which is unique while
it is findable; ``chain_hashes`` shows that hashes follow from the events alone.
"""

import dataclasses
import doctest
import hashlib
import importlib
import sys
from array import array

import pytest

from radixcache.cache import PrefixCache
from radixcache.errors import EventsLostError, InvalidRequestError, RadixCacheError
from radixcache.events import BlocksRemoved, BlocksStored, Cleared, EventLog, Mirror
from radixcache.tree import RadixTree
from radixcache.types import Namespace
from tests.tree_forms import NS, put

TENANT = Namespace(NS, "a")


def watched(block_size=1, **limits):
    """A tree and its log."""
    tree, log = RadixTree(block_size), EventLog(**limits)
    tree.watch(log)
    return tree, log


def shown(event):
    """An event as plain values."""
    if isinstance(event, BlocksStored):
        return ("stored", event.parent_block_id, list(event.block_ids), list(event.token_ids))
    if isinstance(event, BlocksRemoved):
        return ("removed", list(event.block_ids))
    return ("cleared", event.namespace)


def told(log, seq=0):
    """The events after ``seq`` as plain values."""
    return [shown(event) for event in log.since(seq)]


def chain_hashes(events):
    """(parent hash, hashes) of each stored event, (hashes,) of each removed one, as vLLM sends."""
    known, sent = {}, []
    for event in events:
        if isinstance(event, BlocksRemoved):
            sent.append(([known.pop(block_id) for block_id in event.block_ids],))
            continue
        parent = above = known.get(event.parent_block_id)
        hashes, size = [], event.block_size
        for at, block_id in enumerate(event.block_ids):
            part = event.token_ids[at * size : (at + 1) * size]
            text = repr((event.namespace, above, part)).encode()
            above = known[block_id] = hashlib.sha256(text).hexdigest()
            hashes.append(above)
        sent.append((parent, hashes))
    return sent


# -- what is told ---------------------------------------------------------------------------


@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 5), (2, 2)])
def test_an_insert_is_one_stored_event_of_whole_blocks(block_size, num_blocks):
    """Case V1: five tokens; every block has exactly the tree's block size."""
    tree, log = watched(block_size)
    put(tree, [1, 2, 3, 4, 5], [10, 20, 30, 40, 50])
    [event] = log.since(0)

    assert event.block_size == block_size
    assert event.block_ids == (10, 20, 30, 40, 50)[:num_blocks]
    assert event.token_ids == (1, 2, 3, 4, 5)[: num_blocks * block_size]
    assert (event.seq, event.parent_block_id, event.namespace) == (1, None, Namespace.of(NS))


def test_equal_blocks_of_one_prompt_are_two_blocks():
    """Case V2: the second of two equal blocks follows the first; their hashes would differ."""
    tree, log = watched(4)
    put(tree, [1, 2, 3, 4, 1, 2, 3, 4], [10, 20])
    mirror = Mirror()
    mirror.apply(*log.since(0))
    [(parent, hashes)] = chain_hashes(log.since(0))

    assert mirror.blocks[10].parent_block_id is None
    assert mirror.blocks[20].parent_block_id == 10
    assert mirror.blocks[10].token_ids == mirror.blocks[20].token_ids
    assert parent is None
    assert hashes[0] != hashes[1]


def test_eight_tokens_are_two_blocks_of_four():
    """Case V3: two block ids for one node, in one event."""
    tree, log = watched(4)
    put(tree, range(8), [10, 20])

    assert tree.num_nodes == 1
    assert told(log) == [("stored", None, [10, 20], list(range(8)))]


def test_a_split_renames_nothing():
    """Case V4: the branch names the last common block as its parent; the others are not told."""
    tree, log = watched(2)
    put(tree, [1, 2, 3, 4], [10, 20])
    put(tree, [1, 2, 5, 6], [11, 30])
    stored = chain_hashes(log.since(0))

    assert tree.num_nodes == 3
    assert told(log, 1) == [("stored", 10, [30], [5, 6])]
    assert stored[1][0] == stored[0][1][0]


def test_a_branch_names_the_last_block_it_follows():
    """Whoever owns it, and also when the new blocks continue a node in place."""
    tree, log = watched()
    put(tree, [1, 2, 3], [10, 20, 30])
    put(tree, [1, 2, 3, 4], [0, 0, 0, 40])
    put(tree, [1, 2, 5, 6], [0, 0, 50, 60], TENANT)

    assert told(log, 1) == [("stored", 30, [40], [4]), ("stored", 20, [50, 60], [5, 6])]
    assert [event.namespace for event in log.since(1)] == [Namespace.of(NS), TENANT]


def test_a_flush_of_everything_is_one_event():
    """Case V5: locked or not, all is cleared at once."""
    tree, log = watched()
    put(tree, [1, 2], [10, 20])
    tree.lock([1], namespace=NS)
    tree.flush()

    assert told(log, 1) == [("cleared", None)]


def test_the_same_block_in_two_namespaces_is_told_twice():
    """Case N2: one stored event each, other ids, other hashes; no match from one to the other."""
    tree, log = watched(2)
    put(tree, [1, 2], [10], "key1")
    put(tree, [1, 2], [20], "key2")
    mirror = Mirror()
    for event in log.since(0):
        mirror.apply(event)
    [(_, first), (_, second)] = chain_hashes(log.since(0))

    assert first != second
    assert mirror.match("key1", [1, 2]) == [10]
    assert mirror.match("key2", [1, 2]) == [20]
    assert mirror.match("key3", [1, 2]) == []


def test_an_eviction_names_the_blocks_that_went():
    """Case E2: tails of leaves, in path order; a publisher of hashes knows theirs."""
    tree, log = watched()
    put(tree, [1, 2, 3], [10, 20, 30])
    tree.evict(2)
    tree.evict(1)
    (_, hashes), *removed = chain_hashes(log.since(0))

    assert told(log, 1) == [("removed", [20, 30]), ("removed", [10])]
    assert removed == [(hashes[1:],), (hashes[:1],)]


def test_what_changes_nothing_findable_tells_nothing():
    """Look-ups, locks, splits, joins, limits, duplicates and refused calls are silent."""
    tree, log = watched(1)
    put(tree, [1, 2, 3, 4], [10, 20, 30, 40])
    lock = tree.lock([1, 2], namespace=NS)
    nodes = tree.num_nodes
    tree.unlock(tree.share(lock, 1))
    tree.unlock(lock)
    put(tree, [1, 2, 3], [11, 21, 31])
    put(tree, [1, 2, 3, 4, 5][:0], [])
    tree.match([1, 2, 9], namespace=NS)
    tree.set_quota(NS, max_blocks=9)
    tree.trim()
    tree.evict(0)
    with pytest.raises(InvalidRequestError):
        put(tree, [1, 2, 3, 4, 5, 6], [10, 20, 30, 40, -1, 60])
    with pytest.raises(InvalidRequestError):
        put(tree, [8, 9], [80])

    assert nodes == 2
    assert log.last_seq == 1


def test_what_a_flushed_lock_publishes_is_not_told():
    """Detached paths grow, end and are freed in silence, beside a live PUBLIC path too."""
    tree, log = watched()
    put(tree, [1, 2], [10, 20])
    put(tree, [1, 2, 3], [0, 0, 30], TENANT)
    lock = tree.lock([1, 2, 3], namespace=TENANT)
    root = tree.lock([], namespace=TENANT)
    tree.flush(TENANT)
    lock = tree.extend(lock, [4], [40]).lock
    root = tree.extend(root, [7], [70]).lock

    assert told(log, 2) == [("cleared", TENANT)]
    assert sorted([*tree.unlock(lock), *tree.unlock(root)]) == [30, 40, 70]
    assert log.last_seq == 3


def test_quotas_evict_like_everybody():
    """What goes above a namespace's limit is a removed event."""
    cache = PrefixCache(9, block_size=1, events=EventLog())
    lease = cache.acquire(TENANT, [1, 2, 3])
    lease.extend(3)
    lease.commit([1, 2, 3], 3)
    table = lease.block_table
    lease.release()
    cache.set_quota(TENANT, max_tokens=1)

    assert told(cache.events, 1) == [("removed", table[1:])]


def test_events_are_values():
    """Nobody can change what others will read, neither the reader nor who published."""
    tree, log = watched()
    tokens, ids = array("i", [1, 2]), array("i", [10, 20])
    put(tree, tokens, ids)
    tokens[0], ids[0] = 8, 80
    [event] = log.since(0)
    log.since(0).clear()

    assert told(log) == [("stored", None, [10, 20], [1, 2])]
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.seq = 5
    assert {event: 1}[event] == 1


# -- the log --------------------------------------------------------------------------------


def test_numbers_are_contiguous_from_one():
    """Whatever the kind of event."""
    tree, log = watched()
    assert (log.first_seq, log.last_seq, log.since(0)) == (1, 0, [])
    put(tree, [1, 2], [10, 20])
    tree.evict(1)
    tree.flush()
    put(tree, [1], [10])

    assert [event.seq for event in log.since(0)] == [1, 2, 3, 4]
    assert [event.seq for event in log.since(2)] == [3, 4]
    assert log.since(4) == []
    assert (log.first_seq, log.last_seq) == (1, 4)


def test_old_events_go_and_are_asked_for_in_vain():
    """At most ``max_events`` are kept; who needs older ones is told so, never given a part."""
    tree, log = watched(max_events=3)
    for token in range(5):
        put(tree, [token], [token])

    assert (log.first_seq, log.last_seq) == (3, 5)
    assert [event.seq for event in log.since(2)] == [3, 4, 5]
    with pytest.raises(EventsLostError, match=r"events 3 to 5 are kept.*take a snapshot"):
        log.since(1)


def test_ids_are_bounded_too():
    """At most ``max_ids`` block and token ids together; one event above that is not kept."""
    tree, log = watched(2, max_ids=9)
    put(tree, [1, 2], [10])
    put(tree, [3, 4, 5, 6], [20, 30])
    assert log.first_seq == 1
    tree.evict(1)
    assert log.first_seq == 2
    put(tree, range(8), [1, 2, 3, 4])

    assert (log.first_seq, log.last_seq, log.since(4)) == (5, 4, [])
    with pytest.raises(EventsLostError):
        log.since(3)


def test_a_number_to_come_is_another_logs():
    """A subscriber of an earlier run must not believe that it is up to date."""
    _, log = watched()
    with pytest.raises(EventsLostError, match="take a snapshot"):
        log.since(1)


@pytest.mark.parametrize("seq", [-1, 1.0, "1", None])
def test_a_number_that_is_none_is_refused(seq):
    """Case: a field of the wrong kind is named."""
    with pytest.raises(InvalidRequestError, match="seq"):
        EventLog().since(seq)


@pytest.mark.parametrize("name", ["max_events", "max_ids"])
@pytest.mark.parametrize("value", [0, -1, 2.5, None])
def test_wrong_limits_are_named(name, value):
    """Limits are whole numbers from 1 on."""
    with pytest.raises(InvalidRequestError, match=name):
        EventLog(**{name: value})


# -- subscribers ----------------------------------------------------------------------------


def test_a_reader_is_woken_once_and_reads_all():
    """However many changes follow, one call until it reads; none before its first read."""
    tree, log = watched()
    calls = []
    reader = log.subscribe(lambda: calls.append(log.last_seq))
    put(tree, [1], [10])
    assert calls == []
    assert [event.seq for event in reader.read()] == [1]
    put(tree, [2], [20])
    put(tree, [3], [30])

    assert calls == [2]
    assert [event.seq for event in reader.read()] == [2, 3]
    assert reader.seq == 3
    tree.flush()
    assert calls == [2, 4]


def test_a_failing_reader_harms_nobody():
    """The change and the other readers go on; it is never called again, and the reason is kept."""
    tree, log = watched()
    calls = []
    broken = log.subscribe(lambda: calls.append("broken") or 1 // 0)
    sound = log.subscribe(lambda: calls.append("sound"))
    for reader in (broken, sound):
        reader.read()
    put(tree, [1], [10])
    for reader in (broken, sound):
        assert [event.seq for event in reader.read()] == [1]
    tree.evict(1)
    tree.check()

    assert calls == ["broken", "sound", "sound"]
    assert isinstance(broken.failure, ZeroDivisionError)
    assert sound.failure is None
    assert tree.num_blocks == 0


def test_a_closed_reader_is_not_called():
    """Twice closed is closed; closing another one amid its wake-up is no fault either."""
    tree, log = watched()
    calls = []
    readers = [log.subscribe(lambda: (calls.append(1), [r.close() for r in readers]))]
    readers.append(log.subscribe(lambda: calls.append(2)))
    closed = log.subscribe(lambda: calls.append(3))
    for reader in (*readers, closed):
        reader.read()
    closed.close()
    closed.close()
    assert closed not in log._waiting
    put(tree, [1], [10])
    put(tree, [2], [20])

    assert calls == [1]
    assert [reader.failure for reader in readers] == [None, None]
    assert [len(reader.read()) for reader in readers] == [2, 2]


def test_a_reader_that_is_too_late_begins_anew():
    """It costs one call however long it sleeps; then it is told, and goes on from a snapshot."""
    tree, log = watched(max_events=2)
    calls = []
    reader, mirror = log.subscribe(lambda: calls.append(1)), Mirror()
    reader.read()
    for token in range(5):
        put(tree, [token], [token])
    with pytest.raises(EventsLostError):
        reader.read()
    mirror.load(log.snapshot(tree))
    reader.seek(mirror.seq)
    assert reader.read() == []
    put(tree, [9], [9])
    mirror.apply(*reader.read())

    assert calls == [1, 1]
    assert mirror.difference(log.snapshot(tree)) is None


def test_a_place_may_be_named():
    """``after``: what is known already is not read again."""
    tree, log = watched()
    put(tree, [1], [10])
    put(tree, [2], [20])

    assert [event.seq for event in log.subscribe(print, after=1).read()] == [2]
    assert log.subscribe(print).read() == []


def test_a_wake_up_takes_no_snapshot():
    """Amid a change tree and log disagree, so it is refused; afterwards it works again."""
    tree, log = watched()
    reader = log.subscribe(lambda: log.snapshot(tree))
    reader.read()
    put(tree, [1], [10])

    assert isinstance(reader.failure, RadixCacheError)
    assert "only signal" in str(reader.failure)
    assert log.snapshot(tree).seq == 1


# -- snapshots ------------------------------------------------------------------------------


def test_a_snapshot_holds_what_is_findable():
    """Parents first, private blocks with their namespace, flushed ones never; all of one moment."""
    tree, log = watched()
    other = Namespace("n", "b")
    put(tree, [1, 2, 3], [10, 20, 30])
    put(tree, [1, 2, 4], [0, 0, 40], TENANT)
    put(tree, [5], [50], other)
    tree.lock([5], namespace=other)
    tree.flush(other)
    snapshot = log.snapshot(tree)
    events = {event.block_ids: event for event in snapshot.events}

    assert snapshot.seq == log.last_seq == 4
    assert {event.seq for event in snapshot.events} == {4}
    assert next(iter(events)) == (10, 20)
    assert set(events) == {(10, 20), (30,), (40,)}
    assert events[40,].namespace == TENANT
    assert [events[ids].parent_block_id for ids in ((10, 20), (30,), (40,))] == [None, 20, 20]


def test_a_replay_is_pure_and_its_views_bind_nothing():
    """A watcher that keeps what it was given does not keep the tree from growing."""
    tree, log = watched()
    put(tree, [1, 2], [10, 20])
    kept = []

    class Keeper:
        """Keeps views."""

        def stored(self, namespace, parent, key, ids):
            """Keep."""
            kept.append((key, ids))

    tree.replay(Keeper())
    put(tree, [1, 2, 3], [10, 20, 30])
    tree.evict(2)

    assert kept[0][0].cast("i").tolist() == [1, 2]
    assert log.last_seq == 3


def test_a_log_can_join_a_tree_that_is_full():
    """Replayed and then watching, its first events are the tree."""
    tree, log, mirror = RadixTree(1), EventLog(), Mirror()
    put(tree, [1, 2], [10, 20])
    put(tree, [1, 3], [10, 30])
    tree.replay(log)
    tree.watch(log)
    tree.evict(1)
    for event in log.since(0):
        mirror.apply(event)

    assert mirror.difference(log.snapshot(tree)) is None
    assert len(mirror.blocks) == 2


def test_a_deep_chain_is_mirrored_without_recursion():
    """Case 45: 20,000 nodes, one below the other, under a recursion limit of 200."""
    tree, log, mirror = RadixTree(1), EventLog(), Mirror()
    tokens = array("i", range(20_000))
    put(tree, tokens, tokens)
    for end in range(len(tokens) - 1, 0, -1):
        tree.unlock(tree.lock(tokens, namespace=NS, max_tokens=end))
    assert tree.num_nodes == len(tokens)
    normal, depth = sys.getrecursionlimit(), len(_stack())
    sys.setrecursionlimit(depth + 200)
    try:
        snapshot = log.snapshot(tree)
        mirror.load(snapshot)
        assert mirror.difference(snapshot) is None
        assert mirror.match(NS, tokens) == tokens.tolist()
    finally:
        sys.setrecursionlimit(normal)

    assert len(snapshot.events) == len(tokens)


def _stack():
    frames, frame = [], sys._getframe()
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def test_a_cache_without_a_log_has_no_snapshot():
    """The error names the setting; nothing watches the tree."""
    cache = PrefixCache(9)

    assert cache.events is None
    with pytest.raises(InvalidRequestError, match=r"PrefixCache\(events="):
        cache.snapshot()


def test_a_caches_snapshot_continues_with_its_log():
    """A late subscriber: snapshot, then the events after it."""
    cache, mirror = PrefixCache(9, block_size=2, events=EventLog()), Mirror()
    lease = cache.acquire(NS, [1, 2, 3, 4, 5])
    lease.extend(5)
    lease.commit([1, 2, 3, 4, 5], 3)
    mirror.load(cache.snapshot())
    assert mirror.match(NS, [1, 2, 3, 4]) == lease.block_table[:1]
    lease.commit([1, 2, 3, 4, 5], 5)
    for event in cache.events.since(mirror.seq):
        mirror.apply(event)

    assert mirror.match(NS, [1, 2, 3, 4]) == lease.block_table[:2]
    assert mirror.difference(cache.snapshot()) is None


@pytest.mark.parametrize("module", ["radixcache.events.log", "radixcache.events.mirror"])
def test_examples_in_the_docstrings_of_events_run(module):
    """What the documentation shows is what happens."""
    result = doctest.testmod(importlib.import_module(module))

    assert (result.failed, result.attempted > 0) == (0, True)


def test_cleared_covers_what_a_flush_covers():
    """None: all; PUBLIC: the kv_key; a scope: only its own."""
    public, other = Namespace.of(NS), Namespace("n", "a")
    covered = [
        [Cleared(1, space).covers(seen) for seen in (public, TENANT, Namespace(NS, "b"), other)]
        for space in (None, public, TENANT)
    ]

    assert covered == [
        [True, True, True, True],
        [True, True, True, False],
        [False, True, False, False],
    ]
