"""The load-time probe: our road against the model's own forward, on the same weights.

A model that our attention, our positions or our cache would run wrongly is refused here, before
it serves anybody. Random tokens do: what is compared is arithmetic, not language.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from radixcache.attention import AttentionBackend, AttentionPlan
from radixcache.errors import ModelRefusedError
from radixcache.kv.layout import KVLayout
from radixcache.kv.pool import KVPool
from radixcache_engine.models.packed import PackedModel

__all__ = ["MAX_DIFFERENCE", "probe_model"]

MAX_DIFFERENCE = 1e-3
"""Largest difference of two logits that is put down to the order of float32 sums."""

_PROMPT_LENS = (41, 23, 14)  # tokens; none a multiple of a usual block
_LONGEST = 600  # tokens; a window above this is not crossed, it would cost seconds
_COMPARED = 48  # tokens of each prompt, counted from its end
_CHUNK = 7


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens ``[start, end)`` of one prompt."""

    prompt: int
    start: int
    end: int


def probe_model(
    packed: PackedModel,
    backend: AttentionBackend,
    *,
    vocab_size: int,
    context_len: int,
    block_size: int = 16,
) -> float:
    """Compare logits of three random prompts: cold, warm, chunked and packed with others.

    Args:
        packed: the model in float32.
        backend: the one that will serve.
        vocab_size: ids are drawn below this.
        context_len: no prompt is longer.
        block_size: tokens a block; small, so that prompts cross blocks.

    Returns:
        The largest difference found.

    Raises:
        ModelRefusedError: the difference is above :data:`MAX_DIFFERENCE`; says on which road.
    """
    prompts = _prompts(packed, vocab_size, context_len)
    wanted = [packed.own_logits(ids, last=_COMPARED) for ids in prompts]
    worst = 0.0
    for road, steps in _roads([len(ids) for ids in prompts]):
        run = _Run(packed, backend, prompts, block_size)
        for pieces in steps:
            difference = run.step(pieces, wanted)
            if not difference <= MAX_DIFFERENCE:  # NaN is refused too
                raise ModelRefusedError(
                    f"{type(packed.model).__name__} runs differently over cached blocks: {road}, "
                    f"logits differ by {difference:.3g} (allowed {MAX_DIFFERENCE:g})"
                )
            worst = max(worst, difference)
    return worst


def _roads(lens: Sequence[int]) -> Iterator[tuple[str, list[list[_Piece]]]]:
    first, second, third = lens
    half = max(1, first // 2)
    yield "cold", [[_Piece(i, 0, size)] for i, size in enumerate(lens)]
    yield "warm", [[_Piece(0, 0, half)], [_Piece(0, half, first)]]
    cuts = [*range(0, second, _CHUNK), second]
    yield "chunked", [[_Piece(1, a, b)] for a, b in pairwise(cuts)]
    yield (
        "packed",
        [
            [_Piece(2, 0, max(1, third - 1))],
            [_Piece(0, 0, half), _Piece(2, max(1, third - 1), third), _Piece(1, 0, second)],
            [_Piece(0, half, first)],
        ],
    )


def _prompts(packed: PackedModel, vocab_size: int, context_len: int) -> list[torch.Tensor]:
    lens = [min(size, context_len) for size in _PROMPT_LENS]
    windows = [spec.window_left for spec in packed.specs if spec.window_left >= 0]
    crossing = max((size + 24 for size in windows if size + 24 <= _LONGEST), default=0)
    lens[0] = min(max(lens[0], crossing), context_len)
    generator = torch.Generator().manual_seed(20)
    return [torch.randint(vocab_size, (max(2, size),), generator=generator) for size in lens]


class _Run:
    """One road over a fresh pool whose every slot is NaN until written."""

    def __init__(
        self,
        packed: PackedModel,
        backend: AttentionBackend,
        prompts: list[torch.Tensor],
        block_size: int,
    ) -> None:
        self._packed, self._backend, self._prompts = packed, backend, prompts
        sizes = [-(-len(ids) // block_size) for ids in prompts]
        # Blocks out of order, so that a backend that ignores block ids cannot pass.
        ids = list(range(sum(sizes), 0, -1))
        self._tables = [[ids.pop() for _ in range(size)][::-1] for size in sizes]
        spec = packed.specs[0]
        layout = KVLayout(
            num_layers=len(packed.specs),
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            block_size=block_size,
        )
        self._pool = KVPool(layout, sum(sizes) + 1, device=packed.device, poison=True)
        self._pool.on_free(range(1, sum(sizes) + 1))

    def step(self, pieces: list[_Piece], wanted: list[torch.Tensor]) -> float:
        """Run the pieces in one forward; return how far their logits are from those wanted."""
        plan = AttentionPlan.build(
            [piece.start for piece in pieces],
            [piece.end - piece.start for piece in pieces],
            [self._tables[piece.prompt] for piece in pieces],
            block_size=self._pool.layout.block_size,
        )
        plan.validate(self._pool.num_blocks, self._pool.layout.block_size)
        token_ids = torch.cat([self._prompts[p.prompt][p.start : p.end] for p in pieces])
        keep, expected = self._compared(pieces, wanted)
        logits = self._packed.forward(token_ids, plan, self._pool, self._backend, keep=keep)
        if not len(keep):
            return 0.0
        return float((logits - expected).abs().max())

    def _compared(
        self, pieces: list[_Piece], wanted: list[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keep, expected, begin = [], [], 0
        for piece in pieces:
            skipped = len(self._prompts[piece.prompt]) - len(wanted[piece.prompt])
            first = max(piece.start, skipped)
            keep.append(torch.arange(first, max(first, piece.end)) - piece.start + begin)
            expected.append(wanted[piece.prompt][first - skipped : max(first, piece.end) - skipped])
            begin += piece.end - piece.start
        return torch.cat(keep), torch.cat(expected)
