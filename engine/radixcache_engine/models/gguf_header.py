"""Reads the head of a GGUF file: enough to refuse a broken one before anything is converted."""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from radixcache.errors import ModelLoadError

__all__ = ["MAGIC", "GgufHeader", "read_header"]

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_MAX_ITEMS = 1 << 32
_MAX_DIMS = 8


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What the head of a GGUF file says.

    Attributes:
        architecture: ``general.architecture`` (``"llama"``).
        metadata: scalars and strings by key; an array is its length.
        num_tensors: entries of the tensor table.
    """

    architecture: str
    metadata: dict[str, Any]
    num_tensors: int


def read_header(path: Path) -> GgufHeader:
    """Parse the head and check that the file holds every tensor it names.

    Reads the head only, whatever the size of the file.

    Raises:
        ModelLoadError: not a GGUF file, an unknown version, or cut off.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(data, path)
    except (struct.error, UnicodeDecodeError, KeyError, OverflowError) as error:
        raise ModelLoadError(f"{path}: broken GGUF file: its head is damaged or cut off") from error
    except ValueError as error:  # mmap of an empty file
        raise ModelLoadError(f"{path}: not a GGUF file: it is empty") from error
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error


class _Cursor:
    """A position in the mapped file; reading past the end raises ``struct.error``."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.offset = 0

    def scalar(self, form: str) -> Any:
        """Read one number of a ``struct`` form."""
        (value,) = struct.unpack_from(form, self._data, self.offset)
        self.offset += struct.calcsize(form)
        return value

    def skip(self, size: int) -> None:
        """Pass over ``size`` bytes."""
        self.offset += size
        if self.offset > len(self._data):
            raise struct.error("past the end")

    def string(self) -> str:
        """Read a string with its length in front."""
        size = self.scalar("<Q")
        start = self.offset
        self.skip(size)
        return self._data[start : self.offset].decode()

    def skip_string(self) -> None:
        """Pass over such a string."""
        self.skip(self.scalar("<Q"))

    def value(self) -> Any:
        """Read a typed metadata value; an array as its length."""
        kind = self.scalar("<I")
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        return self.scalar(_SCALARS[kind])

    def _array(self) -> int:
        kind, count = self.scalar("<I"), self.scalar("<Q")
        if kind == _STRING:
            for _ in range(min(count, _MAX_ITEMS)):
                self.skip_string()
        else:
            self.skip(struct.calcsize(_SCALARS[kind]) * count)
        return int(count)


def _parse(data: mmap.mmap, path: Path) -> GgufHeader:
    if data[:4] != MAGIC:
        raise ModelLoadError(f"{path}: not a GGUF file: it does not begin with {MAGIC.decode()}")
    cursor = _Cursor(data)
    cursor.skip(4)
    version = cursor.scalar("<I")
    if version not in _VERSIONS:
        raise ModelLoadError(f"{path}: GGUF version {version}, allowed: 2 or 3")
    num_tensors, num_keys = cursor.scalar("<Q"), cursor.scalar("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value()
    end = _end_of_tensors(cursor, num_tensors, int(metadata.get("general.alignment", 32)), path)
    if end > len(data):
        raise ModelLoadError(
            f"{path}: cut off: {len(data):,} bytes, its tensors reach to byte {end:,}"
        )
    return GgufHeader(str(metadata["general.architecture"]), metadata, num_tensors)


def _end_of_tensors(cursor: _Cursor, num_tensors: int, alignment: int, path: Path) -> int:
    size_of = _tensor_sizes(path)
    end = 0
    for _ in range(num_tensors):
        name = cursor.string()
        num_dims = cursor.scalar("<I")
        if num_dims > _MAX_DIMS:
            raise ModelLoadError(f"{path}: broken GGUF file: {name!r} has {num_dims} dimensions")
        dims = [cursor.scalar("<Q") for _ in range(num_dims)]
        kind, offset = cursor.scalar("<I"), cursor.scalar("<Q")
        end = max(end, offset + size_of(name, kind, prod(dims)))
    if alignment < 1:
        raise ModelLoadError(f"{path}: broken GGUF file: alignment {alignment}")
    return -(-cursor.offset // alignment) * alignment + end


def _tensor_sizes(path: Path) -> Callable[[str, int, int], int]:
    from gguf.constants import (  # noqa: PLC0415 - only a conversion needs it
        GGML_QUANT_SIZES,
        GGMLQuantizationType,
    )

    def size_of(name: str, kind: int, num_values: int) -> int:
        """Return the bytes that ``num_values`` values of a type take."""
        try:
            block_len, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except ValueError:
            raise ModelLoadError(f"{path}: tensor {name!r} has the unknown type {kind}") from None
        return int(num_values // block_len * block_bytes)

    return size_of
