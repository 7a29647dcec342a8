"""The integrity check: every invariant of the tree, each fault named with its place."""

from collections import Counter
from collections.abc import Iterable

from radixcache.errors import CacheCorruptionError
from radixcache.tree.account import Account
from radixcache.tree.forest import Forest
from radixcache.tree.handles import BlockIds, Lock
from radixcache.tree.keys import ID_BYTES
from radixcache.tree.node import Node, Root
from radixcache.types import PUBLIC

__all__ = ["check_forest"]


def check_forest(forest: Forest, locks: Iterable[Lock]) -> None:
    """Raise CacheCorruptionError at the first broken invariant."""
    nodes = list(forest.nodes())
    for node in nodes:
        _check_node(forest, node)
    _check_blocks(nodes)
    _check_lock_counts(forest, nodes, locks)
    _check_sizes(forest, nodes)
    _check_accounts(forest, nodes)
    _check_below(forest, nodes)
    _check_policies(forest, nodes)
    forest.lost.check()


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise CacheCorruptionError(fault)


def _check_node(forest: Forest, node: Node) -> None:
    size, unit, parent = len(node.key), forest.unit, node.parent
    _require(size > 0, f"empty node: {node!r}")
    _require(size % unit == 0, f"part of a block: {node!r} has {size} key bytes, unit {unit}")
    _require(
        len(node.ids) * forest.block_size == size,
        f"dropped block: {node!r} has {node.num_blocks} block ids for {size // unit} blocks",
    )
    edge = node.account.tag + node.key[:unit]
    _require(node.edge == edge, f"wrong child key: {node!r} is not under its own first block")
    _require(node.children != {}, f"empty children: {node!r} should be a leaf")
    assert parent is not None, "forest.nodes() yields no roots"
    _require(
        parent.scope in (PUBLIC, node.scope),
        f"wrong scope: {node!r} of {node.scope!r} below {parent!r} of {parent.scope!r}",
    )
    start = parent.start + len(parent.key)
    _require(node.start == start, f"wrong depth: {node!r} says {node.start}, it lies at {start}")
    _check_place(forest, node, parent)
    _require(node.last_access <= forest.tick, f"wrong recency: {node!r} was used in the future")


def _check_place(forest: Forest, node: Node, parent: Node) -> None:
    listed = parent.children is not None and parent.children.get(node.edge) is node
    if node in forest.tops:
        _require(not listed, f"findable after a flush: {node!r} is detached and listed")
        _require(node.detached, f"wrong detachment: {node!r} stands alone but is not detached")
        return
    _require(listed, f"wrong child key: {parent!r} does not list {node!r} under its first block")
    _require(
        node.detached == (parent.detached and parent.parent is not None),
        f"wrong detachment: {node!r} differs from {parent!r}",
    )


def _check_blocks(nodes: list[Node]) -> None:
    ids = BlockIds("i")
    for node in nodes:
        ids.frombytes(node.ids)
    if len(set(ids)) < len(ids):
        twice = next(block for block, count in Counter(ids).items() if count > 1)
        holders = [n for n in nodes if twice in memoryview(n.ids).cast("i")]
        raise CacheCorruptionError(f"duplicate block: {twice} is in {holders}")


def _check_lock_counts(forest: Forest, nodes: list[Node], locks: Iterable[Lock]) -> None:
    counts: Counter[Node] = Counter()
    for lock in locks:
        _require(lock.live, f"wrong lock record: {lock!r} has ended and is still held")
        depth = 0
        node: Node | None = lock._node
        while node is not None:
            counts[node] += 1
            depth += len(node.key)
            node = node.parent
        end = lock._node
        _require(depth == lock.num_tokens * ID_BYTES, f"wrong lock end: {lock!r} ends at {end!r}")
        _require(
            lock._detached or not end.detached, f"wrong detachment: {lock!r} on flushed {end!r}"
        )
    for node in [*nodes, *forest.roots.values()]:
        got, want = node.lock_count, counts[node]
        _require(got == want, f"wrong lock count: {node!r} says {got}, its locks are {want}")
        _require(not node.detached or want > 0, f"leaked: {node!r} is flushed and unlocked")


def _check_sizes(forest: Forest, nodes: list[Node]) -> None:
    found = {
        "num_nodes": len(nodes),
        "num_blocks": sum(n.num_blocks for n in nodes),
        "num_locked_blocks": sum(n.num_blocks for n in nodes if n.lock_count),
        "num_detached_blocks": sum(n.num_blocks for n in nodes if n.detached),
    }
    for name, want in found.items():
        got = getattr(forest, name)
        _require(got == want, f"wrong size: {name} says {got}, the nodes hold {want}")
    for kv_key, root in forest.roots.items():
        _require(root.kv_key == kv_key and not root.key, f"wrong root: {root!r} under {kv_key!r}")
        _require(root.children != {}, f"empty children: root {kv_key!r}")
        in_use = root.children is not None or root.lock_count > 0
        _require(in_use, f"leaked: root {kv_key!r} holds nothing")


def _check_accounts(forest: Forest, nodes: list[Node]) -> None:
    owned: Counter[Account] = Counter()
    locked: Counter[Account] = Counter()
    for node in nodes:
        owned[node.account] += 0 if node.detached else node.num_blocks
        locked[node.account] += node.num_blocks if node.lock_count and not node.detached else 0
    live = {id(account) for root in forest.roots.values() for account in _accounts(root)}
    for account in {*owned, *forest.quotas.values()}:
        for name, want in (
            ("num_blocks", owned[account]),
            ("num_locked_blocks", locked[account]),
        ):
            got = getattr(account, name)
            _require(got == want, f"wrong account: {name} of {account!r} is {got}, not {want}")
        _require(
            id(account) in live or not owned[account],
            f"wrong account: {account!r} is not the one of its namespace",
        )


def _accounts(root: Root) -> list[Account]:
    return [root.account, *root.accounts.values()]


def _check_below(forest: Forest, nodes: list[Node]) -> None:
    found = {node: node.num_blocks for node in nodes if not node.detached}
    for node in found.copy():
        if node.parent in found:
            found[node.parent] += node.below - node.owed
        if node.owed:
            _require(forest.sizes.owes(node), f"wrong size: {node!r} owes and is not listed")
    for node, want in found.items():
        _require(node.below == want, f"wrong size: {node!r} has {node.below} below, not {want}")


def _check_policies(forest: Forest, nodes: list[Node]) -> None:
    policies = {id(p): p for p in (forest.policy, *(a.policy for a in forest.quotas.values()))}
    held: list[Node] = []
    for policy in policies.values():
        policy.check()
        leaves = list(policy)
        _require(len(leaves) == len(policy), "sorted container: its length is wrong")
        for leaf in leaves:
            _require(leaf.account.policy is policy, f"sorted container: {leaf!r} is in another's")
        held += leaves
    want = {n for n in nodes if n.children is None and not n.lock_count and not n.detached}
    _require(len(set(held)) == len(held), "sorted container: a leaf is held twice")
    for node in set(held) ^ want:
        state = "is evictable but not held" if node in want else "is held but not evictable"
        _require(False, f"sorted container: {node!r} {state}")
    for node in nodes:
        stray = node.entry is not None and node not in want
        _require(not stray, f"sorted container: {node!r} has an entry but is not held")
