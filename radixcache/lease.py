"""A sequence's share of the pool: what it reads, what it may write, and what it must give back.

The regions of a lease::

    tokens  0        num_cached          num_published           length          covered
            ├────────────┴────────────────────┼─────────────────────┴────────────────┤
            │ the tree's, locked, read only   │ this lease's own, writable           │
            │ whole blocks                    │ the last written block partly filled │
    block_table[: num_published // bs]        block_table[num_published // bs :]

``num_cached`` was found by acquire; ``commit`` moves ``num_published`` to the right as blocks
become final; ``extend`` moves ``covered``; ``truncate`` moves it back, never past
``num_published``. A block that can still be written has exactly one owner: ``fork`` locks what is
published and copies the rest.
"""

from collections.abc import Sequence
from typing import Protocol

from radixcache.errors import (
    CacheCorruptionError,
    InvalidRequestError,
    LockError,
    OutOfBlocksError,
)
from radixcache.kv.allocator import BlockAllocator
from radixcache.kv.capacity import blocks_for, usable_blocks
from radixcache.pins import PinBook
from radixcache.stats import CacheCounters
from radixcache.tree import Lock, RadixTree
from radixcache.tree.keys import checked_count
from radixcache.types import Clock, Namespace

__all__ = ["BlockStore", "Lease", "Ledger"]

_ROOM = "room was needed for another sequence"


class BlockStore(Protocol):
    """What holds the blocks' contents: the KV pool."""

    def copy_block(self, src: int, dst: int, num_tokens: int) -> None:
        """Copy the first ``num_tokens`` slots of block ``src`` into block ``dst``."""
        ...

    def on_free(self, block_ids: Sequence[int]) -> None:
        """Learn that nobody will read these blocks again (debugging fills them with NaN)."""
        ...


class Ledger:
    """Tree and allocator kept in step: each block changes hands here and nowhere else."""

    def __init__(
        self,
        tree: RadixTree,
        allocator: BlockAllocator,
        store: BlockStore | None,
        *,
        max_pinned_tokens: int,
        clock: Clock,
    ) -> None:
        self.tree = tree
        self.allocator = allocator
        self.store = store
        self.counters = CacheCounters()
        self.leases: set[Lease] = set()
        self.pins = PinBook(tree, self.unlock, max_tokens=max_pinned_tokens, clock=clock)

    def can_allocate(self, num_blocks: int, namespace: Namespace | None) -> bool:
        """Whether :meth:`allocate` would succeed now (see ``PrefixCache.can_allocate``)."""
        self.pins.expire()
        room = self.allocator.num_free
        # Most calls end before the quotas are looked at.
        return num_blocks <= room or num_blocks <= room + self._num_obtainable(namespace)

    def _num_obtainable(self, namespace: Namespace | None) -> int:
        return self.tree.num_evictable_blocks - self.tree.num_kept_blocks(namespace)

    def allocate(self, num_blocks: int, namespace: Namespace) -> list[int]:
        """Take blocks from the free list, and evict exactly what it lacks.

        Raises:
            OutOfBlocksError: even eviction cannot make enough room; nobody holds less than before.
        """
        if not self.can_allocate(num_blocks, namespace):
            raise self._refusal(num_blocks, namespace)
        missing = num_blocks - self.allocator.num_free
        if missing > 0:
            self.take_back(self.tree.evict(missing, namespace=namespace, cause=_ROOM))
            if self.allocator.num_free < num_blocks:
                raise self._refusal(num_blocks, namespace)
        return self.allocator.allocate(num_blocks)

    def _refusal(self, num_blocks: int, namespace: Namespace) -> OutOfBlocksError:
        self.counters.refused_allocations += 1
        tree = self.tree
        text = (
            f"{num_blocks} blocks wanted; {self.allocator.num_free} are free, "
            f"{tree.num_evictable_blocks} evictable, and "
            f"{tree.num_locked_blocks + self.allocator.num_leased} in use"
        )
        kept = tree.num_kept_blocks(namespace)
        if kept:
            text += f"; {kept} evictable ones are guaranteed to other namespaces (set_quota)"
        if self.pins:
            text += f"; {len(self.pins)} pins guard {self.pins.num_tokens} tokens (list_pins)"
        return OutOfBlocksError(text)

    def take_back(self, evicted: Sequence[int]) -> None:
        """Count and take back what the tree has evicted, and what then is above a quota."""
        self.counters.evicted_blocks += len(evicted)
        self.reclaim(evicted)
        if evicted:
            self.keep_quotas(None)

    def keep_quotas(self, namespace: Namespace | None) -> None:
        """Evict what is held above quotas (see ``RadixTree.trim``)."""
        freed = self.tree.trim(namespace)
        self.counters.evicted_blocks += len(freed)
        self.reclaim(freed)

    def set_quota(self, space: Namespace, max_tokens: int | None, guaranteed_tokens: int) -> None:
        """Limit a namespace and guard its share (see ``PrefixCache.set_quota``)."""
        size, tree = self.tree.block_size, self.tree
        limit = None if max_tokens is None else checked_count(max_tokens, "max_tokens") // size
        wanted = checked_count(guaranteed_tokens, "guaranteed_tokens")
        guaranteed = blocks_for(wanted, size)
        room = usable_blocks(self.allocator.num_blocks)
        left = room - tree.num_guaranteed_blocks(besides=space)
        if guaranteed > left:
            allowed = f"0 to {left * size} (what other guarantees leave of the pool)"
            raise InvalidRequestError("guaranteed_tokens", wanted, allowed)
        if limit is not None and guaranteed > limit:
            allowed = f"0 to {limit * size} (the whole blocks of max_tokens)"
            raise InvalidRequestError("guaranteed_tokens", wanted, allowed)
        tree.set_quota(space, max_blocks=limit, guaranteed_blocks=guaranteed)
        self.keep_quotas(space)

    def free(self, block_ids: Sequence[int]) -> None:
        """Give back a lease's own blocks."""
        if block_ids:
            self.allocator.free(block_ids)
            self._tell_store(block_ids)

    def reclaim(self, block_ids: Sequence[int]) -> None:
        """Take back blocks that the tree gave up."""
        if block_ids:
            self.allocator.reclaim(block_ids)
            self._tell_store(block_ids)

    def unlock(self, lock: Lock) -> None:
        """End a lock; what a flush had left to it becomes free."""
        self.reclaim(self.tree.unlock(lock))
        self.keep_quotas(lock.namespace)

    def _tell_store(self, block_ids: Sequence[int]) -> None:
        if self.store is not None:
            self.store.on_free(block_ids)


