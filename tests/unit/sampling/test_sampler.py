"""The sampler: greedy and drawn rows, containment, seeds, log-probabilities."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from radixcache.errors import InvalidRequestError, RadixCacheError
from radixcache.types import SamplingParams
from radixcache_engine.sampling.sampler import Sampler
from radixcache_engine.types import SampleRow

VOCAB = 40
GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(seed=11)


def rand(rows, seed=0, vocab=VOCAB):
    """Logits of a model that has opinions."""
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def draw(logits, params=DRAWN, *, row=0, prompt=(1,), output=(), index=0):
    """A row for the sampler."""
    return SampleRow(row, params, prompt, output, index)


def tokens(logits, rows):
    """Token ids drawn by a fresh sampler; every row must succeed."""
    drawn = Sampler(logits.shape[1], {2}).sample(logits, rows)

    assert [token.error for token in drawn] == [None] * len(rows)
    return [token.token_id for token in drawn]


def test_greedy_takes_the_likeliest():
    """Temperature 0 and anything below 1e-5 is argmax."""
    logits = rand(3)
    rows = [draw(logits, GREEDY, row=r) for r in range(3)]
    tiny = [draw(logits, SamplingParams(temperature=9e-6, seed=1), row=r) for r in range(3)]

    assert tokens(logits, rows) == logits.argmax(-1).tolist()
    assert tokens(logits, tiny) == logits.argmax(-1).tolist()


def test_top_k_of_one_is_greedy_even_among_equals():
    """Ties go to the lower id either way."""
    logits = torch.zeros(1, VOCAB)

    assert tokens(logits, [draw(logits, SamplingParams(top_k=1, seed=s)) for s in range(20)]) == (
        [int(logits.argmax())] * 20
    )


def test_the_logits_are_left_as_they_were():
    """N samples share a row, so no draw may edit it."""
    logits = rand(2)
    before = logits.clone()
    params = SamplingParams(
        seed=1, repetition_penalty=1.5, logit_bias={1: 5.0}, min_tokens=3, top_k=5, temperature=0.3
    )
    tokens(logits, [draw(logits, params), draw(logits, replace(params, temperature=0.0), row=1)])

    assert torch.equal(logits, before)


def chi_square(params, logits, expected, count=6000):
    """Statistic of ``count`` draws at as many positions of one sequence."""
    drawn = tokens(logits, [draw(logits, params, output=range(p)) for p in range(count)])
    seen = np.bincount(drawn, minlength=len(expected))

    assert seen[expected == 0].sum() == 0
    live = expected > 0
    return float((((seen - count * expected) ** 2)[live] / (count * expected[live])).sum())


@pytest.mark.parametrize(
    ("params", "filtered"),
    [
        (SamplingParams(seed=3), []),
        (SamplingParams(seed=4, temperature=0.5), []),
        (SamplingParams(seed=5, temperature=2.0, top_k=4), [0, 1, 2, 3]),
        (SamplingParams(seed=6, top_p=0.8), [0, 1, 2, 3, 4]),
        (SamplingParams(seed=7, min_p=0.2), [0, 1, 2, 3, 4]),
        (SamplingParams(seed=8, logit_bias={7: 2.0}), []),
    ],
)
def test_draws_follow_the_distribution(params, filtered):
    """Chi-square below the 1 in 10,000 bound of 7 degrees of freedom; a wrong law is far above."""
    values = torch.tensor([0.0, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.1])
    logits = values[None]
    edited = values.double().clone()
    for token_id, bias in params.logit_bias.items():
        edited[token_id] += bias
    law = torch.softmax(edited / params.temperature, -1).numpy()
    if filtered:
        order = np.argsort(-law)
        keep = order[: kept_by_hand(law[order], params)]
        law = np.where(np.isin(np.arange(8), keep), law, 0.0)
        law /= law.sum()

    assert chi_square(params, logits, law) < 29.9
    if not filtered:
        assert chi_square(params, logits, np.full(8, 1 / 8)) > 100.0


def kept_by_hand(descending, params):
    """How many of the likeliest tokens a filter leaves, from its definition."""
    if params.top_k > 0:
        return params.top_k
    if params.min_p > 0:
        return int((descending >= params.min_p * descending[0]).sum())
    return int((np.cumsum(descending) < params.top_p).sum()) + 1


def test_a_seeded_row_ignores_its_neighbours():
    """Case 108: seed 11 gives the same tokens alone, beside others, anywhere in the batch."""
    logits = rand(4, vocab=1000)
    params = SamplingParams(seed=11, temperature=1.3, top_p=0.95)

    def text(make_rows):
        output = []
        for _ in range(20):
            rows, mine = make_rows(tuple(output))
            output.append(tokens(logits, rows)[mine])
        return output

    alone = text(lambda output: ([draw(logits, params, output=output)], 0))
    others = [SamplingParams(), GREEDY, SamplingParams(seed=5, top_k=3)]
    others[0] = replace(others[0], seed=987)
    for place in range(4):

        def crowd(output, place=place):
            rows = [draw(logits, o, row=1 + i, output=output) for i, o in enumerate(others)]
            rows.insert(place, draw(logits, params, output=output))
            return rows, place

        assert text(crowd) == alone


def test_a_sequence_resumed_after_preemption_goes_on_as_before():
    """The random numbers have no state that a preemption could shift."""
    logits = rand(1, vocab=500)
    sampler = Sampler(500, {2})
    output = []
    for _ in range(10):
        output.append(sampler.sample(logits, [draw(logits, output=tuple(output))])[0].token_id)
    resumed = output[:4]
    for _ in range(6):
        resumed += tokens(logits, [draw(logits, replace(DRAWN), output=tuple(resumed))])

    assert resumed == output


def test_samples_of_one_prompt_differ():
    """N sequences draw from one row with numbers of their own."""
    logits = torch.zeros(1, 500)
    drawn = tokens(logits, [draw(logits, index=i) for i in range(16)])

    assert len(set(drawn)) > 12


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_row_harms_no_other(bad):
    """Not-a-number and infinite logits end their own request, with a reason."""
    logits = rand(3)
    logits[1, 7] = bad
    for params in (GREEDY, DRAWN):
        rows = [draw(logits, params, row=r) for r in (0, 1, 2)]
        drawn = Sampler(VOCAB, {2}).sample(logits, rows)

        assert isinstance(drawn[1].error, RadixCacheError)
        assert "logits" in str(drawn[1].error)
        assert [drawn[0].token_id, drawn[2].token_id] == tokens(logits, [rows[0], rows[2]])


def test_minus_infinity_only_forbids():
    """A model may rule tokens out; they are never drawn, and a row of nothing else is an error."""
    logits = torch.full((2, VOCAB), -torch.inf)
    logits[0, [3, 5]] = 1.0
    rows = [draw(logits, output=range(p)) for p in range(60)]
    drawn = tokens(logits, rows)
    (dead,) = Sampler(VOCAB, {2}).sample(logits, [draw(logits, row=1)])

    assert set(drawn) == {3, 5}
    assert dead.error is not None


def test_a_failing_processor_ends_its_own_row_only():
    """An id the processor cannot place is contained and named."""
    logits = rand(2)
    broken = replace(GREEDY, logit_bias={VOCAB + 5: 1.0})
    drawn = Sampler(VOCAB, {2}).sample(logits, [draw(logits, broken), draw(logits, GREEDY, row=1)])

    assert "IndexError" in str(drawn[0].error)
    assert drawn[0].token_id == -1
    assert drawn[1].token_id == int(logits[1].argmax())


def test_forbidding_every_token_is_the_requests_fault():
    """Min-tokens over a vocabulary of end tokens leaves nothing to draw: an invalid request."""
    logits = rand(1)
    params = replace(GREEDY, min_tokens=1, stop_token_ids=tuple(range(VOCAB)))
    (drawn,) = Sampler(VOCAB, {2}).sample(logits, [draw(logits, params)])

    assert isinstance(drawn.error, InvalidRequestError)
    assert drawn.error.field == "min_tokens"
    assert "no token is left" in str(drawn.error)


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1.0])
@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition_penalty": 2.0**-126},
        {"repetition_penalty": 3e38},
        {"presence_penalty": 3e38, "frequency_penalty": 3e38},
        {"presence_penalty": -3e38, "frequency_penalty": -3e38},
    ],
    ids=str,
)
def test_extreme_penalties_still_draw(penalties, temperature):
    """Each penalty that is a float32 ends in a token, even where every token is penalised."""
    logits = rand(1)
    params = SamplingParams(seed=1, temperature=temperature, logit_bias={3: -100.0}, **penalties)
    everything = tuple(range(VOCAB)) * 2

    assert 0 <= tokens(logits, [draw(logits, params, output=everything)])[0] < VOCAB


def test_min_tokens_keeps_the_end_away():
    """The end token is likeliest, and comes only once enough tokens are there."""
    logits = torch.zeros(1, VOCAB)
    logits[0, 2] = 50.0
    params = replace(GREEDY, min_tokens=2)

    assert tokens(logits, [draw(logits, params, output=(9,))])[0] != 2
    assert tokens(logits, [draw(logits, params, output=(9, 9))])[0] == 2


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 100.0])
def test_extreme_temperatures_stay_finite(temperature):
    """No overflow, no warning, a token of the vocabulary."""
    logits = rand(1) * 1e3
    drawn = tokens(
        logits, [draw(logits, SamplingParams(seed=s, temperature=temperature)) for s in range(20)]
    )

    assert all(0 <= token < VOCAB for token in drawn)
    if temperature < 1:
        assert set(drawn) == {int(logits.argmax())}


def test_logprobs_are_of_the_raw_distribution():
    """Before temperature, penalties and bias; the top list is sorted, ties by id."""
    logits = rand(1)
    expected = torch.log_softmax(logits[0].double(), -1)
    params = SamplingParams(seed=1, temperature=0.7, logit_bias={4: 100.0}, logprobs=3)
    (drawn,) = Sampler(VOCAB, {2}).sample(logits, [draw(logits, params)])
    top = torch.topk(expected, 3)

    assert drawn.token_id == drawn.logprob.token_id == 4
    assert drawn.logprob.logprob == pytest.approx(expected[4].item(), abs=1e-9)
    assert [token for token, _ in drawn.logprob.top] == top.indices.tolist()
    assert [value for _, value in drawn.logprob.top] == pytest.approx(top.values.tolist())


@pytest.mark.parametrize(("wanted", "given"), [(0, 0), (5, 5), (20, 20)])
def test_logprobs_come_in_the_number_asked_for(wanted, given):
    """0 is the drawn token alone; None is off; ties come by id."""
    logits = torch.zeros(1, VOCAB)
    rows = [draw(logits, replace(GREEDY, logprobs=wanted)), draw(logits, GREEDY)]
    first, second = Sampler(VOCAB, {2}).sample(logits, rows)

    assert [token for token, _ in first.logprob.top] == list(range(given))
    assert second.logprob is None


def test_a_small_vocabulary_gives_what_it_has():
    """More log-probabilities than tokens is no error."""
    logits = rand(1, vocab=5)
    (drawn,) = Sampler(5, {2}).sample(logits, [draw(logits, replace(GREEDY, logprobs=20))])

    assert len(drawn.logprob.top) == 5


class Bias(dict):
    """A mapping that can be watched."""


def test_a_finished_request_is_let_go():
    """The next step's draws release what the sampler knew of requests that are not among them."""
    logits = rand(1)
    sampler = Sampler(VOCAB, {2})
    running = SamplingParams(seed=1, logit_bias=Bias({1: 1.0}))
    finished = SamplingParams(seed=2, logit_bias=Bias({1: 1.0}))
    watched = weakref.ref(finished.logit_bias)
    sampler.sample(logits, [draw(logits, running), draw(logits, finished)])
    plan = sampler._plans[id(running)]
    assert len(sampler._plans) == 2
    del finished
    sampler.sample(logits, [draw(logits, running)])

    assert watched() is None
    assert list(sampler._plans.values()) == [plan]
    assert sampler._plans[id(running)][1] is plan[1]


def test_a_wrong_shape_is_named():
    """Got and expected, before anything is drawn."""
    with pytest.raises(ValueError, match=r"\(1, 7\).*40"):
        Sampler(VOCAB, {2}).sample(torch.zeros(1, 7), [])


def test_nothing_to_draw_is_nothing():
    """A step of prefill chunks alone has no rows."""
    assert Sampler(VOCAB, {2}).sample(torch.zeros(0, VOCAB), []) == []
