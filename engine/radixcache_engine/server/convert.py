"""Between the wire (``radixcache.v1``) and plain values; no other file of the engine knows both.

What is out of range is left to the front, which checks every door alike; refused here is only what
the plain values cannot say: no prompt, an unknown cache mode, a field this server does not know.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from radixcache.errors import InvalidRequestError
from radixcache.types import (
    Answer,
    CacheMode,
    ChatMessage,
    Delta,
    FinishReason,
    ModelInfo,
    SamplingParams,
    Stats,
    TokenLogprob,
    TreeView,
    Usage,
)
from radixcache.v1 import (
    cache_service_pb2,
    engine_service_pb2,
    output_pb2,
    prompt_pb2,
    sampling_pb2,
)
from radixcache_engine.types import GenerateRequest

__all__ = [
    "MAX_RESPONSE_BYTES",
    "from_deltas",
    "from_end",
    "from_models",
    "from_stats",
    "from_tree",
    "from_usage",
    "to_chat",
    "to_generate_request",
    "to_match_request",
    "to_max_nodes",
]

MAX_RESPONSE_BYTES = 1 << 20
"""No message of a stream is larger, so that one answer never fills a reader's receive window."""

_TARGET_BYTES = MAX_RESPONSE_BYTES // 4  # estimates are within a factor of 4 of the truth
_MAX_TREE_NODES = 100_000
_DEFAULT_TREE_NODES = 1_000

_CACHE_MODES = {
    sampling_pb2.CACHE_MODE_UNSPECIFIED: CacheMode.WRITE,
    sampling_pb2.CACHE_MODE_OFF: CacheMode.OFF,
    sampling_pb2.CACHE_MODE_READ: CacheMode.READ,
    sampling_pb2.CACHE_MODE_WRITE: CacheMode.WRITE,
}
_FINISH_REASONS = {
    FinishReason.STOP.value: output_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH.value: output_pb2.FINISH_REASON_LENGTH,
}
_OPTIONAL_PARAMS = tuple(
    f.name for f in sampling_pb2.SamplingParams.DESCRIPTOR.fields if f.has_presence
)

_M = TypeVar("_M", bound=Message)


class _HasPrompt(Protocol):
    @property
    def model(self) -> str: ...
    @property
    def prompt(self) -> prompt_pb2.Prompt: ...


def to_generate_request(
    message: engine_service_pb2.GenerateRequest, *, timeout_s: float | None
) -> GenerateRequest:
    """Read a request.

    Args:
        message: as received.
        timeout_s: seconds left of the call's own deadline; None without one.

    Raises:
        InvalidRequestError: no prompt, an unknown cache mode or an unknown field.
    """
    _refuse_unknown(message, "request")
    mode = _CACHE_MODES.get(message.cache_mode)
    if mode is None:
        raise InvalidRequestError("cache_mode", message.cache_mode, "off | read | write")
    return replace(
        to_match_request(message),
        sampling=_to_sampling(message.sampling),
        cache_mode=mode,
        request_id=message.request_id,
        timeout_s=timeout_s,
    )


def to_match_request(message: _HasPrompt) -> GenerateRequest:
    """Read model and prompt of a message that has them.

    Raises:
        InvalidRequestError: the prompt is not given, or in a form this server does not know.
    """
    prompt = message.prompt
    _refuse_unknown(prompt, "prompt")
    match prompt.WhichOneof("kind"):
        case "text":
            return GenerateRequest(model=message.model, prompt=prompt.text)
        case "token_ids":
            return GenerateRequest(model=message.model, token_ids=list(prompt.token_ids.ids))
        case "messages":
            return GenerateRequest(model=message.model, messages=to_chat(prompt.messages))
        case _:
            raise InvalidRequestError("prompt", None, "one of text, token_ids, messages")


def to_chat(messages: prompt_pb2.ChatMessages) -> list[ChatMessage]:
    """Read a conversation."""
    for message in messages.messages:
        _refuse_unknown(message, "messages")
    return [ChatMessage(m.role, m.content) for m in messages.messages]


def to_max_nodes(message: cache_service_pb2.GetTreeRequest) -> int:
    """Read how many nodes are wanted.

    Raises:
        InvalidRequestError: out of range.
    """
    if not message.HasField("max_nodes"):
        return _DEFAULT_TREE_NODES
    if not 1 <= message.max_nodes <= _MAX_TREE_NODES:
        raise InvalidRequestError("max_nodes", message.max_nodes, f"1 to {_MAX_TREE_NODES:,}")
    return message.max_nodes


def from_deltas(deltas: Iterable[Delta]) -> Iterator[engine_service_pb2.GenerateResponse]:
    """Write deltas, in messages below :data:`MAX_RESPONSE_BYTES`; none for no deltas."""
    response, size = engine_service_pb2.GenerateResponse(), 0
    for delta in deltas:
        for piece in _split(delta):
            piece_size = _estimate(piece)
            if size and size + piece_size > _TARGET_BYTES:
                yield response
                response, size = engine_service_pb2.GenerateResponse(), 0
            response.deltas.append(_from_delta(piece))
            size += piece_size
    if size:
        yield response


