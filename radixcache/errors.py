"""Every error a user can meet, as one tree.

RadixCacheError                      INTERNAL
├── InvalidRequestError (ValueError) INVALID_ARGUMENT     a field is wrong: says got, allowed
│   └── TooLongError                 INVALID_ARGUMENT     never fits: context or pool
├── ModelNotFoundError (LookupError) NOT_FOUND            no model of that name or path
├── ModelRefusedError (ValueError)   FAILED_PRECONDITION  a model that cannot be run exactly
├── ModelLoadError (RuntimeError)    FAILED_PRECONDITION  broken files, not enough memory
├── NotCachedError (LookupError)     NOT_FOUND            nothing of that prefix is cached
├── PinNotFoundError (LookupError)   NOT_FOUND            no pin of that id, or it has ended
├── QuotaError (RuntimeError)        RESOURCE_EXHAUSTED   a namespace's pins would exceed a limit
├── OutOfBlocksError (RuntimeError)  RESOURCE_EXHAUSTED   the KV pool is full of blocks in use
├── RequestAbortedError (RuntimeError) ABORTED            ended by Abort or by a shutdown
├── DeadlineError (TimeoutError)     DEADLINE_EXCEEDED    the request's own deadline passed
├── EngineStoppedError (RuntimeError) UNAVAILABLE         the engine is draining or gone
├── ServerUnreachableError (ConnectionError) UNAVAILABLE  the client found nobody at the address
├── AddressError (OSError)           UNAVAILABLE          the server cannot listen there
├── EventsLostError (LookupError)    OUT_OF_RANGE         events are gone: take a snapshot
├── LockError (RuntimeError)         INTERNAL             a lock or lease was used twice
└── CacheCorruptionError (RuntimeError) INTERNAL          check() found a broken invariant

Each class subclasses the built-in error it resembles and carries the gRPC status it is sent as,
so that one interceptor maps them and no servicer invents a status of its own.
"""

from typing import ClassVar

__all__ = [
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
]


class RadixCacheError(Exception):
    """Base of all errors of this project.

    Attributes:
        grpc_status: name of the ``grpc.StatusCode`` this error is sent as.
    """

    grpc_status: ClassVar[str] = "INTERNAL"


class InvalidRequestError(RadixCacheError, ValueError):
    """A request field is wrong.

    Args:
        field: name of the field, as on the wire (``"temperature"``, ``"token_ids[3]"``).
        got: the value that was received.
        allowed: what is accepted, in words (``"0 to 100"``).
    """

    grpc_status: ClassVar[str] = "INVALID_ARGUMENT"

    def __init__(self, field: str, got: object, allowed: str) -> None:
        shown = repr(got)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{field}: got {shown}, allowed: {allowed}")
        self.field = field
        self.got = got
        self.allowed = allowed


class TooLongError(InvalidRequestError):
    """The request can never fit the model's context or the KV pool."""


class ModelNotFoundError(RadixCacheError, LookupError):
    """No model of that name is served, or no file is at that path."""

    grpc_status: ClassVar[str] = "NOT_FOUND"


class ModelRefusedError(RadixCacheError, ValueError):
    """The model cannot be run exactly, so it is not run at all."""

    grpc_status: ClassVar[str] = "FAILED_PRECONDITION"


class ModelLoadError(RadixCacheError, RuntimeError):
    """The model's files are broken or do not fit the machine."""

    grpc_status: ClassVar[str] = "FAILED_PRECONDITION"


class NotCachedError(RadixCacheError, LookupError):
    """Nothing of the prefix is cached, so there is nothing to pin."""

    grpc_status: ClassVar[str] = "NOT_FOUND"


class PinNotFoundError(RadixCacheError, LookupError):
    """There is no pin of that id: it expired, was deleted, displaced or flushed, or never was."""

    grpc_status: ClassVar[str] = "NOT_FOUND"


class QuotaError(RadixCacheError, RuntimeError):
    """Pins would exceed their namespace's quota, or what all of them together may guard."""

    grpc_status: ClassVar[str] = "RESOURCE_EXHAUSTED"


class OutOfBlocksError(RadixCacheError, RuntimeError):
    """No KV block is free and none can be evicted."""

    grpc_status: ClassVar[str] = "RESOURCE_EXHAUSTED"


class RequestAbortedError(RadixCacheError, RuntimeError):
    """The request was aborted by its owner or by a shutdown."""

    grpc_status: ClassVar[str] = "ABORTED"


class DeadlineError(RadixCacheError, TimeoutError):
    """The request's own deadline passed before it finished."""

    grpc_status: ClassVar[str] = "DEADLINE_EXCEEDED"


class EngineStoppedError(RadixCacheError, RuntimeError):
    """The engine is draining or has stopped; another try may find a new one."""

    grpc_status: ClassVar[str] = "UNAVAILABLE"


class ServerUnreachableError(RadixCacheError, ConnectionError):
    """The client found no radixcache server at the address."""

    grpc_status: ClassVar[str] = "UNAVAILABLE"


class AddressError(RadixCacheError, OSError):
    """The server cannot listen on the address (taken, or not of this machine)."""

    grpc_status: ClassVar[str] = "UNAVAILABLE"


class EventsLostError(RadixCacheError, LookupError):
    """Events are missing, so that a copy of the cache needs a snapshot to go on."""

    grpc_status: ClassVar[str] = "OUT_OF_RANGE"


class LockError(RadixCacheError, RuntimeError):
    """A single-use handle (lock or lease) was used after its end."""


class CacheCorruptionError(RadixCacheError, RuntimeError):
    """``check()`` found a broken invariant; the message names it and the place."""
