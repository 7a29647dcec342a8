"""How an error is sent: a status, the google.rpc details, and our own small trailer beside them.

The google.rpc details are for everybody's tools. The trailer ``radixcache-error-bin`` names the
error's class and parts, so that ``radixcache.Client``, which has no googleapis package, raises what
the server met.
"""

from dataclasses import dataclass

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status

from radixcache import errors
from radixcache.errors import InvalidRequestError, OutOfBlocksError, RadixCacheError
from radixcache.v1.error_pb2 import ErrorDetail

__all__ = ["ERROR_TRAILER", "ErrorStatus"]

ERROR_TRAILER = "radixcache-error-bin"

_STATUS_TRAILER = "grpc-status-details-bin"
_RETRY_AFTER_S = 1
# A status travels in headers, of which clients accept 8 KiB in all; the message is there up to
# three times, and in base64 or percent signs.
_MAX_TEXT_BYTES = 600


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """An error as grpc sends it."""

    code: grpc.StatusCode
    message: str
    trailers: tuple[tuple[str, bytes], ...]

    @classmethod
    def of(cls, error: RadixCacheError) -> "ErrorStatus":
        """Build the status of an error."""
        code = grpc.StatusCode[error.grpc_status]
        message = _short(str(error))
        status = Status(code=code.value[0], message=message)
        detail = ErrorDetail(kind=_public_name(error))
        if isinstance(error, InvalidRequestError):
            detail.field, detail.allowed = _short(error.field), _short(error.allowed)
            detail.got = _short(repr(error.got))
            violation = BadRequest.FieldViolation(field=detail.field, description=message)
            status.details.add().Pack(BadRequest(field_violations=[violation]))
        if isinstance(error, OutOfBlocksError):
            delay = Duration(seconds=_RETRY_AFTER_S)
            status.details.add().Pack(RetryInfo(retry_delay=delay))
        trailers = (
            (_STATUS_TRAILER, status.SerializeToString()),
            (ERROR_TRAILER, detail.SerializeToString()),
        )
        return cls(code, message, trailers)


def _short(text: str) -> str:
    encoded = text.encode(errors="replace")
    if len(encoded) <= _MAX_TEXT_BYTES:
        return encoded.decode()
    return encoded[: _MAX_TEXT_BYTES - 3].decode(errors="ignore") + "..."


def _public_name(error: RadixCacheError) -> str:
    """Name of the error's class, or of the nearest base that clients know."""
    return next(c.__name__ for c in type(error).__mro__ if c.__name__ in errors.__all__)
