"""A bounded picture of the tree for people to look at."""

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import islice
from types import MappingProxyType
from typing import Final

import numpy as np

from radixcache.errors import InvalidRequestError
from radixcache.tree.forest import Forest
from radixcache.tree.keys import ID_BYTES
from radixcache.tree.node import Node
from radixcache.types import TreeNodeView, TreeView

__all__ = ["ORDERS", "view_forest"]

_MAX_LOOKED_AT = 50_000
"""Children compared for one picture. A root with a million of them would cost a second."""

_MIN_SHARE = 10
"""Children looked at below each of very many roots."""

_FIRST_TOKENS = 32
"""Token ids shown of each node."""

ORDERS: Final[Mapping[str, Callable[[Node], int]]] = MappingProxyType(
    {
        "tokens": lambda node: node.below,
        "hits": lambda node: node.num_hits,
        "recent": lambda node: node.last_access,
        "oldest": lambda node: -node.last_access,
    }
)
"""What a picture can begin with; each figure of a node is at least its descendants' (but age)."""

_Ranked = tuple[int, int, Node, int]  # minus the figure, node id, node, its parent's id


def view_forest(forest: Forest, max_nodes: int, order: str) -> TreeView:
    """Return the first findable nodes by ``order``, parents before children.

    Cost: the nodes shown and their children, of these at most 50,000; ``TreeView.complete`` says
    whether that was enough to see all; else as many of the oldest as of the newest were compared.
    It does not depend on the size of the tree.

    Raises:
        InvalidRequestError: there is no such order.
    """
    if order not in ORDERS:
        raise InvalidRequestError("order", order, " | ".join(ORDERS))
    forest.sizes.settle()
    picture = _Picture(forest, max_nodes, ORDERS[order])
    share = max(_MAX_LOOKED_AT // max(1, len(forest.roots)), _MIN_SHARE)
    for root in forest.roots.values():
        picture.open(root, 0, share)
    shown: list[TreeNodeView] = []
    while picture.heap and len(shown) < max_nodes:
        _, _, node, parent_id = heappop(picture.heap)
        shown.append(_node_view(node, parent_id, picture.now))
        picture.open(node, node.node_id)
    return TreeView(
        nodes=tuple(shown),
        total_nodes=forest.num_nodes,
        total_tokens=forest.num_blocks * forest.block_size,
        complete=picture.num_unseen == 0,
    )


class _Picture:
    def __init__(self, forest: Forest, max_nodes: int, figure: Callable[[Node], int]) -> None:
        self.heap: list[_Ranked] = []
        self.now = forest.clock()
        self.num_unseen = 0
        self._max_nodes = max_nodes
        self._figure = figure
        self._left = _MAX_LOOKED_AT

    def open(self, parent: Node, parent_id: int, limit: int = _MAX_LOOKED_AT) -> None:
        """Put the children of a node that may be shown on the heap; look at ``limit`` of them."""
        if parent.children is None:
            return
        children = _some(parent.children, min(self._left, limit))
        self._left -= len(children)
        self.num_unseen += len(parent.children) - len(children)
        figures = [self._figure(child) for child in children]
        if len(children) > 2 * self._max_nodes:
            # Most would never be shown, and a heap is slower than one pass.
            first = np.argsort(-np.array(figures), kind="stable")[: self._max_nodes]
            children = [children[i] for i in first]
            figures = [figures[i] for i in first]
        for figure, child in zip(figures, children, strict=True):
            heappush(self.heap, (-figure, child.node_id, child, parent_id))


def _some(children: dict[bytes, Node], limit: int) -> list[Node]:
    """Return all children, or as many of the oldest as of the newest."""
    if len(children) <= limit:
        return list(children.values())
    half = limit // 2
    oldest = list(islice(children.values(), limit - half))
    return oldest + list(islice(reversed(children.values()), half))


def _node_view(node: Node, parent_id: int, now: float) -> TreeNodeView:
    first = memoryview(node.key)[: _FIRST_TOKENS * ID_BYTES].cast("i")
    namespace = node.account.namespace
    return TreeNodeView(
        node_id=node.node_id,
        parent_id=parent_id,
        num_tokens=len(node.key) // ID_BYTES,
        subtree_tokens=node.below * (len(node.key) // len(node.ids)),
        num_locks=node.lock_count,
        num_hits=node.num_hits,
        last_access_s=max(0.0, now - node.last_access_s),
        token_ids=tuple(first),
        namespace=namespace.kv_key,
        scope=namespace.scope,
    )
