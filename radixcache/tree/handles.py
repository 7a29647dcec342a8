"""What the tree hands out: plain results, and the lock."""

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from radixcache.errors import LockError
from radixcache.types import Namespace

if TYPE_CHECKING:
    from radixcache.tree.account import Account
    from radixcache.tree.node import Node
    from radixcache.tree.tree import RadixTree

__all__ = ["BlockIds", "Extended", "Lock"]


class BlockIds(array):  # type: ignore[type-arg]  # array takes its parameter only from Python 3.12
    """Block ids as a packed ``array('i')`` that, like its slices, compares equal to a list.

    Made by a copy of memory, whatever its length; ``numpy.frombuffer(ids, "i")`` views it.
    """

    __slots__ = ()
    __hash__ = None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, list):
            return self.tolist() == other
        return array.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __getitem__(self, index: Any) -> Any:
        found = array.__getitem__(self, index)
        return BlockIds("i", found) if isinstance(index, slice) else found

    def __repr__(self) -> str:
        return f"BlockIds({self.tolist()})"


class Lock:
    """A guard on the path from a root to a node. Single-use: ``unlock`` and ``extend`` end it.

    Attributes:
        num_tokens: length of the locked prefix, a whole number of blocks.
    """

    __slots__ = ("_account", "_detached", "_node", "_priority", "_tree", "num_tokens")

    def __init__(
        self, tree: "RadixTree", node: "Node", account: "Account", num_tokens: int, priority: int
    ) -> None:
        self.num_tokens = num_tokens
        self._account = account
        self._priority = priority
        self._node = node
        self._tree: RadixTree | None = tree
        # A flush forgets this lock's namespace: what it publishes later must not be findable.
        self._detached = False

    def __repr__(self) -> str:
        state = "live" if self.live else "ended"
        return f"<Lock on {self.num_tokens} tokens, {state}>"

    @property
    def namespace(self) -> Namespace:
        """Whose path it is."""
        return self._account.namespace

    @property
    def live(self) -> bool:
        """Whether it still guards its path."""
        return self._tree is not None

    @property
    def findable(self) -> bool:
        """Whether look-ups still find its path: not after a flush of that."""
        return not self._node.detached

    @property
    def end_id(self) -> int:
        """Id of the node it ends at, the same as long as it lives."""
        return self._node.node_id

    def node_ids(self) -> Iterator[int]:
        """Yield the ids of the nodes of its path, from its end up to the root."""
        node: Node | None = self._node
        while node is not None:
            yield node.node_id
            node = node.parent

    @property
    def block_ids(self) -> BlockIds:
        """Block ids of the locked prefix.

        Raises:
            LockError: the lock has ended, so the blocks may hold something else.
        """
        if self._tree is None:
            raise LockError(f"{self!r}: its blocks are no longer guarded")
        return self._tree.path_ids(self._node)


class Extended(NamedTuple):
    """What an extension did."""

    lock: Lock  # in place of the one given, on the new end
    num_present: int  # of the tokens given, those that were there before
    block_ids: BlockIds  # canonical: one for each whole block of the tokens given
