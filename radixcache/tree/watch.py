"""Who may watch a tree change: the hook that cache events are built on."""

from typing import Protocol

from radixcache.types import Namespace

__all__ = ["TreeWatcher"]


class TreeWatcher(Protocol):
    """Told of each change of what a look-up can find, in order, after it is certain to happen.

    Ids come packed (int32, native order) and are only valid during the call: keep a copy. It must
    neither raise nor change the tree: one that raises is told nothing any more.
    """

    def stored(
        self,
        namespace: Namespace,
        parent: bytes | bytearray,
        key: memoryview,
        ids: memoryview,
    ) -> None:
        """Learn that blocks were added.

        Args:
            namespace: who owns them.
            parent: the packed id of the block they follow; empty at a root.
            key: key ids, a whole number of blocks.
            ids: block ids, one for each block of ``key``.
        """
        ...

    def removed(self, ids: memoryview) -> None:
        """Learn that blocks were evicted: the tail of a path, nothing findable follows them."""
        ...

    def cleared(self, namespace: Namespace | None) -> None:
        """Learn of a flush, as ``RadixTree.flush`` defines it (None: everything)."""
        ...
