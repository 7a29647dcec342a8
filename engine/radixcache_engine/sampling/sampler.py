"""From logits to tokens: greedy rows together, drawn rows each by itself.

A drawn row is worked on alone and its random number has no state, so nothing else in the batch
can change its token: neither another request, nor its order, nor a preemption in between.
"""

from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixcache.errors import InvalidRequestError, RadixCacheError
from radixcache.types import SamplingParams, TokenLogprob
from radixcache_engine.sampling.filters import inverse_cdf, kept_ids
from radixcache_engine.sampling.processors import LogitsProcessor, processors_of
from radixcache_engine.sampling.uniform import uniform
from radixcache_engine.types import SampledToken, SampleRow

__all__ = ["GREEDY_BELOW", "Sampler"]

GREEDY_BELOW = 1e-5
"""Temperatures below this take the likeliest token."""

_FAILED = -1


class Sampler:
    """Draws the tokens of a step. Not thread-safe: it belongs to the step loop.

    Args:
        vocab_size: columns of the logits.
        end_token_ids: the model's end-of-sequence tokens, which ``min_tokens`` forbids.
    """

    def __init__(self, vocab_size: int, end_token_ids: Collection[int]) -> None:
        self._vocab_size = vocab_size
        self._end_token_ids = frozenset(end_token_ids)
        # By id(params); each entry holds its params, so the id cannot be taken over meanwhile. Only
        # those of the last call are kept: a running request draws in nearly every step, and a
        # finished one's tensors can be as wide as the vocabulary.
        self._plans: dict[int, tuple[SamplingParams, tuple[LogitsProcessor, ...]]] = {}

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> list[SampledToken]:
        """Draw one token for each row, in order.

        A row that fails (not-a-number logits, a processor that raises) gets ``error`` instead of a
        token; the other rows are not touched by it. ``logits`` is left as it was.

        Args:
            logits: float32 ``[num_rows, vocab]``, any device.
            rows: the draws; several may name the same logits row.

        Raises:
            ValueError: ``logits`` has another shape.
        """
        if logits.ndim != 2 or logits.shape[1] != self._vocab_size:
            raise ValueError(
                f"logits: got shape {tuple(logits.shape)}, expected (rows, {self._vocab_size})"
            )
        if not rows:
            return []
        # The maximum is NaN where any logit is NaN, so one pass finds greedy tokens and bad rows.
        peaks, best = torch.max(logits, dim=-1)
        finite, likeliest = torch.isfinite(peaks).tolist(), best.tolist()
        drawn = [
            self._contained(logits, row, likeliest[row.logits_row])
            if finite[row.logits_row]
            else _bad_logits(logits[row.logits_row])
            for row in rows
        ]
        used = {id(row.params) for row in rows}
        self._plans = {key: plan for key, plan in self._plans.items() if key in used}
        return drawn

    def _contained(self, logits: Tensor, row: SampleRow, likeliest: int) -> SampledToken:
        try:
            raw = logits[row.logits_row]
            token_id = self._token(raw, row, likeliest)
            logprob = _logprob(raw, token_id, row.params.logprobs)
        except RadixCacheError as error:
            return SampledToken(_FAILED, error=error)
        except Exception as error:  # one request's fault must not end the step of the others
            reason = f"sampling failed: {type(error).__name__}: {error}"
            return SampledToken(_FAILED, error=RadixCacheError(reason))
        return SampledToken(token_id, logprob)

    def _token(self, raw: Tensor, row: SampleRow, likeliest: int) -> int:
        params = row.params
        greedy = params.temperature < GREEDY_BELOW
        processors = self._processors(params)
        if not processors:
            return likeliest if greedy else _draw(raw, row)
        edited = raw.clone()
        for processor in processors:
            processor(edited, row.prompt_ids, row.output_ids)
        peak, best = torch.max(edited, dim=-1)
        if not torch.isfinite(peak):
            raise InvalidRequestError(
                "min_tokens",
                params.min_tokens,
                f"{len(row.output_ids)} or less with these stop ids; no token is left: every one "
                "that the model gives a chance would end the sequence",
            )
        return int(best) if greedy else _draw(edited, row)

    def _processors(self, params: SamplingParams) -> tuple[LogitsProcessor, ...]:
        known = self._plans.get(id(params))
        if known is None:
            known = (params, processors_of(params, self._end_token_ids))
            self._plans[id(params)] = known
        return known[1]


def _draw(logits: Tensor, row: SampleRow) -> int:
    params = row.params
    values = _host(logits)
    with np.errstate(over="ignore"):  # far below the maximum, -inf is as good as any number
        scaled = (values - values.max()) / np.float32(params.temperature)
    kept = kept_ids(scaled, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p)
    weights = np.exp(scaled if kept is None else scaled[kept])
    if params.seed is None:
        raise RadixCacheError("seed: got None, allowed: the front draws one for each request")
    chosen = inverse_cdf(weights, uniform(params.seed, row.index, len(row.output_ids)))
    return chosen if kept is None else int(kept[chosen])


def _logprob(raw: Tensor, token_id: int, num_top: int | None) -> TokenLogprob | None:
    if num_top is None:
        return None
    values = _host(raw).astype(np.float64)
    peak = values.max()
    values -= peak + np.log(np.exp(values - peak).sum())
    top: tuple[tuple[int, float], ...] = ()
    num_top = min(num_top, len(values))
    if num_top:
        edge = np.partition(values, len(values) - num_top)[len(values) - num_top]
        ids = np.flatnonzero(values >= edge)
        ids = ids[np.argsort(-values[ids], kind="stable")][:num_top]
        top = tuple((int(token), float(values[token])) for token in ids)
    return TokenLogprob(token_id, float(values[token_id]), top)


def _host(logits: Tensor) -> NDArray[np.float32]:
    return logits.detach().to("cpu", torch.float32).numpy()


def _bad_logits(raw: Tensor) -> SampledToken:
    what = "not-a-number" if bool(torch.isnan(raw).any()) else "infinite"
    return SampledToken(
        _FAILED, error=RadixCacheError(f"the model gave {what} logits for this request")
    )
