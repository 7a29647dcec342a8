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


def _require(condition: bool, fault: str, *parts: object) -> None:
    # Put together only when needed: printing nodes would take most of the time of a check.
    if not condition:
        raise CacheCorruptionError(fault.format(*parts))


def _check_node(forest: Forest, node: Node) -> None:
    size, unit, parent = len(node.key), forest.unit, node.parent
    _require(size > 0, "empty node: {!r}", node)
    _require(size % unit == 0, "part of a block: {!r} has {} key bytes", node, size)
    _require(
        len(node.ids) * forest.block_size == size,
        "dropped block: {!r} has {} bytes of block ids for {} of key ids",
        *(node, len(node.ids), size),
    )
    edge = node.account.tag + node.key[:unit]
    _require(node.edge == edge, "wrong child key: {!r} is not under its own first block", node)
    _require(node.children != {}, "empty children: {!r} should be a leaf", node)
    assert parent is not None, "forest.nodes() yields no roots"
    _require(
        parent.scope in (PUBLIC, node.scope),
        "wrong scope: {!r} of {!r} below {!r} of {!r}",
        *(node, node.scope, parent, parent.scope),
    )
    start = parent.start + len(parent.key)
    fault = "wrong depth: {!r} says {}, it lies at {}"
    _require(node.start == start, fault, node, node.start, start)
    _check_place(forest, node, parent)
    _require(node.last_access <= forest.tick, "wrong recency: {!r} was used in the future", node)


def _check_place(forest: Forest, node: Node, parent: Node) -> None:
    listed = parent.children is not None and parent.children.get(node.edge) is node
    if node in forest.tops:
        _require(not listed, "findable after a flush: {!r} is detached and listed", node)
        _require(node.detached, "wrong detachment: {!r} stands alone but is not detached", node)
        return
    fault = "wrong child key: {!r} does not list {!r} under its first block"
    _require(listed, fault, parent, node)
    _require(
        node.detached == (parent.detached and parent.parent is not None),
        "wrong detachment: {!r} differs from {!r}",
        *(node, parent),
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
        _require(lock.live, "wrong lock record: {!r} has ended and is still held", lock)
        depth = 0
        node: Node | None = lock._node
        while node is not None:
            counts[node] += 1
            depth += len(node.key)
            node = node.parent
        end = lock._node
        fault = "wrong lock end: {!r} ends at {!r}"
        _require(depth == lock.num_tokens * ID_BYTES, fault, lock, end)
        fault = "wrong detachment: {!r} on flushed {!r}"
        _require(lock._detached or not end.detached, fault, lock, end)
    for node in [*nodes, *forest.roots.values()]:
        got, want = node.lock_count, counts[node]
        _require(got == want, "wrong lock count: {!r} says {}, its locks are {}", node, got, want)
        _require(not node.detached or want > 0, "leaked: {!r} is flushed and unlocked", node)


def _check_sizes(forest: Forest, nodes: list[Node]) -> None:
    found = {
        "num_nodes": len(nodes),
        "num_blocks": sum(n.num_blocks for n in nodes),
        "num_locked_blocks": sum(n.num_blocks for n in nodes if n.lock_count),
        "num_detached_blocks": sum(n.num_blocks for n in nodes if n.detached),
    }
    for name, want in found.items():
        got = getattr(forest, name)
        _require(got == want, "wrong size: {} says {}, the nodes hold {}", name, got, want)
    for kv_key, root in forest.roots.items():
        fault = "wrong root: {!r} under {!r}"
        _require(root.kv_key == kv_key and not root.key, fault, root, kv_key)
        _require(root.children != {}, "empty children: root {!r}", kv_key)
        in_use = root.children is not None or root.lock_count > 0
        _require(in_use, "leaked: root {!r} holds nothing", kv_key)


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
            fault = "wrong account: {} of {!r} is {}, not {}"
            _require(got == want, fault, name, account, got, want)
        _require(
            id(account) in live or not owned[account],
            "wrong account: {!r} is not the one of its namespace",
            account,
        )


def _accounts(root: Root) -> list[Account]:
    return [root.account, *root.accounts.values()]


def _check_below(forest: Forest, nodes: list[Node]) -> None:
    found = {node: node.num_blocks for node in nodes if not node.detached}
    for node in found.copy():
        if node.parent in found:
            found[node.parent] += node.below - node.owed
        if node.owed:
            _require(forest.sizes.owes(node), "wrong size: {!r} owes and is not listed", node)
    for node, want in found.items():
        fault = "wrong size: {!r} has {} below, not {}"
        _require(node.below == want, fault, node, node.below, want)


def _check_policies(forest: Forest, nodes: list[Node]) -> None:
    policies = {id(p): p for p in (forest.policy, *(a.policy for a in forest.quotas.values()))}
    held: list[Node] = []
    for policy in policies.values():
        policy.check()
        leaves = list(policy)
        _require(len(leaves) == len(policy), "sorted container: its length is wrong")
        for leaf in leaves:
            own = leaf.account.policy is policy
            _require(own, "sorted container: {!r} is in another's", leaf)
        held += leaves
    want = {n for n in nodes if n.children is None and not n.lock_count and not n.detached}
    _require(len(set(held)) == len(held), "sorted container: a leaf is held twice")
    for node in set(held) ^ want:
        state = "is evictable but not held" if node in want else "is held but not evictable"
        _require(False, "sorted container: {!r} {}", node, state)
    for node in nodes:
        stray = node.entry is not None and node not in want
        _require(not stray, "sorted container: {!r} has an entry but is not held", node)
