"""Top-k, top-p and min-p as one question: which tokens of a row may be drawn."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["inverse_cdf", "kept_ids"]

# Enough for most top-p sets; a row that needs more is asked for more, up to all of it.
_PROBE = 256
_PROBE_GROWTH = 8
_RUN = 256


def kept_ids(
    scaled: NDArray[np.float32], *, top_k: int, top_p: float, min_p: float
) -> NDArray[np.int64] | None:
    """Return the tokens that survive, ascending; None when nothing is filtered.

    The filters apply in this order: the ``top_k`` likeliest; of these the smallest set whose
    probability (among them) reaches ``top_p``; of these the tokens at least ``min_p`` times as
    likely as the likeliest. One token always survives. Equal logits at an edge are kept from the
    lower id on, so ``top_k=1`` is greedy.

    Args:
        scaled: float32 ``[vocab]``, logits over temperature minus their maximum, so at most 0.
        top_k: -1 or at least 1.
        top_p: in (0, 1].
        min_p: 0 to 1.
    """
    vocab = len(scaled)
    limit = min(top_k, vocab) if top_k > 0 else vocab
    if limit == vocab and top_p >= 1.0 and min_p <= 0.0:
        return None
    # Without top_k the mass of the whole row counts, else that of the top_k.
    mass = float(np.exp(scaled).sum(dtype=np.float64)) if top_p < 1.0 and limit == vocab else None
    num_probed = limit if limit < vocab else min(_PROBE, vocab)
    while True:
        values = _largest(scaled, num_probed)
        num_kept = _num_kept(values, mass, top_p=top_p, min_p=min_p)
        if num_kept < num_probed or num_probed == limit:
            break
        num_probed = min(num_probed * _PROBE_GROWTH, vocab)
    return _first(scaled, values[:num_kept])


def inverse_cdf(weights: NDArray[np.float32], number: float) -> int:
    """Return the index at which the running sum of ``weights`` passes ``number`` of its total.

    Sums are float64 in index order. An index of weight 0 is never returned.

    Args:
        weights: float32 ``[size]``, not negative, at least one positive.
        number: in [0, 1).
    """
    # Sums of runs first, then the inside of one run: a full running sum costs five times as much.
    starts = np.arange(0, len(weights), _RUN)
    sums = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    target = number * sums[-1]
    run = int(np.searchsorted(sums, target, side="right"))
    if run == len(sums):  # rounding lifted the target to the total itself
        run = int(np.searchsorted(sums, sums[-1], side="left"))
    inside = weights[run * _RUN : (run + 1) * _RUN]
    before = sums[run - 1] if run else 0.0
    offset = int(np.searchsorted(before + np.cumsum(inside, dtype=np.float64), target, "right"))
    if offset == len(inside):
        offset = int(np.flatnonzero(inside)[-1])
    return run * _RUN + offset


def _largest(scaled: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    # Likeliest first.
    edge = len(scaled) - count
    return np.sort(np.partition(scaled, edge)[edge:] if edge else scaled)[::-1]


def _num_kept(
    values: NDArray[np.float32], mass: float | None, *, top_p: float, min_p: float
) -> int:
    kept = len(values)
    if top_p < 1.0:
        weights = np.exp(values, dtype=np.float64)
        sums = np.cumsum(weights)
        kept = int(np.count_nonzero(sums - weights < top_p * (mass or sums[-1])))
    if min_p > 0.0:
        kept = min(kept, int(np.count_nonzero(values >= np.log(min_p))))
    return max(kept, 1)


def _first(scaled: NDArray[np.float32], kept: NDArray[np.float32]) -> NDArray[np.int64]:
    # `kept` holds the surviving values, likeliest first; its last one may be shared by tokens
    # that do not survive.
    edge = kept[-1]
    ids = np.flatnonzero(scaled >= edge)
    surplus = len(ids) - len(kept)
    if surplus:
        ids = np.delete(ids, np.flatnonzero(scaled[ids] == edge)[-surplus:])
    return ids