def from_usage(usage: Usage) -> engine_service_pb2.GenerateResponse:
    """Write what a request that failed had cost."""
    return engine_service_pb2.GenerateResponse(usage=_same_fields(output_pb2.Usage, usage))


def from_end(answer: Answer) -> engine_service_pb2.GenerateResponse:
    """Write the last message of an answer whose deltas are already on their way."""
    return engine_service_pb2.GenerateResponse(
        request_id=answer.request_id,
        model=answer.model,
        usage=_same_fields(output_pb2.Usage, answer.usage),
    )


def from_models(models: Iterable[ModelInfo]) -> engine_service_pb2.ListModelsResponse:
    """Write the loaded models."""
    written = [_same_fields(engine_service_pb2.ModelInfo, model) for model in models]
    return engine_service_pb2.ListModelsResponse(models=written)


def from_stats(stats: Stats) -> cache_service_pb2.StatsResponse:
    """Write counters and sizes."""
    return cache_service_pb2.StatsResponse(stats=_same_fields(cache_service_pb2.Stats, stats))


def from_tree(view: TreeView) -> cache_service_pb2.GetTreeResponse:
    """Write a picture of the tree."""
    return cache_service_pb2.GetTreeResponse(
        nodes=[_same_fields(cache_service_pb2.TreeNode, node) for node in view.nodes],
        total_nodes=view.total_nodes,
        total_tokens=view.total_tokens,
        complete=view.complete,
    )


def _to_sampling(message: sampling_pb2.SamplingParams) -> SamplingParams:
    _refuse_unknown(message, "sampling")
    given: dict[str, Any] = {
        name: getattr(message, name)
        for name in _OPTIONAL_PARAMS
        if message.HasField(name)  # type: ignore[arg-type]  # the names come from the descriptor
    }
    return SamplingParams(
        logit_bias=dict(message.logit_bias),
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        **given,
    )


def _refuse_unknown(message: Message, where: str) -> None:
    # protobuf keeps what it does not know and says nothing. A newer client that asks for a JSON
    # schema must not be answered as though it had not.
    unknown = sorted({f.field_number for f in UnknownFieldSet(message)})  # type: ignore[attr-defined]  # absent from the stubs
    if unknown:
        numbers = ", ".join(str(number) for number in unknown)
        raise InvalidRequestError(where, f"field number {numbers}", "fields this server knows")


def _from_delta(delta: Delta) -> output_pb2.Delta:
    written = output_pb2.Delta(
        index=delta.index,
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=[_from_logprob(logprob) for logprob in delta.logprobs],
    )
    if delta.finish_reason is not None:
        written.finish_reason = _FINISH_REASONS[delta.finish_reason]
    if isinstance(delta.stop_reason, str):
        written.stop_text = delta.stop_reason
    elif delta.stop_reason is not None:
        written.stop_token_id = delta.stop_reason
    return written


def _from_logprob(logprob: TokenLogprob) -> output_pb2.TokenLogprob:
    return output_pb2.TokenLogprob(
        token_id=logprob.token_id,
        logprob=logprob.logprob,
        top=[output_pb2.TopToken(token_id=i, logprob=value) for i, value in logprob.top],
    )


def _split(delta: Delta) -> Iterator[Delta]:
    """Cut a delta into pieces near the target size; joined in order they are the delta."""
    pieces = math.ceil(_estimate(delta) / _TARGET_BYTES)
    if pieces <= 1:
        yield delta
        return
    for i in range(pieces):
        last = i == pieces - 1
        yield replace(
            delta,
            text=_part(delta.text, i, pieces),
            token_ids=_part(delta.token_ids, i, pieces),
            logprobs=_part(delta.logprobs, i, pieces),
            finish_reason=delta.finish_reason if last else None,
            stop_reason=delta.stop_reason if last else None,
        )


_S = TypeVar("_S", bound=Sequence[Any])


def _part(values: _S, i: int, pieces: int) -> _S:
    part: Any = values[len(values) * i // pieces : len(values) * (i + 1) // pieces]
    return part  # type: ignore[no-any-return]  # a slice of a str or tuple is of its own type


def _estimate(delta: Delta) -> int:
    """Bytes on the wire, roughly: characters as 2, ids as 4, and the tags around them."""
    logprobs = sum(20 + 16 * len(logprob.top) for logprob in delta.logprobs)
    return 32 + 2 * len(delta.text) + 4 * len(delta.token_ids) + logprobs


def _same_fields(kind: type[_M], value: Any) -> _M:
    """Write a dataclass whose fields have the names and types of the message's."""
    return kind(**{f.name: getattr(value, f.name) for f in fields(value)})
