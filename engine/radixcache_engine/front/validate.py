"""Every range of a request, checked before the engine hears of it.

What passes is plain Python (ints, floats, tuples), so nothing behind this file meets a NumPy
scalar, a bool posing as a number or a list that its owner still changes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real

from radixcache.errors import DeadlineError, InvalidRequestError
from radixcache.types import CacheMode, ChatMessage, SamplingParams

__all__ = [
    "checked_cache_mode",
    "checked_deadline",
    "checked_messages",
    "checked_sampling",
    "checked_text",
    "checked_token_ids",
]

_ROLES = ("system", "user", "assistant", "tool")
_MAX_STOPS = 16
_MAX_STOP_BYTES = 256
_MAX_BIAS = 65_536
_MAX_BIAS_VALUE = 100.0
_MAX_N = 128
_MAX_TEMPERATURE = 100.0
_MAX_LOGPROBS = 20
# What the logits processors can compute with: the normal numbers of float32.
_MIN_FLOAT32 = 2.0**-126
_MAX_FLOAT32 = (2 - 2.0**-23) * 2.0**127
_INT64 = 1 << 63


def checked_sampling(params: SamplingParams, *, vocab_size: int) -> SamplingParams:
    """Return the parameters in plain types, ``max_tokens`` and ``seed`` possibly still None.

    The upper limit of ``max_tokens`` depends on the prompt: see ``front/limits.py``.

    Raises:
        InvalidRequestError: naming field, value and range.
    """
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError("sampling", params, "SamplingParams")
    max_tokens = params.max_tokens
    if max_tokens is not None:
        max_tokens = _whole("max_tokens", max_tokens, 1, None)
    return replace(
        params,
        max_tokens=max_tokens,
        min_tokens=_min_tokens(params.min_tokens, max_tokens),
        temperature=_number("temperature", params.temperature, 0.0, _MAX_TEMPERATURE),
        top_k=_top_k(params.top_k),
        top_p=_top_p(params.top_p),
        min_p=_number("min_p", params.min_p, 0.0, 1.0),
        seed=None if params.seed is None else _whole("seed", params.seed, -_INT64, _INT64 - 1),
        repetition_penalty=_number(
            "repetition_penalty", params.repetition_penalty, _MIN_FLOAT32, _MAX_FLOAT32
        ),
        presence_penalty=_output_penalty("presence_penalty", params.presence_penalty),
        frequency_penalty=_output_penalty("frequency_penalty", params.frequency_penalty),
        logit_bias=_bias(params.logit_bias, vocab_size),
        stop=_stops(params.stop),
        stop_token_ids=tuple(_ids("stop_token_ids", params.stop_token_ids, vocab_size)),
        ignore_eos=_flag("ignore_eos", params.ignore_eos),
        logprobs=_logprobs(params.logprobs),
        n=_whole("n", params.n, 1, _MAX_N),
    )


def checked_token_ids(
    token_ids: Sequence[int], *, vocab_size: int, field: str = "token_ids"
) -> list[int]:
    """Return the ids as plain ints.

    Raises:
        InvalidRequestError: no id at all, or one that is not in the vocabulary.
    """
    ids = _ids(field, token_ids, vocab_size)
    if not ids:
        raise InvalidRequestError(field, [], "at least one token id")
    return ids


def checked_text(text: object, *, field: str = "prompt") -> str:
    """Return the text if it is valid Unicode; it may be empty.

    Raises:
        InvalidRequestError: not a string, or one with half of a surrogate pair.
    """
    if not isinstance(text, str):
        raise InvalidRequestError(field, text, "a string")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(field, text, "valid Unicode (no lone surrogates)") from None
    return text


def checked_messages(messages: object) -> list[ChatMessage]:
    """Return the chat messages.

    Raises:
        InvalidRequestError: no message, an unknown role, or content that is not text.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidRequestError("messages", messages, "a list of messages")
    if not messages:
        raise InvalidRequestError("messages", [], "at least one message")
    for position, message in enumerate(messages):
        field = f"messages[{position}]"
        if not isinstance(message, ChatMessage):
            raise InvalidRequestError(field, message, "a message with role and content")
        if message.role not in _ROLES:
            raise InvalidRequestError(f"{field}.role", message.role, ", ".join(_ROLES))
        checked_text(message.content, field=f"{field}.content")
    return list(messages)


