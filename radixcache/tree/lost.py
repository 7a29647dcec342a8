"""A bounded memory of what was evicted: why a prefix is not there any more, and since when.

An evicted piece is filed under the place it hung from: (node, depth, first block). Nodes keep
their identity for life, so filing costs nothing that depends on the length of the prefix; a split
or a join of nodes moves the few records that it concerns. The key ids of an evicted node are not
copied, they are kept instead of dropped.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from radixcache.tree.keys import ID_BYTES
from radixcache.tree.node import Node

__all__ = ["Lost", "LostPrefixes"]

_MAX_TOKENS = 2**20
_MAX_RECORDS = 2**16

_Place = tuple[int, bytes]  # bytes of key ids before it, its edge


@dataclass(slots=True, eq=False)
class Lost:
    """One evicted run of blocks."""

    place: _Place
    node_id: int  # of the node it was part of
    key: bytearray = field(repr=False)  # packed key ids
    num_hits: int
    tick: int  # of the eviction
    time_s: float  # the same moment on the clock
    cause: str
    note: object = None  # the policy's
    fork: int | str = ""  # what it hung from


class LostPrefixes:
    """The latest evicted pieces, the oldest forgotten first.

    Args:
        unit: packed bytes of one block's key ids.
        max_tokens: key ids kept in all.
        max_records: pieces kept.
    """

    def __init__(
        self, unit: int, *, max_tokens: int = _MAX_TOKENS, max_records: int = _MAX_RECORDS
    ) -> None:
        self._unit = unit
        self._max_bytes = max_tokens * ID_BYTES
        self._max_records = max_records
        self._forks: dict[int | str, dict[_Place, Lost]] = {}
        self._order: deque[Lost] = deque()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._order)

    @property
    def num_tokens(self) -> int:
        """Key ids kept."""
        return self._num_bytes // ID_BYTES

    def remember(self, fork: Node, lost: Lost) -> None:
        """File a piece that hung from ``fork``."""
        lost.fork = _fork_id(fork)
        self._forks.setdefault(lost.fork, {})[lost.place] = lost
        self._order.append(lost)
        self._num_bytes += len(lost.key)
        while self._num_bytes > self._max_bytes or len(self._order) > self._max_records:
            self._forget_oldest()

    def find_run(self, node: Node, depth: int, tag: bytes, view: memoryview) -> "list[Lost]":
        """Return the evicted pieces that ``view`` continues with, the nearest first.

        A piece counts when all of it is in ``view``, and so does a last one that is there in part.

        Args:
            node: where the cached prefix ends.
            depth: bytes of key ids before ``view``, counted from the root.
            tag: of the scope.
            view: packed key ids, whole blocks.
        """
        places = self._forks.get(_fork_id(node))
        if places is None:
            return []
        found: list[Lost] = []
        unit, pos = self._unit, 0
        while places is not None and pos < len(view):
            lost = places.get((depth + pos, tag + view[pos : pos + unit]))
            if lost is None:
                break
            found.append(lost)
            stop = pos + len(lost.key)
            if lost.key != view[pos:stop]:
                break
            places, pos = self._forks.get(lost.node_id), stop
        return found

    def split(self, upper: Node, lower: Node) -> None:
        """``upper`` was cut from the front of ``lower``."""
        places = self._forks.get(lower.node_id)
        if places is None:
            return
        end = upper.start + len(upper.key)
        for place in [place for place in places if place[0] <= end]:
            self._move(places.pop(place), upper.node_id)
        if not places:
            del self._forks[lower.node_id]

    def join(self, top: Node, pieces: Iterable[Node]) -> None:
        """``pieces`` have become part of ``top``."""
        for piece in pieces:
            for lost in self._forks.pop(piece.node_id, {}).values():
                self._move(lost, top.node_id)

    def _move(self, lost: Lost, fork: int | str) -> None:
        lost.fork = fork
        self._forks.setdefault(fork, {})[lost.place] = lost

    def _forget_oldest(self) -> None:
        lost = self._order.popleft()
        self._num_bytes -= len(lost.key)
        places = self._forks.get(lost.fork)
        if places is not None and places.get(lost.place) is lost:
            del places[lost.place]
            if not places:
                del self._forks[lost.fork]


def _fork_id(node: Node) -> int | str:
    # A root comes and goes with what is below it; its kv_key stays.
    return node.node_id if node.parent is not None else node.account.namespace.kv_key
