"""What an LRU of the same size would hold, without keeping one.

Such a cache holds what was accessed since some tick, its horizon. It has as many blocks as the
real one, so what it holds and the real one does not (evicted since) is as much as what the real
one holds and it does not (older). These two sums move the horizon, and each look-up tells
which of the two had what was asked for.
"""

__all__ = ["LruRival"]


class LruRival:
    """Finds the horizon of LRU and counts how far one is ahead or behind.

    Cost: constant for each call and tick, amortised. Memory: a number for each tick since the
    horizon at which blocks were last accessed that are held, or were evicted.

    Attributes:
        horizon: LRU would hold what was last accessed at this tick or later.
        loss: blocks that LRU would have had and the real cache had not, less the other way
            round; the past fades.
        traffic: blocks asked for; the past fades in the same way.
    """

    __slots__ = ("_cached", "_evicted", "_num_ahead", "_num_behind", "horizon", "loss", "traffic")

    def __init__(self) -> None:
        self.horizon = 0
        self.loss = 0.0
        self.traffic = 0.0
        self._cached: dict[int, int] = {}  # tick since the horizon -> blocks held
        self._evicted: dict[int, int] = {}  # tick since the horizon -> blocks evicted
        self._num_ahead = 0  # blocks held that are older than the horizon
        self._num_behind = 0  # blocks evicted that are not

    def cached(self, tick: int, num_blocks: int) -> None:
        """Blocks last accessed at ``tick`` are held and may be evicted."""
        if tick >= self.horizon:
            _count(self._cached, tick, num_blocks)
        else:
            self._num_ahead += num_blocks

    def uncached(self, tick: int, num_blocks: int) -> None:
        """Blocks last accessed at ``tick`` are not any more what may be evicted."""
        self.cached(tick, -num_blocks)
        self._settle()

    def evicted(self, tick: int, num_blocks: int) -> None:
        """The blocks just given up were evicted."""
        if tick >= self.horizon:
            _count(self._evicted, tick, num_blocks)
            self._num_behind += num_blocks
            self._settle()

    def returned(self, tick: int, num_blocks: int) -> None:
        """Evicted blocks, last accessed at ``tick``, were asked for."""
        if tick >= self.horizon:
            self.loss += num_blocks
            _count(self._evicted, tick, -num_blocks)
            self._num_behind -= num_blocks

    def gained(self, num_blocks: int) -> None:
        """Held blocks older than the horizon were asked for."""
        self.loss -= num_blocks

    def asked(self, num_blocks: int) -> None:
        """Blocks were asked for, held or not."""
        self.traffic += num_blocks

    def fade(self, half_lives: float) -> None:
        """Let what was counted lose weight."""
        weight: float = 0.5**half_lives
        self.loss *= weight
        self.traffic *= weight

    def _settle(self) -> None:
        """Move the horizon on until LRU holds no more than the real cache."""
        # The policy of a namespace that got its quota late has not seen the ticks before that.
        if not self.horizon and self._num_behind > self._num_ahead:
            self.horizon = min((*self._cached, *self._evicted), default=0)
        while self._num_behind > self._num_ahead and (self._cached or self._evicted):
            self._num_ahead += self._cached.pop(self.horizon, 0)
            self._num_behind -= self._evicted.pop(self.horizon, 0)
            self.horizon += 1


def _count(blocks: dict[int, int], tick: int, num_blocks: int) -> None:
    """Add to a count; zeros are not kept, or memory would grow with time."""
    total = blocks.get(tick, 0) + num_blocks
    if total:
        blocks[tick] = total
    else:
        blocks.pop(tick, None)
