"""Plain values that the library, the engine and the wire all speak of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

__all__ = [
    "PUBLIC",
    "Answer",
    "CacheMode",
    "ChatMessage",
    "Choice",
    "Clock",
    "Delta",
    "FinishReason",
    "FlushResult",
    "MatchResult",
    "ModelInfo",
    "Namespace",
    "SamplingParams",
    "Stats",
    "TokenLogprob",
    "TreeNodeView",
    "TreeView",
    "Usage",
]

PUBLIC = ""
"""The scope that everybody sees."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """Where a prefix lives: both parts are required, so neither can be forgotten.

    Attributes:
        kv_key: everything that changes KV (weights, dtype, rope regime, tokenizer, ...). Chooses
            the root: equal tokens under another ``kv_key`` never match.
        scope: who may see the prefix. ``PUBLIC`` or a tenant with its salt. A look-up sees its
            own scope and ``PUBLIC``.
    """

    kv_key: str
    scope: str

    def __post_init__(self) -> None:
        """Refuse what is no string before it becomes a key of the tree."""
        if not isinstance(self.kv_key, str) or not isinstance(self.scope, str):
            raise TypeError(f"namespace: got {self!r}, allowed: a kv_key and a scope, both strings")

    @classmethod
    def of(cls, value: "Namespace | str") -> "Namespace":
        """Read a bare string as a public namespace of that ``kv_key``.

        Raises:
            TypeError: ``value`` is neither a ``Namespace`` nor a string.
        """
        if isinstance(value, Namespace):
            return value
        if isinstance(value, str):
            return cls(value, PUBLIC)
        raise TypeError(f"namespace: got {value!r}, allowed: a Namespace or a string")


class Clock(Protocol):
    """A source of monotonic seconds (``time.monotonic`` outside tests)."""

    def __call__(self) -> float:
        """Return the time now, in seconds since any fixed moment."""
        ...


class CacheMode(Enum):
    """What a request may do with the prefix cache."""

    OFF = "off"  # neither reads nor publishes
    READ = "read"  # reads, publishes nothing
    WRITE = "write"  # reads and publishes


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = "stop"  # end-of-sequence token, stop id or stop string
    LENGTH = "length"  # max_tokens reached


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One chat turn: ``role`` is system, user, assistant or tool."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn and when a sequence ends. Ranges: ``front/validate.py``."""

    max_tokens: int | None = None  # None: what context and pool allow, at most 1,024
    min_tokens: int = 0  # no end token, stop id or stop string before this many
    temperature: float = 1.0  # below 1e-5: greedy
    top_k: int = -1  # -1: all
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None  # None: drawn anew for each request
    repetition_penalty: float = 1.0  # over prompt and output, as in CTRL
    presence_penalty: float = 0.0  # over output
    frequency_penalty: float = 0.0  # over output
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # None: off; k: the token's and the k likeliest others'
    n: int = 1


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one drawn token, of the model's own distribution.

    Attributes:
        token_id: the token drawn.
        logprob: natural logarithm of its probability before penalties and temperature.
        top: the likeliest tokens and their log-probabilities, likeliest first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one request cost. Counted once per request, at its first admission.

    ``prompt_tokens`` counts the prompt once whatever ``n`` is; ``cached_tokens`` is the part of
    it found in the cache; ``recomputed_tokens`` is work repeated after a preemption.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    recomputed_tokens: int = 0
    queue_s: float = 0.0
    ttft_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What a stream adds: new tokens and the text that became certain with them."""

    index: int = 0  # which of the n sequences
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None  # FinishReason value in the sequence's last delta
    stop_reason: str | int | None = None  # the stop string or stop id that ended it


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One finished sequence of an answer."""

    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str = ""
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A finished request. The attributes of choice 0 are also the answer's own."""

    request_id: str = ""
    model: str = ""
    choices: tuple[Choice, ...] = ()
    usage: Usage = field(default_factory=Usage)

    @property
    def text(self) -> str:
        """Text of choice 0."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Generated token ids of choice 0."""
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of choice 0; empty unless asked for."""
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> str:
        """``"stop"`` or ``"length"``, of choice 0."""
        return self.choices[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        """Stop string or stop id that ended choice 0, if one did."""
        return self.choices[0].stop_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchResult:
    """What the cache holds of a prompt, in tokens. Asking changes nothing."""

    matched_tokens: int = 0
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushResult:
    """What a flush dropped."""

    flushed_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A loaded model, as clients see it."""

    name: str = ""
    architecture: str = ""
    context_len: int = 0
    vocab_size: int = 0
    block_size: int = 0
    kv_capacity_tokens: int = 0
    dtype: str = ""
    device: str = ""
    attention_backend: str = ""
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counters since start (tokens, requests, steps) and sizes now (blocks, requests).

    Counters are never ratios: a hit rate over any window is the difference of
    ``cached_tokens`` over the difference of ``prompt_tokens``.
    """

    prompt_tokens: int = 0  # of admitted requests; = cached_tokens + computed_tokens at rest
    cached_tokens: int = 0
    computed_tokens: int = 0  # not cached at admission; an aborted prompt counts whole
    recomputed_tokens: int = 0  # run again after a preemption
    generated_tokens: int = 0
    requests_admitted: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
    requests_failed: int = 0
    preemptions: int = 0
    steps: int = 0
    step_s: float = 0.0  # time spent in steps
    evicted_blocks: int = 0
    requests_waiting: int = 0
    requests_blocked: int = 0
    requests_running: int = 0
    blocks_total: int = 0  # without the reserved block 0
    blocks_free: int = 0
    blocks_evictable: int = 0
    blocks_locked: int = 0  # in the tree, held by a lease or a live state
    blocks_leased: int = 0  # owned by running sequences, not yet in the tree
    block_size: int = 0
    tree_nodes: int = 0
    heartbeat_age_s: float = 0.0
    uptime_s: float = 0.0

    @property
    def hit_rate(self) -> float | None:
        """Cached share of all prompt tokens since start; None without traffic."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNodeView:
    """One node of the tree, for people to look at."""

    node_id: int = 0
    parent_id: int = 0  # 0: child of a root
    num_tokens: int = 0
    num_locks: int = 0
    num_hits: int = 0
    last_access_s: float = 0.0  # seconds since the last hit
    token_ids: tuple[int, ...] = ()  # the first few
    text: str = ""  # the same, decoded, where a tokenizer is at hand
    namespace: str = ""
    scope: str = ""
    subtree_tokens: int = 0  # its own and those of all nodes below


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeView:
    """A bounded picture of the tree, parents before children."""

    nodes: tuple[TreeNodeView, ...] = ()
    total_nodes: int = 0
    total_tokens: int = 0
    complete: bool = True  # False: so many branches that not all could be compared
