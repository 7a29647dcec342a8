"""A request and its sequences, as the scheduler follows them."""

from array import array
from enum import Enum

from radixcache.errors import RadixCacheError
from radixcache.lease import Lease
from radixcache.types import FinishReason, TokenLogprob, Usage
from radixcache_engine.sampling.stop import StopMatcher
from radixcache_engine.types import EngineRequest

__all__ = ["Request", "Sequence", "Status"]


class Status(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    BLOCKED = "blocked"  # on a leader that computes their common prefix
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """One token sequence: a prompt and what was drawn after it. n samples are n of these.

    KV of ``tokens[:num_computed]`` is in the lease's blocks; everything else about progress is
    derived from that.
    """

    __slots__ = (
        "finish_reason",
        "gave_up_waiting",
        "high_water",
        "index",
        "last_step",
        "lease",
        "new_logprobs",
        "new_token_ids",
        "num_computed",
        "num_text_bytes",
        "output_ids",
        "request",
        "status",
        "stop_matcher",
        "stop_reason",
        "tokens",
        "uid",
        "was_preempted",
    )

    def __init__(self, request: "Request", index: int, uid: int, stop_matcher: StopMatcher) -> None:
        self.request = request
        self.index = index
        self.uid = uid  # unique in this scheduler, in order of creation
        self.tokens = array("i", request.prompt)
        self.output_ids: list[int] = []
        self.lease: Lease | None = None
        self.num_computed = 0
        self.high_water = 0  # the most that was ever computed, kept over preemptions
        self.status = Status.WAITING
        self.was_preempted = False
        self.gave_up_waiting = False  # on a leader: it computes for itself from then on
        self.last_step = 0  # number of the step that last ran it
        self.stop_matcher = stop_matcher
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.num_text_bytes: int | None = None
        # What this step added, until the engine delivers it.
        self.new_token_ids: list[int] = []
        self.new_logprobs: list[TokenLogprob] = []

    @property
    def num_pending(self) -> int:
        """Tokens known but not yet run through the model; 1 while decoding."""
        return len(self.tokens) - self.num_computed

    @property
    def is_prefill(self) -> bool:
        """Whether more than the newest token still has to be computed."""
        return self.num_pending > 1

    @property
    def num_published(self) -> int:
        """Tokens of its prefix that other requests can find in the tree by now."""
        return self.lease.num_published_tokens if self.lease is not None else 0

    @property
    def recompute_cost(self) -> int:
        """Tokens a preemption may throw away: those computed here, not those found cached."""
        if self.lease is None:
            return 0
        return self.num_computed - min(self.num_computed, self.lease.num_cached_tokens)

    def append(self, token_id: int) -> None:
        """Add a drawn token."""
        self.tokens.append(token_id)
        self.output_ids.append(token_id)
        self.new_token_ids.append(token_id)


class Request:
    """A request while the engine knows it. Its usage is counted once, at first admission."""

    __slots__ = (
        "admitted_at",
        "cached_tokens",
        "error",
        "first_token_at",
        "hold_id",
        "is_open",
        "prompt",
        "recomputed_tokens",
        "request",
        "sequences",
    )

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.prompt = array("i", request.token_ids)
        self.sequences: list[Sequence] = []
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.cached_tokens = 0
        self.recomputed_tokens = 0
        self.hold_id: str | None = None
        self.error: RadixCacheError | None = None  # set where a step found it, ended by the engine
        self.is_open = True  # cleared by whoever claims the terminal state, once

    @property
    def request_id(self) -> str:
        """The engine's own id."""
        return self.request.request_id

    @property
    def is_done(self) -> bool:
        """Whether all n sequences have ended."""
        return len(self.sequences) == self.request.sampling.n and all(
            s.status is Status.FINISHED for s in self.sequences
        )

    def usage(self, now: float) -> Usage:
        """Return what the request has cost by ``now`` (engine clock)."""
        arrival = self.request.arrival
        admitted = self.admitted_at
        first = self.first_token_at
        return Usage(
            prompt_tokens=len(self.prompt),
            cached_tokens=self.cached_tokens,
            completion_tokens=sum(len(s.output_ids) for s in self.sequences),
            recomputed_tokens=self.recomputed_tokens,
            queue_s=(admitted if admitted is not None else now) - arrival,
            ttft_s=first - arrival if first is not None else 0.0,
        )
