"""Prefixes kept locked for states that users still hold."""

from collections import OrderedDict
from itertools import count

from radixcache.cache import PrefixCache
from radixcache.tree import Lock

__all__ = ["HoldBook"]


class HoldBook:
    """Locks of finished requests, until their owner lets go.

    A state stays locked while it lives. The one exception: when a running request would have to
    be preempted, or a waiting one could never start, the oldest hold yields. Its owner loses
    nothing but time: the prefix is computed again when it is continued.

    Args:
        cache: where the locks were taken.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._locks: OrderedDict[int, Lock] = OrderedDict()
        self._ids = count(1)

    def __len__(self) -> int:
        return len(self._locks)

    def keep(self, lock: Lock) -> int:
        """Take a lock over; return its hold id."""
        hold_id = next(self._ids)
        self._locks[hold_id] = lock
        return hold_id

    def release(self, hold_id: int) -> None:
        """Unlock; unknown ids and ids that yielded already are no error."""
        lock = self._locks.pop(hold_id, None)
        if lock is not None:
            self._cache.release_hold(lock)

    def drop_oldest(self) -> bool:
        """Let the oldest hold yield; False when there is none."""
        if not self._locks:
            return False
        self.release(next(iter(self._locks)))
        return True
