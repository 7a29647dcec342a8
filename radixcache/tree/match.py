"""What a look-up found."""

from radixcache.errors import LockError
from radixcache.tree.forest import Forest
from radixcache.tree.handles import BlockIds
from radixcache.tree.keys import ID_BYTES
from radixcache.tree.node import Node, gather

__all__ = ["Match"]


class Match:
    """The longest cached prefix of some tokens, at the time of asking.

    Attributes:
        num_tokens: its length, a whole number of blocks.
    """

    __slots__ = ("_block_ids", "_forest", "_inside", "_node", "_version", "num_tokens")

    def __init__(self, forest: Forest, node: Node | None, inside: int, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self._forest = forest
        self._node = node  # where it ends, None if nothing matched
        self._inside = inside  # blocks into the node
        self._version = forest.version
        self._block_ids: BlockIds | None = None

    @property
    def block_ids(self) -> BlockIds:
        """One block id for each block of ``num_tokens``; gathered when first asked for.

        Raises:
            LockError: blocks have moved in between. A match guards nothing, a lock does.
        """
        if self._block_ids is None:
            if self._version != self._forest.version:
                raise LockError(
                    f"{self!r}: the tree has changed since, the blocks may be somebody else's: "
                    "read block_ids at once, or take a lock()"
                )
            if self._node is None:
                self._block_ids = BlockIds("i")
            else:
                self._block_ids = gather(self._node, self._inside * ID_BYTES)
        return self._block_ids

    def __repr__(self) -> str:
        return f"<Match of {self.num_tokens} tokens>"
