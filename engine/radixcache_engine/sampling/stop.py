"""Stop strings, matched over the bytes of tokens while they are drawn.

Bytes, because a token may end in the middle of a character and a stop string may begin in the
middle of a token. The stops of a request form one automaton (Aho-Corasick), so each byte of output
costs the same small amount of work however many stops there are and however long they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["StopHit", "StopMatcher", "StopSet"]

_NONE = -1


@dataclass(frozen=True, slots=True)
class StopHit:
    """A stop string was completed.

    Attributes:
        stop: the stop string.
        num_text_bytes: bytes of the output's text that precede it.
    """

    stop: str
    num_text_bytes: int


class StopSet:
    """The stop strings of one request as an automaton; immutable, shared by its sequences.

    Building is linear in the total length of the stops.

    Args:
        stops: non-empty strings of valid Unicode (checked by the front).
    """

    __slots__ = ("_children", "_fail", "_first_bytes", "held", "hit", "lengths", "stops")

    def __init__(self, stops: Sequence[str]) -> None:
        patterns = [stop.encode() for stop in stops]
        self.stops = tuple(stops)
        self.lengths = tuple(len(pattern) for pattern in patterns)
        self._children: list[dict[int, int]] = [{}]
        self.hit = [_NONE]  # per node: the longest stop that ends here, by index
        depth = [0]
        for index, pattern in enumerate(patterns):
            node = self._add(pattern, depth)
            if self.hit[node] == _NONE:
                self.hit[node] = index
        self._first_bytes = frozenset(self._children[0])
        self._fail = [0] * len(depth)
        self.held = [0] * len(depth)  # per node: longest suffix that is a stop's proper prefix
        self._link(depth)

    def _add(self, pattern: bytes, depth: list[int]) -> int:
        node = 0
        for byte in pattern:
            child = self._children[node].get(byte)
            if child is None:
                child = len(depth)
                self._children[node][byte] = child
                self._children.append({})
                self.hit.append(_NONE)
                depth.append(depth[node] + 1)
            node = child
        return node

    def _link(self, depth: list[int]) -> None:
        # Breadth first, so that the shorter suffix a node falls back to is finished before it.
        order = [0]
        for node in order:
            for byte, child in self._children[node].items():
                order.append(child)
                fallback = self.step(self._fail[node], byte) if node else 0
                self._fail[child] = fallback
                if self.hit[child] == _NONE:
                    self.hit[child] = self.hit[fallback]
                self.held[child] = depth[child] if self._children[child] else self.held[fallback]

    def step(self, node: int, byte: int) -> int:
        """Return the node after one more byte; amortised constant time."""
        while node and byte not in self._children[node]:
            node = self._fail[node]
        return self._children[node].get(byte, 0)

    def cannot_start_in(self, data: bytes) -> bool:
        """Whether no byte of ``data`` begins a stop."""
        return self._first_bytes.isdisjoint(data)


class StopMatcher:
    """Watches one sequence for its stop strings.

    Args:
        stops: the stop strings, or a :class:`StopSet` shared by the sequences of a request.
        token_bytes: text of every token id; ids beyond the table have no text.
    """

    __slots__ = ("_node", "_num_bytes", "_set", "_token_bytes")

    def __init__(self, stops: Sequence[str] | StopSet, token_bytes: Sequence[bytes]) -> None:
        self._set = stops if isinstance(stops, StopSet) else StopSet(stops)
        self._token_bytes = token_bytes
        self._node = 0
        self._num_bytes = 0

    @property
    def num_text_bytes(self) -> int:
        """Bytes of text fed so far."""
        return self._num_bytes

    @property
    def num_held_bytes(self) -> int:
        """Length of the longest suffix of the text that is a proper prefix of a stop.

        These bytes are not certain yet: the next token may turn them into a stop string.
        """
        return self._set.held[self._node]

    def feed(self, token_id: int) -> StopHit | None:
        """Add a token's text.

        The token that completes a stop decides: of the stops completed inside it the one that
        starts earliest wins, then the one given first. A hit changes nothing in the matcher, so a
        caller that may not stop yet (``min_tokens``) ignores it and goes on feeding.
        """
        text = self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""
        if self._node == 0 and self._set.cannot_start_in(text):
            self._num_bytes += len(text)
            return None
        best: tuple[int, int] | None = None
        for end, byte in enumerate(text, self._num_bytes + 1):
            self._node = self._set.step(self._node, byte)
            index = self._set.hit[self._node]
            if index != _NONE:
                found = (end - self._set.lengths[index], index)
                best = found if best is None else min(best, found)
        self._num_bytes += len(text)
        return None if best is None else StopHit(self._set.stops[best[1]], best[0])
