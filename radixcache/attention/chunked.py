"""Torch fall-back: walks a row's blocks in bounded chunks with a running softmax.

Slower than the compiled kernel, but never holds more than one chunk of a sequence.
"""

import torch

from radixcache.attention.plan import AttentionPlan
from radixcache.kv.pool import KVPool

__all__ = ["attend_row"]

_CHUNK = 512  # keys gathered at once


def attend_row(
    row: int,
    layer: int,
    q: torch.Tensor,
    plan: AttentionPlan,
    pool: KVPool,
    *,
    scale: float,
    window: int,
    soft_cap: float,
) -> torch.Tensor:
    """Attend for one row.

    Args:
        row: index of the row in the plan.
        layer: 0 to ``num_layers - 1``.
        q: the row's queries, ``[qo_len, num_qo_heads, head_dim]``.
        plan: the step's arrays.
        pool: K and V.
        scale: factor of the scores.
        window: keys to the left that a query sees; -1: all.
        soft_cap: cap of the scores; 0: none.

    Returns:
        ``[qo_len, num_qo_heads, head_dim]`` in the dtype of ``q``.
    """
    num_q, num_heads, head_dim = q.shape
    seq_len = int(plan.seq_lens[row])
    first_block = int(plan.kv_indptr[row])
    blocks = plan.kv_indices[first_block : int(plan.kv_indptr[row + 1])]
    num_kv = pool.layout.num_kv_heads
    grouped = q.float().view(num_q, num_kv, num_heads // num_kv, head_dim) * scale
    positions = torch.arange(seq_len - num_q, seq_len, device=q.device)
    state = _Running(grouped)
    block_size = plan.block_size
    step = max(1, _CHUNK // block_size) * block_size
    lowest = 0 if window < 0 else max(0, seq_len - num_q - window)
    for begin in range(lowest // block_size * block_size, seq_len, step):
        end = min(begin + step, seq_len)
        some = blocks[begin // block_size : -(-end // block_size)]
        k, v = pool.gather(layer, some, end - begin)
        skip = max(0, lowest - begin)
        keys = torch.arange(begin + skip, end, device=q.device)
        seen = keys[None, :] <= positions[:, None]
        if window >= 0:
            seen &= keys[None, :] >= positions[:, None] - window
        state.add(k[skip:].float(), v[skip:].float(), seen, soft_cap)
    return state.result().reshape(num_q, num_heads, head_dim).to(q.dtype)


class _Running:
    """Softmax over chunks: highest score, sum of weights and weighted values so far."""

    def __init__(self, grouped: torch.Tensor) -> None:
        self._q = grouped  # [num_q, num_kv, group, head_dim]
        shape = (grouped.shape[1], grouped.shape[2], grouped.shape[0], 1)
        self._top = grouped.new_full(shape, float("-inf"))
        self._total = grouped.new_zeros(shape)
        self._mixed = grouped.new_zeros((*shape[:3], grouped.shape[3]))

    def add(self, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, soft_cap: float) -> None:
        """Take in one chunk of keys and values, ``[n, num_kv_heads, head_dim]`` each."""
        scores = torch.einsum("qhgd,khd->hgqk", self._q, k)
        if soft_cap > 0:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        scores = scores.masked_fill(~seen, float("-inf"))
        top = torch.maximum(self._top, scores.amax(dim=-1, keepdim=True))
        # A query that has seen no key yet has top = -inf, and -inf - -inf is NaN.
        base = top.masked_fill(top == float("-inf"), 0.0)
        weights = torch.exp(scores - base)
        shrink = torch.exp(self._top - base)
        self._total = self._total * shrink + weights.sum(dim=-1, keepdim=True)
        self._mixed = self._mixed * shrink + torch.einsum("hgqk,khd->hgqd", weights, v)
        self._top = top

    def result(self) -> torch.Tensor:
        """Return ``[num_q, num_kv_heads, group, head_dim]``."""
        return (self._mixed / self._total).permute(2, 0, 1, 3)
