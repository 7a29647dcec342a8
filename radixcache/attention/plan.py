"""The attention plan: which blocks each row of a step reads, and where its new tokens go.

A value built once per step on the host and read by every layer and every backend. One row:

    token index    0 ......................... start ............ seq_len
    KV             |<- in the pool already --->|<- this step's -->|
    queries                                    |<- qo_len ------->|
    blocks         |<-- kv_indices[kv_indptr[b] : kv_indptr[b + 1]] -->|  (last one part filled)

Query ``i`` of a row stands at position ``seq_len - qo_len + i`` and sees the keys up to itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from radixcache.errors import CacheCorruptionError

__all__ = ["AttentionPlan"]

_Ints = npt.NDArray[np.int32]
_FIELDS = (
    "qo_indptr",
    "kv_indptr",
    "kv_indices",
    "kv_last_page_len",
    "seq_lens",
    "positions",
    "out_slots",
)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionPlan:
    """Index arrays of one step, all int32, contiguous, on the CPU.

    ``B`` rows, ``T`` query tokens, ``P`` block references. flashinfer takes the same arrays; what
    is a block here is a page there, hence the one name ``kv_last_page_len``.
    """

    qo_indptr: torch.Tensor  # [B + 1] where each row's queries begin; the last entry is T
    kv_indptr: torch.Tensor  # [B + 1] where each row's blocks begin; the last entry is P
    kv_indices: torch.Tensor  # [P] block ids
    kv_last_page_len: torch.Tensor  # [B] tokens in the last block, 1 to block_size; 0: no block
    seq_lens: torch.Tensor  # [B] tokens of the row once this step's are written
    positions: torch.Tensor  # [T] position of each query token in its sequence
    out_slots: torch.Tensor  # [T] block_id * block_size + offset of each new token
    block_size: int
    max_qo_len: int  # 1: every row is a decode
    row_ends: tuple[int, ...] = field(repr=False)  # qo_indptr[1:] as plain integers

    @classmethod
    def build(
        cls,
        starts: Sequence[int],
        lengths: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        *,
        block_size: int,
    ) -> "AttentionPlan":
        """Lay out one step. Rows keep their order.

        Args:
            starts: tokens of each row whose KV is in the pool already.
            lengths: new tokens of each row, at least 1.
            block_tables: block ids of each row, covering ``start + length`` tokens; longer ones
                are cut.
            block_size: tokens a block.

        Raises:
            CacheCorruptionError: a negative start, an empty row or a block table too short.
        """
        start = np.asarray(starts, dtype=np.int32)
        length = np.asarray(lengths, dtype=np.int32)
        _check_rows(start, length, block_tables, block_size)
        seq_lens = start + length
        num_blocks = -(-seq_lens // block_size)
        qo_indptr, kv_indptr = _indptr(length), _indptr(num_blocks)
        kv_indices = _concat(block_tables, num_blocks)
        total = int(qo_indptr[-1])
        shift = start - qo_indptr[:-1]
        positions = np.arange(total, dtype=np.int32) + np.repeat(shift, length)
        block = np.repeat(kv_indptr[:-1], length) + positions // block_size
        out_slots = kv_indices[block] * np.int32(block_size) + positions % block_size
        return cls(
            qo_indptr=_tensor(qo_indptr),
            kv_indptr=_tensor(kv_indptr),
            kv_indices=_tensor(kv_indices),
            kv_last_page_len=_tensor(seq_lens - (num_blocks - 1) * block_size),
            seq_lens=_tensor(seq_lens),
            positions=_tensor(positions),
            out_slots=_tensor(out_slots),
            block_size=block_size,
            max_qo_len=int(length.max()),
            row_ends=tuple(qo_indptr[1:].tolist()),
        )

    @property
    def num_rows(self) -> int:
        """Sequences in the step."""
        return self.seq_lens.shape[0]

    @property
    def num_tokens(self) -> int:
        """Query tokens in the step."""
        return self.positions.shape[0]

    def check_bounds(self, num_blocks: int) -> None:
        """Check that every block id lies in the pool: cheap enough for every step.

        Raises:
            CacheCorruptionError: naming the first id that does not.
        """
        ids = self.kv_indices.numpy()
        if ids.size and not (int(ids.min()) >= 0 and int(ids.max()) < num_blocks):
            bad = ids[(ids < 0) | (ids >= num_blocks)][0]
            raise CacheCorruptionError(f"plan: kv_indices: block {bad} is not in 0..{num_blocks})")

    def validate(self, num_blocks: int, block_size: int) -> None:
        """Check every invariant of the arrays; O(P log P), for tests and debugging.

        Args:
            num_blocks: of the pool, block 0 included.
            block_size: of the pool.

        Raises:
            CacheCorruptionError: naming the array, the row and what is wrong with it.
        """
        if block_size != self.block_size:
            raise _broken(f"block_size: plan has {self.block_size}, pool has {block_size}")
        for name in _FIELDS:
            _check_array(name, getattr(self, name))
        self._check_shapes()
        self.check_bounds(num_blocks)
        self._check_lengths(block_size)
        self._check_ownership(block_size)

    def _check_shapes(self) -> None:
        rows = self.seq_lens.shape[0]
        wanted = {
            "qo_indptr": rows + 1,
            "kv_indptr": rows + 1,
            "kv_last_page_len": rows,
            "kv_indices": int(self.kv_indptr[-1]),
            "positions": int(self.qo_indptr[-1]),
            "out_slots": int(self.qo_indptr[-1]),
        }
        for name, size in wanted.items():
            got = getattr(self, name).shape[0]
            if got != size:
                raise _broken(f"{name}: has {got} entries, the other arrays say {size}")
        for name in ("qo_indptr", "kv_indptr"):
            array = getattr(self, name).numpy()
            if array[0] != 0:
                raise _broken(f"{name}: begins with {array[0]}, must begin with 0")
            _no_row(np.diff(array) < 0, f"{name}: decreases at row")

    def _check_lengths(self, block_size: int) -> None:
        blocks = np.diff(self.kv_indptr.numpy())
        queries = np.diff(self.qo_indptr.numpy())
        last, seq = self.kv_last_page_len.numpy(), self.seq_lens.numpy()
        has = blocks > 0
        _no_row(has & ((last < 1) | (last > block_size)), "kv_last_page_len: out of range in row")
        _no_row(~has & ((last != 0) | (seq != 0)), "seq_lens: tokens without a block in row")
        expected = np.where(has, (blocks - 1) * block_size + last, 0)
        _no_row(seq != expected, "seq_lens: does not fit the number of blocks in row")
        _no_row(queries > seq, "qo_indptr: more queries than tokens in row")
        positions = np.repeat(seq - queries - self.qo_indptr.numpy()[:-1], queries)
        positions = positions + np.arange(positions.size)
        _no_row(positions != self.positions.numpy(), "positions: wrong for query token")

    def _check_ownership(self, block_size: int) -> None:
        ids = self.kv_indices.numpy().astype(np.int64)
        rows = np.repeat(np.arange(self.num_rows), np.diff(self.kv_indptr.numpy()))
        # Block 0 is padding: it may only stand alone in its row.
        alone = np.diff(self.kv_indptr.numpy())[rows] == 1
        if bool(((ids == 0) & ~alone).any()):
            raise _broken(f"kv_indices: padding block 0 in row {rows[(ids == 0) & ~alone][0]}")
        pairs = np.unique(np.stack([rows, ids]), axis=1)
        if pairs.shape[1] != ids.size:
            raise _broken("kv_indices: a block stands twice in one row")
        shared, counts = np.unique(ids, return_counts=True)
        written = np.unique(self.out_slots.numpy() // block_size)
        both = np.intersect1d(written[written != 0], shared[counts > 1])
        if both.size:
            raise _broken(f"out_slots: block {both[0]} is written here and read by several rows")
        queries = np.diff(self.qo_indptr.numpy())
        first = np.repeat(self.kv_indptr.numpy()[:-1], queries)
        positions = self.positions.numpy()
        expected = ids[first + positions // block_size] * block_size + positions % block_size
        _no_row(expected != self.out_slots.numpy(), "out_slots: wrong for query token")


def _check_rows(
    start: _Ints, length: _Ints, tables: Sequence[Sequence[int]], block_size: int
) -> None:
    if not start.size == length.size == len(tables) or not start.size:
        raise _broken(f"{start.size} starts, {length.size} lengths, {len(tables)} block tables")
    _no_row(start < 0, "start: negative in row")
    _no_row(length < 1, "length: no token in row")
    held = np.fromiter((len(table) for table in tables), dtype=np.int64, count=len(tables))
    _no_row(held * block_size < start + length, "block table: too short in row")


def _concat(tables: Sequence[Sequence[int]], num_blocks: _Ints) -> _Ints:
    parts = [
        np.asarray(table[:count], dtype=np.int32)
        for table, count in zip(tables, num_blocks.tolist(), strict=True)
    ]
    return np.concatenate(parts)


def _indptr(counts: _Ints) -> _Ints:
    out = np.zeros(counts.size + 1, dtype=np.int32)
    np.cumsum(counts, out=out[1:])
    return out


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32))


def _check_array(name: str, array: torch.Tensor) -> None:
    if array.dtype != torch.int32 or array.ndim != 1:
        raise _broken(f"{name}: got {array.dtype} {list(array.shape)}, must be int32 [n]")
    if array.device.type != "cpu" or not array.is_contiguous():
        raise _broken(f"{name}: must be contiguous and on the CPU, is on {array.device}")


def _no_row(wrong: npt.NDArray[np.bool_], message: str) -> None:
    if wrong.any():
        raise _broken(f"{message} {int(np.argmax(wrong))}")


def _broken(message: str) -> CacheCorruptionError:
    return CacheCorruptionError(f"plan: {message}")
