"""An error that a server meets is the error that its client raises."""

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status

from radixcache import errors
from radixcache.client._errors import from_status
from radixcache.errors import (
    DeadlineError,
    EngineStoppedError,
    InvalidRequestError,
    ModelNotFoundError,
    OutOfBlocksError,
    RadixCacheError,
    RequestAbortedError,
    ServerUnreachableError,
    TooLongError,
)
from radixcache_engine.server.error_status import ErrorStatus

ADDRESS = "127.0.0.1:50051"


def made(name):
    """An error of that class."""
    kind = getattr(errors, name)
    if issubclass(kind, InvalidRequestError):
        return kind("top_p", 1.5, "above 0, at most 1")
    return kind(f"what {name} says")


def raised(error):
    """The error at the client, after a trip over the wire."""
    status = ErrorStatus.of(error)
    return from_status(status.code, status.message, status.trailers, address=ADDRESS)


def google_details(error):
    """The google.rpc status of an error."""
    return Status.FromString(dict(ErrorStatus.of(error).trailers)["grpc-status-details-bin"])


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_keeps_its_class_and_words(name):
    """Whatever is in the tree of errors."""
    error = made(name)
    got = raised(error)

    assert type(got) is type(error)
    assert str(got) == str(error)


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_has_the_status_it_declares(name):
    """And the google.rpc status says the same."""
    error = made(name)
    status = ErrorStatus.of(error)

    assert status.code is grpc.StatusCode[error.grpc_status]
    assert google_details(error).code == status.code.value[0]
    assert google_details(error).message == str(error)


def test_a_wrong_field_keeps_its_parts():
    """Field, value and range, for programs."""
    got = raised(InvalidRequestError("token_ids[3]", 70_000, "0 to 49,151"))

    assert (got.field, got.got, got.allowed) == ("token_ids[3]", "70000", "0 to 49,151")


def test_a_wrong_field_is_a_field_violation():
    """For clients that are not ours."""
    detail = BadRequest()
    [packed] = google_details(TooLongError("max_tokens", 9_000, "1 to 8,000")).details

    assert packed.Unpack(detail)
    assert [v.field for v in detail.field_violations] == ["max_tokens"]
    assert "1 to 8,000" in detail.field_violations[0].description


def test_a_full_queue_says_when_to_come_back():
    """RetryInfo, for clients that are not ours."""
    detail = RetryInfo()
    [packed] = google_details(OutOfBlocksError("10,000 requests wait")).details

    assert packed.Unpack(detail)
    assert detail.retry_delay.seconds == 1


@pytest.mark.parametrize("letter", ["x", "č", "🚀", "\n", "\ud800"])
def test_a_long_message_still_fits_the_headers(letter):
    """Clients take 8 KiB of trailers; beyond that the whole error would be lost."""
    error = InvalidRequestError(letter * 9_000, letter * 9_000, letter * 9_000)
    status = ErrorStatus.of(error)
    in_headers = 3 * len(status.message.encode()) + sum(
        len(key) + 4 * len(value) // 3 for key, value in status.trailers
    )

    assert in_headers < 8_000
    assert isinstance(raised(error), InvalidRequestError)


def test_an_error_of_the_server_alone_becomes_its_public_base():
    """A class that clients do not know arrives as the nearest one they do."""

    class PrivateError(RequestAbortedError):
        pass

    assert type(raised(PrivateError("x"))) is RequestAbortedError


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.ABORTED, RequestAbortedError),
        (grpc.StatusCode.CANCELLED, RequestAbortedError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineError),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequestError),
        (grpc.StatusCode.NOT_FOUND, ModelNotFoundError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, OutOfBlocksError),
        (grpc.StatusCode.UNAVAILABLE, ServerUnreachableError),
        (grpc.StatusCode.UNIMPLEMENTED, RadixCacheError),
        (grpc.StatusCode.UNKNOWN, RadixCacheError),
        (grpc.StatusCode.INTERNAL, RadixCacheError),
    ],
)
def test_without_our_trailer_the_status_decides(code, kind):
    """A proxy may have taken it away, or the transport itself has failed."""
    for trailers in (None, (), [("radixcache-error-bin", b"\xff\xff")], [("other", "x")]):
        got = from_status(code, "words", trailers, address=ADDRESS)

        assert type(got) is kind
        assert "words" in str(got)


def test_a_kind_of_a_newer_server_falls_back_to_the_status():
    """An unknown class name is not an error of its own."""
    trailers = [("radixcache-error-bin", b"\x0a\x08NewError")]
    got = from_status(grpc.StatusCode.ABORTED, "w", trailers, address=ADDRESS)

    assert type(got) is RequestAbortedError


def test_unreachable_names_the_address_and_the_remedy():
    """One line that says what to do."""
    got = from_status(grpc.StatusCode.UNAVAILABLE, "Connection refused", None, address=ADDRESS)

    assert ADDRESS in str(got)
    assert "scripts/serve" in str(got)
    assert "Connection refused" in str(got)


def test_a_stopping_server_is_not_an_absent_one():
    """Both are UNAVAILABLE; the trailer tells them apart."""
    assert type(raised(EngineStoppedError("draining"))) is EngineStoppedError


def test_no_message_is_no_empty_error():
    """A bare status still says something."""
    assert str(from_status(grpc.StatusCode.ABORTED, None, None, address=ADDRESS)) == "aborted"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Stream removed (recvmsg:Connection reset by peer)", EngineStoppedError),
        ("Socket closed", EngineStoppedError),
        ("failed to connect to all addresses; Connection refused", ServerUnreachableError),
    ],
)
def test_a_lost_connection_is_not_a_missing_server(reason, kind):
    """Whoever was being answered is told that the answer was cut off, not to start a server."""
    got = from_status(grpc.StatusCode.UNAVAILABLE, reason, None, address=ADDRESS)

    assert type(got) is kind
