"""Packing ids and comparing packed keys."""

from array import array

import numpy as np
import pytest

from radixcache.errors import InvalidRequestError
from radixcache.tree.keys import (
    check_block_ids,
    checked_count,
    common_len,
    edge_tag,
    pack,
    pack_block_ids,
)


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        iter([1, 2, 3]),
        array("i", [1, 2, 3]),
        array("q", [1, 2, 3]),
        np.array([1, 2, 3], dtype=np.int32),
        np.array([1, 2, 3], dtype=np.int64),
        np.array([1, 2, 3], dtype=np.uint16),
        np.array([1, 9, 2, 9, 3], dtype=np.int32)[::2],
    ],
    ids=lambda ids: f"{type(ids).__name__}-{getattr(ids, 'dtype', '')}",
)
def test_whole_numbers_of_any_kind_are_packed_alike(ids):
    """Case K1: what a key holds does not depend on the container it came in."""
    assert pack(ids, "tokens").cast("i").tolist() == [1, 2, 3]


@pytest.mark.parametrize("ids", [array("i", [5, 6]), np.array([5, 6], dtype=np.int32)])
def test_int32_memory_is_viewed_without_a_copy(ids):
    """A ready-made int32 array costs nothing to pack."""
    view = pack(ids, "tokens")
    ids[0] = 7

    assert view.cast("i").tolist() == [7, 6]


@pytest.mark.parametrize(
    "ids",
    [
        [2**31],
        [-(2**31) - 1],
        [1.5],
        ["a"],
        [None],
        np.array([1.0]),
        np.array([2**31], dtype=np.int64),
        np.array([1.0], dtype=np.float32),
        np.array([2**32 - 1], dtype=np.uint32),
        np.zeros((2, 2), dtype=np.int32),
        b"abcd",
        bytearray(4),
        "abcd",
        17,
        None,
    ],
    ids=repr,
)
def test_what_is_no_int32_id_is_refused_by_name(ids):
    """A bad id raises a typed error that names the field."""
    with pytest.raises(InvalidRequestError, match="tokens: got"):
        pack(ids, "tokens")


def test_extreme_ids_survive():
    """Negative key ids (content ids) and both ends of int32 are keys like any other."""
    ids = [-(2**31), -1, 0, 2**31 - 1]

    assert pack(ids, "tokens").cast("i").tolist() == ids


@pytest.mark.parametrize("unit", [4, 12])
@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_common_len_equals_a_plain_comparison(unit, size):
    """The halving search finds the first differing unit, wherever it is."""
    key = bytearray(i % 251 for i in range(unit * size))
    for position in range(len(key)):
        other = bytearray(key)
        other[position] ^= 0xFF

        assert common_len(key, memoryview(other), unit) == position // unit * unit
    assert common_len(key, memoryview(bytes(key) + b"more"), unit) == len(key)
    assert common_len(key, memoryview(key)[: unit * (size // 2)], unit) == unit * (size // 2)
    assert common_len(key, memoryview(b""), unit) == 0


def test_only_public_has_no_tag():
    """PUBLIC edges are the bare block; any other scope, odd characters included, stands apart."""
    tags = [edge_tag(scope) for scope in ("", "a", "ab", "?", "\ud800", "\ud801", "é")]

    assert tags[0] == b""
    assert len(set(tags)) == len(tags)


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        ([1, -1], "block_ids: got -1"),
        ([-(2**31), 5], "block_ids: got -2147483648"),
        ([7, 7], r"block_ids: got \[7, 7\], allowed: each id once"),
        ([7], r"len\(block_ids\): got 1"),
    ],
)
def test_block_ids_are_distinct_and_not_negative(ids, named):
    """A block has one place in a pool and in a sequence; what is left over is not looked at."""
    with pytest.raises(InvalidRequestError, match=named):
        check_block_ids(pack_block_ids(ids, 2))

    packed = pack_block_ids([2**31 - 1, 0, -1, 0], 2)
    check_block_ids(packed)
    assert packed.cast("i").tolist() == [2**31 - 1, 0]


@pytest.mark.parametrize("value", [0, 3, np.int64(3), True])
def test_a_count_is_a_plain_int(value):
    """Whole numbers of any kind come out as int."""
    assert type(checked_count(value, "num_blocks")) in (int, bool)
    assert checked_count(value, "num_blocks") == value


@pytest.mark.parametrize("value", [1.5, 2.0, np.float32(1), "1", None, -1, np.int32(-3)], ids=repr)
def test_what_is_no_count_is_refused_by_name(value):
    """Floats are no counts, whole or not; neither is what lies below 0."""
    with pytest.raises(InvalidRequestError, match=r"num_blocks: got .* allowed: .*0 or more"):
        checked_count(value, "num_blocks")
