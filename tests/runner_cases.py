"""A tiny model behind a Runner, and the model as transformers runs it, side by side."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from radixcache_engine.config import EngineConfig
from radixcache_engine.runner import Runner
from radixcache_engine.types import Batch, BatchRow
from tests.tiny_models import VOCAB, own_logits, own_model


def random_ids(count: int, seed: int = 0) -> list[int]:
    """Return token ids that are no special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (count,), generator=generator).tolist()


def load(folder: Path, **settings: Any) -> Runner:
    """Load a runner for tests: float32, one thread, every freed block poisoned, plans checked."""
    wanted = {
        "dtype": "float32",
        "threads": 1,
        "kv_tokens": 2048,
        "poison_freed": True,
        "check_every_step": True,
    }
    runner = Runner.load(EngineConfig(**(wanted | settings)), folder, "tiny")
    runner.pool.on_free(range(1, runner.num_blocks))
    return runner


@dataclass
class Sequence:
    """One sequence of a test: its tokens and its blocks."""

    token_ids: list[int]
    block_table: list[int]

    def row(self, start: int, end: int, *, wants_logits: bool = True) -> BatchRow:
        """Return the row that feeds tokens ``[start, end)``."""
        return BatchRow(
            token_ids=self.token_ids[start:end],
            start=start,
            block_table=self.block_table,
            wants_logits=wants_logits,
        )


class Bench:
    """Runner and oracle of one folder; hands out blocks in an order of its own."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.runner = load(folder, **settings)
        self.model = own_model(folder)
        self._free = list(range(self.runner.num_blocks - 1, 0, -1))

    def sequence(self, token_ids: list[int], shared: tuple[int, ...] = ()) -> Sequence:
        """Give a sequence blocks, the first of them shared ones if any are given."""
        need = -(-len(token_ids) // self.runner.pool.layout.block_size) - len(shared)
        taken = [self._free.pop() for _ in range(need)]
        return Sequence(token_ids, [*shared, *taken[::-1]])

    def wanted(self, token_ids: list[int]) -> torch.Tensor:
        """Return the model's own logits of every position."""
        return own_logits(self.model, token_ids)

    def step(self, *rows: BatchRow) -> torch.Tensor:
        """Run one step."""
        return self.runner.launch(Batch(rows=list(rows))).result()

    def feed(self, sequence: Sequence, cuts: list[int]) -> torch.Tensor:
        """Feed a sequence alone, cut at the given positions; return the last token's logits."""
        logits = torch.empty(0)
        for start, end in pairwise(cuts):
            logits = self.step(sequence.row(start, end))
        return logits[0]


def apart(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest difference of two logits."""
    return float((got - wanted).abs().max())
