"""Logits processors: the one way to change logits before a token is drawn.

A processor is a pure function of (its fingerprint, prompt ids, generated ids). It knows neither
the sequence nor the step it is called in, so a preempted, forked or repeated sequence gets the
same logits again.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from radixcache.types import SamplingParams

__all__ = [
    "LogitBias",
    "LogitsProcessor",
    "MinTokens",
    "OutputPenalties",
    "RepetitionPenalty",
    "processors_of",
]


_LARGEST = float(torch.finfo(torch.float32).max)


class LogitsProcessor(Protocol):
    """Edits one row of logits."""

    @property
    def fingerprint(self) -> str:
        """Name of the function: equal fingerprints edit equal rows equally."""
        ...

    def __call__(
        self, logits: Tensor, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> None:
        """Edit ``logits`` (float32 ``[vocab]``) in place."""
        ...


class RepetitionPenalty:
    """Divides positive and multiplies negative logits of every token seen so far (CTRL).

    Args:
        penalty: a normal float32 above 0; 1 changes nothing. Counts prompt and output alike.
    """

    def __init__(self, penalty: float) -> None:
        self._penalty = penalty

    @property
    def fingerprint(self) -> str:
        """See :class:`LogitsProcessor`."""
        return f"repetition:{self._penalty!r}"

    def __call__(
        self, logits: Tensor, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> None:
        """See :class:`LogitsProcessor`."""
        ids = np.unique(np.concatenate([_array(prompt_ids), _array(output_ids)]))
        where = torch.from_numpy(ids).to(logits.device)
        seen = logits[where]
        edited = torch.where(seen < 0, seen * self._penalty, seen / self._penalty)
        logits[where] = _within_float32(edited, seen)


class OutputPenalties:
    """Subtracts ``presence`` once and ``frequency`` per occurrence for tokens of the output.

    Args:
        presence: a finite float32.
        frequency: a finite float32.
    """

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence = presence
        self._frequency = frequency

    @property
    def fingerprint(self) -> str:
        """See :class:`LogitsProcessor`."""
        return f"output:{self._presence!r}:{self._frequency!r}"

    def __call__(
        self, logits: Tensor, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> None:
        """See :class:`LogitsProcessor`."""
        ids, counts = np.unique(_array(output_ids), return_counts=True)
        penalty = np.clip(self._presence + self._frequency * counts, -_LARGEST, _LARGEST)
        where = torch.from_numpy(ids).to(logits.device)
        seen = logits[where]
        edited = seen - torch.from_numpy(penalty.astype(np.float32)).to(logits.device)
        logits[where] = _within_float32(edited, seen)


class LogitBias:
    """Adds a constant to the logits of given tokens."""

    def __init__(self, bias: Mapping[int, float]) -> None:
        items = sorted(bias.items())
        self._ids = torch.tensor([token_id for token_id, _ in items], dtype=torch.int64)
        self._values = torch.tensor([value for _, value in items], dtype=torch.float32)

    @property
    def fingerprint(self) -> str:
        """See :class:`LogitsProcessor`."""
        pairs = zip(self._ids.tolist(), self._values.tolist(), strict=True)
        return "bias:" + ",".join(f"{token_id}={value!r}" for token_id, value in pairs)

    def __call__(
        self, logits: Tensor, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> None:
        """See :class:`LogitsProcessor`."""
        logits[self._ids.to(logits.device)] += self._values.to(logits.device)


class MinTokens:
    """Forbids the tokens that would end the sequence before it has ``min_tokens``."""

    def __init__(self, min_tokens: int, end_ids: Collection[int]) -> None:
        self._min_tokens = min_tokens
        self._ids = torch.tensor(sorted(end_ids), dtype=torch.int64)

    @property
    def fingerprint(self) -> str:
        """See :class:`LogitsProcessor`."""
        return f"min_tokens:{self._min_tokens}:{self._ids.tolist()}"

    def __call__(
        self, logits: Tensor, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> None:
        """See :class:`LogitsProcessor`."""
        if len(output_ids) < self._min_tokens:
            logits[self._ids.to(logits.device)] = -torch.inf


def processors_of(
    params: SamplingParams, end_token_ids: Collection[int]
) -> tuple[LogitsProcessor, ...]:
    """Return the processors a request asks for, in the order they are applied.

    Penalties come first, then the bias (so that it is added as given), then what is forbidden.

    Args:
        params: the request's sampling parameters, validated.
        end_token_ids: the model's end-of-sequence tokens.
    """
    chosen: list[LogitsProcessor] = []
    if params.repetition_penalty != 1.0:
        chosen.append(RepetitionPenalty(params.repetition_penalty))
    if params.presence_penalty or params.frequency_penalty:
        chosen.append(OutputPenalties(params.presence_penalty, params.frequency_penalty))
    if params.logit_bias:
        chosen.append(LogitBias(params.logit_bias))
    if params.min_tokens:
        ends = set(params.stop_token_ids)
        if not params.ignore_eos:
            ends.update(end_token_ids)
        if ends:
            chosen.append(MinTokens(params.min_tokens, ends))
    return tuple(chosen)


def _within_float32(edited: Tensor, seen: Tensor) -> Tensor:
    # A penalty makes a token as unlikely or likely as can be, but only the model and min_tokens
    # forbid one: what overflowed must still be drawn if nothing else is left.
    return torch.where(seen == -torch.inf, seen, edited.clamp(-_LARGEST, _LARGEST))


def _array(ids: Sequence[int]) -> np.ndarray:
    return np.asarray(ids, dtype=np.int64)
