"""Every eviction policy by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from radixcache.errors import InvalidRequestError
from radixcache.tree.adaptive import AdaptivePolicy
from radixcache.tree.policy import (
    EvictionPolicy,
    FifoPolicy,
    LfuPolicy,
    LruPolicy,
    PriorityPolicy,
    SlruPolicy,
)
from radixcache.tree.s3fifo import S3FifoPolicy

__all__ = ["POLICIES", "PolicyFactory", "policy_factory"]

PolicyFactory = Callable[[], EvictionPolicy]
"""Makes a new, empty policy."""

POLICIES: Final[Mapping[str, PolicyFactory]] = MappingProxyType(
    {
        "lru": LruPolicy,
        "lfu": LfuPolicy,
        "slru": SlruPolicy,
        "fifo": FifoPolicy,
        "priority": PriorityPolicy,
        "s3fifo": S3FifoPolicy,
        "adaptive": AdaptivePolicy,
    }
)
"""Every eviction policy by name."""


def policy_factory(policy: str | PolicyFactory) -> PolicyFactory:
    """Return what makes policies of that name; a factory of one's own is returned as it is.

    Raises:
        InvalidRequestError: no policy has that name.
    """
    if callable(policy):
        return policy
    if policy not in POLICIES:
        raise InvalidRequestError("policy", policy, " | ".join(POLICIES))
    return POLICIES[policy]