class Lease:
    """One sequence's hold on blocks. Made by ``PrefixCache.acquire`` and by :meth:`fork`.

    Attributes:
        namespace: whose sequence it is.
        block_table: block ids in token order, ``ceil(covered / block_size)`` of them. Read it
            anew after ``commit``, which may exchange entries.
        num_cached_tokens: tokens found at acquire; a fork carries its source's figure.
        num_published_tokens: length of the prefix that is in the tree and locked.
    """

    __slots__ = (
        "_block_size",
        "_ledger",
        "_lock",
        "_publish",
        "block_table",
        "namespace",
        "num_cached_tokens",
        "num_published_tokens",
    )

    def __init__(
        self, ledger: Ledger, lock: Lock, namespace: Namespace, *, publish: bool, num_cached: int
    ) -> None:
        self.namespace = namespace
        self.block_table: list[int] = lock.block_ids.tolist()
        self.num_cached_tokens = num_cached
        self.num_published_tokens = lock.num_tokens
        self._block_size = ledger.tree.block_size
        self._lock = lock
        self._publish = publish
        self._ledger: Ledger | None = ledger
        ledger.leases.add(self)

    def __repr__(self) -> str:
        state = "live" if self.live else "released"
        return (
            f"<Lease of {len(self.block_table)} blocks, "
            f"{self.num_published_tokens} tokens published, {state}>"
        )

    @property
    def live(self) -> bool:
        """Whether it has not been released yet."""
        return self._ledger is not None

    @property
    def num_covered_tokens(self) -> int:
        """Tokens that the block table has slots for."""
        return len(self.block_table) * self._block_size

    @property
    def own_block_ids(self) -> list[int]:
        """The blocks that this lease alone owns and may write."""
        return self.block_table[self.num_published_tokens // self._block_size :]

    def extend(self, length: int) -> None:
        """Make the block table cover ``length`` tokens; it never shrinks here.

        Raises:
            OutOfBlocksError: no room; nothing has changed.
            InvalidRequestError: ``length`` is no whole number, or below 0.
            LockError: the lease was released.
        """
        ledger = self._require_live()
        length = checked_count(length, "length")
        missing = blocks_for(length, self._block_size) - len(self.block_table)
        if missing > 0:
            self.block_table += ledger.allocate(missing, self.namespace)

    def commit(self, tokens: Sequence[int], length: int) -> None:
        """Publish the whole blocks of ``tokens[:length]``, whose KV must have been written.

        Where another sequence has published the same meanwhile, ``block_table`` is re-pointed to
        the tree's blocks and this lease's duplicates are freed. Without permission to publish
        this does nothing. Cost: linear in the tokens not yet published.

        Args:
            tokens: the whole sequence so far, from its first token; all of them final.
            length: how many of them have their KV in the pool.

        Raises:
            InvalidRequestError: ``length`` is no whole number, below 0, or exceeds ``tokens`` or
                what the block table covers.
            LockError: the lease was released.
        """
        ledger = self._require_live()
        length = checked_count(length, "length")
        if length > min(len(tokens), self.num_covered_tokens):
            allowed = f"up to {len(tokens)} tokens given and {self.num_covered_tokens} covered"
            raise InvalidRequestError("length", length, allowed)
        size = self._block_size
        start, end = self.num_published_tokens, length - length % size
        if not self._publish or end <= start:
            return
        own = self.block_table[start // size : end // size]
        extended = ledger.tree.extend(self._lock, tokens[start:end], own)
        num_duplicates = extended.num_present // size
        self._lock = extended.lock
        self.num_published_tokens = end
        # Re-point first: a block must not be free while a table still names it.
        self.block_table[start // size : end // size] = extended.block_ids
        ledger.allocator.publish(own[num_duplicates:])
        ledger.free(own[:num_duplicates])
        ledger.counters.published_blocks += len(own) - num_duplicates
        ledger.counters.duplicate_blocks += num_duplicates
        ledger.keep_quotas(self.namespace)

    def fork(self, length: int) -> "Lease":
        """Return a lease on the first ``length`` tokens that continues on its own.

        Published whole blocks are shared under a lock; every other block is copied at once.

        Args:
            length: tokens whose KV has been written, at most what the block table covers.

        Raises:
            OutOfBlocksError: no room for the copies; nothing has changed.
            InvalidRequestError: ``length`` is no whole number or not covered.
            LockError: the lease was released.
        """
        ledger = self._require_live()
        length = checked_count(length, "length", f"0 to {self.num_covered_tokens}")
        if length > self.num_covered_tokens:
            raise InvalidRequestError("length", length, f"0 to {self.num_covered_tokens}")
        size = self._block_size
        shared = min(self.num_published_tokens, length - length % size)
        copies = ledger.allocate(blocks_for(length - shared, size), self.namespace)
        try:
            for position, copy in enumerate(copies, shared // size):
                self._copy(ledger, position, copy, min(size, length - position * size))
            lock = ledger.tree.share(self._lock, shared)
        except BaseException:
            ledger.free(copies)
            raise
        ledger.counters.copied_blocks += len(copies)
        twin = Lease(
            ledger,
            lock,
            self.namespace,
            publish=self._publish,
            num_cached=min(self.num_cached_tokens, length),
        )
        twin.block_table += copies
        return twin

    def truncate(self, length: int) -> None:
        """Give back the blocks past ``length`` tokens, as when drafts are rejected.

        Raises:
            InvalidRequestError: ``length`` is no whole number or lies within the published prefix,
                which is final.
            LockError: the lease was released.
        """
        ledger = self._require_live()
        allowed = f"{self.num_published_tokens} (published) or more"
        length = checked_count(length, "length", allowed)
        if length < self.num_published_tokens:
            raise InvalidRequestError("length", length, allowed)
        kept = blocks_for(length, self._block_size)
        dropped = self.block_table[kept:]
        del self.block_table[kept:]
        ledger.free(dropped)

    def hold(self) -> Lock:
        """Keep the published prefix locked beyond this lease; ``PrefixCache.release_hold`` ends it.

        Raises:
            LockError: the lease was released.
        """
        return self._require_live().tree.share(self._lock)

    def release(self) -> None:
        """Give everything back. The lease is of no use afterwards.

        Raises:
            LockError: it was released before; nothing has changed.
        """
        ledger = self._require_live()
        own = self.own_block_ids
        self._ledger = None
        ledger.leases.remove(self)
        self.block_table = []
        ledger.free(own)
        ledger.unlock(self._lock)
        ledger.pins.expire()

    def check(self) -> None:
        """Verify that the published part of the table is what the lock guards.

        Raises:
            CacheCorruptionError: it is not.
        """
        ledger = self._require_live()
        published = self.block_table[: self.num_published_tokens // self._block_size]
        if self._lock.num_tokens != self.num_published_tokens or self._lock.block_ids != published:
            raise CacheCorruptionError(f"{self!r}: its table differs from {self._lock!r}")
        if self not in ledger.leases:
            raise CacheCorruptionError(f"{self!r}: live but not recorded")

    def _copy(self, ledger: Ledger, position: int, copy: int, num_tokens: int) -> None:
        if ledger.store is not None:
            ledger.store.copy_block(self.block_table[position], copy, num_tokens)

    def _require_live(self) -> Ledger:
        if self._ledger is None:
            raise LockError(f"{self!r} was used after its release")
        return self._ledger
