"""How long a request may be: what the context and the KV pool leave.

Counting comes before any work on what is counted: what can never fit must cost next to nothing.
"""

from collections.abc import Iterable, Mapping

from radixcache.errors import TooLongError
from radixcache.kv.capacity import longest_sequence
from radixcache.types import ModelInfo

__all__ = [
    "DEFAULT_MAX_TOKENS",
    "check_num_messages",
    "check_num_tokens",
    "check_text_size",
    "checked_max_tokens",
]

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
    limit = _longest(model) - prompt_len
    why = _why(model)
    if limit < 1:
        raise _too_many_tokens(prompt_len, model)
    if max_tokens is not None and max_tokens > limit:
        allowed = f"1 to {limit:,} after {prompt_len:,} tokens of prompt ({why})"
        raise TooLongError("max_tokens", max_tokens, allowed)
    return min(DEFAULT_MAX_TOKENS, limit) if max_tokens is None else max_tokens


def check_num_tokens(token_ids: object, model: ModelInfo) -> None:
    """Refuse more ids than any sequence has; looks at none of them.

    Args:
        token_ids: anything; what has no length is left to the checks that read the ids.
        model: the loaded model with its limits.

    Raises:
        TooLongError: no sequence of the model is so long.
    """
    num_tokens = _length(token_ids)
    if num_tokens > _longest(model):
        raise _too_many_tokens(num_tokens, model)


def check_num_messages(messages: object, model: ModelInfo) -> None:
    """Refuse a chat of more messages than a sequence has tokens; looks at none of them.

    Args:
        messages: anything; what has no length is left to the checks that read the messages.
        model: the loaded model with its limits.

    Raises:
        TooLongError: too many messages.
    """
    num_messages = _length(messages)
    if num_messages > _longest(model):
        allowed = f"at most {_longest(model):,} messages ({_why(model)})"
        raise TooLongError("messages", f"{num_messages:,} messages", allowed)


def check_text_size(
    field: str, texts: Iterable[str], model: ModelInfo, *, max_bytes_per_token: int
) -> None:
    """Refuse text that cannot fit whatever its tokens are, before it is tokenised.

    Args:
        field: names the text in the error.
        texts: its parts, of valid Unicode.
        model: the loaded model with its limits.
        max_bytes_per_token: bytes of UTF-8 that one token stands for at most.

    Raises:
        TooLongError: too many bytes.
    """
    limit = _longest(model) * max_bytes_per_token
    num_bytes = sum(len(text.encode()) for text in texts)
    if num_bytes > limit:
        allowed = f"at most {limit:,} bytes, {max_bytes_per_token:,} for each token ({_why(model)})"
        raise TooLongError(field, f"{num_bytes:,} bytes of text", allowed)


def _longest(model: ModelInfo) -> int:
    """Tokens of the longest sequence, prompt and output."""
    return min(model.context_len, longest_sequence(model.kv_capacity_tokens))


def _why(model: ModelInfo) -> str:
    if longest_sequence(model.kv_capacity_tokens) < model.context_len:
        return f"the KV pool holds {model.kv_capacity_tokens:,} tokens: raise --kv-tokens"
    return f"the model's context is {model.context_len:,} tokens"


def _too_many_tokens(num_tokens: int, model: ModelInfo) -> TooLongError:
    allowed = f"at most {_longest(model) - 1:,} tokens of prompt ({_why(model)})"
    return TooLongError("prompt", f"{num_tokens:,} tokens", allowed)


def _length(values: object) -> int:
    if isinstance(values, str | bytes | Mapping):
        return 0
    try:
        return len(values)  # type: ignore[arg-type]  # the except clause is for what has none
    except TypeError:
        return 0
