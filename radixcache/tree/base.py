"""What every user of a tree may ask of it: settings, quotas, sizes, pictures, checks."""

import time
from typing import NoReturn

from radixcache.errors import InvalidRequestError
from radixcache.tree.check import check_forest
from radixcache.tree.forest import Forest
from radixcache.tree.handles import BlockIds, Lock
from radixcache.tree.keys import ID_BYTES, checked_count
from radixcache.tree.node import Node, gather
from radixcache.tree.policies import PolicyFactory, policy_factory
from radixcache.tree.quota import num_kept_from, remove_quota, set_quota, trim_to_quotas
from radixcache.tree.view import view_forest
from radixcache.tree.watch import TreeWatcher
from radixcache.types import Clock, Namespace, TreeView

__all__ = ["TreeBase"]


class TreeBase:
    """The part of :class:`radixcache.tree.RadixTree` that neither finds nor changes prefixes."""

    def __init__(
        self,
        block_size: int = 16,
        *,
        policy: str | PolicyFactory = "lru",
        clock: Clock = time.monotonic,
        remembered_tokens: int = 2**20,
    ) -> None:
        if not isinstance(block_size, int) or not 1 <= block_size <= 256:
            raise InvalidRequestError("block_size", block_size, "a whole number from 1 to 256")
        remembered = checked_count(remembered_tokens, "remembered_tokens")
        self._forest = Forest(block_size, policy_factory(policy), clock, remembered)
        self._locks: set[Lock] = set()

    def watch(self, watcher: TreeWatcher | None) -> None:
        """Tell ``watcher`` of every later change of what can be found; None: nobody."""
        self._forest.watcher = watcher

    def replay(self, watcher: TreeWatcher) -> None:
        """Tell ``watcher`` of all that can be found now, as if it had just been stored.

        Parents come before what follows them; the private blocks of every scope are included,
        flushed ones never. Pure. Cost: the whole tree.
        """
        stack: list[Node] = [*self._forest.roots.values()]
        while stack:
            node = stack.pop()
            if node.parent is not None:
                # Copies: a view that a watcher kept would forbid the node to grow.
                key, ids = memoryview(bytes(node.key)), memoryview(bytes(node.ids))
                parent = node.parent.ids[-ID_BYTES:]
                watcher.stored(node.account.namespace, parent, key, ids)
            if node.children is not None:
                stack.extend(node.children.values())

    # -- quotas ------------------------------------------------------------------------------

    def set_quota(
        self,
        namespace: Namespace | str,
        *,
        max_blocks: int | None = None,
        guaranteed_blocks: int = 0,
    ) -> None:
        """Limit what a namespace holds, and guard a share of it against others' pressure.

        Locked blocks may exceed the limit until they are unlocked; call :meth:`trim` then.

        Args:
            namespace: exactly this one: a scope's part, or the PUBLIC part of a ``kv_key``.
            max_blocks: its own leaves go, in its own order, when it holds more. None: no limit.
            guaranteed_blocks: ``evict`` on behalf of others leaves it this many.

        Raises:
            InvalidRequestError: no whole numbers, below 0, or a guarantee above the limit.
        """
        space = Namespace.of(namespace)
        limit = None if max_blocks is None else checked_count(max_blocks, "max_blocks")
        guaranteed = checked_count(guaranteed_blocks, "guaranteed_blocks")
        set_quota(self._forest, space, limit, guaranteed)

    def num_guaranteed_blocks(self, *, besides: Namespace | str) -> int:
        """Return what is guaranteed to all namespaces but one."""
        own = Namespace.of(besides)
        quotas = self._forest.quotas.items()
        return sum(account.guaranteed_blocks for space, account in quotas if space != own)

    def remove_quota(self, namespace: Namespace | str) -> bool:
        """Take a namespace's limit and guarantee away; return whether it had any."""
        return remove_quota(self._forest, Namespace.of(namespace))

    def num_kept_blocks(self, asker: Namespace | None) -> int:
        """Return how many of the evictable blocks the guarantees of others keep from ``asker``.

        PUBLIC blocks that guaranteed ones stand on are not counted, but stay as well.
        """
        return num_kept_from(self._forest, asker)

    def trim(self, namespace: Namespace | str | None = None) -> BlockIds:
        """Evict what namespaces hold above their quotas; return the blocks.

        Blocks that are locked, or that another namespace's blocks stand on, stay.

        Args:
            namespace: look only at this one and the PUBLIC part of its ``kv_key``: what one of
                its locks can have kept. None: at all, which costs as much as there are quotas.
        """
        space = None if namespace is None else Namespace.of(namespace)
        return trim_to_quotas(self._forest, space)

    # -- inspection --------------------------------------------------------------------------

    def check(self) -> None:
        """Verify every invariant. Cost: the whole tree.

        Raises:
            CacheCorruptionError: naming the fault and the place.
        """
        check_forest(self._forest, self._locks)

    def view(self, max_nodes: int, *, order: str = "tokens") -> TreeView:
        """Return at most ``max_nodes`` nodes, parents before children.

        Args:
            max_nodes: how many.
            order: which come first: ``tokens`` (largest subtrees), ``hits``, ``recent``,
                ``oldest``.

        Raises:
            InvalidRequestError: no whole number, or no such order.
        """
        return view_forest(self._forest, checked_count(max_nodes, "max_nodes"), order)

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
