"""The radix tree: which prefixes are cached, and in which blocks. Plain integers only."""

from radixcache.tree.handles import BlockIds, Extended, Lock
from radixcache.tree.match import Inserted, Match
from radixcache.tree.tree import RadixTree

__all__ = ["BlockIds", "Extended", "Inserted", "Lock", "Match", "RadixTree"]
