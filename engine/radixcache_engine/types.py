"""Messages between front, core, scheduler, runner and sampler: plain data, no torch, no grpc."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from radixcache.errors import RadixCacheError
from radixcache.types import (
    CacheMode,
    ChatMessage,
    FinishReason,
    SamplingParams,
    TokenLogprob,
    Usage,
)

__all__ = [
    "Batch",
    "BatchRow",
    "EngineRequest",
    "GenerateRequest",
    "Logits",
    "SampleRow",
    "SampledToken",
    "SequenceOutput",
    "Terminal",
    "Ticket",
    "Worker",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """What a user asks for, before validation. Exactly one of the three prompts is given."""

    model: str = ""  # empty: the one that is loaded
    prompt: str | None = None
    token_ids: Sequence[int] | None = None
    messages: Sequence[ChatMessage] | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    cache_mode: CacheMode = CacheMode.WRITE
    request_id: str = ""  # the client's own id: echoed and abortable, need not be unique
    timeout_s: float | None = None  # from now


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A validated request in tokens, as the engine runs it.

    ``sampling.max_tokens`` and ``sampling.seed`` are filled in; ``deadline`` is on the engine's
    clock (``time.monotonic``).
    """

    request_id: str  # unique within the engine
    token_ids: Sequence[int]  # at least one
    sampling: SamplingParams
    scope: str
    cache_mode: CacheMode = CacheMode.WRITE
    deadline: float | None = None
    hold: bool = False  # keep the finished prefix locked until release_hold
    arrival: float = 0.0  # engine clock


@dataclass(slots=True)
class SequenceOutput:
    """What became known of one sequence since the last drain."""

    index: int
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    # Set when a stop string ended the sequence: how many bytes of the output's text precede it.
    num_text_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """The one last message of a request: finished (error None) or failed, with its usage."""

    usage: Usage
    error: RadixCacheError | None = None
    hold_id: str | None = None  # for release_hold


@dataclass(slots=True)
class BatchRow:
    """One sequence's share of a step.

    ``block_table`` covers ``start + len(token_ids)`` tokens; positions are
    ``start, start + 1, ...``; KV of the positions before ``start`` is in the pool.
    """

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    wants_logits: bool  # of the last token


@dataclass(slots=True)
class Batch:
    """One forward: prefill chunks and decodes together, in plain integers."""

    rows: list[BatchRow]

    @property
    def num_tokens(self) -> int:
        """Query tokens of the whole step."""
        return sum(len(row.token_ids) for row in self.rows)


class Logits(Protocol):
    """Float32 ``[num_rows, vocab]``; only the sampler looks inside (a torch tensor in practice)."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...


class Ticket(Protocol):
    """A launched step."""

    def result(self) -> Logits:
        """Wait; return one logits row for each batch row that wants them, in batch order."""
        ...


class Worker(Protocol):
    """What runs batches: the runner in this process, later N workers given the same message."""

    def launch(self, batch: Batch) -> Ticket:
        """Start a step."""
        ...


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One draw. Several draws may share a logits row (n samples of one prompt)."""

    logits_row: int
    params: SamplingParams
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    index: int  # which of the n sequences; part of the random stream's name


@dataclass(slots=True)
class SampledToken:
    """The outcome of one draw; ``error`` instead of a token when this row alone failed."""

    token_id: int
    logprob: TokenLogprob | None = None
    error: RadixCacheError | None = None
