"""The prefix cache of one loaded model: a tree, an allocator, and the leases between them."""

import time
from collections.abc import Iterable, Sequence
from typing import Final

from radixcache.errors import CacheCorruptionError, InvalidRequestError
from radixcache.events import EventLog, Snapshot
from radixcache.explanation import Explanation
from radixcache.kv.allocator import BlockAllocator
from radixcache.kv.capacity import pool_capacity_tokens, usable_blocks
from radixcache.lease import BlockStore, Lease, Ledger
from radixcache.pins import Pin
from radixcache.stats import CacheCounters
from radixcache.tree import Lock, Match, RadixTree
from radixcache.tree.keys import checked_count
from radixcache.tree.policies import PolicyFactory
from radixcache.types import Clock, Namespace, TreeView

__all__ = ["PrefixCache"]


_REMEMBERED_POOLS: Final = 4
"""What the adaptive policy learns from (docs/eviction.md), and little beside the KV itself."""


class PrefixCache:
    """Which prefixes are in the pool, who reads them, and where the next token goes.

    Plain integers only; what the blocks hold is the ``store``'s affair. Not thread-safe: the step
    loop owns it.

    >>> cache = PrefixCache(num_blocks=9, block_size=2)
    >>> lease = cache.acquire("m", [1, 2, 3])
    >>> lease.extend(3)
    >>> lease.block_table
    [1, 2]
    >>> lease.commit([1, 2, 3], 3)
    >>> lease.release()
    >>> cache.match("m", [1, 2, 3, 4]).num_tokens
    2

    Args:
        num_blocks: blocks of the pool, the reserved block 0 included; at least 2.
        block_size: tokens a block, 1 to 256.
        store: learns of copies and of freed blocks; None where nothing is stored.
        policy: which unlocked leaf is evicted first.
        clock: monotonic seconds, for :meth:`view` and the deadlines of pins.
        events: a log of its own, to be told of every change of what can be found; None: nobody is.
        remembered_tokens: evicted tokens of which :meth:`explain` and the policies still know,
            4 bytes each; None: four times what the pool holds.
        max_pinned_tokens: what all pins together may guard, so that requests always have the
            rest; None: half the pool.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int = 16,
        store: BlockStore | None = None,
        policy: str | PolicyFactory = "lru",
        clock: Clock = time.monotonic,
        events: EventLog | None = None,
        remembered_tokens: int | None = None,
        max_pinned_tokens: int | None = None,
    ) -> None:
        self._allocator = BlockAllocator(num_blocks)
        if remembered_tokens is None:
            remembered_tokens = _REMEMBERED_POOLS * pool_capacity_tokens(num_blocks, block_size)
        self._tree = RadixTree(
            block_size, policy=policy, clock=clock, remembered_tokens=remembered_tokens
        )
        self._tree.watch(events)
        self._events = events
        if max_pinned_tokens is None:
            max_pinned_tokens = usable_blocks(num_blocks) // 2 * block_size
        pinnable = checked_count(max_pinned_tokens, "max_pinned_tokens")
        self._ledger = Ledger(
            self._tree, self._allocator, store, max_pinned_tokens=pinnable, clock=clock
        )

    # -- look-ups: pure ----------------------------------------------------------------------

    def match(self, namespace: Namespace | str, tokens: Iterable[int]) -> Match:
        """Return the longest cached prefix. Pure; the blocks are not guarded."""
        return self._tree.match(tokens, namespace=namespace)

    def match_len(self, namespace: Namespace | str, tokens: Iterable[int]) -> int:
        """Return ``match(...).num_tokens`` without collecting block ids. Pure."""
        return self._tree.match_len(tokens, namespace=namespace)

    def explain(
        self, namespace: Namespace | str, tokens: Iterable[int], *, look_elsewhere: bool = False
    ) -> Explanation:
        """Say how much of a prompt is cached, and why not more (see ``RadixTree.explain``). Pure.

        :meth:`acquire` keeps one token fresh, so it may reuse a block less than what matches:
        ``Explanation.reusable_tokens``.
        """
        return self._tree.explain(tokens, namespace=namespace, look_elsewhere=look_elsewhere)

    # -- leases and holds --------------------------------------------------------------------

    def acquire(
        self,
        namespace: Namespace | str,
        tokens: Sequence[int],
        *,
        read: bool = True,
        publish: bool = True,
        priority: int = 0,
    ) -> Lease:
        """Find and lock the cached prefix of a sequence. Allocates nothing.

        At least one token stays fresh, because the cache holds KV, not logits: the match is
        limited to the whole blocks of ``tokens[:-1]``.

        Args:
            namespace: whose sequence it is.
            tokens: its key ids so far, at least one.
            read: False ignores what is cached.
            publish: False makes ``Lease.commit`` do nothing.
            priority: what it reads and publishes keeps the highest it has had (for the eviction
                policy ``priority``).

        Raises:
            InvalidRequestError: no tokens, or ids that do not fit int32.
        """
        if not len(tokens):
            raise InvalidRequestError("tokens", tokens, "at least one")
        space = Namespace.of(namespace)
        limit = len(tokens) - 1 if read else 0
        lock = self._tree.lock(tokens, namespace=space, max_tokens=limit, priority=priority)
        self._ledger.counters.acquired_leases += 1
        if read:
            self._ledger.pins.hit(lock, tokens)
        return Lease(self._ledger, lock, space, publish=publish, num_cached=lock.num_tokens)

    def hold(self, namespace: Namespace | str, tokens: Iterable[int]) -> Lock:
        """Lock the longest cached prefix until :meth:`release_hold`."""
        return self._tree.lock(tokens, namespace=namespace)

    def release_hold(self, hold: Lock) -> None:
        """End what :meth:`hold` or ``Lease.hold`` began.

        Raises:
            LockError: it ended before; nothing has changed.
        """
        self._ledger.unlock(hold)

    # -- room --------------------------------------------------------------------------------

    def can_allocate(self, num_blocks: int, namespace: Namespace | None = None) -> bool:
        """Whether a lease of ``namespace`` can have that many blocks, free or evicted for it.

        False is certain. True is certain unless other namespaces' guaranteed blocks stand on
        PUBLIC ones, which then stay too: so be ready for OutOfBlocksError where there are
        guarantees. None: a namespace without one.
        """
        return self._ledger.can_allocate(num_blocks, namespace)

    def evict(self, num_blocks: int) -> int:
        """Evict up to ``num_blocks`` blocks that nobody is guaranteed; return how many went."""
        freed = self._tree.evict(num_blocks)
        self._ledger.take_back(freed)
        return len(freed)

    def flush(self, namespace: Namespace | str | None = None) -> int:
        """Forget what is cached (see ``RadixTree.flush``); return how many blocks were dropped.

        Leases live on: blocks they have locked are free once the last of them ends, and what
        they publish later is not findable either. Pins of what is forgotten end.
        """
        before = self._tree.num_blocks - self._tree.num_detached_blocks
        self._ledger.reclaim(self._tree.flush(namespace))
        dropped = before - (self._tree.num_blocks - self._tree.num_detached_blocks)
        self._ledger.counters.flushed_blocks += dropped
        self._ledger.pins.drop_flushed()
        self._ledger.keep_quotas(None)
        return dropped

    # -- quotas ------------------------------------------------------------------------------

    def set_quota(
        self,
        namespace: Namespace | str,
        *,
        max_tokens: int | None = None,
        guaranteed_tokens: int = 0,
    ) -> None:
        """Limit what a namespace keeps cached, and guard a share of it against all others.

        Above its limit a namespace's own leaves go, in its own order, as soon as nothing locks
        them. Up to its guarantee its cached blocks stay whatever others need: they get
        OutOfBlocksError instead. A guarantee keeps no room free for what is not cached yet. Both
        count the namespace's own blocks, not PUBLIC ones it reads.

        Args:
            namespace: exactly this one: a scope's part, or the PUBLIC part of a ``kv_key``.
            max_tokens: rounded down to blocks; None: no limit.
            guaranteed_tokens: rounded up to blocks.

        Raises:
            InvalidRequestError: no whole numbers, below 0, a guarantee above the limit, or all
                guarantees together above the pool. Nothing has changed.
        """
        self._ledger.set_quota(Namespace.of(namespace), max_tokens, guaranteed_tokens)

    def remove_quota(self, namespace: Namespace | str) -> bool:
        """Take a namespace's limit and guarantee away; return whether it had any."""
        return self._tree.remove_quota(namespace)

    # -- pins --------------------------------------------------------------------------------

    def create_pin(
        self,
        namespace: Namespace | str,
        tokens: Iterable[int],
        *,
        ttl_s: float,
        priority: int = 0,
    ) -> Pin:
        """Keep what is cached of a prefix, in whole blocks, for ``ttl_s`` seconds.

        Each :meth:`acquire` that finds the whole of it starts that time anew. Nothing evicts it;
        :meth:`flush` ends it. The same namespace and tokens again: the same pin, with its time
        started anew and grown to what is cached by then. A new or growing pin counts as one use
        of its prefix.

        Args:
            namespace: who asks, and whose quota it counts in.
            tokens: key ids from the start; ``Pin.num_tokens`` says how much of them was cached.
            ttl_s: seconds.
            priority: where a quota is full, the namespace's pins of a lower one end to make
                room: the lowest first, of these the soonest to expire.

        Raises:
            NotCachedError: not one whole block of it is cached.
            QuotaError: it does not fit; nothing has changed.
            InvalidRequestError: ids that do not fit int32, no such time or priority.
        """
        return self._ledger.pins.create(namespace, tokens, ttl_s=ttl_s, priority=priority)

    def update_pin(
        self, pin_id: str, *, ttl_s: float | None = None, priority: int | None = None
    ) -> Pin:
        """Change a pin's priority, or its time, which starts anew then.

        Raises:
            PinNotFoundError: it has ended, or never was.
            InvalidRequestError: no such time or priority.
        """
        return self._ledger.pins.update(pin_id, ttl_s=ttl_s, priority=priority)

    def delete_pin(self, pin_id: str) -> bool:
        """End a pin; return whether it was there."""
        return self._ledger.pins.delete(pin_id)

    def list_pins(self, namespace: Namespace | str | None = None) -> list[Pin]:
        """Return the live pins of exactly this namespace (None: of all), the oldest first."""
        return self._ledger.pins.find(namespace)

    def expire_pins(self) -> int:
        """End the pins whose time has come, as each acquire, allocation and release also does."""
        return self._ledger.pins.expire()

    def set_pin_quota(self, namespace: Namespace | str | None, max_tokens: int | None) -> None:
        """Limit what a namespace may pin; pins there already stay.

        Args:
            namespace: exactly this one; None: each that has no quota of its own.
            max_tokens: each pin counts whole, also where two guard the same prefix. None takes
                the quota away.

        Raises:
            InvalidRequestError: no whole number, or below 0.
        """
        self._ledger.pins.set_quota(namespace, max_tokens)

    # -- inspection --------------------------------------------------------------------------

    def check(self) -> None:
        """Verify tree, allocator, leases and pins against each other.

        Free + tree + leases + the reserved block = pool, and no block has two owners. Cost: the
        whole pool.

        Raises:
            CacheCorruptionError: naming the fault and the place.
        """
        self._tree.check()
        self._ledger.pins.check()
        leased: list[int] = []
        for lease in self._ledger.leases:
            lease.check()
            leased += lease.own_block_ids
        self._allocator.check(leased=leased, tree=self._tree.all_block_ids())
        owned = self.num_free_blocks + self._tree.num_blocks + len(leased)
        if owned != usable_blocks(self.num_blocks):
            fault = f"{owned} blocks are owned, the pool has {usable_blocks(self.num_blocks)}"
            raise CacheCorruptionError(f"lost block: {fault}")

    def view(self, max_nodes: int, *, order: str = "tokens") -> TreeView:
        """Return at most ``max_nodes`` nodes of the tree (see ``RadixTree.view``)."""
        return self._tree.view(max_nodes, order=order)

    def snapshot(self) -> Snapshot:
        """Return all that can be found, and as of which event. Cost: a copy of the whole tree.

        Raises:
            InvalidRequestError: the cache has no event log.
        """
        if self._events is None:
            allowed = "an EventLog, given to PrefixCache(events=...)"
            raise InvalidRequestError("events", None, allowed)
        return self._events.snapshot(self._tree)

    @property
    def events(self) -> EventLog | None:
        """The log given at the start, if any."""
        return self._events

    @property
    def counters(self) -> CacheCounters:
        """Counters since start. Read only."""
        return self._ledger.counters

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self._tree.block_size

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, the reserved block 0 included."""
        return self._allocator.num_blocks

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit the pool when nothing else is in it."""
        return pool_capacity_tokens(self.num_blocks, self.block_size)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that hold nothing."""
        return self._allocator.num_free

    @property
    def num_evictable_blocks(self) -> int:
        """Cached blocks that no lease, hold or pin guards; guaranteed ones are among them."""
        return self._tree.num_evictable_blocks

    @property
    def num_locked_blocks(self) -> int:
        """Cached blocks that a lease, hold or pin guards."""
        return self._tree.num_locked_blocks

    @property
    def num_leased_blocks(self) -> int:
        """Blocks that leases own: not, or not yet, in the tree."""
        return self._allocator.num_leased

    @property
    def num_nodes(self) -> int:
        """Nodes of the tree."""
        return self._tree.num_nodes

    @property
    def num_pins(self) -> int:
        """Live pins, those included whose end is due but not noticed yet."""
        return len(self._ledger.pins)

    @property
    def num_leases(self) -> int:
        """Live leases."""
        return len(self._ledger.leases)

    def __repr__(self) -> str:
        return (
            f"PrefixCache(num_blocks={self.num_blocks}, block_size={self.block_size}, "
            f"free={self.num_free_blocks}, evictable={self.num_evictable_blocks}, "
            f"locked={self.num_locked_blocks}, leased={self.num_leased_blocks})"
        )
