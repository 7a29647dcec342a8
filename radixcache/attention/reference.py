"""The oracle: plain torch, one row at a time, in float32. Slow and obviously right."""

import torch

from radixcache.attention.plan import AttentionPlan
from radixcache.kv.pool import KVPool

__all__ = ["ReferenceBackend"]


class ReferenceBackend:
    """Gathers each row's keys by index and takes one float32 softmax. Any head dim, any group."""

    name = "reference"

    def run(
        self,
        layer: int,
        q: torch.Tensor,
        plan: AttentionPlan,
        pool: KVPool,
        *,
        scale: float,
        window: int = -1,
        soft_cap: float = 0.0,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend; see :class:`radixcache.attention.base.AttentionBackend`."""
        out = torch.empty_like(q) if out is None else out
        qo, kv = plan.qo_indptr.tolist(), plan.kv_indptr.tolist()
        for row, seq_len in enumerate(plan.seq_lens.tolist()):
            begin, end = qo[row], qo[row + 1]
            blocks = plan.kv_indices[kv[row] : kv[row + 1]]
            k, v = pool.gather(layer, blocks, seq_len)
            queries = plan.positions[begin:end].to(q.device)[:, None]
            keys = torch.arange(seq_len, device=q.device)[None, :]
            seen = keys <= queries
            if window >= 0:
                seen &= keys >= queries - window
            out[begin:end] = _attend(q[begin:end], k, v, seen, scale=scale, soft_cap=soft_cap)
        return out


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seen: torch.Tensor,
    *,
    scale: float,
    soft_cap: float,
) -> torch.Tensor:
    num_q, num_heads, head_dim = q.shape
    grouped = q.float().view(num_q, k.shape[1], num_heads // k.shape[1], head_dim)
    scores = torch.einsum("qhgd,khd->hgqk", grouped, k.float()) * scale
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
    mixed = torch.einsum("hgqk,khd->qhgd", weights, v.float())
    return mixed.reshape(num_q, num_heads, head_dim).to(q.dtype)
