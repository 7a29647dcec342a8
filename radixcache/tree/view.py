"""A bounded picture of the tree for people to look at."""

from heapq import heappop, heappush

from radixcache.tree.forest import Forest
from radixcache.tree.keys import ID_BYTES
from radixcache.tree.node import Node
from radixcache.types import TreeNodeView, TreeView

__all__ = ["view_forest"]

_EXACT_NODES = 50_000
"""Up to this many nodes subtree sizes are summed; beyond, a node's own size stands for them."""

_FIRST_TOKENS = 32
"""Token ids shown of each node."""


def view_forest(forest: Forest, max_nodes: int) -> TreeView:
    """Return the largest findable subtrees, best first, parents before children."""
    sizes = _subtree_bytes(forest) if forest.num_nodes <= _EXACT_NODES else None
    now = forest.clock()
    heap: list[tuple[int, int, Node, int, str]] = []
    for root in forest.roots.values():
        _push_children(heap, root, 0, root.kv_key, sizes)
    shown: list[TreeNodeView] = []
    while heap and len(shown) < max_nodes:
        _, _, node, parent_id, kv_key = heappop(heap)
        shown.append(_node_view(node, parent_id, kv_key, now))
        _push_children(heap, node, node.node_id, kv_key, sizes)
    return TreeView(
        nodes=tuple(shown),
        total_nodes=forest.num_nodes,
        total_tokens=forest.num_blocks * forest.block_size,
    )


def _push_children(
    heap: list[tuple[int, int, Node, int, str]],
    node: Node,
    parent_id: int,
    kv_key: str,
    sizes: dict[Node, int] | None,
) -> None:
    for child in (node.children or {}).values():
        size = len(child.key) if sizes is None else sizes[child]
        heappush(heap, (-size, child.node_id, child, parent_id, kv_key))


def _subtree_bytes(forest: Forest) -> dict[Node, int]:
    order = list(forest.nodes())
    sizes = {node: len(node.key) for node in order}
    for node in reversed(order):
        if node.parent in sizes:
            sizes[node.parent] += sizes[node]
    return sizes


def _node_view(node: Node, parent_id: int, kv_key: str, now: float) -> TreeNodeView:
    first = memoryview(node.key)[: _FIRST_TOKENS * ID_BYTES].cast("i")
    return TreeNodeView(
        node_id=node.node_id,
        parent_id=parent_id,
        num_tokens=len(node.key) // ID_BYTES,
        num_locks=node.lock_count,
        num_hits=node.num_hits,
        last_access_s=max(0.0, now - node.last_access_s),
        token_ids=tuple(first),
        namespace=kv_key,
        scope=node.scope,
    )
