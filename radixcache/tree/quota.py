"""Quotas: what a namespace may hold, and what others must leave it."""

from radixcache.errors import InvalidRequestError
from radixcache.tree.account import Account
from radixcache.tree.evict import evict_blocks
from radixcache.tree.forest import Forest
from radixcache.tree.handles import BlockIds
from radixcache.tree.policy import EvictionPolicy
from radixcache.types import PUBLIC, Namespace

__all__ = ["num_kept_from", "remove_quota", "set_quota", "trim_to_quotas"]


def set_quota(
    forest: Forest, namespace: Namespace, max_blocks: int | None, guaranteed_blocks: int
) -> None:
    """Give a namespace its limits, and its leaves an order of their own.

    Raises:
        InvalidRequestError: the guarantee exceeds the limit.
    """
    if max_blocks is not None and guaranteed_blocks > max_blocks:
        raise InvalidRequestError(
            "guaranteed_blocks", guaranteed_blocks, f"0 to max_blocks ({max_blocks})"
        )
    account = forest.quotas.get(namespace)
    if account is None:
        root = forest.roots.get(namespace.kv_key)
        if root is None:
            account = Account(namespace, forest.policy)
        else:
            account = forest.account(root, namespace.scope)
        forest.quotas[namespace] = account
        _move_leaves(account, forest.make_policy())
    account.max_blocks, account.guaranteed_blocks = max_blocks, guaranteed_blocks


def remove_quota(forest: Forest, namespace: Namespace) -> bool:
    """Take a namespace's limits away; return whether it had any."""
    account = forest.quotas.pop(namespace, None)
    if account is None:
        return False
    account.max_blocks, account.guaranteed_blocks = None, 0
    _move_leaves(account, forest.policy)
    return True


def num_kept_from(forest: Forest, asker: Namespace | None) -> int:
    """Return how many evictable blocks the guarantees of others keep from ``asker``.

    PUBLIC blocks that guaranteed ones stand on are not among them, though they cannot go either:
    only a walk could tell which those are.
    """
    quotas = forest.quotas
    own = None if asker is None else quotas.get(asker)
    return sum(
        account.num_kept_from_others
        for account in quotas.values()
        if account.guaranteed_blocks and account is not own
    )


def trim_to_quotas(forest: Forest, space: Namespace | None) -> BlockIds:
    """Evict what namespaces hold above their quotas, as far as nothing locks it.

    ``space``: look only where the end of one of its locks can have made something evictable.
    """
    freed = BlockIds("i")
    quotas = forest.quotas
    if not quotas:
        return freed
    # PUBLIC last: its blocks may have to wait for the private ones that stand on them.
    if space is None:
        accounts = [account for account in quotas.values() if account.num_over_quota]
        accounts.sort(key=lambda account: account.scope == PUBLIC)
    else:
        spaces = (space, Namespace(space.kv_key, PUBLIC))
        accounts = [quotas[name] for name in spaces if name in quotas]
    for account in accounts:
        over = account.num_over_quota
        if over:
            cause = f"the namespace's quota of {account.max_blocks} blocks was reached"
            freed.extend(evict_blocks(forest, over, cause=cause, only=account))
    return freed


def _move_leaves(account: Account, policy: EvictionPolicy) -> None:
    leaves = [leaf for leaf in account.policy if leaf.account is account]
    for leaf in leaves:
        account.policy.remove(leaf)
    account.policy = policy
    for leaf in leaves:
        policy.add(leaf)
