"""How many blocks lie below each node, without walking to the root at each change.

A node that grows or loses a child owes its parent the news. Debts wait in a bounded list; where
one passes another on its way up, the two become one. So a change costs little wherever it happens
(the depth of the tree for each 500 changes), and a picture of the tree settles a thousand debts,
not millions of nodes.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from radixcache.tree.node import Node

__all__ = ["Sizes"]

_MAX_DEBTORS = 1_000


class Sizes:
    """Keeps ``below`` and ``owed`` of the findable nodes.

    ``below`` = own blocks + what each child has reported, and a child has reported
    ``below - owed``.
    """

    __slots__ = ("_debtors",)

    def __init__(self) -> None:
        self._debtors: dict[Node, None] = {}  # an ordered set

    def grow(self, node: Node, num_blocks: int) -> None:
        """Note new blocks at a node's end; a negative number: blocks gone from its tail."""
        node.below += num_blocks
        node.owed += num_blocks
        self._debtors[node] = None
        if len(self._debtors) > _MAX_DEBTORS:
            self.settle(_MAX_DEBTORS // 2)

    def cut(self, node: Node, parent: Node) -> None:
        """Note that a node has left its parent with everything below it."""
        reported = node.below - node.owed
        node.owed = 0
        self._debtors.pop(node, None)
        parent.below -= reported
        self._owe(parent, -reported)

    def split(self, upper: Node, lower: Node) -> None:
        """Note that ``upper`` was cut from the front of ``lower``."""
        upper.below, upper.owed = lower.below, lower.owed
        lower.below -= upper.num_blocks
        lower.owed = 0
        if self._debtors.pop(lower, lower) is None:
            self._debtors[upper] = None

    def join(self, top: Node, pieces: Iterable[Node]) -> None:
        """Note that the pieces below ``top``, its only descendants, have become part of it."""
        owed = 0
        for piece in pieces:
            owed += piece.owed
            self._debtors.pop(piece, None)
        self.grow(top, owed)

    def owes(self, node: Node) -> bool:
        """Whether a node is listed among those that owe."""
        return node in self._debtors

    def settle(self, keep: int = 0) -> None:
        """Report debts until only ``keep`` nodes owe."""
        debtors = self._debtors
        if len(debtors) <= keep:
            return
        # The deepest first: so each edge is crossed once, by all that was owed below it.
        heap = [(-node.start, node.node_id, node) for node in debtors]
        heapify(heap)
        while len(debtors) > keep:
            node = heappop(heap)[2]
            del debtors[node]
            owed, node.owed = node.owed, 0
            parent = node.parent
            assert parent is not None, "a root has nobody to report to"
            parent.below += owed
            if owed and parent.parent is not None:
                parent.owed += owed
                if parent not in debtors:
                    debtors[parent] = None
                    heappush(heap, (-parent.start, parent.node_id, parent))

    def _owe(self, node: Node, change: int) -> None:
        if node.parent is None:
            return
        node.owed += change
        self._debtors[node] = None
        if len(self._debtors) > _MAX_DEBTORS:
            self.settle(_MAX_DEBTORS // 2)
