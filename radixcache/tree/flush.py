"""Forgetting: what is unlocked goes at once, what is locked becomes unfindable until unlocked."""

from collections.abc import Iterable

from radixcache.tree.forest import Forest, inherit_recency
from radixcache.tree.handles import BlockIds, Lock
from radixcache.tree.keys import ID_BYTES
from radixcache.tree.lost import covers
from radixcache.tree.node import Node
from radixcache.types import PUBLIC, Namespace

__all__ = ["flush_forest"]


def flush_forest(forest: Forest, locks: Iterable[Lock], space: Namespace | None) -> BlockIds:
    """Flush a namespace (None: all); return the blocks that are free at once."""
    freed = BlockIds("i")
    # What is cut off must not report to the live part later.
    forest.sizes.settle()
    if space is not None and space.scope != PUBLIC:
        _flush_scope(forest, space, freed)
    else:
        for kv_key in list(forest.roots) if space is None else [space.kv_key]:
            _flush_root(forest, kv_key, freed)
    forest.lost.flush(space, forest.clock())
    if forest.watcher is not None:
        forest.tell("cleared", space)
    for lock in locks:
        if space is None or covers(space, lock.namespace):
            lock._detached = True
    forest.num_blocks -= len(freed)
    forest.version += 1
    return freed


def _flush_root(forest: Forest, kv_key: str, freed: BlockIds) -> None:
    root = forest.roots.pop(kv_key, None)
    if root is None:
        return
    # Locks on 0 tokens keep the old root; what they publish later hangs from it, unfindable.
    root.detached = True
    children = root.children or {}
    root.children = None
    for child in children.values():
        _forget(forest, child, freed)


def _flush_scope(forest: Forest, space: Namespace, freed: BlockIds) -> None:
    root = forest.roots.get(space.kv_key)
    stack: list[Node] = [] if root is None else [root]
    while stack:
        parent = stack.pop()
        for child in list((parent.children or {}).values()):
            if child.scope == PUBLIC:
                stack.append(child)
            elif child.scope == space.scope:
                _forget(forest, child, freed)
                forest.unlink(child, parent)


def _forget(forest: Forest, top: Node, freed: BlockIds) -> None:
    """Free the unlocked nodes from ``top`` down, detach the locked ones."""
    if top.lock_count:
        forest.tops.add(top)
    newest = top
    stack = [top]
    while stack:
        node = stack.pop()
        children = node.children or {}
        stack.extend(children.values())
        if node.last_access > newest.last_access:
            newest = node
        if not node.lock_count:
            if node.entry is not None:
                node.account.policy.remove(node)
            node.account.num_blocks -= len(node.ids) // ID_BYTES
            freed.frombytes(node.ids)
            forest.num_nodes -= 1
            continue
        _detach(forest, node)
        kept = {edge: child for edge, child in children.items() if child.lock_count}
        node.children = kept or None
    inherit_recency(top, newest)


def _detach(forest: Forest, node: Node) -> None:
    num_blocks = len(node.ids) // ID_BYTES
    node.account.num_blocks -= num_blocks
    node.account.num_locked_blocks -= num_blocks
    node.detached = True
    forest.num_detached_blocks += num_blocks
