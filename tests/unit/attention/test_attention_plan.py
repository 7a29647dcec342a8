"""The plan: arrays as drawn, and every broken invariant named."""

from array import array
from dataclasses import replace

import pytest
import torch

from radixcache.attention import AttentionPlan
from radixcache.errors import CacheCorruptionError


def ints(*values):
    """Return a plan's kind of array."""
    return torch.tensor(values, dtype=torch.int32)


def build(starts=(0, 5, 3), lengths=(3, 1, 2), tables=((7,), (2, 3), (9, 4)), block_size=4):
    """Return the plan that the tests take apart."""
    return AttentionPlan.build(starts, lengths, tables, block_size=block_size)


def test_arrays_are_as_drawn():
    """A cold prefill, a decode and a warm prefill give exactly the arrays of the drawing."""
    plan = build()

    assert plan.qo_indptr.tolist() == [0, 3, 4, 6]
    assert plan.kv_indptr.tolist() == [0, 1, 3, 5]
    assert plan.kv_indices.tolist() == [7, 2, 3, 9, 4]
    assert plan.kv_last_page_len.tolist() == [3, 2, 1]
    assert plan.seq_lens.tolist() == [3, 6, 5]
    assert plan.positions.tolist() == [0, 1, 2, 5, 3, 4]
    assert plan.out_slots.tolist() == [28, 29, 30, 13, 39, 16]
    assert plan.row_ends == (3, 4, 6)
    assert (plan.num_rows, plan.num_tokens, plan.max_qo_len) == (3, 6, 3)


def test_arrays_are_int32_contiguous_on_the_host():
    """Every array is what flashinfer's planner takes without a copy."""
    plan = build()
    plan.validate(10, 4)
    for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len", "out_slots"):
        tensor = getattr(plan, name)

        assert tensor.dtype == torch.int32
        assert tensor.is_contiguous()
        assert tensor.device.type == "cpu"


@pytest.mark.parametrize("size", [1, 4, 8])
def test_a_full_last_block_counts_whole(size):
    """A row that ends on a block's border has a last block of block_size tokens, never 0."""
    plan = build([0], [8], [list(range(1, 9))], block_size=size)

    assert plan.kv_last_page_len.tolist() == [size]
    assert len(plan.kv_indices) == 8 // size
    plan.validate(9, size)


def test_longer_and_packed_block_tables_work():
    """Tables may be longer than needed, and arrays instead of lists."""
    plan = build([0], [3], [array("i", [5, 6, 7])])

    assert plan.kv_indices.tolist() == [5]


@pytest.mark.parametrize(
    ("starts", "lengths", "tables", "message"),
    [
        ([0], [5], [[1]], "block table: too short in row 0"),
        ([0, -1], [1, 1], [[1], [2]], "start: negative in row 1"),
        ([0, 0], [1, 0], [[1], [2]], "length: no token in row 1"),
        ([0, 0], [1], [[1], [2]], "2 starts, 1 lengths, 2 block tables"),
        ([], [], [], "0 starts"),
    ],
)
def test_impossible_rows_are_refused(starts, lengths, tables, message):
    """Rows that name too few blocks or no tokens are refused with the row."""
    with pytest.raises(CacheCorruptionError, match=message):
        build(starts, lengths, tables)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qo_indptr": ints(1, 3, 4, 6)}, "qo_indptr: begins with 1"),
        ({"qo_indptr": ints(0, 4, 3, 6)}, "qo_indptr: decreases at row 1"),
        ({"kv_indptr": ints(0, 3, 1, 5)}, "kv_indptr: decreases at row 1"),
        ({"qo_indptr": ints(0, 3, 6)}, "qo_indptr: has 3 entries"),
        ({"kv_indices": ints(7, 2, 3, 9)}, "kv_indices: has 4 entries"),
        ({"kv_indices": ints(7, 2, 3, 9, 10)}, "block 10 is not in"),
        ({"kv_indices": ints(7, 2, 3, 9, -1)}, "block -1 is not in"),
        ({"kv_indices": ints(7, 2, 3, 9, 0)}, "padding block 0 in row 2"),
        ({"kv_indices": ints(7, 2, 2, 9, 4)}, "twice in one row"),
        ({"kv_indices": ints(7, 7, 3, 9, 4)}, "written here and read by several rows"),
        ({"kv_indices": ints(7, 2, 3, 9, 8)}, "out_slots: wrong for query token 5"),
        ({"kv_last_page_len": ints(3, 5, 1)}, "out of range in row 1"),
        ({"kv_last_page_len": ints(3, 0, 1)}, "out of range in row 1"),
        ({"kv_last_page_len": ints(3, 3, 1)}, "does not fit the number of blocks in row 1"),
        ({"seq_lens": ints(3, 6, 4)}, "does not fit the number of blocks in row 2"),
        ({"positions": ints(0, 1, 2, 0, 3, 4)}, "positions: wrong for query token 3"),
        ({"out_slots": ints(28, 29, 30, 13, 39, 17)}, "out_slots: wrong for query token 5"),
        ({"seq_lens": torch.tensor([3, 6, 5])}, "seq_lens: got torch.int64"),
        ({"positions": ints(*range(12))[::2]}, "positions: must be contiguous"),
    ],
)
def test_each_broken_invariant_is_named(changes, message):
    """validate() finds the fault that flashinfer would take silently, and says where it is."""
    with pytest.raises(CacheCorruptionError, match=message):
        replace(build(), **changes).validate(10, 4)


def test_validate_wants_the_pools_block_size():
    """A plan made for another block size is refused."""
    with pytest.raises(CacheCorruptionError, match="plan has 4, pool has 16"):
        build().validate(10, 16)


def test_more_queries_than_tokens_is_refused():
    """A row of more queries than tokens is refused: its first queries would see nothing."""
    plan = replace(
        build([0], [2], [[1]]),
        qo_indptr=ints(0, 3),
        positions=ints(-1, 0, 1),
        out_slots=ints(4, 4, 5),
    )
    with pytest.raises(CacheCorruptionError, match="more queries than tokens in row 0"):
        plan.validate(10, 4)


def test_a_padding_row_may_use_block_0():
    """Block 0 standing alone is a padding row and fine."""
    build([0, 4], [1, 1], [[0], [1, 2]]).validate(10, 4)


def test_shared_prefix_blocks_are_fine():
    """Two rows may read the same full blocks as long as neither writes them."""
    build([4, 4], [1, 1], [[1, 2], [1, 3]]).validate(10, 4)
