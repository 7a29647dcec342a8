"""Pins: prefixes that somebody keeps cached for a time, whatever else needs the room.

A pin is a lock of the tree with a deadline and a place in its namespace's quota. Its life::

    create ──▶ live ──▶ expired | deleted | displaced by a higher priority | flushed
               ▲  │
               └──┘ hit: deadline = now + ttl_s

However it ends, its lock ends with it: both are done in one place, ``PinBook._drop``.
"""

import heapq
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import SupportsIndex, TypeVar

from radixcache.errors import (
    CacheCorruptionError,
    InvalidRequestError,
    NotCachedError,
    PinNotFoundError,
    QuotaError,
)
from radixcache.tree import Lock, Match, RadixTree
from radixcache.tree.keys import checked_count, pack
from radixcache.types import Clock, Namespace

__all__ = ["Pin", "PinBook"]

_ENDLESS_S = 10**9  # 30 years; from here on it would be a mistake in the unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A pin as it was when asked for.

    Attributes:
        pin_id: its name, unique within the cache.
        namespace: who made it, and whose quota it counts in.
        num_tokens: length of the guarded prefix: what was cached of it, in whole blocks.
        priority: pins of a lower one give way when their namespace's quota is full.
        ttl_s: seconds it lasts after it was made, updated or hit.
        created_s: when it was made, on the cache's clock.
        expires_s: when it ends unless something renews it, on the same clock.
        num_hits: sequences that found the whole of it cached.
    """

    pin_id: str
    namespace: Namespace
    num_tokens: int
    priority: int
    ttl_s: float
    created_s: float
    expires_s: float
    num_hits: int


_Key = TypeVar("_Key")
_Name = tuple[Namespace, bytes]  # whose, and the digest of the tokens it was asked for with


@dataclass(slots=True, eq=False)
class _Held:
    """What the book keeps of a live pin."""

    pin_id: str
    name: _Name
    lock: Lock
    created_s: float
    expires_s: float
    due_s: float = math.inf  # of its valid heap entry, never after expires_s; inf: none yet
    priority: int = 0
    ttl_s: float = 0.0
    num_hits: int = 0

    @property
    def namespace(self) -> Namespace:
        return self.name[0]

    def snapshot(self) -> Pin:
        return Pin(
            pin_id=self.pin_id,
            namespace=self.namespace,
            num_tokens=self.lock.num_tokens,
            priority=self.priority,
            ttl_s=self.ttl_s,
            created_s=self.created_s,
            expires_s=self.expires_s,
            num_hits=self.num_hits,
        )


class PinBook:
    """All pins of one cache.

    Args:
        tree: where the locks are taken.
        unlock: ends a lock and takes back the blocks that this frees.
        max_tokens: what all pins together may guard.
        clock: seconds; only differences count.
    """

    def __init__(
        self, tree: RadixTree, unlock: Callable[[Lock], None], *, max_tokens: int, clock: Clock
    ) -> None:
        self.max_tokens = max_tokens
        self.num_tokens = 0  # of all pins; a prefix that two of them guard counts twice
        self._tree = tree
        self._unlock = unlock
        self._clock = clock
        self._pins: dict[str, _Held] = {}  # by id, oldest first
        self._named: dict[_Name, _Held] = {}
        self._ends: dict[int, list[_Held]] = {}  # by the node they end at
        self._lengths: Counter[int] = Counter()
        self._used: Counter[Namespace] = Counter()  # tokens
        self._quotas: dict[Namespace | None, int] = {}  # None: of those without one
        # (due_s, pin id). A renewal leaves its entry alone and is noticed when that comes up, so
        # hits cost nothing here.
        self._due: list[tuple[float, str]] = []
        self._ids = count(1)

    def __len__(self) -> int:
        return len(self._pins)

    # -- what users ask ----------------------------------------------------------------------

    def create(
        self,
        namespace: Namespace | str,
        tokens: Iterable[int],
        *,
        ttl_s: float,
        priority: SupportsIndex,
    ) -> Pin:
        """Guard what is cached of a prefix (see ``PrefixCache.create_pin``)."""
        space, ttl, rank = Namespace.of(namespace), _checked_ttl(ttl_s), _checked_rank(priority)
        ids = pack(tokens, "tokens").cast("i")
        self.expire()
        match = self._tree.match(ids, namespace=space)
        if not match.num_tokens:
            raise NotCachedError(
                f"tokens: got {len(ids)} of which {space} has no whole block cached, allowed: a "
                f"prefix that a request has computed, at least {self._tree.block_size} tokens"
            )
        whole = len(ids) - len(ids) % self._tree.block_size
        held = self._guard((space, sha256(ids[:whole]).digest()), match, rank)
        held.priority = rank
        self._set_ttl(held, ttl)
        return held.snapshot()

    def update(self, pin_id: str, *, ttl_s: float | None, priority: SupportsIndex | None) -> Pin:
        """Change a pin (see ``PrefixCache.update_pin``)."""
        ttl = None if ttl_s is None else _checked_ttl(ttl_s)
        rank = None if priority is None else _checked_rank(priority)
        self.expire()
        held = self._pins.get(pin_id)
        if held is None:
            raise PinNotFoundError(f"pin_id: got {pin_id!r}, allowed: a pin that has not ended")
        if rank is not None:
            held.priority = rank
        if ttl is not None:
            self._set_ttl(held, ttl)
        return held.snapshot()

    def delete(self, pin_id: str) -> bool:
        """End a pin; False when there is none of that id."""
        self.expire()
        held = self._pins.get(pin_id)
        if held is not None:
            self._drop(held)
        return held is not None

    def find(self, namespace: Namespace | str | None) -> list[Pin]:
        """Return live pins (None: of all namespaces), the oldest first."""
        self.expire()
        space = None if namespace is None else Namespace.of(namespace)
        pins = self._pins.values()
        return [held.snapshot() for held in pins if space is None or held.namespace == space]

    def set_quota(
        self, namespace: Namespace | str | None, max_tokens: SupportsIndex | None
    ) -> None:
        """Limit a namespace's pins (see ``PrefixCache.set_pin_quota``)."""
        space = None if namespace is None else Namespace.of(namespace)
        if max_tokens is None:
            self._quotas.pop(space, None)
        else:
            self._quotas[space] = checked_count(max_tokens, "max_tokens")

    # -- what the cache reports --------------------------------------------------------------

    def hit(self, lock: Lock, tokens: Sequence[int]) -> None:
        """Renew the pins that a sequence has found cached as a whole.

        Cost: the nodes of its path, when there are pins.

        Args:
            lock: what it has locked.
            tokens: all it has.
        """
        if not self._pins:
            return
        self.expire()
        now, ends = self._clock(), self._ends
        for node_id in lock.node_ids():
            if node_id in ends:
                self._renew(ends[node_id], now)
        # A prompt that is a pinned prefix and no more: it computes its last block anew, which
        # therefore is not part of the lock.
        if len(tokens) > lock.num_tokens and len(tokens) in self._lengths:
            match = self._tree.match(tokens, namespace=lock.namespace)
            if match.num_tokens == len(tokens):
                self._renew(ends.get(match.end_id, ()), now)

    def expire(self) -> int:
        """End the pins whose time has come; return how many. Cost when there are none: constant."""
        due, num_expired = self._due, 0
        if not due:
            return 0
        now = self._clock()
        while due and due[0][0] <= now:
            due_s, pin_id = heapq.heappop(due)
            held = self._pins.get(pin_id)
            if held is None or held.due_s != due_s:
                continue  # ended, or put forward by an update
            if held.expires_s > now:
                self._remind(held)
            else:
                self._drop(held)
                num_expired += 1
        return num_expired

    def drop_flushed(self) -> None:
        """End the pins whose prefix a flush has made unfindable."""
        for held in [held for held in self._pins.values() if not held.lock.findable]:
            self._drop(held)

    def check(self) -> None:
        """Verify locks, sums, indexes and deadlines against each other.

        Raises:
            CacheCorruptionError: naming the fault and the pin.
        """
        used: Counter[Namespace] = Counter()
        due = set(self._due)
        for held in self._pins.values():
            used[held.namespace] += held.lock.num_tokens
            self._check_pin(held, due)
        if self._used != used or self.num_tokens != used.total():
            raise CacheCorruptionError(f"wrong sum of pins: {self._used} recorded, {used} found")
        if self.num_tokens > self.max_tokens:
            raise CacheCorruptionError(f"pins hold {self.num_tokens} of {self.max_tokens} tokens")
        indexed = sum(map(len, self._ends.values()))
        if not len(self._pins) == len(self._named) == indexed == self._lengths.total():
            raise CacheCorruptionError("wrong index of pins: it names some that have ended")
        if any(
            entry < self._due[(place - 1) // 2] for place, entry in enumerate(self._due) if place
        ):
            raise CacheCorruptionError("wrong deadline: the heap of pins is out of order")

    def _check_pin(self, held: _Held, due: set[tuple[float, str]]) -> None:
        faults = {
            "its lock has ended": not held.lock.live,
            "it guards nothing": held.lock.num_tokens <= 0,
            "it outlived a flush": not held.lock.findable,
            "it is not recorded under its name": self._named.get(held.name) is not held,
            "it is not recorded at its end": held not in self._ends.get(held.lock.end_id, ()),
            "nothing will end it": (held.due_s, held.pin_id) not in due,
            "it is reminded of too late": held.due_s > held.expires_s,
        }
        for fault, found in faults.items():
            if found:
                raise CacheCorruptionError(f"pin {held.pin_id}: {fault}")

    # -- inside ------------------------------------------------------------------------------

    def _guard(self, name: _Name, match: Match, rank: int) -> _Held:
        """Return the pin of that name, made if need be, on all that is cached now."""
        held = self._named.get(name)
        missing = match.num_tokens - (0 if held is None else held.lock.num_tokens)
        if held is not None and missing <= 0:
            return held
        displaced = self._choose_displaced(name[0], missing, rank, held)
        # Locked before anything is dropped: what goes may guard part of the same prefix.
        lock = self._tree.lock_match(match)
        for other in displaced:
            self._drop(other)
        if held is None:
            now = self._clock()
            held = _Held(f"pin-{next(self._ids)}", name, lock, created_s=now, expires_s=now)
            self._pins[held.pin_id] = self._named[name] = held
            self._enter(held)
            return held
        shorter = held.lock
        self._strike(held)
        held.lock = lock
        self._enter(held)
        self._unlock(shorter)
        return held

    def _choose_displaced(
        self, space: Namespace, missing: int, rank: int, kept: _Held | None
    ) -> list[_Held]:
        """Return which pins of a namespace must go for ``missing`` more tokens. Changes nothing.

        Raises:
            QuotaError: even without those of a lower priority they do not fit.
        """
        quota = self._quotas.get(space, self._quotas.get(None, self.max_tokens))
        over = max(self._used[space] + missing - quota, self.num_tokens + missing - self.max_tokens)
        displaced: list[_Held] = []
        if over <= 0:
            return displaced
        for held in sorted(self._pins.values(), key=lambda held: (held.priority, held.expires_s)):
            if held.namespace == space and held.priority < rank and held is not kept:
                displaced.append(held)
                over -= held.lock.num_tokens
                if over <= 0:
                    return displaced
        raise self._refusal(space, missing, quota)

    def _refusal(self, space: Namespace, missing: int, quota: int) -> QuotaError:
        used = self._used[space]
        if used + missing > quota:
            allowed = f"{quota} in {space}; delete pins or raise set_pin_quota()"
        else:
            used = self.num_tokens
            allowed = f"{self.max_tokens} in all namespaces together (max_pinned_tokens)"
        return QuotaError(
            f"pinned tokens: got {missing} more than the {used} of now, allowed: {allowed}; "
            "the namespace's pins of a lower priority would not make enough room"
        )

    def _drop(self, held: _Held) -> None:
        """The one end of a pin: out of every index, and its lock with it."""
        del self._pins[held.pin_id]
        del self._named[held.name]
        self._strike(held)
        self._unlock(held.lock)

    def _enter(self, held: _Held) -> None:
        num_tokens = held.lock.num_tokens
        self._ends.setdefault(held.lock.end_id, []).append(held)
        self._lengths[num_tokens] += 1
        self._used[held.namespace] += num_tokens
        self.num_tokens += num_tokens

    def _strike(self, held: _Held) -> None:
        num_tokens, end_id = held.lock.num_tokens, held.lock.end_id
        self._ends[end_id].remove(held)
        if not self._ends[end_id]:
            del self._ends[end_id]
        _lower(self._lengths, num_tokens, 1)
        _lower(self._used, held.namespace, num_tokens)
        self.num_tokens -= num_tokens

    def _renew(self, pins: Iterable[_Held], now: float) -> None:
        for held in pins:
            held.num_hits += 1
            held.expires_s = now + held.ttl_s

    def _set_ttl(self, held: _Held, ttl_s: float) -> None:
        held.ttl_s = ttl_s
        held.expires_s = self._clock() + ttl_s
        if held.expires_s < held.due_s:
            self._remind(held)

    def _remind(self, held: _Held) -> None:
        held.due_s = held.expires_s
        heapq.heappush(self._due, (held.due_s, held.pin_id))
        if len(self._due) > 2 * len(self._pins) + 64:  # mostly of pins that have ended
            self._due[:] = [(pin.due_s, pin.pin_id) for pin in self._pins.values()]
            heapq.heapify(self._due)


def _lower(counts: Counter[_Key], key: _Key, by: int) -> None:
    """Subtract, and forget a key with nothing left, so that dead namespaces cost nothing."""
    counts[key] -= by
    if not counts[key]:
        del counts[key]


def _checked_ttl(ttl_s: float) -> float:
    if isinstance(ttl_s, int | float) and 0 < ttl_s < _ENDLESS_S:
        return float(ttl_s)
    raise InvalidRequestError("ttl_s", ttl_s, f"seconds, above 0 and below {_ENDLESS_S:,}")


def _checked_rank(priority: SupportsIndex) -> int:
    try:
        return operator.index(priority)
    except TypeError:
        raise InvalidRequestError("priority", priority, "a whole number") from None
