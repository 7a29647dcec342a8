"""How old the leaves of each class should grow: from counts of reuse and of room, by age.

For each class and each span of ages two sums are kept, of which the past fades: ``reuse``, the
blocks asked for again at such an age, and ``room``, ages times blocks, whether still held or
evicted since. Letting a class grow older by one span would win the first and cost the second.
So the best use of a given room is to take spans in the order of reuse for room; a class's limit
is where its last span ends. Reuse at ages which the cache does not reach is seen in evicted
blocks that come back.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["AgeBook"]

_Floats = npt.NDArray[np.float64]
_Step = tuple[float, float, float, float]

_SPANS_AN_OCTAVE: Final = 2
_NUM_SPANS: Final = 24 * _SPANS_AN_OCTAVE  # to 2**24 ticks
_NUM_PERIODS: Final = 256
_PERIODS_OF_LRU: Final = 32  # so blocks are followed to 8 times the age that LRU reaches
_MEMORY: Final = 16  # half-life of the counts, in ages that LRU reaches
_YOUNGEST: Final = 1.0
_DOUBT: Final = 4.0  # leaves whose whole stay in a span weighs as much as all classes together


class AgeBook:
    """Counts reuse and room by class and age, and says what ages are best.

    Cost: constant for each call.

    Args:
        num_classes: classes of leaves.
    """

    __slots__ = (
        "_alive",
        "_ends",
        "_mean_blocks",
        "_passed",
        "_period",
        "_reuse",
        "_room",
        "_starts",
        "_ticks",
        "_width",
    )

    def __init__(self, num_classes: int) -> None:
        spans = np.arange(_NUM_SPANS + 1) / _SPANS_AN_OCTAVE
        self._starts: _Floats = 2.0 ** spans[:-1] - 1.0
        self._ends: _Floats = 2.0 ** spans[1:] - 1.0
        self._reuse: _Floats = np.zeros((num_classes, _NUM_SPANS))
        self._room: _Floats = np.zeros((num_classes, _NUM_SPANS))
        # Blocks by the period of their last access, the latest first: followed whether still
        # held or not, until they are asked for or too old.
        self._alive: _Floats = np.zeros((num_classes, _NUM_PERIODS))
        self._ticks = 0.0  # that the counts stand for
        self._mean_blocks = 4.0  # of a leaf
        self._period = 0
        self._set_width(2)

    def _set_width(self, width: int) -> None:
        """Set the ticks of a period, and with it how long each one's blocks are in each span."""
        self._width = width
        begin = np.arange(_NUM_PERIODS)[:, None] * float(width)
        stay = np.minimum(begin + width, self._ends) - np.maximum(begin, self._starts)
        self._passed: _Floats = np.zeros((_NUM_PERIODS + 1, _NUM_SPANS))
        np.cumsum(np.maximum(stay, 0.0), axis=0, out=self._passed[1:])

    # -- counts ------------------------------------------------------------------------------

    def enter(self, group: int, tick: int, num_blocks: int) -> None:
        """Follow the blocks of a leaf that was last accessed at ``tick``."""
        self._mean_blocks += (num_blocks - self._mean_blocks) * 0.002
        self.leave(group, tick, -num_blocks)

    def leave(self, group: int, tick: int, num_blocks: int) -> None:
        """Follow them no longer."""
        column = max(0, self._period - tick // self._width)
        if column < _NUM_PERIODS:
            self._alive[group, column] -= num_blocks

    def reuse(self, group: int, age: int, num_blocks: int) -> None:
        """Count blocks asked for ``age`` ticks after their last access."""
        # The request that asks has its tick yet to come, hence + 2.
        span = int(math.log2(age + 2) * _SPANS_AN_OCTAVE)
        self._reuse[group, min(span, _NUM_SPANS - 1)] += num_blocks

    def begin(self, tick: int) -> None:
        """Count from ``tick`` on, not from 0; before anything else."""
        self._period = tick // self._width

    def advance(self, tick: int, memory: int) -> None:
        """Let time pass up to ``tick``; LRU would remember the last ``memory`` ticks."""
        steps = tick // self._width - self._period
        if steps <= 0:
            return
        self._period += steps
        weight = 0.5 ** (steps * self._width / (_MEMORY * memory))
        self._reuse *= weight
        self._room *= weight
        self._ticks = self._ticks * weight + steps * self._width
        column = np.arange(_NUM_PERIODS)
        later = np.minimum(column + steps, _NUM_PERIODS)
        self._room += self._alive @ (self._passed[later] - self._passed[column])
        kept = max(0, _NUM_PERIODS - steps)
        self._alive[:, _NUM_PERIODS - kept :] = self._alive[:, :kept].copy()
        self._alive[:, : _NUM_PERIODS - kept] = 0.0
        while memory > _PERIODS_OF_LRU * self._width:
            self._widen()

    def _widen(self) -> None:
        """Make two periods one, so that the same number of them reaches twice as far."""
        alive = self._alive
        if self._period % 2 == 0:  # the latest period is the first of its pair
            alive = np.concatenate((np.zeros((len(alive), 1)), alive[:, :-1]), axis=1)
        half = _NUM_PERIODS // 2
        self._alive = np.zeros_like(alive)
        self._alive[:, :half] = alive[:, 0::2] + alive[:, 1::2]
        self._period //= 2
        self._set_width(2 * self._width)

    # -- limits ------------------------------------------------------------------------------

    def limits(self, num_blocks: int, *, uniform: bool) -> list[float]:
        """Return the age limit of each class, in ticks, with which ``num_blocks`` are filled.

        Args:
            num_blocks: room there is.
            uniform: leave all classes the same limit, as LRU does.
        """
        budget = num_blocks * self._ticks
        num_classes = len(self._room)
        if uniform or float(self._room.sum()) <= budget:
            return [1.0] * num_classes
        limits = [_YOUNGEST] * num_classes
        room, reuse = self._room.tolist(), self._expected_reuse().tolist()
        steps = [
            (won / cost, group, cost, start, end)
            for group in range(num_classes)
            for won, cost, start, end in self._hull(room[group], reuse[group])
        ]
        for rate, group, cost, start, end in sorted(steps, key=lambda step: (-step[0], step[1])):
            if rate <= 0.0 or budget <= 0.0:
                break
            share = min(1.0, budget / cost)
            limits[group] = max(_YOUNGEST, start + share * (end - start))
            budget -= cost
        return limits

    def _expected_reuse(self) -> _Floats:
        """Return reuse with chance evened out: few leaves seen count as all classes together."""
        total = self._reuse.sum(0) / np.maximum(self._room.sum(0), 1e-9)
        doubt = _DOUBT * self._mean_blocks * (self._ends - self._starts)
        expected: _Floats = self._room * (self._reuse + doubt * total) / (self._room + doubt)
        return expected

    def _hull(self, room: list[float], reuse: list[float]) -> list[_Step]:
        """Return steps of falling reuse for room: (reuse, room, age before, age after).

        Spans join where a later one is better than those before, which it cannot be had without.
        """
        steps: list[_Step] = []
        before = 0.0
        for span_room, span_reuse, end in zip(room, reuse, self._ends.tolist(), strict=True):
            if span_room <= 1e-6:
                continue
            won, cost, start = span_reuse, span_room, before
            while steps and steps[-1][0] * cost <= won * steps[-1][1]:
                earlier = steps.pop()
                won, cost, start = won + earlier[0], cost + earlier[1], earlier[2]
            steps.append((won, cost, start, end))
            before = end
        return steps
