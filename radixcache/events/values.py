"""The events, and the snapshot that stands in for those that are gone.

A block is named by its block id, which is unique while the block is findable: a ``BlocksRemoved``
or ``Cleared`` comes before the ``BlocksStored`` that uses the id again. Ids are kept packed (int32,
native byte order), because an event may carry 100,000 of them.

What other formats need follows from these fields: a hash chain from ``parent_block_id``, tokens
and namespace (who sends hashes keeps those of the findable blocks by id); adapter and model from
``namespace.kv_key``; ``block_size`` from the lengths.
"""

import sys
from dataclasses import dataclass
from typing import TypeAlias

from radixcache.types import PUBLIC, Namespace

__all__ = ["ID_BYTES", "BlocksRemoved", "BlocksStored", "Cleared", "Event", "Snapshot", "unpack"]

ID_BYTES = 4
"""Bytes of one packed id."""


def unpack(packed: bytes) -> tuple[int, ...]:
    """Return packed ids as numbers."""
    return tuple(memoryview(packed).cast("i"))


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Consecutive blocks of one namespace became findable.

    Attributes:
        seq: its number; the first event of a log is 1.
        namespace: who owns the blocks. Their parent is the same namespace's, or PUBLIC.
        parent_block_id: the block that the first of them follows; None: they begin a prefix. Each
            other block follows the one before it.
        packed_block_ids: at least one id.
        packed_token_ids: the key ids, ``block_size`` for each block.
    """

    seq: int
    namespace: Namespace
    parent_block_id: int | None
    packed_block_ids: bytes
    packed_token_ids: bytes

    @classmethod
    def after(
        cls,
        seq: int,
        namespace: Namespace,
        parent: bytes | bytearray,
        key: memoryview,
        ids: memoryview,
    ) -> "BlocksStored":
        """Copy what a tree tells its watcher (see ``TreeWatcher.stored``)."""
        parent_id = int.from_bytes(parent, sys.byteorder, signed=True) if parent else None
        return cls(seq, namespace, parent_id, ids.tobytes(), key.tobytes())

    @property
    def block_ids(self) -> tuple[int, ...]:
        """Block ids, parents first."""
        return unpack(self.packed_block_ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Key ids of all blocks, in order."""
        return unpack(self.packed_token_ids)

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return len(self.packed_token_ids) // len(self.packed_block_ids)

    @property
    def num_ids(self) -> int:
        """Ids it carries, four bytes each."""
        return (len(self.packed_block_ids) + len(self.packed_token_ids)) // ID_BYTES


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks were evicted: the last ones of a path, nothing findable follows them.

    Attributes:
        seq: its number.
        packed_block_ids: at least one id, parents first.
    """

    seq: int
    packed_block_ids: bytes

    @property
    def block_ids(self) -> tuple[int, ...]:
        """Block ids, parents first."""
        return unpack(self.packed_block_ids)

    @property
    def num_ids(self) -> int:
        """Ids it carries, four bytes each."""
        return len(self.packed_block_ids) // ID_BYTES


@dataclass(frozen=True, slots=True)
class Cleared:
    """A flush: the blocks it covers are no longer findable, locked or not.

    Attributes:
        seq: its number.
        namespace: None covers everything; a PUBLIC one all blocks of its ``kv_key``, whatever
            their scope; a scoped one only that scope's own.
    """

    seq: int
    namespace: Namespace | None

    @property
    def num_ids(self) -> int:
        """Ids it carries: none."""
        return 0

    def covers(self, namespace: Namespace) -> bool:
        """Whether blocks of that namespace are gone."""
        own = self.namespace
        if own is None:
            return True
        return own.kv_key == namespace.kv_key and own.scope in (PUBLIC, namespace.scope)


Event: TypeAlias = BlocksStored | BlocksRemoved | Cleared


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is findable at one moment. The events after ``seq`` continue it.

    Attributes:
        seq: number of the last event that it contains; 0: none had happened.
        events: the blocks, parents before what follows them, each with this ``seq``.
    """

    seq: int
    events: tuple[BlocksStored, ...]
