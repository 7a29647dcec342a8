"""Prefixes kept locked for states that users still hold."""

from collections import OrderedDict

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
        self._locks: OrderedDict[str, Lock] = OrderedDict()  # by request id, oldest first

    def __len__(self) -> int:
        return len(self._locks)

    def keep(self, request_id: str, lock: Lock) -> str:
        """Take over the lock of a finished request; return its hold id."""
        self._locks[request_id] = lock
        return request_id

    def release(self, hold_id: str) -> None:
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
