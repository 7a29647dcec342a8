"""The fast CPU backend: a compiled kernel for decodes and short prefills, SDPA for long ones."""

import warnings
from typing import TypedDict

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by

from radixcache.attention.chunked import attend_row
from radixcache.attention.kernel import CpuKernel, KernelUnavailableError
from radixcache.attention.plan import AttentionPlan
from radixcache.kv.pool import KVPool

__all__ = ["CpuBackend"]

# From this many queries on, gathering the row once and using torch's blocked matrix products
# beats the kernel (docs/adr/0002).
_SDPA_FROM = {torch.float32: 1024, torch.bfloat16: 64}
_SDPA_FROM_OTHERWISE = 16  # the torch fall-back
_SDPA_QUERIES = 256  # a masked call; bounds the mask to this many rows of seq_len


class _Settings(TypedDict):
    scale: float
    window: int
    soft_cap: float


class CpuBackend:
    """Reads blocks in place through the plan's index arrays. float32 and bfloat16, any head dim.

    Where no C++ compiler works, a torch fall-back takes the kernel's place, with one warning.

    Args:
        kernel: the compiled kernel; None: the torch fall-back.
    """

    name = "cpu"

    def __init__(self, kernel: CpuKernel | None) -> None:
        self._kernel = kernel

    @classmethod
    def create(cls) -> "CpuBackend":
        """Build or find the kernel; warn once and fall back to torch where that fails."""
        try:
            return cls(CpuKernel())
        except KernelUnavailableError as error:
            warnings.warn(
                f"the CPU attention kernel is not available, torch takes its place and is slower: "
                f"{error}",
                RuntimeWarning,
                stacklevel=2,
            )
            return cls(None)

    @property
    def is_compiled(self) -> bool:
        """Whether the compiled kernel runs (else the torch fall-back)."""
        return self._kernel is not None

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
        q = q if q.stride(-1) == 1 else q.contiguous()
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        kernel = self._kernel if self._kernel is not None and CpuKernel.takes(q, pool) else None
        from_len = _SDPA_FROM[q.dtype] if kernel else _SDPA_FROM_OTHERWISE
        # SDPA knows no soft-cap.
        limit = plan.max_qo_len if soft_cap > 0 else from_len - 1
        settings = _Settings(scale=scale, window=window, soft_cap=soft_cap)
        if kernel:
            kernel.run(layer, q, plan, pool, out, **settings, max_qo_len=limit)
            if plan.max_qo_len <= limit:
                return out
        begin = 0
        for row, end in enumerate(plan.row_ends):
            rows = slice(begin, end)
            if end - begin > limit:
                _attend_long(
                    row, layer, q[rows], plan, pool, out=out[rows], scale=scale, window=window
                )
            elif not kernel:
                out[rows] = attend_row(row, layer, q[rows], plan, pool, **settings)
            begin = end
        return out


def _attend_long(
    row: int,
    layer: int,
    q: torch.Tensor,
    plan: AttentionPlan,
    pool: KVPool,
    *,
    out: torch.Tensor,
    scale: float,
    window: int,
) -> None:
    num_q, num_heads = q.shape[:2]
    seq_len = int(plan.seq_lens[row])
    start = seq_len - num_q
    blocks = plan.kv_indices[int(plan.kv_indptr[row]) : int(plan.kv_indptr[row + 1])]
    # Keys older than every query's window may lie in blocks that were given back.
    skipped = 0 if window < 0 else max(0, start - window) // plan.block_size
    offset = skipped * plan.block_size
    k, v = pool.gather(layer, blocks[skipped:], seq_len - offset)
    group = num_heads // pool.layout.num_kv_heads
    keys, values = (_per_query_head(x, group, q.dtype) for x in (k, v))
    queries = q.transpose(0, 1)[None]
    if start == 0 and (window < 0 or window >= seq_len):
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scale)
        out.copy_(mixed[0].transpose(0, 1))
        return
    for first in range(0, num_q, _SDPA_QUERIES):
        last = min(first + _SDPA_QUERIES, num_q)
        low = max(offset, start + first - window) if window >= 0 else offset
        part = slice(low - offset, start + last - offset)
        mixed = F.scaled_dot_product_attention(
            queries[:, :, first:last],
            keys[:, :, part],
            values[:, :, part],
            attn_mask=_mask(start + first, start + last, low, window),
            scale=scale,
        )
        out[first:last] = mixed[0].transpose(0, 1)


def _mask(first: int, last: int, low: int, window: int) -> torch.Tensor:
    # Queries at positions [first, last) over keys [low, last).
    positions = torch.arange(first, last)[:, None]
    keys = torch.arange(low, last)[None, :]
    seen = keys <= positions
    return seen if window < 0 else seen & (keys >= positions - window)


def _per_query_head(x: torch.Tensor, group: int, dtype: torch.dtype) -> torch.Tensor:
    # [n, num_kv_heads, head_dim] -> [1, num_qo_heads, n, head_dim]
    heads = x.to(dtype).transpose(0, 1)
    return heads.repeat_interleave(group, dim=0)[None] if group > 1 else heads[None]
