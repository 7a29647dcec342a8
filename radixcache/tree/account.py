"""What one namespace holds: counted with each change, so quotas cost nothing."""

from typing import TYPE_CHECKING

from radixcache.tree.keys import edge_tag
from radixcache.types import Namespace

if TYPE_CHECKING:
    from radixcache.tree.policy import EvictionPolicy

__all__ = ["Account"]


class Account:
    """The findable blocks of one namespace, what they may be, and the order in which they go.

    Attributes:
        namespace: whose blocks these are.
        tag: what stands before the first block in a child key of this scope.
        policy: holds the evictable leaves. Shared by all namespaces without a quota; a namespace
            with one has its own, so that its leaves can be found among all others'.
        num_blocks: findable blocks.
        num_locked_blocks: those of them under at least one lock.
        max_blocks: its quota; None: no limit.
        guaranteed_blocks: what other namespaces' pressure leaves it.
    """

    __slots__ = (
        "__weakref__",
        "guaranteed_blocks",
        "max_blocks",
        "namespace",
        "num_blocks",
        "num_locked_blocks",
        "policy",
        "scope",
        "tag",
    )

    def __init__(self, namespace: Namespace, policy: "EvictionPolicy") -> None:
        self.namespace = namespace
        self.scope = namespace.scope
        self.tag = edge_tag(namespace.scope)
        self.policy = policy
        self.num_blocks = 0
        self.num_locked_blocks = 0
        self.max_blocks: int | None = None
        self.guaranteed_blocks = 0

    @property
    def num_over_guarantee(self) -> int:
        """Blocks that another namespace's pressure may take."""
        return max(0, self.num_blocks - self.guaranteed_blocks)

    @property
    def num_kept_from_others(self) -> int:
        """Evictable blocks that another namespace's pressure may not take."""
        evictable = self.num_blocks - self.num_locked_blocks
        return max(0, evictable - self.num_over_guarantee)

    @property
    def num_over_quota(self) -> int:
        """Blocks above the quota; they go as soon as nothing locks them."""
        return 0 if self.max_blocks is None else max(0, self.num_blocks - self.max_blocks)

    def __repr__(self) -> str:
        return f"<Account of {self.namespace}: {self.num_blocks} blocks>"
