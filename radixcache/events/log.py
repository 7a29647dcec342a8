"""The log of one tree: numbers each change, keeps the latest, wakes those who wait for more."""

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from radixcache.errors import EventsLostError, InvalidRequestError, RadixCacheError
from radixcache.events.values import BlocksRemoved, BlocksStored, Cleared, Event, Snapshot
from radixcache.types import Namespace

__all__ = ["EventLog", "Replayable", "Subscription"]


class Replayable(Protocol):
    """A tree, as far as a snapshot needs it."""

    def replay(self, watcher: "_Collector", /) -> None:
        """Tell ``watcher`` of all that is findable, parents first."""
        ...


class EventLog:
    """Numbers the changes of one tree 1, 2, 3, ... and keeps the latest of them.

    Watches a tree (``RadixTree.watch``, or ``PrefixCache(events=...)``); a log belongs to one.
    A change costs one copy of its ids, and one call for each subscriber that waits. Not
    thread-safe: the thread that owns the tree owns the log.

    >>> from radixcache import RadixTree
    >>> tree, log = RadixTree(block_size=2), EventLog()
    >>> tree.watch(log)
    >>> _ = tree.insert([1, 2, 3, 4], [10, 20], namespace="m")
    >>> [event.block_ids for event in log.since(0)]
    [(10, 20)]

    Args:
        max_events: how many events to keep.
        max_ids: how many ids (block and token ids, 4 bytes each) they may carry together. An
            event that alone carries more is numbered and delivered to nobody: all need a
            snapshot then.

    Raises:
        InvalidRequestError: a limit is no whole number, or below 1.
    """

    def __init__(self, *, max_events: int = 10_000, max_ids: int = 4_000_000) -> None:
        for name, value in (("max_events", max_events), ("max_ids", max_ids)):
            if not isinstance(value, int) or value < 1:
                raise InvalidRequestError(name, value, "a whole number, 1 or more")
        self._max_events = max_events
        self._max_ids = max_ids
        self._events: deque[Event] = deque()
        self._num_ids = 0
        self._last_seq = 0
        self._waiting: dict[Subscription, None] = {}  # in the order they began to wait
        self._waking = False

    # -- what a tree tells it ----------------------------------------------------------------

    def stored(
        self,
        namespace: Namespace,
        parent: bytes | bytearray,
        key: memoryview,
        ids: memoryview,
    ) -> None:
        """Note that blocks became findable (see ``TreeWatcher.stored``)."""
        self._add(BlocksStored.after(self._last_seq + 1, namespace, parent, key, ids))

    def removed(self, ids: memoryview) -> None:
        """Note that blocks were evicted (see ``TreeWatcher.removed``)."""
        self._add(BlocksRemoved(self._last_seq + 1, ids.tobytes()))

    def cleared(self, namespace: Namespace | None) -> None:
        """Note a flush (see ``TreeWatcher.cleared``)."""
        self._add(Cleared(self._last_seq + 1, namespace))

    def _add(self, event: Event) -> None:
        self._last_seq = event.seq
        self._events.append(event)
        self._num_ids += event.num_ids
        while len(self._events) > self._max_events or self._num_ids > self._max_ids:
            self._num_ids -= self._events.popleft().num_ids
        if self._waiting:
            self._wake()

    # -- what others ask ---------------------------------------------------------------------

    @property
    def last_seq(self) -> int:
        """Number of the latest event; 0: there was none."""
        return self._last_seq

    @property
    def first_seq(self) -> int:
        """Number of the oldest event kept; ``last_seq + 1``: none is."""
        return self._last_seq + 1 - len(self._events)

    def since(self, seq: int) -> list[Event]:
        """Return the events after number ``seq``, oldest first; none if it is the latest.

        Cost: the number of events returned.

        Raises:
            EventsLostError: some are not kept any more, or ``seq`` is yet to come (it is another
                log's). An error, because whoever missed an empty answer's meaning would go on
                with a wrong copy. Take a snapshot.
            InvalidRequestError: no whole number, or below 0.
        """
        if not isinstance(seq, int) or seq < 0:
            raise InvalidRequestError("seq", seq, "a whole number, 0 or more")
        count = self._last_seq - seq
        if not 0 <= count <= len(self._events):
            kept = f"events {self.first_seq} to {self._last_seq} are kept"
            raise EventsLostError(f"not all events after {seq} are here ({kept}): take a snapshot")
        events = list(islice(reversed(self._events), count))
        events.reverse()
        return events

    def snapshot(self, tree: Replayable) -> Snapshot:
        """Return all that is findable in the tree that this log watches, and as of which event.

        Cost: one copy of the whole tree.

        Raises:
            RadixCacheError: called by a wake-up, when the tree is amid the change.
        """
        if self._waking:
            raise RadixCacheError("a wake-up may only signal: the tree is amid a change")
        collector = _Collector(self._last_seq)
        tree.replay(collector)
        return Snapshot(self._last_seq, tuple(collector.events))

    def subscribe(self, wake: Callable[[], None], *, after: int | None = None) -> "Subscription":
        """Return a place to read from that says when there is more.

        Args:
            wake: called by the change itself, so it must only signal: set an event, ring a bell,
                ``loop.call_soon_threadsafe``. It may not touch cache or tree. Called once after
                each read that is followed by a change, however many follow. When it raises, the
                cache goes on and never calls it again.
            after: number of the last event that is known already; None: the latest.
        """
        return Subscription(self, wake, self._last_seq if after is None else after)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        self._waking = True
        try:
            for subscription in waiting:
                subscription._ring()
        finally:
            self._waking = False

    def __repr__(self) -> str:
        kept = f"{len(self._events)} events, {self._num_ids} ids"
        return f"EventLog(last_seq={self._last_seq}, kept: {kept})"


