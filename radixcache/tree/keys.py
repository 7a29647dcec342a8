"""Token ids and block ids as packed int32, so that comparing them is one memcmp.

A list of ids is packed once at the border (``array('i')``); an ``array('i')`` or a contiguous
int32 numpy array is only viewed, never copied.
"""

import operator
import sys
from array import array
from collections.abc import Iterable
from typing import SupportsIndex

from radixcache.errors import InvalidRequestError

__all__ = ["ID_BYTES", "checked_count", "common_len", "edge_tag", "pack", "pack_block_ids"]

ID_BYTES = 4
"""Bytes of one packed id."""

_ALLOWED = "whole numbers that fit 32 bits (a list, array('i') or int32 array)"
_HIGH_BYTE = 0 if sys.byteorder == "big" else ID_BYTES - 1


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
        if isinstance(ids, (list, tuple)):
            ids = array("i", ids)
        if isinstance(ids, array) and ids.typecode == "i":
            return memoryview(ids).cast("B")
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
    return memoryview(array("i", view.tolist())).cast("B")


def pack_block_ids(ids: Iterable[int], num_blocks: int) -> memoryview:
    """View the first ``num_blocks`` block ids as :func:`pack` does.

    Raises:
        InvalidRequestError: too few, negative ones, or one that is named twice.
    """
    packed = pack(ids, "block_ids")
    if len(packed) < num_blocks * ID_BYTES:
        allowed = f"one for each of the {num_blocks} whole blocks of tokens"
        raise InvalidRequestError("len(block_ids)", len(packed) // ID_BYTES, allowed)
    packed = packed[: num_blocks * ID_BYTES]
    # The sign bit is the top one of the high byte; isascii looks at eight of them at a time.
    if not bytes(packed[_HIGH_BYTE::ID_BYTES]).isascii():
        raise InvalidRequestError("block_ids", min(packed.cast("i")), "0 or more")
    if len(set(packed.cast("i"))) < num_blocks:
        raise InvalidRequestError("block_ids", packed.cast("i").tolist(), "each id once")
    return packed


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
