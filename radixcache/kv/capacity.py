"""The one capacity formula, for validation, admission and allocator alike.

A pool of ``num_blocks`` blocks has the ids 0 to ``num_blocks - 1``. Block 0 is reserved for
padding, so ``num_blocks - 1`` of them can hold tokens.
"""

__all__ = [
    "RESERVED_BLOCKS",
    "blocks_for",
    "longest_sequence",
    "pool_blocks_for",
    "pool_capacity_tokens",
    "usable_blocks",
]

RESERVED_BLOCKS = 1
"""Blocks at the start of a pool that never hold a sequence's tokens."""


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Return the blocks that ``num_tokens`` tokens take up, the last one partly filled."""
    return -(-num_tokens // block_size)


def usable_blocks(num_blocks: int) -> int:
    """Return the blocks of a pool that can hold tokens."""
    return num_blocks - RESERVED_BLOCKS


def pool_capacity_tokens(num_blocks: int, block_size: int) -> int:
    """Return the tokens that a pool of ``num_blocks`` blocks holds at most."""
    return usable_blocks(num_blocks) * block_size


def longest_sequence(capacity_tokens: int) -> int:
    """Return the tokens, prompt and output, of the longest sequence that a pool can serve.

    One more than it holds: the last token of a sequence is given out, its KV is never needed.
    """
    return capacity_tokens + 1


def pool_blocks_for(capacity_tokens: int, block_size: int) -> int:
    """Return the size of the smallest pool that holds ``capacity_tokens`` tokens, in blocks."""
    return blocks_for(capacity_tokens, block_size) + RESERVED_BLOCKS
