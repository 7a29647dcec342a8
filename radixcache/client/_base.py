"""What both clients share, and none of it does I/O: settings, and requests from keywords."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from radixcache.client._options import Messages
from radixcache.errors import InvalidRequestError, ServerUnreachableError, TooLongError
from radixcache.types import CacheMode, ChatMessage
from radixcache.v1 import cache_service_pb2, engine_service_pb2, prompt_pb2, sampling_pb2

__all__ = [
    "CHANNEL_OPTIONS",
    "DEFAULT_ADDRESS",
    "MAX_MESSAGE_BYTES",
    "BaseClient",
    "abort_request",
    "detokenize_request",
    "generate_request",
    "match_request",
    "tokenize_request",
    "tree_request",
]

DEFAULT_ADDRESS = "127.0.0.1:50051"
_LAST_PORT = 65_535

MAX_MESSAGE_BYTES = 64 << 20
"""Largest message in either direction; the server's limit is the same."""

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A long prefill sends nothing for a while: pings tell a slow server from a lost one.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The server is next door: no proxy on the way, and after a failed try soon another.
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Each client has its own connection and its own memory of failures.
    ("grpc.use_local_subchannel_pool", 1),
)

_CACHE_MODES = {
    CacheMode.OFF: sampling_pb2.CACHE_MODE_OFF,
    CacheMode.READ: sampling_pb2.CACHE_MODE_READ,
    CacheMode.WRITE: sampling_pb2.CACHE_MODE_WRITE,
}
_KIND_WORDS = {
    FieldDescriptor.CPPTYPE_INT32: "a whole number of 32 bits",
    FieldDescriptor.CPPTYPE_INT64: "a whole number of 64 bits",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "True or False",
}
_SCALARS = {
    f.name: _KIND_WORDS[f.cpp_type]
    for f in sampling_pb2.SamplingParams.DESCRIPTOR.fields
    if f.has_presence
}

_M = TypeVar("_M", bound=Message)


