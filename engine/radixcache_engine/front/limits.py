"""How many tokens a request may generate: what the context and the KV pool leave."""

from radixcache.errors import TooLongError
from radixcache.kv.capacity import longest_sequence
from radixcache.types import ModelInfo

__all__ = ["DEFAULT_MAX_TOKENS", "checked_max_tokens"]

DEFAULT_MAX_TOKENS = 1024
"""The most that a request without ``max_tokens`` generates."""


def checked_max_tokens(prompt_len: int, max_tokens: int | None, model: ModelInfo) -> int:
    """Return how many tokens to generate at most.

    The context holds prompt and output; what the pool allows is said by
    :func:`radixcache.kv.capacity.longest_sequence`.

    Args:
        prompt_len: tokens of the prompt, at least one.
        max_tokens: what the request asks for, at least one; None for the default.
        model: the loaded model with its limits.

    Raises:
        TooLongError: prompt and output can never fit; says the limit and the setting behind it.
    """
    by_context = model.context_len - prompt_len
    by_pool = longest_sequence(model.kv_capacity_tokens) - prompt_len
    limit = min(by_context, by_pool)
    if by_pool < by_context:
        why = f"the KV pool holds {model.kv_capacity_tokens:,} tokens: raise --kv-tokens"
        longest = model.kv_capacity_tokens
    else:
        why = f"the model's context is {model.context_len:,} tokens"
        longest = model.context_len - 1
    if limit < 1:
        allowed = f"at most {longest:,} tokens of prompt ({why})"
        raise TooLongError("prompt", f"{prompt_len:,} tokens", allowed)
    if max_tokens is not None and max_tokens > limit:
        allowed = f"1 to {limit:,} after {prompt_len:,} tokens of prompt ({why})"
        raise TooLongError("max_tokens", max_tokens, allowed)
    return min(DEFAULT_MAX_TOKENS, limit) if max_tokens is None else max_tokens
