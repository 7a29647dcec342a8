"""The step loop's body: schedule, compute, sample, update, deliver.

One thread owns the scheduler, the cache and everything below; nothing here is locked. Whatever
goes wrong with one request ends that request and no other.
"""

import logging
from collections.abc import Callable, Iterable

from radixcache.cache import PrefixCache
from radixcache.errors import (
    DeadlineError,
    EngineStoppedError,
    RadixCacheError,
    RequestAbortedError,
)
from radixcache.types import Clock, Stats, Usage
from radixcache_engine.core.contain import compute
from radixcache_engine.core.output import RequestBuffer
from radixcache_engine.metrics.counters import Counters
from radixcache_engine.sampling.sampler import Sampler
from radixcache_engine.scheduler.scheduler import Scheduler
from radixcache_engine.scheduler.sequence import Request, Status
from radixcache_engine.types import EngineRequest, SequenceOutput, Terminal, Worker

__all__ = ["StepLoop"]

_log = logging.getLogger(__name__)


class StepLoop:
    """Runs steps and answers requests. Every method is called by the step thread.

    Args:
        scheduler: decides each step.
        worker: runs batches.
        sampler: draws tokens from logits.
        cache: for its sizes and its check.
        counters: where work is counted.
        clock: monotonic seconds.
        check: run ``cache.check()`` after every step (debugging).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        worker: Worker,
        sampler: Sampler,
        cache: PrefixCache,
        counters: Counters,
        *,
        clock: Clock,
        check: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self.cache = cache
        self.counters = counters
        self._worker = worker
        self._sampler = sampler
        self._clock = clock
        self._check = check
        self._started = clock()
        self._buffers: dict[str, RequestBuffer] = {}
        self.stats = self._snapshot()

    def add(self, request: EngineRequest, buffer: RequestBuffer) -> None:
        """Take a request in."""
        self._buffers[request.request_id] = buffer
        self.scheduler.add(request)

    def step(self) -> bool:
        """Run one step; False when there was nothing to run."""
        started = self._clock()
        self._expire(started)
        step = self.scheduler.schedule(started)
        self.end_failed(self.scheduler.failed)
        if not step.rows:
            return False
        logits = compute(self._worker, step)
        draws = step.sample_rows()
        sampled = self._sampler.sample(logits, draws) if draws else []
        changed = self.scheduler.update(step, sampled, self._clock())
        self.counters.steps += 1
        self.counters.step_s += self._clock() - started
        self._deliver([*changed, *step.failed])
        if self._check:
            self.cache.check()
        return True

    def abort(self, request_id: str, error: RadixCacheError) -> None:
        """End an open request with ``error``; an ended one loses what it holds."""
        request = self.scheduler.requests.get(request_id)
        if request is None:
            self.release_hold(request_id)
            return
        request.error = error
        self._deliver([request])

    def abort_all(self, make_error: Callable[[], RadixCacheError]) -> None:
        """End every open request, and tell its caller whatever else goes wrong meanwhile."""
        for request_id in list(self._buffers):
            error = make_error()
            try:
                self.abort(request_id, error)
            except Exception:
                _log.exception("request %s could not be ended cleanly", request_id)
            buffer = self._buffers.pop(request_id, None)
            if buffer is not None:
                self.scheduler.requests.pop(request_id, None)
                buffer.put([], Terminal(usage=Usage(), error=error))

    def end_failed(self, failed: list[Request]) -> None:
        """End requests that the scheduler or a step found impossible."""
        if failed:
            self._deliver(failed)
            failed.clear()

    def release_hold(self, hold_id: str) -> None:
        """Unlock what a state kept."""
        self.scheduler.holds.release(hold_id)
        self.refresh_stats()

    def refresh_stats(self) -> None:
        """Renew the snapshot that other threads read."""
        self.stats = self._snapshot()

    # ── answers ─────────────────────────────────────────────────────────────────────────────

    def _expire(self, now: float) -> None:
        late = self.scheduler.expired(now)
        for request in late:
            request.error = DeadlineError("the request's deadline passed before it finished")
        self._deliver(late)

    def _deliver(self, requests: Iterable[Request]) -> None:
        """Hand results out. Blocks are free and counted before anybody hears of the end."""
        now = self._clock()
        open_ = [r for r in requests if r.is_open]
        letters = [
            (self._buffers[r.request_id], _outputs(r), self._terminal(r, now)) for r in open_
        ]
        ended = [r for r in open_ if not r.is_open]
        self.refresh_stats()
        for buffer, outputs, terminal in letters:
            buffer.put(outputs, terminal)
        for request in ended:
            del self._buffers[request.request_id]

    def _terminal(self, request: Request, now: float) -> Terminal | None:
        """Claim the request's end if it has come; at most once a request."""
        if request.error is None and not request.is_done:
            return None
        self.scheduler.remove(request)
        self._count_end(request.error)
        if request.error is not None and request.hold_id is not None:
            # One sample had finished; nobody will continue a request that failed.
            self.scheduler.holds.release(request.hold_id)
            request.hold_id = None
        return Terminal(usage=request.usage(now), error=request.error, hold_id=request.hold_id)

    def _count_end(self, error: RadixCacheError | None) -> None:
        if error is None:
            self.counters.requests_finished += 1
        elif isinstance(error, RequestAbortedError | DeadlineError | EngineStoppedError):
            self.counters.requests_aborted += 1
        else:
            self.counters.requests_failed += 1
            _log.warning("request failed: %s", error)

    def _snapshot(self) -> Stats:
        cache, scheduler, counters = self.cache, self.scheduler, self.counters
        return Stats(
            **{name: getattr(counters, name) for name in counters.__slots__},
            evicted_blocks=cache.counters.evicted_blocks,
            requests_waiting=scheduler.waiting.num_requests,
            requests_blocked=scheduler.sharing.num_blocked,
            requests_running=len(scheduler.running),
            blocks_total=cache.num_blocks - 1,
            blocks_free=cache.num_free_blocks,
            blocks_evictable=cache.num_evictable_blocks,
            blocks_locked=cache.num_locked_blocks,
            blocks_leased=cache.num_leased_blocks,
            block_size=cache.block_size,
            tree_nodes=cache.num_nodes,
            uptime_s=self._clock() - self._started,
        )


def _outputs(request: Request) -> list[SequenceOutput]:
    outputs: list[SequenceOutput] = []
    for sequence in request.sequences:
        if not sequence.new_token_ids:
            continue
        done = sequence.status is Status.FINISHED
        outputs.append(
            SequenceOutput(
                sequence.index,
                sequence.new_token_ids,
                sequence.new_logprobs,
                sequence.finish_reason if done else None,
                sequence.stop_reason if done else None,
                sequence.num_text_bytes if done else None,
            )
        )
        sequence.new_token_ids, sequence.new_logprobs = [], []
    return outputs
