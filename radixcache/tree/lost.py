"""A bounded memory of what was evicted: why a prefix is not there any more, and since when.

An evicted piece is filed under the place it hung from: what it followed (a node, an older piece or
a root), how deep, and its edge. So filing costs nothing that depends on the length of the prefix,
and a split, join, trim or return moves only the places within the blocks it touches anyway. The
key ids of an evicted node are not copied, they are kept instead of dropped.

Three facts hold after each method:

- a place lies within its owner: above its start, up to its end (a root's lies at 0);
- no block is remembered at a place where the same block is cached;
- what hung below a piece was evicted before it, so the oldest piece never has pieces below it.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from radixcache.errors import CacheCorruptionError
from radixcache.tree.account import Account
from radixcache.tree.keys import ID_BYTES, common_len, edge_tag
from radixcache.tree.node import Node
from radixcache.types import PUBLIC, Namespace

__all__ = ["Eviction", "Lost", "LostPrefixes", "LostSpan", "covers", "owner_id"]

_MAX_RECORDS = 2**16
_MAX_FLUSHES = 1_000

_OwnerId = int | str  # of a node, of a piece, or a root's kv_key


class _Fork(dict[bytes, "Lost"]):
    """What was lost at one place, by edge."""

    __slots__ = ("depth", "owner")

    owner: _OwnerId
    depth: int  # bytes of key ids before it


class Eviction(NamedTuple):
    """One call that evicted: what its pieces have in common."""

    cause: str
    tick: int
    time_s: float  # the same moment on the clock


class Lost:
    """One evicted run of blocks.

    A plain class: one is made for each leaf that goes, so its cost is that of an eviction.
    """

    __slots__ = (
        "edge",  # scope tag + first block: what it goes by at its place
        "eviction",
        "fork",  # where it is filed; None: not remembered (any more)
        "key",  # packed key ids
        "namespace",  # who owned it
        "node_id",  # what is filed below it goes by this id; no node has it
        "note",  # what the policy wants to find if it comes back
        "noted_by",  # the policy that held it
        "num_hits",
    )

    def __init__(  # noqa: PLR0917  named arguments would cost as much as the rest
        self,
        account: Account,
        node_id: int,
        key: bytearray,
        edge: bytes,
        num_hits: int,
        eviction: Eviction,
        note: object,
    ) -> None:
        self.namespace = account.namespace
        self.node_id = node_id
        self.key = key
        self.edge = edge
        self.num_hits = num_hits
        self.eviction = eviction
        self.noted_by = account.policy
        self.note = note
        self.fork: _Fork | None = None

    def __repr__(self) -> str:
        size = len(self.key) // ID_BYTES
        return f"<Lost {self.node_id}: {size} tokens of {self.namespace}, {self.eviction}>"


class LostSpan(NamedTuple):
    """The part of a piece that some tokens agree with, in bytes of key ids from the root."""

    lost: Lost
    start: int
    stop: int


class LostPrefixes:
    """The latest evicted pieces, the oldest forgotten first.

    Args:
        unit: packed bytes of one block's key ids.
        max_tokens: key ids kept in all.
        max_records: pieces kept.

    Attributes:
        forgotten_s: clock of the latest eviction that had to be forgotten; None: none had.
    """

    def __init__(self, unit: int, *, max_tokens: int, max_records: int = _MAX_RECORDS) -> None:
        self.forgotten_s: float | None = None
        self._unit = unit
        self._max_bytes = max_tokens * ID_BYTES
        self._max_records = max_records
        self._forks: dict[_OwnerId, dict[int, _Fork]] = {}
        self._order: deque[Lost] = deque()  # by eviction; some are no longer remembered
        self._num_records = 0
        self._num_bytes = 0
        self._flushes: dict[Namespace | None, float] = {}

    def __len__(self) -> int:
        return self._num_records

    @property
    def num_tokens(self) -> int:
        """Key ids kept."""
        return self._num_bytes // ID_BYTES

    def find(self, owner: _OwnerId, depth: int, edge: bytes) -> Lost | None:
        """Return the piece lost at a place, if that is remembered."""
        fork = self._forks.get(owner, {}).get(depth)
        return None if fork is None else fork.get(edge)

    def find_run(self, owner: _OwnerId, depth: int, tag: bytes, view: memoryview) -> list[LostSpan]:
        """Return the evicted pieces that ``view`` continues with, the nearest first.

        Args:
            owner: what holds the place ``depth``; see :func:`owner_id`.
            depth: bytes of key ids before ``view``, counted from the root.
            tag: of the scope.
            view: packed key ids, whole blocks.
        """
        if owner not in self._forks:  # mostly: nothing was lost here
            return []
        found: list[LostSpan] = []
        unit, pos = self._unit, 0
        while pos < len(view):
            lost = self.find(owner, depth + pos, tag + view[pos : pos + unit])
            if lost is None:
                break
            start, stop = pos, pos + len(lost.key)
            if lost.key != view[start:stop]:
                stop = start + common_len(lost.key, view[start:], unit)
            found.append(LostSpan(lost, depth + start, depth + stop))
            # Two pieces that part later than where a node ended: the second hangs inside the first.
            owner, pos = lost.node_id, stop
        return found

    def places(self, owner: _OwnerId, start: int, stop: int) -> Sequence[int]:
        """Return the depths above ``start``, up to ``stop``, where pieces of an owner hung."""
        forks = self._forks.get(owner)
        if forks is None:
            return ()
        if len(forks) * self._unit <= stop - start:
            return [depth for depth in forks if start < depth <= stop]
        unit = self._unit
        return [depth for depth in range(start + unit, stop + 1, unit) if depth in forks]

    # -- what happens to the tree ------------------------------------------------------------

    def remember(self, owner: _OwnerId, depth: int, lost: Lost) -> None:
        """File a piece that was evicted ``depth`` bytes from the root, where it followed ``owner``.

        What hung from it was filed under ``lost.node_id``, or has been cut over to it.
        """
        size = len(lost.key)
        if lost.key.__alloc__() > size + size // 8 + self._unit:
            lost.key = lost.key[:]  # a leaf that was trimmed before holds up to twice its size
        self._file(owner, depth, lost)
        self._order.append(lost)
        self._num_records += 1
        self._num_bytes += size
        while self._num_bytes > self._max_bytes or self._num_records > self._max_records:
            self._forget_oldest()

    def cut(self, node: Node, depth: int, lost: Lost) -> None:
        """A node is about to lose ``lost``, all it has from ``depth`` on."""
        if node.node_id in self._forks:  # mostly: nothing was lost here
            self._move(node.node_id, lost.node_id, depth, depth + len(lost.key))

    def split(self, upper: Node, lower: Node) -> None:
        """``upper`` was cut from the front of ``lower``."""
        self._move(lower.node_id, upper.node_id, upper.start, upper.start + len(upper.key))

    def join(self, top: Node, pieces: Iterable[Node]) -> None:
        """``pieces`` have become part of ``top``."""
        for piece in pieces:
            if piece.node_id in self._forks:
                self._move(piece.node_id, top.node_id, piece.start, piece.start + len(piece.key))

    def restore(self, end: Node, run: Iterable[LostSpan]) -> None:
        """The blocks of a run were cached again; ``end`` holds them."""
        for lost, start, stop in run:
            self._move(lost.node_id, end.node_id, start, stop)
            self._unfile(lost)
            size = stop - start
            self._num_bytes -= size
            del lost.key[:size]
            if lost.key:
                lost.edge = edge_tag(lost.namespace.scope) + lost.key[: self._unit]
                self._file(end.node_id, stop, lost)
            else:
                self._num_records -= 1
        if len(self._order) > 2 * self._num_records + 16:
            self._order = deque(lost for lost in self._order if lost.fork is not None)

    def flush(self, space: Namespace | None, now: float) -> None:
        """A namespace (None: all) was flushed: what it had lost before is forgotten too."""
        kept: deque[Lost] = deque()
        for lost in self._order:
            if lost.fork is None:
                continue
            if space is None or covers(space, lost.namespace):
                self._drop(lost)
            else:
                kept.append(lost)
        self._order = kept
        self._flushes.pop(space, None)
        self._flushes[space] = now
        if len(self._flushes) > _MAX_FLUSHES:
            del self._flushes[next(iter(self._flushes))]

    def flushed_s(self, space: Namespace) -> float | None:
        """Return the clock of the last flush that reached a namespace, if one is remembered."""
        flushes = {None, Namespace(space.kv_key, PUBLIC), space} & self._flushes.keys()
        return max((self._flushes[flush] for flush in flushes), default=None)

    # -- inside ------------------------------------------------------------------------------

    def _move(self, source: _OwnerId, target: _OwnerId, start: int, stop: int) -> None:
        forks = self._forks.get(source)
        if forks is None:
            return
        depths = self.places(source, start, stop)
        if not depths:
            return
        moved = self._forks.setdefault(target, {})
        for depth in depths:
            fork = forks.pop(depth)
            fork.owner = target
            moved[depth] = fork
        if not forks:
            del self._forks[source]

    def _file(self, owner: _OwnerId, depth: int, lost: Lost) -> None:
        forks = self._forks.get(owner)
        if forks is None:
            forks = self._forks[owner] = {}
        fork = forks.get(depth)
        if fork is None:
            fork = forks[depth] = _Fork()
            fork.owner, fork.depth = owner, depth
        fork[lost.edge] = lost
        lost.fork = fork

    def _unfile(self, lost: Lost) -> None:
        fork, lost.fork = lost.fork, None
        assert fork is not None, f"{lost!r} is not filed"
        del fork[lost.edge]
        if not fork:
            forks = self._forks[fork.owner]
            del forks[fork.depth]
            if not forks:
                del self._forks[fork.owner]

    def _drop(self, lost: Lost) -> None:
        self._unfile(lost)
        self._num_records -= 1
        self._num_bytes -= len(lost.key)

    def _forget_oldest(self) -> None:
        lost = self._order.popleft()
        if lost.fork is not None:
            self._drop(lost)
            self.forgotten_s = lost.eviction.time_s

    def check(self) -> None:
        """Raise CacheCorruptionError if counts, places and order do not agree. Cost: all of it."""
        filed = [
            (owner, depth, edge, lost)
            for owner, forks in self._forks.items()
            for depth, fork in forks.items()
            for edge, lost in fork.items()
        ]
        for owner, depth, edge, lost in filed:
            fork = lost.fork
            named = edge_tag(lost.namespace.scope) + lost.key[: self._unit]
            if (
                fork is None
                or (fork.owner, fork.depth) != (owner, depth)
                or not edge == lost.edge == named
            ):
                raise CacheCorruptionError(f"lost prefixes: {lost!r} is filed at a wrong place")
        sizes = (len(filed), sum(len(lost.key) for *_, lost in filed))
        ordered = [lost for lost in self._order if lost.fork is not None]
        if sizes != (self._num_records, self._num_bytes) or len(ordered) != len(filed):
            raise CacheCorruptionError(
                f"lost prefixes: {sizes} records and bytes are filed, {len(ordered)} in order, "
                f"({self._num_records}, {self._num_bytes}) counted"
            )
        if not all(forks and all(forks.values()) for forks in self._forks.values()):
            raise CacheCorruptionError("lost prefixes: an empty place was kept")


def owner_id(node: Node) -> int | str:
    """Return what the places at and in a node go by."""
    # A root comes and goes with what is below it; its kv_key stays.
    return node.node_id if node.parent is not None else node.account.namespace.kv_key


def covers(space: Namespace, other: Namespace) -> bool:
    """Whether a flush of ``space`` reaches what ``other`` owns."""
    return space.kv_key == other.kv_key and space.scope in (PUBLIC, other.scope)
