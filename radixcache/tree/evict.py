"""Eviction: which blocks go, from the tails of leaves, exactly as many as wanted."""

from radixcache.tree.account import Account
from radixcache.tree.forest import Forest
from radixcache.tree.handles import BlockIds
from radixcache.tree.keys import ID_BYTES
from radixcache.tree.lost import Lost, owner_id
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
    missing = num_blocks
    while missing > 0:
        leaf = _victim(forest, asker) if only is None else only.policy.victim()
        if leaf is None:
            break
        account = leaf.account
        allowed = missing
        if only is None and account.guaranteed_blocks and account is not asker:
            allowed = min(missing, account.num_over_guarantee)
        missing -= _take(forest, leaf, allowed, freed, cause)
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


def _take(forest: Forest, leaf: Node, allowed: int, freed: BlockIds, cause: str) -> int:
    """Remove up to ``allowed`` blocks from a leaf's tail; return how many went."""
    num_blocks = min(allowed, len(leaf.ids) // ID_BYTES)
    size = num_blocks * ID_BYTES
    gone = leaf.ids[-size:]
    freed.frombytes(gone)
    if forest.watcher is not None:
        forest.tell("removed", memoryview(gone))
    account = leaf.account
    account.num_blocks -= num_blocks
    note = account.policy.evicted(leaf, num_blocks)
    if size < len(leaf.ids):
        _trim(forest, leaf, size, cause, note)
    else:
        _remove(forest, leaf, cause, note)
    return num_blocks


def _trim(forest: Forest, leaf: Node, ids_size: int, cause: str, note: object) -> None:
    cut = len(leaf.key) - ids_size * forest.block_size
    lost = _lost(forest, leaf, leaf.key[cut:], cause, note)
    # The leaf may grow again, with other blocks: what hangs from these must not hang from those.
    lost.node_id = forest.next_id()
    forest.lost.cut(leaf, leaf.start + cut, lost)
    del leaf.ids[-ids_size:]
    del leaf.key[cut:]
    forest.sizes.shrink(leaf, ids_size // ID_BYTES)
    forest.lost.remember(leaf.node_id, leaf.start + cut, lost)


def _remove(forest: Forest, leaf: Node, cause: str, note: object) -> None:
    leaf.account.policy.remove(leaf)
    parent = leaf.parent
    assert parent is not None, "a root is never evicted"
    forest.num_nodes -= 1
    lost = _lost(forest, leaf, leaf.key, cause, note)
    forest.lost.remember(owner_id(parent), leaf.start, lost)
    forest.unlink(leaf, parent)


def _lost(forest: Forest, leaf: Node, key: bytearray, cause: str, note: object) -> Lost:
    account, now = leaf.account, forest.clock()
    return Lost(
        namespace=account.namespace,
        node_id=leaf.node_id,
        key=key,
        num_hits=leaf.num_hits,
        tick=forest.tick,
        time_s=now,
        cause=cause,
        noted_by=account.policy,
        note=note,
    )
