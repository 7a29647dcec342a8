"""The pool: declared layout, exact round trips, copies, poison and clear errors."""

import pytest
import torch

from radixcache.errors import InvalidRequestError, ModelLoadError
from radixcache.kv.layout import KVLayout
from radixcache.kv.pool import KVPool


def layout(**changes):
    """Return a small layout."""
    fields = {"num_layers": 2, "num_kv_heads": 3, "head_dim": 4, "block_size": 4} | changes
    return KVLayout(**fields)


def numbered(num_tokens, spec, layer):
    """Return K and V that differ in every (layer, k or v, token, head, dim)."""
    shape = (num_tokens, spec.num_kv_heads, spec.head_dim)
    count = num_tokens * spec.num_kv_heads * spec.head_dim
    base = torch.arange(count, dtype=torch.float32).reshape(shape) + 10_000 * layer
    return base, base + 5_000


@pytest.mark.parametrize("order", ["NHD", "HND"])
@pytest.mark.parametrize(("heads", "dim"), [(2, 64), (3, 64), (3, 4)])
def test_round_trip_is_exact(order, heads, dim):
    """Case 36: what is written comes back exactly, whatever the heads look like."""
    spec = layout(num_kv_heads=heads, head_dim=dim, order=order)
    pool = KVPool(spec, 6)
    slots = torch.tensor([12, 13, 14, 15, 20, 21])  # blocks 3 and 5
    for layer in range(2):
        pool.write(layer, *numbered(6, spec, layer), slots)
    for layer in range(2):
        k, v = pool.gather(layer, torch.tensor([3, 5]), 6)
        wanted = numbered(6, spec, layer)

        assert torch.equal(k, wanted[0])
        assert torch.equal(v, wanted[1])


@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_planes_have_the_declared_shape_and_equal_strides(order):
    """K and V of a layer have the shape the layout declares, equal strides and aligned memory."""
    pool = KVPool(layout(order=order), 5)
    planes = pool.planes(1)

    assert planes.k.shape == ((5, 4, 3, 4) if order == "NHD" else (5, 3, 4, 4))
    assert planes.k.shape == planes.v.shape
    assert planes.k.stride() == planes.v.stride()
    assert pool.planes(0).k.data_ptr() % 64 == 0


def test_the_pool_begins_as_zero_and_block_0_stays_zero():
    """Unwritten memory is zero, and writing other blocks never touches the padding block."""
    pool = KVPool(layout(), 4, poison=True)

    assert not any(pool.planes(i).k.any() or pool.planes(i).v.any() for i in range(2))
    pool.write(0, torch.ones(1, 3, 4), torch.ones(1, 3, 4), torch.tensor([4]))
    pool.on_free([1, 2, 3])

    assert not any(pool.planes(i).k[0].any() or pool.planes(i).v[0].any() for i in range(2))


@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_copy_block_copies_the_tokens_and_no_more(order):
    """A fork gets the written tokens of the block in every layer; the rest is left alone."""
    spec = layout(order=order)
    pool = KVPool(spec, 4, poison=True)
    pool.on_free([1, 2, 3])
    for layer in range(2):
        pool.write(layer, *numbered(3, spec, layer), torch.tensor([4, 5, 6]))
    pool.copy_block(1, 3, 3)
    for layer in range(2):
        k, v = pool.gather(layer, torch.tensor([3]), 4)
        wanted = numbered(3, spec, layer)

        assert torch.equal(k[:3], wanted[0])
        assert torch.equal(v[:3], wanted[1])
        assert k[3].isnan().all()


def test_freed_blocks_are_poisoned_only_when_asked():
    """With poison a freed block is NaN in every layer; without it nothing is written."""
    poisoned, plain = KVPool(layout(), 4, poison=True), KVPool(layout(), 4)
    poisoned.on_free([2])
    plain.on_free([2])
    for layer in range(2):
        assert poisoned.planes(layer).k[2].isnan().all()
        assert poisoned.planes(layer).v[2].isnan().all()
        assert not poisoned.planes(layer).k[[0, 1, 3]].isnan().any()
        assert not plain.planes(layer).k.isnan().any()
    poisoned.on_free([])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_values_are_stored_in_the_pools_dtype(dtype):
    """Keys of another dtype are converted on writing; a token's bytes are as declared."""
    spec = layout(dtype=dtype)
    pool = KVPool(spec, 4)
    k = torch.randn(2, 3, 4)
    pool.write(0, k, k, torch.tensor([4, 5]))

    assert torch.equal(pool.gather(0, torch.tensor([1]), 2)[0], k.to(pool.dtype))
    assert spec.bytes_per_token == 2 * 2 * 3 * 4 * (4 if dtype == "float32" else 2)
    assert pool.num_bytes == 4 * 4 * spec.bytes_per_token


def test_int32_slots_work():
    """Slots may come straight from a plan, as int32."""
    pool = KVPool(layout(), 4)
    pool.write(0, torch.ones(2, 3, 4), torch.ones(2, 3, 4), torch.tensor([4, 9]).int())

    assert pool.planes(0).k.sum() == 24


def test_more_than_the_machine_has_is_one_clear_line():
    """A pool that cannot be had names kv_tokens and the size, instead of ending the process."""
    with pytest.raises(ModelLoadError, match=r"kv_tokens: 2,000,000,000 tokens need .* GiB"):
        KVPool(layout(num_layers=100, num_kv_heads=64, head_dim=256), 500_000_000)


@pytest.mark.parametrize("num_blocks", [0, 1])
def test_a_pool_needs_a_block_beside_the_padding(num_blocks):
    """A pool without a usable block is refused."""
    with pytest.raises(InvalidRequestError, match="at least 2"):
        KVPool(layout(), num_blocks)


def test_slots_must_fit_int32():
    """More slots than a plan's int32 can name are refused."""
    with pytest.raises(InvalidRequestError, match="2,147,483,647"):
        KVPool(layout(), 2**30)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_layers": 0},
        {"head_dim": -1},
        {"block_size": 0},
        {"dtype": "int8"},
        {"order": "DHN"},
        {"scheme": "fp8"},
        {"version": 2},
    ],
)
def test_a_layout_that_is_not_known_is_refused(changes):
    """A layout is declared and versioned; anything unknown is refused by name, never guessed."""
    with pytest.raises(InvalidRequestError, match=next(iter(changes))):
        layout(**changes)
