"""The KV pool: the memory that block ids name."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from radixcache.errors import InvalidRequestError, ModelLoadError
from radixcache.kv.layout import KVLayout

__all__ = ["KVPool", "Planes"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MAX_SLOTS = 2**31 - 1  # slots are int32 in every plan
_ALIGN = 64  # bytes; a cache line, and the widest vector load


@dataclass(frozen=True, slots=True)
class Planes:
    """One layer's memory: ``k`` and ``v`` have the same shape and the same strides.

    Shape ``[num_blocks, block_size, num_kv_heads, head_dim]`` (NHD) or
    ``[num_blocks, num_kv_heads, block_size, head_dim]`` (HND), in the layout's dtype.
    """

    k: torch.Tensor
    v: torch.Tensor


class KVPool:
    """K and V of all layers, addressed by block id. Block 0 is padding and stays zero.

    Only pool, backends and codecs look inside. Not thread-safe: the step loop owns it.

    Args:
        layout: shape, order and dtype.
        num_blocks: blocks including the reserved block 0.
        device: where the memory lies.
        poison: fill freed blocks with NaN, so that reading one shows.

    Raises:
        InvalidRequestError: fewer than two blocks, or more slots than an int32 can name.
        ModelLoadError: there is not enough memory; says how much ``kv_tokens`` asked for.
    """

    def __init__(
        self,
        layout: KVLayout,
        num_blocks: int,
        *,
        device: torch.device | str = "cpu",
        poison: bool = False,
    ) -> None:
        if num_blocks < 2:
            raise InvalidRequestError("num_blocks", num_blocks, "at least 2; block 0 is padding")
        if num_blocks * layout.block_size > _MAX_SLOTS:
            raise InvalidRequestError(
                "kv_tokens", num_blocks * layout.block_size, f"at most {_MAX_SLOTS:,}"
            )
        self.layout = layout
        self.num_blocks = num_blocks
        self.device = torch.device(device)
        self.poison = poison
        self._data = _zeros(layout, num_blocks, self.device)
        self._layers = tuple(Planes(k=layer[0], v=layer[1]) for layer in self._data)

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the planes."""
        return self._data.dtype

    @property
    def num_bytes(self) -> int:
        """Address space of all planes; memory is only taken when first written."""
        return self.num_blocks * self.layout.bytes_per_block

    def planes(self, layer: int) -> Planes:
        """Return the memory of one layer, for a backend to read."""
        return self._layers[layer]

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, out_slots: torch.Tensor) -> None:
        """Store this step's keys and values.

        Args:
            layer: 0 to ``num_layers - 1``.
            k: ``[T, num_kv_heads, head_dim]``, converted to the pool's dtype.
            v: the same.
            out_slots: integer ``[T]``, ``block_id * block_size + offset``, on the pool's device
                (int64 is the fastest).
        """
        planes = self._layers[layer]
        if self.layout.order == "NHD":
            shape = (-1, self.layout.num_kv_heads, self.layout.head_dim)
            planes.k.view(shape)[out_slots] = k.to(self.dtype)
            planes.v.view(shape)[out_slots] = v.to(self.dtype)
            return
        blocks = torch.div(out_slots, self.layout.block_size, rounding_mode="floor")
        offsets = out_slots - blocks * self.layout.block_size
        planes.k[blocks, :, offsets] = k.to(self.dtype)
        planes.v[blocks, :, offsets] = v.to(self.dtype)

    def gather(
        self, layer: int, block_ids: torch.Tensor, num_tokens: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy the first ``num_tokens`` tokens of a run of blocks; reads no slot beyond them.

        Args:
            layer: 0 to ``num_layers - 1``.
            block_ids: integer ``[ceil(num_tokens / block_size)]``.
            num_tokens: at least 1.

        Returns:
            ``k`` and ``v``, each ``[num_tokens, num_kv_heads, head_dim]``.
        """
        planes = self._layers[layer]
        ids = block_ids.to(self.device)
        k, v = planes.k[ids], planes.v[ids]
        if self.layout.order == "HND":
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        return k.flatten(0, 1)[:num_tokens], v.flatten(0, 1)[:num_tokens]

    def copy_block(self, src: int, dst: int, num_tokens: int) -> None:
        """Copy the first ``num_tokens`` tokens of block ``src`` to ``dst``, in all layers."""
        if self.layout.order == "NHD":
            self._data[:, :, dst, :num_tokens] = self._data[:, :, src, :num_tokens]
        else:
            self._data[:, :, dst, :, :num_tokens] = self._data[:, :, src, :, :num_tokens]

    def on_free(self, block_ids: Sequence[int]) -> None:
        """Hear that blocks were freed; fill them with NaN when ``poison`` is set."""
        if self.poison and len(block_ids):
            ids = torch.as_tensor(list(block_ids), dtype=torch.int64, device=self.device)
            self._data.index_fill_(2, ids, float("nan"))


def _zeros(layout: KVLayout, num_blocks: int, device: torch.device) -> torch.Tensor:
    shape = (layout.num_layers, 2, num_blocks, *layout.block_shape)
    num_bytes = num_blocks * layout.bytes_per_block
    try:
        if device.type != "cpu":
            return torch.zeros(shape, dtype=_DTYPES[layout.dtype], device=device)
        # calloc leaves pages untouched until written; torch.zeros writes every one of them.
        raw = np.zeros(num_bytes + _ALIGN, dtype=np.uint8)
    except (MemoryError, RuntimeError, ValueError) as error:
        raise ModelLoadError(
            f"kv_tokens: {num_blocks * layout.block_size:,} tokens need "
            f"{num_bytes / 2**30:,.2f} GiB, which {device} does not have; set kv_tokens lower"
        ) from error
    start = -raw.ctypes.data % _ALIGN
    flat = torch.from_numpy(raw[start : start + num_bytes])
    return flat.view(_DTYPES[layout.dtype]).view(shape)
