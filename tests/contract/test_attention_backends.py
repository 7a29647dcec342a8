"""Every backend gives the reference's numbers; the reference gives the definition's."""

import pytest
import torch

from radixcache.attention import create_backend
from radixcache.attention.cpu import CpuBackend
from radixcache.attention.kernel import CpuKernel
from radixcache.attention.reference import ReferenceBackend
from tests.attention_cases import Case, make, naive

BOUND = {"float32": 3e-5, "bfloat16": 2e-2, "float16": 3e-3}
BASE = Case()
VARIED = [
    BASE,
    *(Case(head_dim=dim) for dim in (8, 20, 32, 80, 128, 256)),
    *(Case(group=group) for group in (1, 4, 7, 8)),
    Case(num_kv_heads=1, group=71),
    *(Case(block_size=size) for size in (1, 64, 256)),
    *(Case(window=window) for window in (0, 1, 7, 64, 500)),
    Case(soft_cap=5.0),
    Case(soft_cap=5.0, window=30),
    Case(dtype="bfloat16"),
    Case(dtype="bfloat16", head_dim=80, window=9),
    Case(dtype="float16"),
    Case(order="HND"),
    Case(order="HND", block_size=1),
    Case(rows=((0, 1),)),
    Case(rows=((63, 1),)),
    Case(rows=((1500, 1),)),
    Case(rows=((1500, 1),), window=700),
    Case(rows=((0, 200),)),
    Case(rows=((90, 300),), window=50),
    Case(rows=((90, 70),), dtype="bfloat16"),
    Case(rows=((0, 70),), dtype="bfloat16", window=20),
    Case(rows=tuple((i * 7, 1) for i in range(33))),
]
CPU = {
    "kernel": lambda: CpuBackend(CpuKernel()),
    "fallback": lambda: CpuBackend(None),
}


@pytest.mark.parametrize(
    "case",
    [
        BASE,
        Case(group=1, window=4),
        Case(soft_cap=2.0, window=11, block_size=1),
        Case(order="HND", head_dim=20),
        Case(rows=((0, 9), (3, 1))),
    ],
    ids=str,
)
def test_the_reference_follows_the_definition(case):
    """The oracle equals attention computed query by query in float64."""
    problem = make(case)

    assert torch.allclose(problem.run(ReferenceBackend()), naive(problem), atol=1e-5)


@pytest.mark.parametrize("name", CPU)
@pytest.mark.parametrize("case", VARIED, ids=str)
def test_cpu_equals_reference(case, name):
    """The compiled kernel and the torch fall-back equal the oracle; NaN slots change nothing."""
    problem = make(case)
    wanted = problem.run(ReferenceBackend())
    got = problem.run(CPU[name]())

    assert got.dtype == problem.q.dtype
    assert torch.allclose(got.float(), wanted.float(), atol=BOUND[case.dtype], rtol=1e-2)


@pytest.mark.parametrize("name", CPU)
def test_threads_do_not_change_the_result(name):
    """Splitting keys over threads and merging the parts stays within float32 rounding."""
    problem = make(Case(rows=((3000, 1), (700, 40))))
    wanted = problem.run(ReferenceBackend())
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        got = problem.run(CPU[name]())
    finally:
        torch.set_num_threads(before)

    assert torch.allclose(got, wanted, atol=3e-5)


def test_the_long_road_equals_the_kernel():
    """A prefill long enough for SDPA equals the oracle, cold, warm and behind a window."""
    for case in (
        Case(rows=((0, 1100), (7, 1)), group=1, num_kv_heads=1),
        Case(rows=((50, 1050), (7, 1)), group=2, num_kv_heads=1),
        Case(rows=((50, 1050),), group=1, num_kv_heads=1, window=100),
    ):
        problem = make(case)

        assert torch.allclose(
            problem.run(CPU["kernel"]()), problem.run(ReferenceBackend()), atol=3e-5
        )


@pytest.mark.parametrize("name", CPU)
@pytest.mark.parametrize(("new", "dtype"), [(1, "float32"), (20, "float32"), (80, "bfloat16")])
def test_blocks_before_the_window_are_not_read(name, new, dtype):
    """Case 27: whatever stands in blocks that left every query's window has no influence."""
    problem = make(Case(rows=((150, new),), window=40, dtype=dtype))
    wanted = problem.run(CPU[name]())
    problem.pool.on_free(problem.plan.kv_indices[: (150 - 40) // 16].tolist())

    assert torch.equal(problem.run(CPU[name]()), wanted)


@pytest.mark.parametrize("name", CPU)
def test_nan_stays_in_its_row(name):
    """One sequence's NaN shows in its own rows, as NaN, and in no other."""
    problem = make(BASE)
    clean = problem.run(CPU[name]())
    row = 2
    begin, end = problem.plan.qo_indptr[row].item(), problem.plan.qo_indptr[row + 1].item()
    problem.q[begin:end] = float("nan")
    got = problem.run(CPU[name]())

    assert got[begin:end].isnan().all()
    assert torch.equal(got[:begin], clean[:begin])
    assert torch.equal(got[end:], clean[end:])


@pytest.mark.parametrize("name", CPU)
def test_queries_may_be_strided_and_out_given(name):
    """Queries that are views of something wider work, and the result lands where asked."""
    problem = make(BASE)
    wide = torch.full((*problem.q.shape[:2], 2 * BASE.head_dim), float("nan"))
    wide[..., : BASE.head_dim] = problem.q
    out = torch.zeros_like(problem.q)
    got = CPU[name]().run(
        0, wide[..., : BASE.head_dim], problem.plan, problem.pool, scale=0.3, out=out
    )

    assert got is out
    assert torch.equal(out, problem.run(CPU[name]()))


def test_auto_takes_the_compiled_kernel():
    """Where a compiler works, "auto" is the CPU backend with its kernel."""
    backend = create_backend("auto")

    assert backend.name == "cpu"
    assert backend.is_compiled
