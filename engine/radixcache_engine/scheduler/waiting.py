"""The waiting queue: longest prefix first, nobody starves, a bounded number of look-ups a step.

Three kinds of turn, in this order:

1. preempted sequences, oldest first: their work is half done and their blocks still warm;
2. overdue ones (waiting longer than ``max_wait_s``), oldest first: the bound that grouping by
   prefix must respect;
3. the rest by matched length, longest first, so that requests of one prefix run together while
   the prefix is in the pool; equal matches in order of arrival.

The matched length of an entry is a cached look-up. Publishing makes it stale; ``refresh`` renews
at most K of them, oldest look-up first, so a step costs the same with 10 or 10,000 waiting.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator

from sortedcontainers import SortedDict  # type: ignore[import-untyped]  # ships no types

from radixcache_engine.scheduler.sequence import Sequence, Status

__all__ = ["WaitingQueue"]


class WaitingQueue:
    """Sequences that wait for admission, with their last known match lengths.

    Args:
        max_wait_s: seconds after which a sequence is overdue.
    """

    def __init__(self, max_wait_s: float) -> None:
        self.max_wait_s = max_wait_s
        self._preempted: SortedDict[tuple[float, int], Sequence] = SortedDict()
        self._by_arrival: SortedDict[tuple[float, int], Sequence] = SortedDict()
        self._by_match: SortedDict[tuple[int, float, int], Sequence] = SortedDict()
        # uid -> matched length at the last look-up, least recently looked up first
        self._matched: OrderedDict[int, int] = OrderedDict()
        self._sequences: dict[int, Sequence] = {}
        self._requests: Counter[str] = Counter()  # request id -> its sequences here

    @property
    def num_requests(self) -> int:
        """Requests that have a sequence here."""
        return len(self._requests)

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.uid in self._sequences

    def __iter__(self) -> Iterator[Sequence]:
        return iter(list(self._sequences.values()))

    def add(self, sequence: Sequence, matched_len: int = 0) -> None:
        """Queue a sequence; ``matched_len`` is what is known of its match, in tokens."""
        sequence.status = Status.WAITING
        self._sequences[sequence.uid] = sequence
        self._requests[sequence.request.request_id] += 1
        age = _age(sequence)
        if sequence.was_preempted:
            self._preempted[age] = sequence
            return
        self._by_arrival[age] = sequence
        self._matched[sequence.uid] = matched_len
        self._matched.move_to_end(sequence.uid, last=False)
        self._by_match[(-matched_len, *age)] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out; no error if it is not here."""
        if self._sequences.pop(sequence.uid, None) is None:
            return
        request_id = sequence.request.request_id
        self._requests[request_id] -= 1
        if not self._requests[request_id]:
            del self._requests[request_id]
        age = _age(sequence)
        if self._preempted.pop(age, None) is None:
            del self._by_arrival[age]
            del self._by_match[(-self._matched.pop(sequence.uid), *age)]

    def refresh(self, look_up: Callable[[Sequence], int], limit: int) -> None:
        """Look up again the ``limit`` entries whose look-up is oldest.

        Args:
            look_up: pure match of a sequence, in tokens.
            limit: how many look-ups this step may spend.
        """
        for _ in range(min(limit, len(self._matched))):
            uid, old = next(iter(self._matched.items()))
            sequence = self._sequences[uid]
            new = look_up(sequence)
            self._matched[uid] = new
            self._matched.move_to_end(uid)
            if new != old:
                age = _age(sequence)
                del self._by_match[(-old, *age)]
                self._by_match[(-new, *age)] = sequence

    def in_order(self, now: float) -> Iterator[Sequence]:
        """Yield candidates in their turns; the caller may remove the one it was just given."""
        while self._preempted:
            first = self._preempted.peekitem(0)[1]
            yield first
            if first in self:
                return  # its turn and not admitted: nobody overtakes a preempted sequence
        overdue = now - self.max_wait_s
        while self._by_arrival and self._by_arrival.peekitem(0)[0][0] <= overdue:
            first = self._by_arrival.peekitem(0)[1]
            yield first
            if first in self:
                return
        position = 0
        while position < len(self._by_match):
            sequence = self._by_match.peekitem(position)[1]
            yield sequence
            if sequence in self:
                position += 1


def _age(sequence: Sequence) -> tuple[float, int]:
    return (sequence.request.request.arrival, sequence.uid)
