"""Run a step so that a request which breaks the model breaks only itself."""

import logging
from typing import cast

import torch

from radixcache.errors import RadixCacheError
from radixcache_engine.scheduler.step import Step
from radixcache_engine.types import Batch, Worker

__all__ = ["compute"]

_log = logging.getLogger(__name__)


def compute(worker: Worker, step: Step) -> torch.Tensor:
    """Run a step's batch; if it raises, run its rows one by one.

    Rows write only blocks that are theirs alone, so running one again is harmless. Rows that
    raise alone leave the step and their requests get the error.

    Returns:
        float32 ``[rows that want logits, vocab]``, in the order of the rows left.
    """
    try:
        return _logits(worker, step.batch)
    except Exception:
        _log.exception("a step of %d rows failed; running its rows alone", len(step.rows))
    survivors, logits = [], []
    for row in step.rows:
        try:
            logits.append(_logits(worker, Batch([row.batch_row])))
            survivors.append(row)
        except Exception as error:  # the model may raise anything
            request = row.sequence.request
            request.error = RadixCacheError(f"the model failed on this request: {error}")
            step.failed.append(request)
    step.rows = survivors
    return torch.cat(logits) if logits else torch.empty(0, 0)


def _logits(worker: Worker, batch: Batch) -> torch.Tensor:
    return cast("torch.Tensor", worker.launch(batch).result())
