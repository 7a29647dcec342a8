"""Counts of work since start. Only the step loop writes them."""

from dataclasses import dataclass

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """Monotone counters; ``prompt_tokens == cached_tokens + computed_tokens`` always."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    requests_admitted: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
    requests_failed: int = 0
    preemptions: int = 0
    steps: int = 0
    step_s: float = 0.0

    def admitted(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Count a request at its first admission, once."""
        self.requests_admitted += 1
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.computed_tokens += prompt_tokens - cached_tokens
