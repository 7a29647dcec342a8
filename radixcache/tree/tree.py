"""The radix tree: a map from token prefixes to the blocks that hold their KV."""

from collections.abc import Iterable

from radixcache.errors import InvalidRequestError, LockError
from radixcache.explanation import Explanation
from radixcache.tree.account import Account
from radixcache.tree.base import TreeBase
from radixcache.tree.evict import evict_blocks
from radixcache.tree.explain import explain_look_up
from radixcache.tree.flush import flush_forest
from radixcache.tree.handles import BlockIds, Extended, Lock
from radixcache.tree.keys import ID_BYTES, check_block_ids, checked_count, pack, pack_block_ids
from radixcache.tree.match import Inserted, Match
from radixcache.tree.node import Node, gather, longest
from radixcache.types import Namespace

__all__ = ["RadixTree"]


class RadixTree(TreeBase):
    """A radix tree over whole blocks of token ids, with namespaces, locks and LRU eviction.

    Token ids and block ids are int32; any iterable of whole numbers is taken, ``array('i')`` and
    contiguous int32 numpy arrays without a copy. A tail shorter than a block is ignored
    everywhere. The cost of each operation is linear in the tokens it touches, whatever the size
    of the tree. Not thread-safe: one thread owns a tree.

    >>> tree = RadixTree(block_size=2)
    >>> tree.insert([1, 2, 3, 4, 5], [10, 20], namespace="m")
    <Inserted of 4 tokens>
    >>> tree.match([1, 2, 3, 9], namespace="m").block_ids
    BlockIds([10])

    Args:
        block_size: tokens a block, 1 to 256.
        policy: which unlocked leaf is evicted first: a name from ``tree.policies.POLICIES``, or
            what makes an ``EvictionPolicy``.
        clock: seconds, for what people read; the order of eviction does not depend on it.
        remembered_tokens: evicted tokens of which :meth:`explain` and the policies still know,
            4 bytes each.
    """

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
        forest = self._forest
        root = forest.roots.get(space.kv_key)
        if root is None:
            return Match(forest, None, 0, 0, space)
        node, inside, depth = longest(root, view, space.scope, forest.unit)
        return Match(forest, node, inside, depth // ID_BYTES, space)

    def match_len(self, tokens: Iterable[int], *, namespace: Namespace | str) -> int:
        """Return ``match(...).num_tokens`` without collecting the block ids. Pure."""
        space = Namespace.of(namespace)
        view = self._whole_blocks(tokens)
        root = self._forest.roots.get(space.kv_key)
        if root is None:
            return 0
        return longest(root, view, space.scope, self._forest.unit)[2] // ID_BYTES

    def explain(
        self, tokens: Iterable[int], *, namespace: Namespace | str, look_elsewhere: bool = False
    ) -> Explanation:
        """Say how much of ``tokens`` a look-up finds, and why not more. Pure, as ``match`` is.

        It tells of what ``namespace`` may see and no more. What was evicted is remembered for the
        latest million tokens or so (``Explanation.forgotten_s``). Cost: that of a match, plus at
        most 1,000 branches compared where it ends.

        Args:
            tokens: key ids from the start of the sequence; all of them count, the tail too.
            namespace: who asks.
            look_elsewhere: also look into other namespaces, 64 at most. It tells whether others
                hold these tokens, so it is an operator's to ask, not a tenant's.

        Raises:
            InvalidRequestError: a token id does not fit int32.
            TypeError: ``namespace`` is neither a Namespace nor a string.
        """
        space = Namespace.of(namespace)
        view = pack(tokens, "tokens")
        return explain_look_up(self._forest, space, view, look_elsewhere=look_elsewhere)

    # -- insert ------------------------------------------------------------------------------

    def insert(
        self,
        tokens: Iterable[int],
        block_ids: Iterable[int],
        *,
        namespace: Namespace | str,
        priority: int = 0,
    ) -> Inserted:
        """Publish the whole blocks of ``tokens``.

        Blocks of a prefix that is present already are not taken over: the caller re-points its
        block table to the ids returned, then frees its own duplicates.

        Args:
            tokens: key ids from the start of the sequence.
            block_ids: one for each whole block of ``tokens``; more are ignored, and so are those
                of the prefix that is present.
            namespace: a scoped one adds its part below the longest path it can see.
            priority: of the request, 0 or more; each node of the path keeps the highest it had.

        Raises:
            InvalidRequestError: ids that do not fit int32; block ids that are too few, or, of
                those taken over, negative or not distinct. Nothing has changed.
        """
        space = Namespace.of(namespace)
        if type(priority) is not int or priority < 0:
            priority = checked_count(priority, "priority")
        view = self._whole_blocks(tokens)
        ids = pack_block_ids(block_ids, len(view) // self._forest.unit)
        forest = self._forest
        if not view:
            done = Inserted(forest, None, 0, 0, space)
            done.num_present = 0
            return done
        root = forest.root(space.kv_key)
        end, inside, depth = longest(root, view, space.scope, forest.unit)
        new_ids = ids[depth // forest.block_size :]
        try:
            check_block_ids(new_ids)
        except InvalidRequestError:
            forest.drop_root(root)
            raise
        end = self._hit(end, inside)
        forest.touch(end, priority)
        if new_ids:
            account = forest.account(root, space.scope)
            rest = view[depth:]
            end = forest.append(end, rest, new_ids, account, held=False, detached=False)
            end.priority = max(end.priority, priority)
        forest.settle(end)
        done = Inserted(forest, end, len(end.key), len(view) // ID_BYTES, space)
        done.num_present = depth // ID_BYTES
        return done

    # -- locks -------------------------------------------------------------------------------

    def lock(
        self,
        tokens: Iterable[int],
        *,
        namespace: Namespace | str,
        max_tokens: int | None = None,
        priority: int = 0,
    ) -> Lock:
        """Find the longest cached prefix and guard it: one operation, so nothing comes between.

        Counts one hit on the whole path and makes it the most recent.

        Args:
            tokens: key ids from the start of the sequence.
            namespace: who asks.
            max_tokens: look at no more than the whole blocks of this many tokens.
            priority: of the request, 0 or more; each node of the path keeps the highest it had.

        Returns:
            A live lock, on 0 tokens if nothing matches.

        Raises:
            InvalidRequestError: a token id does not fit int32, or ``max_tokens`` is no whole number
                or below 0. Nothing has changed.
        """
        space = Namespace.of(namespace)
        if type(priority) is not int or priority < 0:
            priority = checked_count(priority, "priority")
        view = self._whole_blocks(tokens, max_tokens)
        forest = self._forest
        root = forest.root(space.kv_key)
        end, inside, depth = longest(root, view, space.scope, forest.unit)
        end = self._hit(end, inside)
        forest.lock(end, None, priority)
        account = forest.account(root, space.scope)
        return self._new_lock(end, account, depth // ID_BYTES, priority)

    def lock_match(self, match: Match, *, priority: int = 0) -> Lock:
        """Guard what :meth:`match` or :meth:`insert` has found, without finding it again.

        Counts one hit on the whole path and makes it the most recent, as :meth:`lock` does.

        Raises:
            LockError: blocks have moved since, or it is another tree's.
        """
        forest = self._forest
        if type(priority) is not int or priority < 0:
            priority = checked_count(priority, "priority")
        if match._forest is not forest:
            raise LockError(f"{match!r} belongs to another tree")
        if match._version != forest.version:
            match._require_current()
        space = match.namespace
        node = match._node
        end = forest.root(space.kv_key) if node is None else self._hit(node, match._inside)
        forest.lock(end, None, priority)
        account = end.account
        if account.scope != space.scope:
            account = forest.account(forest.root(space.kv_key), space.scope)
        return self._new_lock(end, account, match.num_tokens, priority)

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
        inside = wanted * ID_BYTES - start
        end = self._forest.split(node, inside) if inside < len(node.key) else node
        self._forest.lock_again(end)
        shared = self._new_lock(end, lock._account, wanted, lock._priority)
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
        self._locks.remove(lock)
        lock._tree = None
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
            InvalidRequestError: ids that do not fit int32; block ids that are too few, or, of
                those taken over, negative or not distinct. In both cases nothing has changed.
        """
        self._require_live(lock)
        view = self._whole_blocks(tokens)
        ids = pack_block_ids(block_ids, len(view) // self._forest.unit)
        forest, start, account = self._forest, lock._node, lock._account
        end, depth, inside = start, 0, len(start.key)
        # What a flush left findable below a PUBLIC node is not this lock's to join.
        if lock._detached == start.detached:
            end, inside, depth = longest(start, view, account.scope, forest.unit)
        new_ids = ids[depth // self.block_size :]
        check_block_ids(new_ids)
        end = self._hit(end, inside) if end is not start else start
        priority = lock._priority
        forest.lock(end, start, priority)
        present = gather(end, stop=start)
        if new_ids:
            rest = view[depth:]
            end = forest.append(end, rest, new_ids, account, held=True, detached=lock._detached)
            end.priority = max(end.priority, priority)
            present.frombytes(new_ids)
        self._locks.remove(lock)
        lock._tree = None
        num_tokens = lock.num_tokens + len(view) // ID_BYTES
        new = self._new_lock(end, account, num_tokens, priority)
        new._detached = lock._detached
        return Extended(new, depth // ID_BYTES, present)

    # -- removal -----------------------------------------------------------------------------

    def evict(
        self,
        num_blocks: int,
        *,
        namespace: Namespace | str | None = None,
        cause: str = "evict() was called",
    ) -> BlockIds:
        """Remove ``num_blocks`` unlocked blocks, leaf tails first, and return them.

        Fewer only when no more are unlocked (or guaranteed to somebody); never more. Cost:
        logarithmic in the number of leaves for each leaf taken.

        Args:
            num_blocks: how many.
            namespace: who wants the room: everybody else's guaranteed blocks stay.
            cause: why, for :meth:`explain`.

        Raises:
            InvalidRequestError: no whole number, or below 0; nothing has changed.
        """
        wanted = checked_count(num_blocks, "num_blocks")
        asker = None if namespace is None else self._forest.quotas.get(Namespace.of(namespace))
        return evict_blocks(self._forest, wanted, cause=cause, asker=asker)

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

    # -- the border --------------------------------------------------------------------------

    def _whole_blocks(self, tokens: Iterable[int], max_tokens: int | None = None) -> memoryview:
        view = pack(tokens, "tokens")
        size = len(view)
        if max_tokens is not None:
            size = min(size, checked_count(max_tokens, "max_tokens") * ID_BYTES)
        size -= size % self._forest.unit
        return view if size == len(view) else view[:size]

    def _hit(self, node: Node, inside: int) -> Node:
        """Note that a counted look-up ends here; return the node that ends there."""
        forest = self._forest
        node.account.policy.hit(node, inside // forest.unit)
        return forest.split(node, inside) if inside < len(node.key) else node

    def _new_lock(self, end: Node, account: Account, num_tokens: int, priority: int) -> Lock:
        lock = Lock(self, end, account, num_tokens, priority)
        self._locks.add(lock)
        return lock

    def _require_live(self, lock: Lock) -> None:
        if lock._tree is not self:
            state = "belongs to another tree" if lock.live else "was used after its end"
            raise LockError(f"{lock!r} {state}")
