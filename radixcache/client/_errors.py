"""From a gRPC status back to the error the server met."""

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from radixcache import errors
from radixcache.errors import (
    DeadlineError,
    EngineStoppedError,
    InvalidRequestError,
    ModelNotFoundError,
    ModelRefusedError,
    OutOfBlocksError,
    RadixCacheError,
    RequestAbortedError,
    ServerUnreachableError,
)
from radixcache.v1.error_pb2 import ErrorDetail

__all__ = ["from_status", "read_error"]

_TRAILER = "radixcache-error-bin"
_KINDS: dict[str, type[RadixCacheError]] = {name: getattr(errors, name) for name in errors.__all__}
# How grpc words the loss of a connection that was there.
_CUT_OFF = ("Stream removed", "Socket closed", "GOAWAY", "Connection reset")
# For a server, or something on the way to it, that names no kind.
_BY_STATUS: dict[grpc.StatusCode, type[RadixCacheError]] = {
    grpc.StatusCode.ABORTED: RequestAbortedError,
    grpc.StatusCode.CANCELLED: RequestAbortedError,
    grpc.StatusCode.FAILED_PRECONDITION: ModelRefusedError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: ModelNotFoundError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OutOfBlocksError,
}


def from_status(
    code: grpc.StatusCode,
    message: str | None,
    trailers: Iterable[Any] | None,
    *,
    address: str,
) -> RadixCacheError:
    """Build the error of a failed call.

    Args:
        code: its status.
        message: what came with it.
        trailers: the call's trailing metadata, as (key, value) pairs.
        address: whom the call went to.
    """
    text = message or code.name.lower().replace("_", " ")
    detail = _detail(trailers)
    kind = _KINDS.get(detail.kind)
    if kind is not None:
        return _build(kind, text, detail)
    if code is grpc.StatusCode.UNAVAILABLE:
        return _unavailable(address, text)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(f"the call's time-out passed before it finished ({text})")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return RadixCacheError(f"the server at {address} cannot do this: {text}")
    return _build(_BY_STATUS.get(code, RadixCacheError), text, detail)


def read_error(error: Any, address: str) -> RadixCacheError:
    """Build the error of a call from what grpc raised, be it of its blocking or its async half."""
    return from_status(error.code(), error.details(), error.trailing_metadata(), address=address)


def _unavailable(address: str, reason: str) -> RadixCacheError:
    if any(word in reason for word in _CUT_OFF):
        return EngineStoppedError(
            f"the server at {address} ended the connection before the answer was complete "
            f"({reason})"
        )
    return ServerUnreachableError(
        f"no radixcache server answers at {address} ({reason}); ./scripts/serve starts one"
    )


def _detail(trailers: Iterable[Any] | None) -> ErrorDetail:
    for key, value in trailers or ():
        if key == _TRAILER:
            try:
                return ErrorDetail.FromString(value)
            except DecodeError:
                break
    return ErrorDetail()


def _build(kind: type[RadixCacheError], text: str, detail: ErrorDetail) -> RadixCacheError:
    if not issubclass(kind, InvalidRequestError):
        return kind(text)
    # Past the constructor: it would put together a sentence that the server has sent already.
    error = kind.__new__(kind, text)
    error.field, error.got, error.allowed = detail.field, detail.got, detail.allowed
    return error
