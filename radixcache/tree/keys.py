"""Token ids and block ids as packed int32, so that comparing them is one memcmp.

A list of ids is packed once at the border (``array('i')``); an ``array('i')`` or a contiguous
int32 numpy array is only viewed, never copied.
"""

import operator
from array import array
from collections.abc import Iterable
from typing import SupportsIndex

import numpy as np

from radixcache.errors import InvalidRequestError

__all__ = [
    "ID_BYTES",
    "check_block_ids",
    "checked_count",
    "common_len",
    "edge_tag",
    "pack",
    "pack_block_ids",
]

ID_BYTES = 4
"""Bytes of one packed id."""

_FEW = 24  # ids up to which a set is quicker than numpy

_ALLOWED = "whole numbers that fit 32 bits (a list, array('i') or int32 array)"


def checked_count(value: SupportsIndex, field: str, allowed: str = "0 or more") -> int:
    """Return a number of tokens or blocks as a plain int.

    Args:
        value: any whole number; a float is none, even 2.0.
        field: what to call it in an error.
        allowed: the range to name in an error; its upper end is the caller's to check.

    Raises:
        InvalidRequestError: not a whole number, or below 0.
    """
    try:
        count = operator.index(value)
    except TypeError:
        raise InvalidRequestError(field, value, f"a whole number, {allowed}") from None
    if count < 0:
        raise InvalidRequestError(field, count, allowed)
    return count


def pack(ids: Iterable[int], field: str) -> memoryview:
    """View ids as bytes, four to an id, in native order.

    Args:
        ids: one-dimensional whole numbers: list, tuple, array, numpy array, any iterable.
        field: what to call them in an error.

    Raises:
        InvalidRequestError: an id is no whole number or does not fit int32.
    """
    # array(), memoryview() and tolist() each have their own way of refusing a bad value.
    try:
        if isinstance(ids, array) and ids.typecode == "i":
            return memoryview(ids).cast("B")
        if isinstance(ids, (list, tuple)):
            return memoryview(array("i", ids)).cast("B")
        return _view(ids)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequestError(field, ids, _ALLOWED) from error


def _view(ids: Iterable[int]) -> memoryview:
    if isinstance(ids, str | bytes | bytearray):
        raise TypeError("text and bytes are not ids")
    try:
        view = memoryview(ids)  # type: ignore[arg-type]  # whether it is a buffer is asked here
    except TypeError:
        return memoryview(array("i", ids)).cast("B")
    if view.ndim != 1:
        raise TypeError("ids have one dimension")
    if view.format == "i" and view.c_contiguous:
        return view.cast("B")
    try:
        items: Iterable[int] = view.tolist()
    except NotImplementedError:  # a format that memoryview cannot read, though numpy can
        items = ids
    return memoryview(array("i", items)).cast("B")


def pack_block_ids(ids: Iterable[int], num_blocks: int) -> memoryview:
    """View the first ``num_blocks`` block ids as :func:`pack` does.

    Raises:
        InvalidRequestError: too few.
    """
    packed = pack(ids, "block_ids")
    size = num_blocks * ID_BYTES
    if len(packed) < size:
        allowed = f"one for each of the {num_blocks} whole blocks of tokens"
        raise InvalidRequestError("len(block_ids)", len(packed) // ID_BYTES, allowed)
    return packed if len(packed) == size else packed[:size]


def check_block_ids(packed: memoryview) -> None:
    """Check block ids that are to be taken over.

    Raises:
        InvalidRequestError: negative ones, or one that is named twice.
    """
    if len(packed) <= _FEW * ID_BYTES:
        few = packed.cast("i").tolist()
        if not few or (min(few) >= 0 and len(set(few)) == len(few)):
            return
    ids = np.frombuffer(packed, np.int32)
    # Fresh blocks mostly come in rising order, which is quick to see.
    if ids[0] >= 0 and np.count_nonzero(ids[1:] > ids[:-1]) == len(ids) - 1:
        return
    ordered = np.sort(ids)
    if ordered[0] < 0:
        raise InvalidRequestError("block_ids", int(ordered[0]), "0 or more")
    if (ordered[1:] == ordered[:-1]).any():
        raise InvalidRequestError("block_ids", ids.tolist(), "each id once")


def edge_tag(scope: str) -> bytes:
    """Return what stands before the first block in a child key of this scope; empty for PUBLIC.

    A block has a fixed size, so tag + block can be read in one way only.
    """
    return scope.encode("utf-8", "surrogatepass")


def common_len(key: bytearray, view: memoryview, unit: int) -> int:
    """Return the bytes both begin with, rounded down to whole units.

    Halves the undecided part at each step and compares only what is new, so all comparisons
    together read each byte at most about once.
    """
    low, high = 0, min(len(key), len(view)) // unit
    while low < high:
        middle = (low + high + 1) // 2
        if key.startswith(view[low * unit : middle * unit], low * unit):
            low = middle
        else:
            high = middle - 1
    return low * unit
