"""A copy of a tree, kept by its events: one dictionary entry a block."""

from array import array
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from radixcache.errors import EventsLostError, InvalidRequestError
from radixcache.events.values import (
    ID_BYTES,
    BlocksRemoved,
    BlocksStored,
    Cleared,
    Event,
    Snapshot,
    unpack,
)
from radixcache.types import PUBLIC, Namespace

__all__ = ["Mirror", "MirrorBlock"]


class MirrorBlock(NamedTuple):
    """Where a block stands and what it holds."""

    parent_block_id: int | None  # None: it begins a prefix
    namespace: Namespace
    packed_token_ids: bytes

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Key ids of this block."""
        return unpack(self.packed_token_ids)


class Mirror:
    """What a subscriber knows of a tree. Empty at first, which is right for a log's event 1.

    >>> from radixcache import PrefixCache
    >>> from radixcache.events import EventLog
    >>> cache = PrefixCache(9, block_size=2, events=EventLog())
    >>> lease = cache.acquire("m", [1, 2, 3])
    >>> lease.extend(3)
    >>> lease.commit([1, 2, 3], 3)
    >>> mirror = Mirror()
    >>> for event in cache.events.since(mirror.seq):
    ...     applied = mirror.apply(event)
    >>> mirror.match("m", [1, 2, 3, 4])
    [1]
    """

    def __init__(self) -> None:
        self._seq = 0
        self._block_size = 0  # not known before the first block
        self._blocks: dict[int, MirrorBlock] = {}
        self._ids: dict[MirrorBlock, int] = {}  # a place in the tree -> the block there

    @property
    def seq(self) -> int:
        """Number of the last event it contains."""
        return self._seq

    @property
    def blocks(self) -> Mapping[int, MirrorBlock]:
        """The findable blocks by block id. Read only."""
        return MappingProxyType(self._blocks)

    # -- changes -----------------------------------------------------------------------------

    def load(self, snapshot: Snapshot) -> None:
        """Forget all and take over a snapshot.

        Raises:
            EventsLostError: it contradicts itself; nothing has changed.
        """
        fresh = Mirror()
        for event in snapshot.events:
            fresh._store(event)
        fresh._seq = snapshot.seq
        self._seq, self._block_size = fresh._seq, fresh._block_size
        self._blocks, self._ids = fresh._blocks, fresh._ids

    def apply(self, event: Event) -> bool:
        """Take over an event; return False for one that it contains already.

        Raises:
            EventsLostError: events are missing before this one (read ``since(mirror.seq)``, or
                load a snapshot), or it does not fit what is known (load a snapshot). Nothing has
                changed.
        """
        if event.seq <= self._seq:
            return False
        if event.seq > self._seq + 1:
            missing = f"events {self._seq + 1} to {event.seq - 1} are missing"
            raise EventsLostError(f"{missing}: read since({self._seq}) or load a snapshot")
        if isinstance(event, BlocksStored):
            self._store(event)
        elif isinstance(event, BlocksRemoved):
            self._remove(event)
        else:
            self._clear(event)
        self._seq = event.seq
        return True

    def _store(self, event: BlocksStored) -> None:
        size = self._block_size if self._blocks else event.block_size
        ids, packed, above = event.block_ids, event.packed_token_ids, event.parent_block_id
        unit = size * ID_BYTES
        if len(packed) != len(ids) * unit:
            raise _misfit(event, f"its blocks are not of {size} tokens")
        if above is not None:
            parent = self._blocks.get(above)
            if parent is None or not _may_follow(event.namespace, parent.namespace):
                raise _misfit(event, f"block {above} is not there for it to follow")
        new: dict[int, MirrorBlock] = {}
        for start, block_id in zip(range(0, len(packed), unit), ids, strict=True):
            new[block_id] = MirrorBlock(above, event.namespace, packed[start : start + unit])
            above = block_id
        if len(new) < len(ids) or any(block_id in self._blocks for block_id in new):
            raise _misfit(event, "a block is there twice")
        if new[ids[0]] in self._ids:
            raise _misfit(event, "its place is taken")
        self._block_size = size
        self._blocks.update(new)
        self._ids.update((block, block_id) for block_id, block in new.items())

    def _remove(self, event: BlocksRemoved) -> None:
        ids = event.block_ids
        if len(set(ids)) < len(ids) or any(block_id not in self._blocks for block_id in ids):
            raise _misfit(event, "a block is not there to remove")
        for block_id in ids:
            del self._ids[self._blocks.pop(block_id)]

    def _clear(self, event: Cleared) -> None:
        gone = [i for i, block in self._blocks.items() if event.covers(block.namespace)]
        for block_id in gone:
            del self._ids[self._blocks.pop(block_id)]

    # -- questions ---------------------------------------------------------------------------

    def match(self, namespace: Namespace | str, tokens: Iterable[int]) -> list[int]:
        """Return the block ids of the longest prefix that ``namespace`` may see.

        The same blocks as ``RadixTree.match``, in whole blocks.

        Raises:
            InvalidRequestError: a token id does not fit int32.
            TypeError: ``namespace`` is neither a Namespace nor a string.
        """
        space = Namespace.of(namespace)
        try:
            packed = array("i", tokens).tobytes()
        except (TypeError, OverflowError) as error:
            raise InvalidRequestError("tokens", tokens, "whole numbers that fit 32 bits") from error
        public = self._walk(Namespace(space.kv_key, PUBLIC), None, packed, 0)
        best = public
        if space.scope != PUBLIC:
            # A private branch may leave the PUBLIC path anywhere; of equally long ones the
            # tree takes that which leaves last.
            for depth in range(len(public), -1, -1):
                above = public[depth - 1] if depth else None
                private = self._walk(space, above, packed, depth)
                if depth + len(private) > len(best):
                    best = public[:depth] + private
        return best

    def _walk(
        self, space: Namespace, above: int | None, packed: bytes, num_blocks: int
    ) -> list[int]:
        """Follow one namespace's blocks below ``above``, which lies ``num_blocks`` deep."""
        unit = self._block_size * ID_BYTES
        found: list[int] = []
        start = num_blocks * unit
        while unit and start + unit <= len(packed):
            place = MirrorBlock(above, space, packed[start : start + unit])
            above = self._ids.get(place)
            if above is None:
                break
            found.append(above)
            start += unit
        return found

    def difference(self, snapshot: Snapshot) -> str | None:
        """Compare every block's place, owner and tokens; None if all are equal.

        Returns:
            The first difference in words, or that the two are of different moments.
        """
        other = Mirror()
        other.load(snapshot)
        if other.seq != self._seq:
            return f"the mirror is at event {self._seq}, the snapshot at {other.seq}"
        for block_id in sorted(self._blocks.keys() | other._blocks.keys()):
            mine, theirs = self._blocks.get(block_id), other._blocks.get(block_id)
            if mine != theirs:
                return f"block {block_id}: the mirror has {mine}, the snapshot {theirs}"
        return None

    def __repr__(self) -> str:
        return f"Mirror(seq={self._seq}, num_blocks={len(self._blocks)})"


def _may_follow(own: Namespace, above: Namespace) -> bool:
    return own.kv_key == above.kv_key and above.scope in (PUBLIC, own.scope)


def _misfit(event: Event, why: str) -> EventsLostError:
    return EventsLostError(f"event {event.seq} does not fit, {why}: load a snapshot")
