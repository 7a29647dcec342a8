"""Every architecture gives its own logits on every road through the cache."""

import pytest
import torch

from tests.runner_cases import Bench, apart, random_ids
from tests.tiny_models import ARCHITECTURES, save_tiny

BOUND = 1e-4
LONG = 53  # tokens; beyond every tiny window, not a multiple of a block
BLOCK_SIZES = {"llama": (1, 16, 64), "gemma3_text": (1, 16)}


def _benches():
    for name in ARCHITECTURES:
        for size in BLOCK_SIZES.get(name, (16,)):
            yield pytest.param((name, size), id=f"{name}-{size}")


@pytest.fixture(scope="module", params=_benches())
def bench(request, tmp_path_factory):
    """One architecture at one block size, behind a runner whose free blocks are NaN."""
    name, size = request.param
    folder = save_tiny(tmp_path_factory.mktemp(name), name)
    return Bench(folder, block_size=size, kv_tokens=4096)


def test_cold(bench):
    """A whole prompt in one step gives the model's own logits."""
    ids = random_ids(LONG)

    assert apart(bench.feed(bench.sequence(ids), [0, LONG]), bench.wanted(ids)[-1]) < BOUND


def test_chunked(bench):
    """A prompt in chunks of 7 gives the model's own logits after every chunk."""
    ids = random_ids(LONG)
    wanted, sequence = bench.wanted(ids), bench.sequence(ids)
    for start in range(0, LONG, 7):
        end = min(start + 7, LONG)

        assert apart(bench.step(sequence.row(start, end))[0], wanted[end - 1]) < BOUND


def test_decode(bench):
    """Token by token over the cache, the logits stay the model's own."""
    ids = random_ids(LONG)
    wanted, sequence = bench.wanted(ids), bench.sequence(ids)
    bench.step(sequence.row(0, 20))
    for position in range(20, LONG):
        logits = bench.step(sequence.row(position, position + 1))

        assert apart(logits[0], wanted[position]) < BOUND


def test_warm_suffix_over_shared_blocks(bench):
    """A prompt whose first blocks another sequence computed reads them in place."""
    size = bench.runner.pool.layout.block_size
    cached = 32 // size * size
    if not cached:
        cached, size = 64, 64
    first = bench.sequence(random_ids(cached + 3))
    bench.step(first.row(0, cached + 3))
    ids = first.token_ids[:cached] + random_ids(9, seed=5)
    second = bench.sequence(ids, shared=tuple(first.block_table[: cached // size]))

    assert apart(bench.step(second.row(cached, len(ids)))[0], bench.wanted(ids)[-1]) < BOUND


def test_packed(bench):
    """Prefills, chunks and decodes of five sequences in one step do not touch each other."""
    sequences = [bench.sequence(random_ids(size, seed=size)) for size in (40, 1, 18, 33, LONG)]
    starts = [0, 0, 17, 20, 30]
    for sequence, start in zip(sequences, starts, strict=True):
        if start:
            bench.step(sequence.row(0, start))
    pairs = zip(sequences, starts, strict=True)
    rows = [s.row(start, len(s.token_ids), wants_logits=start != 20) for s, start in pairs]
    logits = bench.step(*rows)
    wanted = [bench.wanted(s.token_ids)[-1] for i, s in enumerate(sequences) if i != 3]

    assert logits.dtype == torch.float32
    assert logits.shape == (4, bench.runner.model_info.vocab_size)
    assert apart(logits, torch.stack(wanted)) < BOUND
    # The row that wanted no logits still left its KV.
    silent = sequences[3]

    assert apart(bench.step(silent.row(32, 33))[0], bench.wanted(silent.token_ids)[-1]) < BOUND
