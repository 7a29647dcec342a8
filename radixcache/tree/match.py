"""What a look-up and an insert found."""

from radixcache.errors import LockError
from radixcache.tree.forest import Forest
from radixcache.tree.handles import BlockIds
from radixcache.tree.keys import ID_BYTES
from radixcache.tree.node import Node, gather
from radixcache.types import Namespace

__all__ = ["Inserted", "Match"]


class Match:
    """The longest cached prefix of some tokens, at the time of asking. It guards nothing.

    Attributes:
        namespace: who asked.
        num_tokens: its length, a whole number of blocks.
    """

    __slots__ = ("_block_ids", "_forest", "_inside", "_node", "_version", "namespace", "num_tokens")

    def __init__(
        self, forest: Forest, node: Node | None, inside: int, num_tokens: int, namespace: Namespace
    ) -> None:
        self.namespace = namespace
        self.num_tokens = num_tokens
        self._forest = forest
        self._node = node  # where it ends; None: there is no such root
        self._inside = inside  # bytes of key ids into the node
        self._version = forest.version
        self._block_ids: BlockIds | None = None

    @property
    def block_ids(self) -> BlockIds:
        """One block id for each block of ``num_tokens``; gathered when first asked for.

        Raises:
            LockError: blocks have moved in between.
        """
        if self._block_ids is None:
            self._require_current()
            if self._node is None:
                self._block_ids = BlockIds("i")
            else:
                num_blocks = self._inside // self._forest.unit
                self._block_ids = gather(self._node, num_blocks * ID_BYTES)
        return self._block_ids

    @property
    def end_id(self) -> int:
        """Id of the node at whose end it ends; 0 where it ends inside one or found nothing."""
        node = self._node
        return node.node_id if node is not None and self._inside == len(node.key) else 0

    def _require_current(self) -> None:
        if self._version != self._forest.version:
            raise LockError(
                f"{self!r}: the tree has changed since, the blocks may be somebody else's: use it "
                "at once, or take a lock()"
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.num_tokens} tokens>"


class Inserted(Match):
    """The path that an insert has published; its block ids are the canonical ones.

    Attributes:
        namespace: who published.
        num_tokens: its length: the whole blocks of the tokens given.
        num_present: how many of them were there before.
    """

    __slots__ = ("num_present",)

    num_present: int  # set by who makes it: a constructor of its own costs each insert a call
