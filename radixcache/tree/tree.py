"""The radix tree: a map from token prefixes to the blocks that hold their KV."""

import time
from collections.abc import Iterable
from typing import NoReturn

from radixcache.errors import InvalidRequestError, LockError
from radixcache.tree.check import check_forest
from radixcache.tree.flush import flush_forest
from radixcache.tree.forest import Forest
from radixcache.tree.handles import BlockIds, Extended, Inserted, Lock, Match
from radixcache.tree.keys import ID_BYTES, checked_count, pack, pack_block_ids
from radixcache.tree.node import Node, gather, longest
from radixcache.tree.policy import make_policy
from radixcache.tree.view import view_forest
from radixcache.types import Clock, Namespace, TreeView

__all__ = ["RadixTree"]


class RadixTree:
    """A radix tree over whole blocks of token ids, with namespaces, locks and LRU eviction.

    Token ids and block ids are int32; any iterable of whole numbers is taken, ``array('i')`` and
    contiguous int32 numpy arrays without a copy. A tail shorter than a block is ignored
    everywhere. The cost of each operation is linear in the tokens it touches, whatever the size
    of the tree. Not thread-safe: one thread owns a tree.

    >>> tree = RadixTree(block_size=2)
    >>> tree.insert([1, 2, 3, 4, 5], [10, 20], namespace="m")
    Inserted(num_present=0, block_ids=BlockIds([10, 20]))
    >>> tree.match([1, 2, 3, 9], namespace="m")
    Match(num_tokens=2, block_ids=BlockIds([10]))

    Args:
        block_size: tokens a block, 1 to 256.
        policy: which unlocked leaf is evicted first; a name from ``tree.policy.POLICIES``.
        clock: seconds, for :meth:`view` only; the order of eviction does not depend on it.
    """

    def __init__(
        self, block_size: int = 16, *, policy: str = "lru", clock: Clock = time.monotonic
    ) -> None:
        if not isinstance(block_size, int) or not 1 <= block_size <= 256:
            raise InvalidRequestError("block_size", block_size, "a whole number from 1 to 256")
        self._forest = Forest(block_size, make_policy(policy), clock)
        self._locks: set[Lock] = set()

    # -- look-ups: pure ----------------------------------------------------------------------

    def match(self, tokens: Iterable[int], *, namespace: Namespace | str) -> Match:
        """Return the longest cached prefix of ``tokens`` that ``namespace`` may see.

        Pure: neither recency nor hit counts nor the shape of the tree change. The blocks are
        not guarded; :meth:`lock` guards them.

        Raises:
            InvalidRequestError: a token id does not fit int32.
            TypeError: ``namespace`` is neither a Namespace nor a string.
        """
        space = Namespace.of(namespace)
        view = self._whole_blocks(tokens)
        root = self._forest.roots.get(space.kv_key)
        if root is None:
            return Match(0, BlockIds("i"))
        place = longest(root, view, space.scope, self._forest.unit)
        ids = gather(place.node, place.inside // self.block_size)
        return Match(place.depth // ID_BYTES, ids)

    def match_len(self, tokens: Iterable[int], *, namespace: Namespace | str) -> int:
        """Return ``match(...).num_tokens`` without collecting the block ids. Pure."""
        space = Namespace.of(namespace)
        view = self._whole_blocks(tokens)
        root = self._forest.roots.get(space.kv_key)
        if root is None:
            return 0
        return longest(root, view, space.scope, self._forest.unit).depth // ID_BYTES

    # -- insert ------------------------------------------------------------------------------

    def insert(
        self, tokens: Iterable[int], block_ids: Iterable[int], *, namespace: Namespace | str
    ) -> Inserted:
        """Publish the whole blocks of ``tokens``.

        Blocks of a prefix that is present already are not taken over: the caller re-points its
        block table to the ids returned, then frees its own duplicates.

        Args:
            tokens: key ids from the start of the sequence.
            block_ids: one for each whole block of ``tokens``; more are ignored.
            namespace: a scoped one adds its part below the longest path it can see.

        Raises:
            InvalidRequestError: ids that do not fit int32; block ids that are too few, negative or
                not distinct. Nothing has changed.
        """
        space = Namespace.of(namespace)
        view = self._whole_blocks(tokens)
        ids = pack_block_ids(block_ids, len(view) // self._forest.unit)
        if not view:
            return Inserted(0, BlockIds("i"))
        forest = self._forest
        place = longest(forest.root(space.kv_key), view, space.scope, forest.unit)
        end = self._boundary(place.node, place.inside)
        forest.touch(end)
        if place.depth < len(view):
            new_ids = ids[place.depth // self.block_size :]
            rest = view[place.depth :]
            end = forest.append(end, rest, new_ids, scope=space.scope, held=False, detached=False)
        forest.settle(end)
        return Inserted(place.depth // ID_BYTES, gather(end))

    # -- locks -------------------------------------------------------------------------------

    def lock(
        self,
        tokens: Iterable[int],
        *,
        namespace: Namespace | str,
        max_tokens: int | None = None,
    ) -> Lock:
        """Find the longest cached prefix and guard it: one operation, so nothing comes between.

        Counts one hit on the whole path and makes it the most recent.

        Args:
            tokens: key ids from the start of the sequence.
            namespace: who asks.
            max_tokens: look at no more than the whole blocks of this many tokens.

        Returns:
            A live lock, on 0 tokens if nothing matches.

        Raises:
            InvalidRequestError: a token id does not fit int32, or ``max_tokens`` is no whole number
                or below 0. Nothing has changed.
        """
        space = Namespace.of(namespace)
        view = self._whole_blocks(tokens, max_tokens)
        forest = self._forest
        place = longest(forest.root(space.kv_key), view, space.scope, forest.unit)
        end = self._boundary(place.node, place.inside)
        forest.lock(end, hit=True)
        return self._new_lock(end, space, place.depth // ID_BYTES)

    def share(self, lock: Lock, num_tokens: int | None = None) -> Lock:
        """Return a second lock on the first ``num_tokens`` of a locked prefix (None: all).

        Neither recency nor hits change: it is the same request.

        Raises:
            LockError: ``lock`` has ended or is another tree's.
            InvalidRequestError: ``num_tokens`` is no whole number of blocks within the lock.
        """
        self._require_live(lock)
        allowed = f"a multiple of {self.block_size} up to {lock.num_tokens}"
        wanted = lock.num_tokens
        if num_tokens is not None:
            wanted = checked_count(num_tokens, "num_tokens", allowed)
        if wanted > lock.num_tokens or wanted % self.block_size:
            raise InvalidRequestError("num_tokens", num_tokens, allowed)
        node, start = lock._node, lock.num_tokens * ID_BYTES - len(lock._node.key)
        while start >= wanted * ID_BYTES and node.parent is not None:
            node = node.parent
            start -= len(node.key)
        end = self._boundary(node, wanted * ID_BYTES - start)
        self._forest.lock(end, hit=False)
        shared = self._new_lock(end, lock.namespace, wanted)
        shared._detached = lock._detached
        return shared

    def unlock(self, lock: Lock) -> BlockIds:
        """End a lock.

        Returns:
            Blocks that nothing refers to any more: those of a flushed path when its last lock
            goes, normally none.

        Raises:
            LockError: the lock has ended or is another tree's; nothing has changed.
        """
        self._require_live(lock)
        self._end(lock)
        return self._forest.unlock(lock._node)

    def extend(self, lock: Lock, tokens: Iterable[int], block_ids: Iterable[int]) -> Extended:
        """Publish further whole blocks from the end of a lock on, and move the lock there.

        Ends ``lock`` and returns a new one. Starts at the lock's own node: the cost is linear in
        ``tokens``, not in the length of the prefix. After a flush the new blocks join the old,
        unfindable path.

        Args:
            lock: a live lock.
            tokens: the key ids that follow its prefix; a tail shorter than a block is ignored.
            block_ids: one for each whole block of ``tokens``; more are ignored.

        Raises:
            LockError: the lock has ended or is another tree's.
            InvalidRequestError: ids that do not fit int32; block ids that are too few, negative or
                not distinct. In both cases nothing has changed.
        """
        self._require_live(lock)
        view = self._whole_blocks(tokens)
        ids = pack_block_ids(block_ids, len(view) // self._forest.unit)
        forest, start, scope = self._forest, lock._node, lock.namespace.scope
        end, depth = start, 0
        # What a flush left findable below a PUBLIC node is not this lock's to join.
        if lock._detached == start.detached:
            end, inside, depth = longest(start, view, scope, forest.unit)
            end = self._boundary(end, inside)
        forest.lock(end, start, hit=True)
        present = gather(end, stop=start)
        if depth < len(view):
            new_ids = ids[depth // self.block_size :]
            end = forest.append(
                end, view[depth:], new_ids, scope=scope, held=True, detached=lock._detached
            )
            present.frombytes(new_ids)
        self._end(lock)
        new = self._new_lock(end, lock.namespace, lock.num_tokens + len(view) // ID_BYTES)
        new._detached = lock._detached
        return Extended(new, depth // ID_BYTES, present)

    # -- removal -----------------------------------------------------------------------------

    def evict(self, num_blocks: int) -> BlockIds:
        """Remove ``num_blocks`` unlocked blocks, leaf tails first, and return them.

        Fewer only when no more are unlocked; never more. Cost: logarithmic in the number of
        leaves for each leaf taken.

        Raises:
            InvalidRequestError: no whole number, or below 0; nothing has changed.
        """
        return self._forest.evict(checked_count(num_blocks, "num_blocks"))

    def flush(self, namespace: Namespace | str | None = None) -> BlockIds:
        """Forget cached prefixes: no later look-up finds them.

        Args:
            namespace: None forgets everything; a ``kv_key`` (or its PUBLIC namespace) all that
                is under it; a scoped namespace only what that scope published.

        Returns:
            The blocks that are free at once. Locked paths live on, unfindable, until the
            ``unlock`` that ends their last lock returns them. Cost: the nodes under the
            ``kv_key``.
        """
        space = None if namespace is None else Namespace.of(namespace)
        return flush_forest(self._forest, self._locks, space)

    # -- inspection --------------------------------------------------------------------------

    def check(self) -> None:
        """Verify every invariant. Cost: the whole tree.

        Raises:
            CacheCorruptionError: naming the fault and the place.
        """
        check_forest(self._forest, self._locks)

    def view(self, max_nodes: int) -> TreeView:
        """Return at most ``max_nodes`` nodes, parents first, the largest subtrees first."""
        return view_forest(self._forest, checked_count(max_nodes, "max_nodes"))

    def path_ids(self, node: Node) -> BlockIds:
        """Block ids from the root to a node. For handles; users read ``Lock.block_ids``."""
        return gather(node)

    def all_block_ids(self) -> BlockIds:
        """Return every block the tree owns, flushed but locked ones included, in no order."""
        ids = BlockIds("i")
        for node in self._forest.nodes():
            ids.frombytes(node.ids)
        return ids

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self._forest.block_size

    @property
    def num_blocks(self) -> int:
        """Blocks the tree owns: evictable and locked ones."""
        return self._forest.num_blocks

    @property
    def num_locked_blocks(self) -> int:
        """Blocks under at least one lock."""
        return self._forest.num_locked_blocks

    @property
    def num_evictable_blocks(self) -> int:
        """Blocks that ``evict`` could free now."""
        return self._forest.num_blocks - self._forest.num_locked_blocks

    @property
    def num_detached_blocks(self) -> int:
        """Locked blocks that a flush has made unfindable."""
        return self._forest.num_detached_blocks

    @property
    def num_nodes(self) -> int:
        """Nodes, roots not counted."""
        return self._forest.num_nodes

    @property
    def num_locks(self) -> int:
        """Live locks."""
        return len(self._locks)

    def __repr__(self) -> str:
        return (
            f"RadixTree(block_size={self.block_size}, num_nodes={self.num_nodes}, "
            f"num_blocks={self.num_blocks}, num_locked_blocks={self.num_locked_blocks})"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a RadixTree cannot be copied or pickled: its blocks belong to one pool")

    # -- the border --------------------------------------------------------------------------

    def _whole_blocks(self, tokens: Iterable[int], max_tokens: int | None = None) -> memoryview:
        view = pack(tokens, "tokens")
        size = len(view)
        if max_tokens is not None:
            size = min(size, checked_count(max_tokens, "max_tokens") * ID_BYTES)
        return view[: size - size % self._forest.unit]

    def _boundary(self, node: Node, inside: int) -> Node:
        return self._forest.split(node, inside) if inside < len(node.key) else node

    def _new_lock(self, end: Node, space: Namespace, num_tokens: int) -> Lock:
        lock = Lock(self, end, space, num_tokens)
        self._locks.add(lock)
        return lock

    def _end(self, lock: Lock) -> None:
        self._locks.remove(lock)
        lock._tree = None

    def _require_live(self, lock: Lock) -> None:
        if lock._tree is not self:
            state = "belongs to another tree" if lock.live else "was used after its end"
            raise LockError(f"{lock!r} {state}")
