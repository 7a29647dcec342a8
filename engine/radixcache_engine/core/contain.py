"""Run a step so that a request which breaks the model breaks only itself."""

import logging

import torch

from radixcache.errors import RadixCacheError
from radixcache_engine.scheduler.scheduler import Step
from radixcache_engine.types import Batch, Logits, Worker

__all__ = ["compute"]

_log = logging.getLogger(__name__)


def compute(worker: Worker, step: Step) -> Logits | None:
    """Run a step's batch; if it raises, run its rows one by one.

    Rows write only blocks that are theirs alone, so running one again is harmless. Rows that
    raise alone leave the step and their requests get the error; None when no row is left.
    """
    try:
        return worker.launch(step.batch).result()
    except Exception:
        _log.exception("a step of %d rows failed; running its rows alone", len(step.rows))
    survivors, logits = [], []
    for row in step.rows:
        try:
            logits.append(worker.launch(Batch([row.batch_row])).result())
            survivors.append(row)
        except Exception as error:  # the model may raise anything
            request = row.sequence.request
            request.error = RadixCacheError(f"the model failed on this request: {error}")
            step.failed.append(request)
    step.rows = survivors
    return torch.cat(logits) if logits else None  # type: ignore[arg-type]
