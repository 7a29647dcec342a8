"""What the next step computes: continuous batching over a prefix cache, in plain integers.

One step is one road: running sequences first (decodes, then prefill chunks), then admissions as
far as budget and blocks allow. After the step the results come back through ``update``.

Rules kept here (design.md §5): publish after compute (2), at least one fresh token (8), one
capacity formula (10), longest prefix first with bounded waiting (11), containment (12), blocks
are released by the step loop alone (13), usage counted once at first admission (14).
"""

import heapq
from collections.abc import Callable
from itertools import count

from radixcache.cache import PrefixCache
from radixcache.errors import OutOfBlocksError
from radixcache.kv.capacity import blocks_for
from radixcache.lease import Lease
from radixcache.types import CacheMode, Namespace
from radixcache_engine.config import EngineConfig
from radixcache_engine.metrics.counters import Counters
from radixcache_engine.sampling.stop import StopMatcher
from radixcache_engine.scheduler.finish import apply_token
from radixcache_engine.scheduler.holds import HoldBook
from radixcache_engine.scheduler.pressure import AdmissionReserve, choose_victim, try_extend
from radixcache_engine.scheduler.sequence import Request, Sequence, Status
from radixcache_engine.scheduler.sharing import SharingBoard
from radixcache_engine.scheduler.step import Draw, ScheduledRow, Step
from radixcache_engine.scheduler.waiting import WaitingQueue
from radixcache_engine.types import BatchRow, EngineRequest, SampledToken

__all__ = ["Scheduler"]

# Pure look-ups one step may spend on the queue, so that its cost does not follow the queue's
# length: this many refreshed match lengths and this many candidates looked at for admission.
MAX_REMATCHES = 64
MAX_CANDIDATES = 512


