"""How many blocks the KV pool gets."""

from radixcache.errors import ModelLoadError
from radixcache.kv.layout import KVLayout

__all__ = ["AUTO_MAX_TOKENS", "AUTO_SHARE", "pool_blocks"]

AUTO_SHARE = 0.3
"""Share of the memory free after loading that the pool takes when nobody says ``kv_tokens``."""

AUTO_MAX_TOKENS = 262_144
"""More than this is only taken when asked for."""


def pool_blocks(layout: KVLayout, kv_tokens: int | None, free_bytes: int | None) -> int:
    """Choose the number of blocks, block 0 included.

    Args:
        layout: of the pool.
        kv_tokens: what the user asked for; rounded down to whole blocks. None: by free memory.
        free_bytes: of the device; None where nobody tells.

    Raises:
        ModelLoadError: the pool does not fit, or too little memory is left for one block.
    """
    tokens = kv_tokens
    if tokens is None:
        share = AUTO_MAX_TOKENS * layout.bytes_per_token
        if free_bytes is not None:
            share = min(share, int(free_bytes * AUTO_SHARE))
        tokens = share // layout.bytes_per_token
    blocks = tokens // layout.block_size
    needed = (blocks + 1) * layout.bytes_per_block
    if free_bytes is not None and needed > free_bytes:
        raise ModelLoadError(
            f"kv_tokens: {tokens:,} tokens need {needed / 2**30:,.2f} GiB of KV, "
            f"{free_bytes / 2**30:,.2f} GiB are free; at most "
            f"{max(0, free_bytes // layout.bytes_per_token - layout.block_size):,} fit"
        )
    if blocks < 1:
        raise ModelLoadError(
            f"kv_tokens: {tokens:,} tokens are less than one block of {layout.block_size}"
        )
    return blocks + 1