class BaseClient:
    """Where a client calls and for how long it waits.

    Args:
        address: ``host:port`` of the server.
        timeout: seconds a call may take where it does not say itself; None: for ever.
        max_concurrency: requests of one list of prompts that are under way at a time.

    Raises:
        InvalidRequestError: an argument makes no sense.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout: float | None = None,
        max_concurrency: int = 256,
    ) -> None:
        _check_address(address)
        if not isinstance(max_concurrency, int) or max_concurrency < 1:
            raise InvalidRequestError("max_concurrency", max_concurrency, "1 or more")
        self._address = address
        self._timeout = _checked_timeout(timeout)
        self._max_concurrency = max_concurrency
        self._closed = False

    @property
    def address(self) -> str:
        """Where the server is, as given."""
        return self._address

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address!r})"

    def _time_for(self, options: Mapping[str, Any]) -> float | None:
        timeout = options.get("timeout")
        return self._timeout if timeout is None else _checked_timeout(timeout)

    def _check_open(self) -> None:
        if self._closed:
            raise ServerUnreachableError(f"this client of {self._address} was closed")


def generate_request(
    prompt: str | None, options: Mapping[str, Any]
) -> engine_service_pb2.GenerateRequest:
    """Build the request of one answer.

    Args:
        prompt: text, or None where ``options`` have another form of it.
        options: as in ``GenerateOptions``.

    Raises:
        InvalidRequestError: not exactly one prompt, or a value the wire cannot carry.
        TooLongError: larger than a message may be.
    """
    request = engine_service_pb2.GenerateRequest(
        prompt=_prompt(prompt, options),
        sampling=_sampling(options),
        cache_mode=_cache_mode(options.get("cache", CacheMode.WRITE)),
    )
    _set(request, "model", options.get("model", ""), "text")
    _set(request, "request_id", options.get("request_id", ""), "text")
    return _fits(request)


def match_request(prompt: str | None, options: Mapping[str, Any]) -> cache_service_pb2.MatchRequest:
    """Build the request of a look-up; arguments and errors as :func:`generate_request`."""
    request = cache_service_pb2.MatchRequest(prompt=_prompt(prompt, options))
    _set(request, "model", options.get("model", ""), "text")
    return _fits(request)


def tokenize_request(
    text: str | None, *, messages: Messages | None, add_special: bool, model: str
) -> engine_service_pb2.TokenizeRequest:
    """Build a request to tokenise a text or a conversation.

    Raises:
        InvalidRequestError: both or neither are given.
        TooLongError: larger than a message may be.
    """
    if (text is None) == (messages is None):
        raise InvalidRequestError("text", text, "exactly one of text, messages")
    request = engine_service_pb2.TokenizeRequest()
    _set(request, "add_special", add_special, "True or False")
    _set(request, "model", model, "text")
    if messages is not None:
        request.messages.CopyFrom(_chat(messages))
    else:
        _set(request, "text", text, "text")
    return _fits(request)


def detokenize_request(
    token_ids: Sequence[int], *, model: str
) -> engine_service_pb2.DetokenizeRequest:
    """Build a request to decode token ids.

    Raises:
        InvalidRequestError: an id is no 32-bit number.
        TooLongError: larger than a message may be.
    """
    request = engine_service_pb2.DetokenizeRequest()
    _set(request, "model", model, "text")
    _extend(request.token_ids, "token_ids", token_ids)
    return _fits(request)


def tree_request(max_nodes: int) -> cache_service_pb2.GetTreeRequest:
    """Build a request for a picture of the tree.

    Raises:
        InvalidRequestError: ``max_nodes`` is no 32-bit number.
    """
    request = cache_service_pb2.GetTreeRequest()
    _set(request, "max_nodes", max_nodes, "a whole number of 32 bits")
    return request


def abort_request(request_id: str) -> engine_service_pb2.AbortRequest:
    """Build a request to end requests.

    Raises:
        InvalidRequestError: the id is no text.
    """
    request = engine_service_pb2.AbortRequest()
    _set(request, "request_id", request_id, "text")
    return request


def _prompt(text: str | None, options: Mapping[str, Any]) -> prompt_pb2.Prompt:
    token_ids, messages = options.get("token_ids"), options.get("messages")
    given = [
        name
        for name, value in (("prompt", text), ("token_ids", token_ids), ("messages", messages))
        if value is not None
    ]
    if len(given) != 1:
        raise InvalidRequestError(
            "prompt", " and ".join(given) or None, "exactly one of prompt, token_ids, messages"
        )
    prompt = prompt_pb2.Prompt()
    if token_ids is not None:
        prompt.token_ids.SetInParent()
        _extend(prompt.token_ids.ids, "token_ids", token_ids)
    elif messages is not None:
        prompt.messages.CopyFrom(_chat(messages))
    elif isinstance(text, str):
        _set(prompt, "text", text, "text", field="prompt")
    else:
        raise InvalidRequestError("prompt", text, "text; token ids go into token_ids")
    return prompt


def _chat(messages: Messages) -> prompt_pb2.ChatMessages:
    chat = prompt_pb2.ChatMessages()
    for i, message in enumerate(messages):
        turn = message
        if isinstance(turn, ChatMessage):
            turn = {"role": turn.role, "content": turn.content}
        if not isinstance(turn, Mapping) or set(turn) != {"role", "content"}:
            raise InvalidRequestError(f"messages[{i}]", message, "role and content, nothing else")
        written = chat.messages.add()
        for key, value in turn.items():
            _set(written, key, value, "text", field=f"messages[{i}].{key}")
    return chat


def _sampling(options: Mapping[str, Any]) -> sampling_pb2.SamplingParams:
    params = sampling_pb2.SamplingParams()
    for name, allowed in _SCALARS.items():
        value = options.get(name)
        if value is not None:
            _set(params, name, value, allowed)
    stop = options.get("stop")
    if stop is not None:
        _extend(params.stop, "stop", [stop] if isinstance(stop, str) else stop)
    _extend(params.stop_token_ids, "stop_token_ids", options.get("stop_token_ids") or ())
    bias = options.get("logit_bias") or {}
    try:
        params.logit_bias.update(bias)
    except (TypeError, ValueError, AttributeError):
        raise InvalidRequestError("logit_bias", bias, "token ids mapped to numbers") from None
    return params


def _cache_mode(value: object) -> "sampling_pb2.CacheMode.ValueType":
    try:
        return _CACHE_MODES[CacheMode(value)]
    except ValueError:
        raise InvalidRequestError("cache", value, "off | read | write") from None


def _set(message: Message, name: str, value: object, allowed: str, *, field: str = "") -> None:
    # protobuf takes True for 1.
    if isinstance(value, bool) and "number" in allowed:
        raise InvalidRequestError(field or name, value, allowed)
    try:
        setattr(message, name, value)
    except (TypeError, ValueError):
        raise InvalidRequestError(field or name, value, allowed) from None


def _extend(target: Any, field: str, values: Any) -> None:
    try:
        target.extend(values)
    except (TypeError, ValueError):
        _blame(target, field, values)
        raise InvalidRequestError(field, values, "a sequence of such values") from None


def _blame(target: Any, field: str, values: Any) -> None:
    """Raise for the one element that the wire cannot carry, if it is one element's fault."""
    if not isinstance(values, Sequence):
        return
    for i, value in enumerate(values):
        try:
            target.append(value)
        except (TypeError, ValueError):
            allowed = "text" if field == "stop" else "a whole number of 32 bits"
            raise InvalidRequestError(f"{field}[{i}]", value, allowed) from None


def _fits(request: _M) -> _M:
    size = request.ByteSize()
    if size > MAX_MESSAGE_BYTES:
        raise TooLongError("request", f"{size:,} bytes", f"at most {MAX_MESSAGE_BYTES:,} bytes")
    return request


def _check_address(address: object) -> None:
    """Refuse what grpc would dial in its own way: port 443 for none, 99999 modulo 65,536."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or "/" in host or not port.isascii() or not port.isdigit():
        raise InvalidRequestError("address", address, "host:port, such as 127.0.0.1:50051")
    if not 1 <= int(port) <= _LAST_PORT:
        raise InvalidRequestError("address", address, f"a port from 1 to {_LAST_PORT:,}")


def _checked_timeout(timeout: object) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, int | float) and math.isfinite(timeout) and timeout > 0:
        return float(timeout)
    raise InvalidRequestError("timeout", timeout, "seconds above 0")