class Scheduler:
    """Owns requests from arrival to their end, and decides every step.

    Args:
        config: limits (batch tokens, running sequences, waiting time).
        cache: the model's prefix cache.
        kv_key: the part of every namespace that names what changes KV.
        make_stop_matcher: builds the stop matcher of a sequence from its stop strings.
        end_token_ids: tokens that end a sequence unless ``ignore_eos``.
        counters: where work is counted.
    """

    def __init__(
        self,
        config: EngineConfig,
        cache: PrefixCache,
        *,
        kv_key: str,
        make_stop_matcher: Callable[[EngineRequest], StopMatcher],
        end_token_ids: frozenset[int],
        counters: Counters,
    ) -> None:
        self._config = config
        self._cache = cache
        self._kv_key = kv_key
        self._make_stop_matcher = make_stop_matcher
        self._end_token_ids = end_token_ids
        self._counters = counters
        self.waiting = WaitingQueue(config.max_wait_s)
        self.sharing = SharingBoard(config.block_size, config.max_wait_s)
        self.running: dict[int, Sequence] = {}  # uid -> sequence, in order of admission
        self.requests: dict[str, Request] = {}
        self.num_unadmitted = 0  # open requests that have never run
        self.failed: list[Request] = []  # found impossible while scheduling; the engine ends them
        self.holds = HoldBook(cache)
        self._reserve = AdmissionReserve()
        self._uids = count(1)
        # Heap of (deadline, request id). Ids only: a heap of requests would keep each in memory
        # until its deadline, however long ago it finished.
        self._deadlines: list[tuple[float, str]] = []
        self._step_number = 0
        # Blocks obtainable when the head of the queue last failed to get in: no use asking again
        # before there are more.
        self._stalled_at: tuple[int, int] | None = None

    # ── requests in and out ─────────────────────────────────────────────────────────────────

    def add(self, request: EngineRequest) -> None:
        """Queue a validated request."""
        entry = Request(request)
        self.requests[entry.request_id] = entry
        if request.deadline is not None:
            self._remember_deadline(request.deadline, entry.request_id)
        self.num_unadmitted += 1
        self.waiting.add(self._new_sequence(entry, 0))

    def remove(self, request: Request) -> None:
        """Take a request and all its blocks out, in whatever state it is."""
        request.is_open = False
        del self.requests[request.request_id]
        if request.admitted_at is None:
            self.num_unadmitted -= 1
        for sequence in request.sequences:
            self._retire(sequence)

    def expired(self, now: float) -> list[Request]:
        """Return open requests whose deadline has passed, each once."""
        late: list[Request] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            request = self.requests.get(heapq.heappop(self._deadlines)[1])
            if request is not None:
                late.append(request)
        return late

    @property
    def has_work(self) -> bool:
        """Whether any request is open."""
        return bool(self.requests)

    # ── one step ────────────────────────────────────────────────────────────────────────────

    def schedule(self, now: float) -> Step:
        """Choose the rows of the next step; empty when nothing can run now."""
        self._step_number += 1
        step = Step(self._step_number)
        self._requeue(self.sharing.overdue(now))
        self._schedule_running(step)
        if not step.num_preempted:
            self._admit(step, now)
        return step

    def update(self, step: Step, sampled: list[SampledToken], now: float) -> list[Request]:
        """Take a step's results in: publish, append, stop, fork.

        Args:
            step: what ran.
            sampled: one outcome for each of ``step.draws()``.
            now: engine clock.

        Returns:
            The requests that have something new to deliver, each once.
        """
        draws = step.draws()
        for draw, token in zip(draws, sampled, strict=True):
            if token.error is not None:
                draw.sequence.request.error = token.error
        for row in step.rows:
            # A row whose logits are no numbers may have written KV that is none either: nothing
            # of a request that fails now is published.
            if row.sequence.request.error is None:
                self._computed(row)
        changed: dict[str, Request] = {}
        for draw, token in zip(draws, sampled, strict=True):
            request = draw.sequence.request
            changed[request.request_id] = request
            if request.error is not None:
                continue
            if request.first_token_at is None:
                request.first_token_at = now
            self._take_token(self._sample_of(draw), token)
        for request in changed.values():
            for sequence in request.sequences:
                if sequence.finish_reason is not None and sequence.status is not Status.FINISHED:
                    self._finish(sequence)
        return list(changed.values())

    # ── running ─────────────────────────────────────────────────────────────────────────────

    def _schedule_running(self, step: Step) -> None:
        # Decodes first: a step must not make everybody wait for one long prompt. Within each
        # kind, whoever ran longest ago goes first, so a small budget starves nobody.
        order = sorted(self.running.values(), key=lambda s: (s.is_prefill, s.last_step))
        for sequence in order:
            room = self._config.max_batch_tokens - step.num_tokens
            if room <= 0:
                break
            if sequence.status is not Status.RUNNING:
                continue  # preempted a moment ago to make room
            num_tokens = min(sequence.num_pending, room)
            if self._make_room(sequence, sequence.num_computed + num_tokens, step):
                self._place(step, sequence, num_tokens)

    def _make_room(self, sequence: Sequence, length: int, step: Step) -> bool:
        """Give the sequence blocks for ``length`` tokens, preempting others if it must be."""
        while not try_extend(_lease(sequence), length):
            if self.holds.drop_oldest():
                continue
            victim = choose_victim(sequence, self.running.values(), step.includes)
            if victim is None or victim is sequence:
                self._preempt(sequence, step)
                return False
            self._preempt(victim, step)
        return True

    def _preempt(self, sequence: Sequence, step: Step) -> None:
        step.num_preempted += 1
        self._counters.preemptions += 1
        self._reserve.raise_()
        self._release(sequence)
        sequence.was_preempted = True
        self.waiting.add(sequence)

    def _place(self, step: Step, sequence: Sequence, num_tokens: int) -> None:
        start = sequence.num_computed
        end = start + num_tokens
        step.rows.append(
            ScheduledRow(
                sequence,
                num_tokens,
                BatchRow(
                    token_ids=sequence.tokens[start:end],
                    start=start,
                    block_table=_lease(sequence).block_table,
                    wants_logits=end == len(sequence.tokens),
                ),
            )
        )
        step.num_tokens += num_tokens
        sequence.last_step = step.number

    # ── admission ───────────────────────────────────────────────────────────────────────────

    def _admit(self, step: Step, now: float) -> None:
        if not self.waiting:
            return
        self._reserve.decay()
        self.waiting.refresh(self._match_len, MAX_REMATCHES)
        for looked_at, sequence in enumerate(self.waiting.in_order(now)):
            room = self._config.max_batch_tokens - step.num_tokens
            full = len(self.running) >= self._config.max_running
            if room <= 0 or full or looked_at >= MAX_CANDIDATES:
                return
            if self._block_on_leader(sequence, now):
                continue
            if not self._try_start(sequence):
                return
            self._count_admission(sequence, now)
            self._place(step, sequence, min(sequence.num_pending, room))

    def _block_on_leader(self, sequence: Sequence, now: float) -> bool:
        promise = self.sharing.find(sequence, self._match_len(sequence))
        if promise is None:
            return False
        self.waiting.remove(sequence)
        self.sharing.block(sequence, promise, now)
        return True

    def _try_start(self, sequence: Sequence) -> bool:
        """Lock the sequence's prefix and give it blocks for all it has; False for "not now"."""
        obtainable = self._cache.num_free_blocks + self._cache.num_evictable_blocks
        stall = (sequence.uid, obtainable)
        if self.running and stall == self._stalled_at:
            return False
        mode = sequence.request.request.cache_mode
        lease = self._cache.acquire(
            self._namespace(sequence),
            sequence.tokens,
            read=mode is not CacheMode.OFF,
            publish=mode is CacheMode.WRITE,
        )
        if not self._give_room(sequence, lease):
            lease.release()
            self._stalled_at = stall
            return False
        self._start(sequence, lease)
        return True

    def _give_room(self, sequence: Sequence, lease: Lease) -> bool:
        block_size, length = self._config.block_size, len(sequence.tokens)
        need = blocks_for(length, block_size) - len(lease.block_table)
        need += self._reserve.blocks(self.running.values(), block_size)
        # Guarantees may keep more than can_allocate foresees.
        while not (self._cache.can_allocate(need, lease.namespace) and try_extend(lease, length)):
            if self.running:
                return False  # not now: what runs will free blocks
            # Nothing runs, so nothing frees a block soon; only live states give way.
            if not self.holds.drop_oldest():
                sequence.request.error = OutOfBlocksError(
                    f"{need} KV blocks needed, {self._cache.num_free_blocks} free; no request "
                    "holds any: the rest is pinned or guaranteed to others"
                )
                self.failed.append(sequence.request)
                return False
        return True

    def _start(self, sequence: Sequence, lease: Lease) -> None:
        self._stalled_at = None
        self.waiting.remove(sequence)
        sequence.lease = lease
        sequence.num_computed = lease.num_cached_tokens
        sequence.status = Status.RUNNING
        self.running[sequence.uid] = sequence
        self.sharing.lead(sequence)

    def _count_admission(self, sequence: Sequence, now: float) -> None:
        request = sequence.request
        if request.admitted_at is None:
            request.admitted_at = now
            request.cached_tokens = sequence.num_computed
            self.num_unadmitted -= 1
            self._counters.admitted(len(request.prompt), sequence.num_computed)

    def _match_len(self, sequence: Sequence) -> int:
        if sequence.request.request.cache_mode is CacheMode.OFF:
            return 0
        return self._cache.match_len(self._namespace(sequence), sequence.tokens)

    def _requeue(self, woken: list[tuple[Sequence, int]]) -> None:
        for sequence, matched_len in woken:
            self.waiting.add(sequence, matched_len)

    # ── results ─────────────────────────────────────────────────────────────────────────────

    def _computed(self, row: ScheduledRow) -> None:
        sequence = row.sequence
        again = min(sequence.high_water - sequence.num_computed, row.num_tokens)
        if again > 0:  # computed before a preemption, and now once more
            sequence.request.recomputed_tokens += again
            self._counters.recomputed_tokens += again
        sequence.num_computed += row.num_tokens
        _lease(sequence).commit(sequence.tokens, sequence.num_computed)
        self._requeue(self.sharing.published(sequence))

    def _sample_of(self, draw: Draw) -> Sequence:
        """Return the sequence of a draw: the row's own, or a sibling forked from it now."""
        parent = draw.sequence
        if draw.index == parent.index:
            return parent
        sibling = self._new_sequence(parent.request, draw.index)
        if len(self.running) < self._config.max_running:
            try:
                lease = _lease(parent).fork(parent.num_computed)
            except OutOfBlocksError:
                pass
            else:
                sibling.lease = lease
                sibling.num_computed = parent.num_computed
                sibling.status = Status.RUNNING
                self.running[sibling.uid] = sibling
                return sibling
        # No blocks for its copy now: it waits with its first token and finds the prompt cached.
        sibling.was_preempted = True
        sibling.high_water = parent.num_computed
        self.waiting.add(sibling)
        return sibling

    def _take_token(self, sequence: Sequence, token: SampledToken) -> None:
        self._counters.generated_tokens += 1
        apply_token(sequence, token, self._end_token_ids)

    def _finish(self, sequence: Sequence) -> None:
        request = sequence.request
        if request.request.hold and sequence.index == 0 and sequence.lease is not None:
            request.hold_id = self.holds.keep(request.request_id, sequence.lease.hold())
        self._retire(sequence)

    # ── shared ──────────────────────────────────────────────────────────────────────────────

    def _remember_deadline(self, deadline: float, request_id: str) -> None:
        if len(self._deadlines) > 2 * len(self.requests) + 64:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self.requests]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (deadline, request_id))

    def _new_sequence(self, request: Request, index: int) -> Sequence:
        sequence = Sequence(
            request, index, next(self._uids), self._make_stop_matcher(request.request)
        )
        request.sequences.append(sequence)
        return sequence

    def _namespace(self, sequence: Sequence) -> Namespace:
        return Namespace(self._kv_key, sequence.request.request.scope)

    def _retire(self, sequence: Sequence) -> None:
        """End a sequence wherever it stands; its blocks go back, its followers are set free."""
        self._requeue(self.sharing.forget(sequence))
        self.waiting.remove(sequence)
        self._release(sequence)
        sequence.status = Status.FINISHED

    def _release(self, sequence: Sequence) -> None:
        self.running.pop(sequence.uid, None)
        if sequence.lease is not None:
            sequence.lease.release()
            sequence.lease = None
            sequence.high_water = max(sequence.high_water, sequence.num_computed)
            sequence.num_computed = 0
        self._requeue(self.sharing.withdraw(sequence))


def _lease(sequence: Sequence) -> Lease:
    if sequence.lease is None:
        raise LookupError(f"sequence {sequence.uid} runs without a lease")
    return sequence.lease
