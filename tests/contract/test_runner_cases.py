"""Cases from public bug reports, at the runner: a hit is exactly the cold run."""

import pytest
import torch

from radixcache.errors import CacheCorruptionError
from radixcache_engine.types import Batch, BatchRow
from tests.runner_cases import Bench, apart, load, random_ids
from tests.tiny_models import WINDOW, save_tiny

BLOCK = 16
BOUND = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Llama on disk."""
    return save_tiny(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def bench(folder):
    """A tiny Llama behind a runner whose free blocks are NaN."""
    return Bench(folder, block_size=BLOCK, kv_tokens=16_384)


@pytest.mark.parametrize("suffix", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1])
def test_two_copies_in_one_batch(bench, suffix):
    """Case 8: two copies of one prompt, both warm, in one step, equal the cold solo run."""
    ids = random_ids(192 + suffix)
    wanted = bench.wanted(ids)[-1]
    first = bench.sequence(ids)
    bench.step(first.row(0, 192, wants_logits=False))
    second = bench.sequence(ids, shared=tuple(first.block_table[: 192 // BLOCK]))
    logits = bench.step(first.row(192, len(ids)), second.row(192, len(ids)))

    assert apart(logits, torch.stack([wanted, wanted])) < BOUND


@pytest.mark.parametrize("k", [1, 2, BLOCK])
def test_every_prefix_length(bench, k):
    """Case 10: for every length of a cached prefix the warm logits are the cold ones."""
    for length in range(1, 3 * BLOCK + 2):
        ids = random_ids(length + k, seed=length)
        warm = bench.sequence(ids)
        wanted = bench.wanted(ids)[-1]
        got = bench.feed(warm, [0, length, length + k])

        assert apart(got, wanted) < BOUND
        assert int(got.argmax()) == int(wanted.argmax())
        bench._free.extend(warm.block_table)
        bench.runner.pool.on_free(warm.block_table)


@pytest.mark.parametrize("size", [1, 2, BLOCK, 3 * BLOCK, 3 * BLOCK + 3])
def test_the_newest_token_counts_once(bench, size):
    """Cases 25 and 26: feeding a prompt's last token again over its own slot changes nothing."""
    ids = random_ids(size, seed=size)
    sequence = bench.sequence(ids)
    wanted = bench.wanted(ids)[-1]
    for _ in range(3):
        bench.step(sequence.row(0, size))

        assert apart(bench.step(sequence.row(size - 1, size))[0], wanted) < BOUND


def test_repeated_tokens_count_once(bench):
    """Case 25: one token over and over, where a doubled newest token would show least."""
    ids = [7] * 40
    sequence = bench.sequence(ids)
    wanted = bench.wanted(ids)
    bench.step(sequence.row(0, 20))
    for position in range(20, 40):
        assert apart(bench.step(sequence.row(position, position + 1))[0], wanted[position]) < BOUND


def test_a_window_reads_nothing_older(tmp_path):
    """Case 27: with every block that left the window poisoned, decoding goes on unchanged."""
    bench = Bench(save_tiny(tmp_path, "mistral"), block_size=4, kv_tokens=1024)
    ids = random_ids(120)
    sequence, wanted = bench.sequence(ids), bench.wanted(ids)
    bench.step(sequence.row(0, 30))
    for position in range(30, 120):
        oldest = position - (WINDOW - 1)
        bench.runner.pool.on_free(sequence.block_table[: oldest // 4])

        assert apart(bench.step(sequence.row(position, position + 1))[0], wanted[position]) < BOUND


def test_unwritten_slots_are_never_read(bench):
    """The slots behind a sequence's last token hold NaN and change nothing."""
    for size in (1, BLOCK - 1, BLOCK + 1):
        sequence = bench.sequence(random_ids(size))

        assert not bench.step(sequence.row(0, size)).isnan().any()


def test_bfloat16_stays_close(folder):
    """In bfloat16 the logits stay within bfloat16's rounding, cold and warm."""
    bench = Bench(folder, dtype="bfloat16")
    ids = random_ids(50)
    wanted = bench.wanted(ids)[-1]

    assert bench.runner.pool.dtype == torch.bfloat16
    for cuts in ([0, 50], [0, 32, 50], [0, 49, 50]):
        assert apart(bench.feed(bench.sequence(ids), cuts), wanted) < 0.15


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_each_backend_can_be_chosen(folder, backend):
    """The backend named in the config is the one that runs."""
    bench = Bench(folder, attention_backend=backend)
    ids = random_ids(30)

    assert bench.runner.model_info.attention_backend == backend
    assert apart(bench.feed(bench.sequence(ids), [0, 11, 30]), bench.wanted(ids)[-1]) < BOUND


def test_a_step_without_logits_returns_none_of_them(bench):
    """A step of prefill chunks alone gives an empty result of the right width."""
    sequence = bench.sequence(random_ids(9))

    assert bench.step(sequence.row(0, 9, wants_logits=False)).shape == (0, 97)


@pytest.mark.parametrize(
    ("table", "message"),
    [([], "too short"), ([1], "too short"), ([1, 10**6], "not in"), ([1, -1], "not in")],
)
def test_a_wrong_block_table_is_refused(bench, table, message):
    """Block ids are checked before a kernel reads memory by them."""
    row = BatchRow(token_ids=[5] * 20, start=0, block_table=table, wants_logits=True)
    with pytest.raises(CacheCorruptionError, match=message):
        bench.runner.launch(Batch(rows=[row]))


def test_a_failed_step_leaves_the_runner_working(bench):
    """A token id outside the vocabulary fails its step and no later one."""
    bad = bench.sequence([10**6])
    with pytest.raises(IndexError):
        bench.step(bad.row(0, 1))
    ids = random_ids(9)

    assert apart(bench.feed(bench.sequence(ids), [0, 9]), bench.wanted(ids)[-1]) < BOUND


def test_two_runners_live_side_by_side(folder, tmp_path):
    """Nothing of one model's step is reachable from another model."""
    one, two = Bench(folder), Bench(save_tiny(tmp_path, "qwen3"))
    ids = random_ids(20)
    for bench in (one, two, one):
        assert apart(bench.feed(bench.sequence(ids), [0, 20]), bench.wanted(ids)[-1]) < BOUND


def test_what_a_client_sees_of_the_model(folder):
    """ModelInfo and the attributes that the engine builds its cache from are filled in."""
    runner = load(folder, kv_tokens=100, max_context_len=64)
    info = runner.model_info

    assert (info.name, info.architecture) == ("tiny", "LlamaForCausalLM")
    assert (info.context_len, info.vocab_size) == (64, 97)
    assert (info.block_size, info.kv_capacity_tokens) == (16, 96)
    assert runner.num_blocks == 7
    assert runner.pool.num_blocks == 7
    assert (info.dtype, info.device, info.eos_token_ids) == ("float32", "cpu", (2,))
    assert runner.kv_key
