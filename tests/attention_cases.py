"""Random pools, plans and queries for the attention tests."""

from dataclasses import dataclass, field

import torch

from radixcache.attention import AttentionPlan
from radixcache.kv.layout import KVLayout
from radixcache.kv.pool import KVPool

MIXED = ((0, 1), (5, 1), (100, 1), (63, 1), (0, 20), (30, 17), (200, 5))
"""(tokens already in the pool, new tokens) of each row: decodes, cold and warm prefills."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One attention problem; the defaults are the base that tests vary one factor of."""

    rows: tuple[tuple[int, int], ...] = MIXED
    num_kv_heads: int = 3
    group: int = 3
    head_dim: int = 64
    block_size: int = 16
    dtype: str = "float32"
    order: str = "NHD"
    window: int = -1
    soft_cap: float = 0.0
    scale: float = field(default=0.3)  # large, so that the softmax is far from uniform


@dataclass(frozen=True)
class Problem:
    """A case made concrete: every slot that no token was written to holds NaN."""

    case: Case
    q: torch.Tensor
    plan: AttentionPlan
    pool: KVPool
    keys: list[torch.Tensor]  # of each row, [seq_len, num_kv_heads, head_dim]
    values: list[torch.Tensor]

    def run(self, backend) -> torch.Tensor:
        """Run a backend on the problem."""
        return backend.run(
            0,
            self.q,
            self.plan,
            self.pool,
            scale=self.case.scale,
            window=self.case.window,
            soft_cap=self.case.soft_cap,
        )


def make(case: Case, seed: int = 0) -> Problem:
    """Fill a pool in shuffled blocks and draw queries."""
    generator = torch.Generator().manual_seed(seed)
    lens = [start + new for start, new in case.rows]
    needs = [-(-size // case.block_size) for size in lens]
    num_blocks = sum(needs) + 1
    layout = KVLayout(
        num_layers=1,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        block_size=case.block_size,
        dtype=case.dtype,
        order=case.order,
    )
    pool = KVPool(layout, num_blocks, poison=True)
    pool.on_free(range(1, num_blocks))
    ids = (torch.randperm(num_blocks - 1, generator=generator) + 1).tolist()
    tables = [[ids.pop() for _ in range(need)] for need in needs]
    shape = (sum(lens), case.num_kv_heads, case.head_dim)
    k, v = (torch.randn(shape, generator=generator).to(pool.dtype) for _ in range(2))
    whole = AttentionPlan.build([0] * len(lens), lens, tables, block_size=case.block_size)
    pool.write(0, k, v, whole.out_slots)
    starts, new = (list(column) for column in zip(*case.rows, strict=True))
    plan = AttentionPlan.build(starts, new, tables, block_size=case.block_size)
    plan.validate(num_blocks, case.block_size)
    num_heads = case.num_kv_heads * case.group
    q = torch.randn((plan.num_tokens, num_heads, case.head_dim), generator=generator)
    return Problem(case, q.to(pool.dtype), plan, pool, list(k.split(lens)), list(v.split(lens)))


def naive(problem: Problem) -> torch.Tensor:
    """Attend one query and one head at a time, in float64, straight from the definition."""
    case = problem.case
    out, at = [], 0
    for (start, new), keys, values in zip(case.rows, problem.keys, problem.values, strict=True):
        for i in range(new):
            position = start + i
            first = 0 if case.window < 0 else max(0, position - case.window)
            for head in range(case.num_kv_heads * case.group):
                k = keys[first : position + 1, head // case.group].double()
                v = values[first : position + 1, head // case.group].double()
                scores = (k @ problem.q[at, head].double()) * case.scale
                if case.soft_cap > 0:
                    scores = case.soft_cap * torch.tanh(scores / case.soft_cap)
                out.append(torch.softmax(scores, 0) @ v)
            at += 1
    return torch.stack(out).reshape(problem.q.shape).float()
