"""Every setting of the engine, frozen, with its default and its range.

``EngineConfig`` mirrors the flags of ``radixcache serve`` and the keywords of ``LLM``; a value of
None or "auto" means "choose at load", by what the machine and the model allow.
"""

from dataclasses import dataclass, fields
from typing import Any

from radixcache.errors import InvalidRequestError

__all__ = ["DEFAULT_MODEL", "EngineConfig"]

DEFAULT_MODEL = "smollm2"
_DTYPES = ("auto", "float32", "bfloat16", "float16")
_BACKENDS = ("auto", "cpu", "reference")
# Named here, because reading flags must not load the tree.
_POLICIES = ("lru", "lfu", "slru", "fifo", "priority", "s3fifo", "adaptive")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine (one model, one cache)."""

    model: str = DEFAULT_MODEL  # a known name, or a path to a HF folder or GGUF file
    dtype: str = "auto"  # auto: bfloat16 where the CPU has it, else float32
    device: str = "auto"  # auto: cuda where there is one, else cpu
    attention_backend: str = "auto"
    block_size: int = 16  # tokens a block, 1 to 256
    eviction_policy: str = "lru"  # which cached prefix goes first; docs/eviction.md
    kv_tokens: int | None = None  # KV pool size in tokens; None: from free memory, see runner
    threads: int | None = None  # torch threads; None: the cores this process may use
    max_batch_tokens: int = 2048  # query tokens in one step
    max_running: int = 256  # sequences in one step
    max_waiting: int = 10_000  # requests in the queue; one more is refused
    max_wait_s: float = 5.0  # after this a waiting request goes before better matches
    max_context_len: int | None = None  # None: the model's own
    probe: bool = True  # the load-time comparison against the model's own forward
    poison_freed: bool = False  # debug: fill freed blocks with NaN
    check_every_step: bool = False  # debug: run check() after every step

    def __post_init__(self) -> None:
        """Check every range.

        Raises:
            InvalidRequestError: naming the setting, what was got and what is allowed.
        """
        _choice("dtype", self.dtype, _DTYPES)
        _choice("attention_backend", self.attention_backend, _BACKENDS)
        _choice("eviction_policy", self.eviction_policy, _POLICIES)
        _between("block_size", self.block_size, 1, 256)
        _between("max_batch_tokens", self.max_batch_tokens, 1, 1_048_576)
        _between("max_running", self.max_running, 1, 65_536)
        _between("max_waiting", self.max_waiting, 1, 10_000_000)
        if self.kv_tokens is not None:
            _between("kv_tokens", self.kv_tokens, self.block_size, 1 << 34)
        if self.threads is not None:
            _between("threads", self.threads, 1, 4096)
        if self.max_context_len is not None:
            _between("max_context_len", self.max_context_len, 2, 1 << 24)
        if not self.max_wait_s >= 0:
            raise InvalidRequestError("max_wait_s", self.max_wait_s, "0 or more seconds")

    @classmethod
    def from_kwargs(cls, **settings: Any) -> "EngineConfig":
        """Build from keywords; an unknown one is an error that lists the known ones."""
        known = {f.name for f in fields(cls)}
        for name, value in settings.items():
            if name not in known:
                raise InvalidRequestError(name, value, f"one of {', '.join(sorted(known))}")
        return cls(**settings)


def _choice(name: str, got: str, allowed: tuple[str, ...]) -> None:
    if got not in allowed:
        raise InvalidRequestError(name, got, " | ".join(allowed))


def _between(name: str, got: object, low: int, high: int) -> None:
    if not isinstance(got, int) or isinstance(got, bool) or not low <= got <= high:
        raise InvalidRequestError(name, got, f"a whole number from {low:,} to {high:,}")
