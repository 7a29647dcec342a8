"""Eviction: which blocks go, from the tails of leaves, exactly as many as wanted."""

from radixcache.tree.account import Account
from radixcache.tree.forest import Forest
from radixcache.tree.handles import BlockIds
from radixcache.tree.keys import ID_BYTES
from radixcache.tree.lost import Eviction, Lost, owner_id
from radixcache.tree.node import Node

__all__ = ["evict_blocks"]


def evict_blocks(
    forest: Forest,
    num_blocks: int,
    *,
    cause: str,
    asker: Account | None = None,
    only: Account | None = None,
) -> BlockIds:
    """Remove blocks from the tails of evictable leaves; return them, fewer if none are left.

    Args:
        forest: whose.
        num_blocks: how many at most.
        cause: why, for whoever asks later.
        asker: who wants the room; its own guarantee does not bind it.
        only: take from this namespace alone; it must have a quota.
    """
    freed = BlockIds("i")
    eviction = Eviction(cause, forest.tick, forest.clock())
    missing = num_blocks
    while missing > 0:
        leaf = _victim(forest, asker) if only is None else only.policy.victim()
        if leaf is None:
            break
        account = leaf.account
        allowed = missing
        if only is None and account.guaranteed_blocks and account is not asker:
            allowed = min(missing, account.num_over_guarantee)
        missing -= _take(forest, leaf, allowed, freed, eviction)
    forest.num_blocks -= len(freed)
    if freed:
        forest.version += 1
    return freed


def _victim(forest: Forest, asker: Account | None) -> Node | None:
    """Return the leaf to go next: of each order its first, and of these the least recent."""
    best = forest.policy.victim()
    for account in forest.quotas.values():
        if account.num_over_guarantee or account is asker:
            leaf = account.policy.victim()
            if leaf is not None and (best is None or leaf.last_access < best.last_access):
                best = leaf
    return best


def _take(forest: Forest, leaf: Node, allowed: int, freed: BlockIds, eviction: Eviction) -> int:
    """Remove up to ``allowed`` blocks from a leaf's tail; return how many went."""
    gone = leaf.ids
    num_blocks = len(gone) // ID_BYTES
    whole = num_blocks <= allowed
    if not whole:
        num_blocks = allowed
        gone = gone[-allowed * ID_BYTES :]
    freed.frombytes(gone)
    if forest.watcher is not None:
        forest.tell("removed", memoryview(gone))
    account = leaf.account
    account.num_blocks -= num_blocks
    note = account.policy.evicted(leaf, num_blocks)
    if whole:
        _remove(forest, leaf, eviction, note)
    else:
        _trim(forest, leaf, num_blocks, eviction, note)
    return num_blocks


def _trim(forest: Forest, leaf: Node, num_blocks: int, eviction: Eviction, note: object) -> None:
    account, key = leaf.account, leaf.key
    cut = len(key) - num_blocks * forest.unit
    tail = key[cut:]
    # The leaf may grow again, with other blocks: what hangs from these must not hang from those.
    node_id = forest.next_id()
    edge = account.tag + tail[: forest.unit]
    lost = Lost(account, node_id, tail, edge, leaf.num_hits, eviction, note)
    forest.lost.cut(leaf, leaf.start + cut, lost)
    del key[cut:]
    del leaf.ids[-num_blocks * ID_BYTES :]
    forest.sizes.grow(leaf, -num_blocks)
    forest.lost.remember(leaf.node_id, leaf.start + cut, lost)


def _remove(forest: Forest, leaf: Node, eviction: Eviction, note: object) -> None:
    account, parent = leaf.account, leaf.parent
    assert parent is not None, "a root is never evicted"
    account.policy.remove(leaf)
    forest.num_nodes -= 1
    lost = Lost(account, leaf.node_id, leaf.key, leaf.edge, leaf.num_hits, eviction, note)
    forest.lost.remember(owner_id(parent), leaf.start, lost)
    forest.unlink(leaf, parent)
