"""Top-k, top-p and min-p against transformers' warpers."""

import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from radixcache_engine.sampling.filters import inverse_cdf, kept_ids


def scaled_row(vocab, spread, seed):
    """Distinct logits, at most 0."""
    row = np.random.default_rng(seed).permutation(np.linspace(-spread, 0.0, vocab))
    return row.astype(np.float32)


def by_transformers(scaled, top_k, top_p, min_p):
    """Ids that survive transformers' warpers in its own order."""
    scores = torch.from_numpy(scaled.copy())[None]
    if top_k > 0:
        scores = TopKLogitsWarper(min(top_k, len(scaled)))(None, scores)
    if top_p < 1.0:
        scores = TopPLogitsWarper(top_p)(None, scores)
    if min_p > 0.0:
        scores = MinPLogitsWarper(min_p)(None, scores)
    return torch.nonzero(scores[0] > -torch.inf).flatten().tolist()


@pytest.mark.parametrize("vocab", [5, 300, 3000])
@pytest.mark.parametrize("spread", [0.5, 12.0, 60.0])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (1, 1.0, 0.0),
        (40, 1.0, 0.0),
        (257, 1.0, 0.0),
        (-1, 0.9, 0.0),
        (-1, 0.03, 0.0),
        (-1, 0.999, 0.0),
        (-1, 1.0, 0.05),
        (-1, 1.0, 1.0),
        (-1, 0.95, 0.2),
        (100, 0.8, 0.0),
        (100, 0.8, 0.3),
        (10**9, 0.5, 0.0),
    ],
)
def test_the_same_tokens_survive_as_in_transformers(vocab, spread, top_k, top_p, min_p):
    """Each filter and their combinations keep what transformers keeps."""
    for seed in range(3):
        scaled = scaled_row(vocab, spread, seed)
        kept = kept_ids(scaled, top_k=top_k, top_p=top_p, min_p=min_p)

        survivors = list(range(vocab)) if kept is None else kept.tolist()
        assert survivors == by_transformers(scaled, top_k, top_p, min_p)


def test_no_filter_keeps_everything_without_a_list():
    """Defaults, and a top_k not below the vocabulary, filter nothing."""
    scaled = scaled_row(10, 3.0, 0)

    assert kept_ids(scaled, top_k=-1, top_p=1.0, min_p=0.0) is None
    assert kept_ids(scaled, top_k=10, top_p=1.0, min_p=0.0) is None


def test_equal_logits_at_the_edge_are_kept_from_the_lower_id_on():
    """top_k keeps exactly k and top_p the smallest set, whatever is tied."""
    flat = np.zeros(8, np.float32)
    stepped = np.array([-1, 0, -1, 0, -1, -9], np.float32)

    assert kept_ids(flat, top_k=3, top_p=1.0, min_p=0.0).tolist() == [0, 1, 2]
    assert kept_ids(flat, top_k=-1, top_p=0.5, min_p=0.0).tolist() == [0, 1, 2, 3]
    assert kept_ids(stepped, top_k=3, top_p=1.0, min_p=0.0).tolist() == [0, 1, 3]


def test_a_flat_row_needs_more_than_the_first_probe():
    """A top-p set larger than the probe is found whole."""
    flat = np.zeros(4096, np.float32)

    assert len(kept_ids(flat, top_k=-1, top_p=0.5, min_p=0.0)) == 2048
    assert len(kept_ids(flat, top_k=-1, top_p=1.0, min_p=0.9)) == 4096


def test_one_token_always_survives():
    """The tightest filters leave the likeliest token."""
    scaled = scaled_row(100, 50.0, 1)
    best = [int(scaled.argmax())]

    assert kept_ids(scaled, top_k=-1, top_p=1e-12, min_p=0.0).tolist() == best
    assert kept_ids(scaled, top_k=5, top_p=1e-12, min_p=1.0).tolist() == best


def test_forbidden_tokens_never_survive():
    """Minus infinity (a mask) is below every edge."""
    scaled = np.full(600, -np.inf, np.float32)
    scaled[[3, 500]] = 0.0

    assert kept_ids(scaled, top_k=-1, top_p=0.99, min_p=0.0).tolist() == [3, 500]
    assert kept_ids(scaled, top_k=-1, top_p=1.0, min_p=0.01).tolist() == [3, 500]


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 1000])
def test_the_running_sum_names_the_index(size):
    """Equal to a plain float64 running sum, for numbers all over the interval."""
    weights = np.random.default_rng(size).random(size).astype(np.float32)
    sums = np.cumsum(weights, dtype=np.float64)
    for number in np.linspace(0.0, 1.0, 301)[:-1]:
        expected = int(np.searchsorted(sums, number * sums[-1], side="right"))
        chosen = inverse_cdf(weights, float(number))

        assert chosen == expected or abs(sums[min(chosen, expected)] / sums[-1] - number) < 1e-12


@pytest.mark.parametrize("number", [0.0, 0.5, 1.0 - 2.0**-53])
def test_an_index_of_weight_zero_is_never_returned(number):
    """Not at the ends, not between, not when the number is as close to 1 as it gets."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        weights = np.where(rng.random(700) < 0.02, rng.random(700), 0.0).astype(np.float32)
        weights[rng.integers(700)] = 0.3

        assert weights[inverse_cdf(weights, number)] > 0.0