class Subscription:
    """One reader's place in a log. :meth:`read` once to begin: nobody is woken before.

    A reader that stops reading costs the log nothing and is forgotten after one wake-up; when it
    returns too late, :meth:`read` says so.

    Attributes:
        seq: number of the last event read.
        failure: what ``wake`` raised; it is not called again.
    """

    __slots__ = ("_log", "_wake", "failure", "seq")

    def __init__(self, log: EventLog, wake: Callable[[], None], seq: int) -> None:
        self._log = log
        self._wake: Callable[[], None] | None = wake
        self.seq = seq
        self.failure: Exception | None = None

    def read(self) -> list[Event]:
        """Return the events since the last read; the next change wakes.

        Raises:
            EventsLostError: as ``EventLog.since``. Take a snapshot and :meth:`seek` its number.
        """
        events = self._log.since(self.seq)
        self.seq += len(events)
        if self._wake is not None:
            self._log._waiting[self] = None
        return events

    def seek(self, seq: int) -> None:
        """Go on after event ``seq`` (a snapshot's) with the next read."""
        self.seq = seq

    def close(self) -> None:
        """End the wake-ups. A second time does nothing."""
        self._wake = None
        self._log._waiting.pop(self, None)

    def _ring(self) -> None:
        if self._wake is None:
            return
        try:
            self._wake()
        except Exception as error:
            # The change goes on whatever its readers do; whoever looks finds the reason here.
            self.failure = error
            self.close()


class _Collector:
    """Gathers what a tree replays."""

    def __init__(self, seq: int) -> None:
        self.events: list[BlocksStored] = []
        self._seq = seq

    def stored(
        self,
        namespace: Namespace,
        parent: bytes | bytearray,
        key: memoryview,
        ids: memoryview,
    ) -> None:
        """Keep one run of blocks."""
        self.events.append(BlocksStored.after(self._seq, namespace, parent, key, ids))

    def removed(self, ids: memoryview) -> None:
        """Refuse: a replay only stores."""
        raise RadixCacheError(f"a replay removed {len(ids)} bytes of block ids")

    def cleared(self, namespace: Namespace | None) -> None:
        """Refuse: a replay only stores."""
        raise RadixCacheError(f"a replay cleared {namespace}")