def checked_deadline(timeout_s: float | None, now: float) -> float | None:
    """Return the moment a request ends at the latest, on the clock of ``now``.

    Raises:
        InvalidRequestError: not a finite number.
        DeadlineError: it has passed already.
    """
    if timeout_s is None:
        return None
    seconds = _number("timeout_s", timeout_s)
    if seconds <= 0:
        raise DeadlineError("the deadline passed before the request was admitted")
    return now + seconds


def checked_cache_mode(mode: object) -> CacheMode:
    """Return the cache mode.

    Raises:
        InvalidRequestError: not a :class:`CacheMode`.
    """
    if not isinstance(mode, CacheMode):
        raise InvalidRequestError("cache", mode, "off, read, write")
    return mode


def _whole(field: str, value: object, low: int, high: int | None) -> int:
    allowed = f"a whole number, {low:,} or more" if high is None else f"{low:,} to {high:,}"
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise InvalidRequestError(field, value, allowed)
    plain = int(value)
    if plain < low or (high is not None and plain > high):
        raise InvalidRequestError(field, plain, allowed)
    return plain


def _number(field: str, value: object, low: float = -math.inf, high: float = math.inf) -> float:
    bounded = math.isfinite(low) or math.isfinite(high)
    allowed = f"{low:g} to {high:g}, finite" if bounded else "a finite number"
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InvalidRequestError(field, value, allowed)
    try:
        plain = float(value)
    except OverflowError:
        raise InvalidRequestError(field, value, allowed) from None
    if not math.isfinite(plain) or not low <= plain <= high:
        raise InvalidRequestError(field, plain, allowed)
    return plain


def _output_penalty(field: str, value: object) -> float:
    return _number(field, value, -_MAX_FLOAT32, _MAX_FLOAT32)


def _top_p(value: object) -> float:
    allowed = "above 0, at most 1"
    try:
        plain = _number("top_p", value)
    except InvalidRequestError:
        raise InvalidRequestError("top_p", value, allowed) from None
    if not 0.0 < plain <= 1.0:
        raise InvalidRequestError("top_p", plain, allowed)
    return plain


def _top_k(value: object) -> int:
    allowed = "-1 (all) or 1 and more"
    if not isinstance(value, Integral) or isinstance(value, bool) or (value < 1 and value != -1):
        raise InvalidRequestError("top_k", value, allowed)
    return int(value)


def _min_tokens(value: object, max_tokens: int | None) -> int:
    plain = _whole("min_tokens", value, 0, None)
    if max_tokens is not None and plain > max_tokens:
        raise InvalidRequestError("min_tokens", plain, f"0 to max_tokens ({max_tokens:,})")
    return plain


def _logprobs(value: object) -> int | None:
    return None if value is None else _whole("logprobs", value, 0, _MAX_LOGPROBS)


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequestError(field, value, "true or false")
    return value


def _ids(field: str, ids: object, vocab_size: int) -> list[int]:
    # Anything that iterates may come in (lists, tuples, arrays); text would iterate too.
    if isinstance(ids, str | bytes | Mapping) or not hasattr(ids, "__iter__"):
        raise InvalidRequestError(field, ids, "a list of token ids")
    found = []
    for position, value in enumerate(ids):
        if type(value) is int and 0 <= value < vocab_size:
            found.append(value)
        else:
            found.append(_whole(f"{field}[{position}]", value, 0, vocab_size - 1))
    return found


def _bias(bias: object, vocab_size: int) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise InvalidRequestError("logit_bias", bias, "a mapping of token ids to numbers")
    if len(bias) > _MAX_BIAS:
        raise InvalidRequestError("logit_bias", len(bias), f"at most {_MAX_BIAS:,} entries")
    found = {}
    for key, value in bias.items():
        token_id = _whole("logit_bias key", key, 0, vocab_size - 1)
        found[token_id] = _number(
            f"logit_bias[{token_id}]", value, -_MAX_BIAS_VALUE, _MAX_BIAS_VALUE
        )
    return found


def _stops(stops: object) -> tuple[str, ...]:
    allowed = f"at most {_MAX_STOPS} strings of 1 to {_MAX_STOP_BYTES} bytes"
    if isinstance(stops, str | bytes) or not isinstance(stops, Sequence):
        raise InvalidRequestError("stop", stops, allowed)
    if len(stops) > _MAX_STOPS:
        raise InvalidRequestError("stop", len(stops), allowed)
    for position, stop in enumerate(stops):
        text = checked_text(stop, field=f"stop[{position}]")
        if not 0 < len(text.encode()) <= _MAX_STOP_BYTES:
            raise InvalidRequestError(f"stop[{position}]", text, f"1 to {_MAX_STOP_BYTES} bytes")
    return tuple(stops)
