"""What a KV pool looks like in memory, as plain data that can be declared, compared and stored."""

from dataclasses import dataclass
from typing import Literal

from radixcache.errors import InvalidRequestError

__all__ = ["LAYOUT_VERSION", "KVLayout"]

LAYOUT_VERSION = 1
"""Raised whenever equal bytes would mean something else."""

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Declared layout of one pool: never guessed from a shape.

    Attributes:
        order: ``"NHD"``, a block is ``[block_size, num_kv_heads, head_dim]``, or ``"HND"``,
            ``[num_kv_heads, block_size, head_dim]``.
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        scheme: how a value is encoded; ``"plain"`` is the value itself.
        version: of the meaning of all this, for data that outlives the process.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int  # tokens
    dtype: str = "float32"
    order: Literal["NHD", "HND"] = "NHD"
    scheme: str = "plain"
    version: int = LAYOUT_VERSION

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidRequestError: naming the field, what was got and what is allowed.
        """
        for name in ("num_layers", "num_kv_heads", "head_dim", "block_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InvalidRequestError(name, value, "a whole number of at least 1")
        if self.dtype not in _ITEM_BYTES:
            raise InvalidRequestError("dtype", self.dtype, " | ".join(_ITEM_BYTES))
        if self.order not in ("NHD", "HND"):
            raise InvalidRequestError("order", self.order, "NHD | HND")
        if self.scheme != "plain":
            raise InvalidRequestError("scheme", self.scheme, "plain")
        if self.version != LAYOUT_VERSION:
            raise InvalidRequestError("version", self.version, str(LAYOUT_VERSION))

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers."""
        per_plane = self.num_kv_heads * self.head_dim * _ITEM_BYTES[self.dtype]
        return 2 * self.num_layers * per_plane

    @property
    def bytes_per_block(self) -> int:
        """Bytes of K and V of one block over all layers."""
        return self.block_size * self.bytes_per_token

    @property
    def block_shape(self) -> tuple[int, int, int]:
        """Shape of one block in one plane, in the declared order."""
        if self.order == "NHD":
            return (self.block_size, self.num_kv_heads, self.head_dim)
        return (self.num_kv_heads, self.block_size, self.head_dim)
