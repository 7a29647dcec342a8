"""Logits processors against transformers' and against their own promise of purity."""

import pytest
import torch
from transformers import MinNewTokensLengthLogitsProcessor, RepetitionPenaltyLogitsProcessor

from radixcache.types import SamplingParams
from radixcache_engine.sampling.processors import (
    LogitBias,
    MinTokens,
    OutputPenalties,
    RepetitionPenalty,
    processors_of,
)

VOCAB = 30


def row(seed=0):
    """Logits of both signs."""
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("penalty", [0.5, 1.2, 3.0])
def test_repetition_penalty_is_that_of_transformers(penalty):
    """Prompt and output count alike, each token once."""
    prompt, output = [1, 2, 2, 5], [5, 7, 7, 29]
    logits = row()
    expected = RepetitionPenaltyLogitsProcessor(penalty)(
        torch.tensor([prompt + output]), logits[None].clone()
    )[0]
    RepetitionPenalty(penalty)(logits, prompt, output)

    assert torch.equal(logits, expected)


def test_output_penalties_count_the_output_only():
    """Presence once a token, frequency once an occurrence, the prompt not at all."""
    logits, before = row(), row()
    OutputPenalties(0.5, 0.25)(logits, [3, 3], [4, 6, 6, 6])
    expected = before.clone()
    expected[4] -= 0.75
    expected[6] -= 1.25

    assert torch.allclose(logits, expected)


def test_penalties_do_nothing_before_the_first_token():
    """An empty output is no special case."""
    logits = row()
    OutputPenalties(1.0, 1.0)(logits, [1], [])

    assert torch.equal(logits, row())


@pytest.mark.parametrize("make", [RepetitionPenalty, lambda p: OutputPenalties(p, p)])
@pytest.mark.parametrize("size", [2.0**-126, 3e38])
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_penalties_keep_logits_finite(make, size, sign):
    """The largest and smallest float32 neither overflow nor make NaN; -inf stays forbidden."""
    processor = make(size if make is RepetitionPenalty else sign * size)
    logits = torch.tensor([3e38, -3e38, 0.0, 1.0, -1.0, -torch.inf])
    processor(logits, [], [0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0])

    assert torch.isfinite(logits[:5]).all()
    assert logits[5] == -torch.inf


def test_bias_is_added_as_given():
    """Each id gets its own constant."""
    logits = row()
    LogitBias({3: 5.0, 0: -100.0})(logits, [], [])
    expected = row()
    expected[3] += 5.0
    expected[0] -= 100.0

    assert torch.equal(logits, expected)


@pytest.mark.parametrize("num_output", [0, 1, 2, 3])
def test_min_tokens_is_that_of_transformers(num_output):
    """End tokens are forbidden until the output has min_tokens tokens, and not longer."""
    output = [9] * num_output
    logits = row()
    expected = MinNewTokensLengthLogitsProcessor(1, 2, [4, 8], device="cpu")(
        torch.tensor([[1, *output]]), logits[None].clone()
    )[0]
    MinTokens(2, {4, 8})(logits, [1], output)

    assert torch.equal(logits, expected)


@pytest.mark.parametrize(
    "processor",
    [
        RepetitionPenalty(1.3),
        OutputPenalties(0.2, 0.1),
        LogitBias({1: 2.0}),
        MinTokens(5, {2}),
    ],
)
def test_a_processor_is_a_pure_function(processor):
    """The same ids give the same logits, whatever it was asked in between."""
    prompt, output = [1, 2], [3, 4]
    first = row()
    processor(first, prompt, output)
    processor(row(9), [7], [8, 9])
    again = row()
    processor(again, prompt, output)

    assert torch.equal(first, again)
    assert (prompt, output) == ([1, 2], [3, 4])


def test_fingerprints_tell_processors_apart():
    """Everything that changes the function is in its fingerprint."""
    processors = [
        RepetitionPenalty(1.3),
        RepetitionPenalty(1.4),
        OutputPenalties(0.2, 0.1),
        OutputPenalties(0.1, 0.2),
        LogitBias({1: 2.0}),
        LogitBias({1: 2.5}),
        LogitBias({2: 2.0}),
        MinTokens(5, {2}),
        MinTokens(5, {3}),
        MinTokens(6, {2}),
    ]

    assert len({p.fingerprint for p in processors}) == len(processors)
    assert LogitBias({1: 1.0, 2: 3.0}).fingerprint == LogitBias({2: 3.0, 1: 1.0}).fingerprint


def test_defaults_need_no_processor():
    """A plain request pays nothing."""
    assert processors_of(SamplingParams(), {2}) == ()


def test_bias_comes_after_the_penalties():
    """A bias of +5 adds 5 to the penalised logit."""
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, logit_bias={3: 5.0})
    logits = torch.zeros(VOCAB)
    logits[3] = 4.0
    for processor in processors_of(params, ()):
        processor(logits, [3], [3])

    assert logits[3].item() == pytest.approx(4.0 / 2.0 - 1.0 + 5.0)


def test_min_tokens_forbids_stop_ids_and_ends():
    """ignore_eos lets the end tokens through: they end nothing then."""
    logits = torch.zeros(VOCAB)
    params = SamplingParams(min_tokens=1, stop_token_ids=(4,))
    for processor in processors_of(params, {2}):
        processor(logits, [], [])
    ignoring = torch.zeros(VOCAB)
    for processor in processors_of(SamplingParams(min_tokens=1, ignore_eos=True), {2}):
        processor(ignoring, [], [])

    assert torch.nonzero(logits == -torch.inf).flatten().tolist() == [2, 4]
    assert torch.equal(ignoring, torch.zeros(VOCAB))
