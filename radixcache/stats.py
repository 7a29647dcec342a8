"""Counters of one cache since its start. Sizes are read from the owners, never stored twice."""

from dataclasses import dataclass

__all__ = ["CacheCounters"]


@dataclass(slots=True)
class CacheCounters:
    """Blocks and requests counted once each, since the cache was made; they only grow."""

    acquired_leases: int = 0
    evicted_blocks: int = 0  # taken from the tree because something else needed room
    flushed_blocks: int = 0  # forgotten by flush, those still locked included
    published_blocks: int = 0  # taken over by the tree
    duplicate_blocks: int = 0  # computed although the tree held the same by then; freed
    copied_blocks: int = 0  # by fork
    refused_allocations: int = 0  # OutOfBlocksError raised
