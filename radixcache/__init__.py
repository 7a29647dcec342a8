"""radixcache: a radix tree of token prefixes over KV blocks, and the client of its engine.

Names load when first used (PEP 562), so importing the package costs little and pulls in neither
torch nor grpc.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixcache.cache import PrefixCache
    from radixcache.client import AsyncClient, Client
    from radixcache.errors import (
        AddressError,
        CacheCorruptionError,
        DeadlineError,
        EngineStoppedError,
        InvalidRequestError,
        LockError,
        ModelLoadError,
        ModelNotFoundError,
        ModelRefusedError,
        NotCachedError,
        OutOfBlocksError,
        PinNotFoundError,
        QuotaError,
        RadixCacheError,
        RequestAbortedError,
        ServerUnreachableError,
        TooLongError,
    )
    from radixcache.tree import RadixTree
    from radixcache.types import PUBLIC, Namespace

    LLM: Any

__version__ = "0.1.0"

_HOMES = {
    "radixcache.cache": ("PrefixCache",),
    "radixcache.client": ("AsyncClient", "Client"),
    "radixcache.errors": (
        "AddressError",
        "CacheCorruptionError",
        "DeadlineError",
        "EngineStoppedError",
        "EventsLostError",
        "InvalidRequestError",
        "LockError",
        "ModelLoadError",
        "ModelNotFoundError",
        "ModelRefusedError",
        "NotCachedError",
        "OutOfBlocksError",
        "PinNotFoundError",
        "QuotaError",
        "RadixCacheError",
        "RequestAbortedError",
        "ServerUnreachableError",
        "TooLongError",
    ),
    "radixcache.tree": ("RadixTree",),
    "radixcache.types": ("PUBLIC", "Namespace"),
    # The one thing the library knows of the engine: where to find LLM when somebody asks for it.
    "radixcache_engine.llm": ("LLM",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "LLM",
    "PUBLIC",
    "AddressError",
    "AsyncClient",
    "CacheCorruptionError",
    "Client",
    "DeadlineError",
    "EngineStoppedError",
    "EventsLostError",
    "InvalidRequestError",
    "LockError",
    "ModelLoadError",
    "ModelNotFoundError",
    "ModelRefusedError",
    "Namespace",
    "NotCachedError",
    "OutOfBlocksError",
    "PinNotFoundError",
    "PrefixCache",
    "QuotaError",
    "RadixCacheError",
    "RadixTree",
    "RequestAbortedError",
    "ServerUnreachableError",
    "TooLongError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'radixcache' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
