"""From the wire to plain values, and from the pieces of a stream to its answer."""

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from google.protobuf.message import Message

from radixcache.errors import RadixCacheError
from radixcache.types import (
    Answer,
    Choice,
    Delta,
    FinishReason,
    MatchResult,
    ModelInfo,
    Stats,
    TokenLogprob,
    TreeNodeView,
    TreeView,
    Usage,
)
from radixcache.v1 import cache_service_pb2, engine_service_pb2, output_pb2

__all__ = ["Assembly", "to_match", "to_models", "to_stats", "to_tree"]

_FINISH_REASONS = {
    output_pb2.FINISH_REASON_STOP: FinishReason.STOP.value,
    output_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH.value,
}

_V = TypeVar("_V")


@dataclass(slots=True)
class _Growing:
    """One sequence, as far as it has arrived."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: str | int | None = None

    def add(self, delta: Delta) -> None:
        """Append what is new."""
        self.text.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason


class Assembly:
    """Puts the messages of one stream together.

    Attributes:
        usage: what the request cost; None until the last message.
        request_id: the request's id; empty until the first message.
    """

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.request_id = ""
        self._model = ""
        self._sequences: dict[int, _Growing] = {}

    def add(self, response: engine_service_pb2.GenerateResponse) -> list[Delta]:
        """Take a message in; return its deltas."""
        self.request_id = response.request_id or self.request_id
        self._model = response.model or self._model
        if response.HasField("usage"):
            self.usage = _same_fields(Usage, response.usage)
        deltas = [_to_delta(delta) for delta in response.deltas]
        for delta in deltas:
            self._sequences.setdefault(delta.index, _Growing()).add(delta)
        return deltas

    def answer(self) -> Answer:
        """Return the answer, once the stream has ended.

        Raises:
            RadixCacheError: the stream ended without its last message.
        """
        if self.usage is None:
            raise RadixCacheError("the server ended the stream without saying what it cost")
        return Answer(
            request_id=self.request_id,
            model=self._model,
            choices=tuple(_to_choice(i, self._sequences[i]) for i in sorted(self._sequences)),
            usage=self.usage,
        )


def to_match(response: cache_service_pb2.MatchResponse) -> MatchResult:
    """Read what the cache holds of a prompt."""
    return _same_fields(MatchResult, response)


def to_models(response: engine_service_pb2.ListModelsResponse) -> list[ModelInfo]:
    """Read the loaded models."""
    return [_same_fields(ModelInfo, model) for model in response.models]


def to_stats(response: cache_service_pb2.StatsResponse) -> Stats:
    """Read counters and sizes."""
    return _same_fields(Stats, response.stats)


def to_tree(response: cache_service_pb2.GetTreeResponse) -> TreeView:
    """Read a picture of the tree."""
    return TreeView(
        nodes=tuple(_same_fields(TreeNodeView, node) for node in response.nodes),
        total_nodes=response.total_nodes,
        total_tokens=response.total_tokens,
        complete=response.complete,
    )


def _to_delta(message: output_pb2.Delta) -> Delta:
    reason = message.WhichOneof("stop_reason")
    return Delta(
        index=message.index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        logprobs=tuple(_to_logprob(logprob) for logprob in message.logprobs),
        finish_reason=_FINISH_REASONS.get(message.finish_reason),
        stop_reason=None if reason is None else getattr(message, reason),
    )


def _to_logprob(message: output_pb2.TokenLogprob) -> TokenLogprob:
    top = tuple((token.token_id, token.logprob) for token in message.top)
    return TokenLogprob(message.token_id, message.logprob, top)


def _to_choice(index: int, sequence: _Growing) -> Choice:
    return Choice(
        index=index,
        text="".join(sequence.text),
        token_ids=tuple(sequence.token_ids),
        logprobs=tuple(sequence.logprobs),
        finish_reason=sequence.finish_reason,
        stop_reason=sequence.stop_reason,
    )


def _same_fields(kind: type[_V], message: Message) -> _V:
    """Read a message whose fields have the names of the dataclass's; repeated ones as tuples."""
    values = {f.name: getattr(message, f.name) for f in fields(kind)}  # type: ignore[arg-type]  # only dataclasses are passed
    return kind(**{name: _plain(value) for name, value in values.items()})


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else tuple(value)
