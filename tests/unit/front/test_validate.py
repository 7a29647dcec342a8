"""Ranges of a request: each field, its edges, and the words of a refusal."""

import math
from fractions import Fraction

import numpy as np
import pytest

from radixcache.errors import DeadlineError, InvalidRequestError
from radixcache.types import CacheMode, ChatMessage, SamplingParams
from radixcache_engine.front.validate import (
    checked_cache_mode,
    checked_deadline,
    checked_messages,
    checked_sampling,
    checked_text,
    checked_token_ids,
)

VOCAB = 100
NAN, INF = math.nan, math.inf


def checked(**fields):
    """Sampling parameters after validation."""
    return checked_sampling(SamplingParams(**fields), vocab_size=VOCAB)


def test_defaults_are_valid():
    """A request that says nothing is fine."""
    params = checked()

    assert (params.temperature, params.top_p, params.top_k, params.n) == (1.0, 1.0, -1, 1)
    assert params.max_tokens is None
    assert params.seed is None


GOOD = [
    ("temperature", [0, 0.0, 1e-9, 100, 100.0, np.float32(0.5), Fraction(1, 2)]),
    ("top_p", [1e-9, 1, 1.0, np.float64(0.9)]),
    ("top_k", [-1, 1, 10**9, np.int32(5)]),
    ("min_p", [0, 0.0, 1, 1.0]),
    ("repetition_penalty", [1e-6, 2, 1e6, 1e-37, 3e38]),
    ("presence_penalty", [-1e6, 0, 2.5, 3e38, -3e38]),
    ("frequency_penalty", [-2, 0, 1e9]),
    ("n", [1, 128, np.int64(3)]),
    ("max_tokens", [1, 10**9, None, np.uint16(7)]),
    ("min_tokens", [0, 5]),
    ("seed", [0, -(2**63), 2**63 - 1, None, np.int64(-5)]),
    ("logprobs", [None, 0, 20]),
    ("stop", [[], (), ["a"], ["x" * 256], ["é" * 128], ["a"] * 16]),
    ("stop_token_ids", [[], [0, VOCAB - 1], (5,), np.array([1, 2])]),
    ("ignore_eos", [True, False]),
    ("logit_bias", [{}, {0: -100, VOCAB - 1: 100.0}, {np.int64(3): np.float32(1)}]),
]


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in GOOD for v in values])
def test_edges_are_accepted_in_plain_types(field, value):
    """The edges belong to the range; NumPy scalars come out as Python numbers."""
    found = getattr(checked(**{field: value}), field)
    flat = (
        [*found, *(found.values() if isinstance(found, dict) else ())]
        if (isinstance(found, tuple | dict))
        else [found]
    )

    assert all(type(v) in (int, float, str, bool, type(None)) for v in flat)
    if value is not None and not isinstance(value, (list, tuple, dict, np.ndarray)):
        assert found == value


BAD = [
    ("temperature", [-0.1, 100.1, NAN, INF, -INF, True, "1", None, 10**400, np.float64("nan")]),
    ("top_p", [0, 0.0, -0.1, 1.0001, NAN, INF, False, "x", None]),
    ("top_k", [0, -2, 1.0, True, None, np.float32(2)]),
    ("min_p", [-0.1, 1.1, NAN, True]),
    ("repetition_penalty", [0, -1, NAN, INF, True, 1e-320, 1e-40, 1e39]),
    ("presence_penalty", [NAN, INF, -INF, True, None, 1e300, -1e39]),
    ("frequency_penalty", [NAN, INF, "0", -1e300, 4e38]),
    ("n", [0, -1, 129, 1.0, True, None, np.bool_(True)]),
    ("max_tokens", [0, -1, 1.5, True]),
    ("min_tokens", [-1, 0.5, True, None]),
    ("seed", [2**63, -(2**63) - 1, 1.0, True]),
    ("logprobs", [-1, 21, True, 1.0]),
    ("stop", ["ab", b"ab", [""], ["x" * 257], ["é" * 129], ["a"] * 17, [3], [None], ["\ud800"]]),
    ("stop_token_ids", [[-1], [VOCAB], [True], [1.0], "12", None, {1: 2}]),
    ("ignore_eos", [1, 0, None, "yes"]),
    ("logit_bias", [None, [1], {1: True}, {1: 100.5}, {1: -INF}, {1.0: 1.0}, {True: 1.0}]),
]


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in BAD for v in values])
def test_everything_else_is_refused_by_name(field, value):
    """The message names the field, the value and the range; bools are no numbers."""
    with pytest.raises(InvalidRequestError) as caught:
        checked(**{field: value})

    assert caught.value.field.startswith(field)
    assert caught.value.allowed
    assert str(caught.value).startswith(f"{caught.value.field}: got ")


@pytest.mark.parametrize(
    "bias", [{VOCAB: 5.0}, {-1: 1.0}, {0: NAN}, {0: INF}, dict.fromkeys(range(100_000), 1.0)]
)
def test_a_bias_outside_the_vocabulary_is_refused(bias):
    """Case 60: unknown ids, not-a-number, infinity and a hundred thousand entries."""
    with pytest.raises(InvalidRequestError, match="logit_bias"):
        checked(logit_bias=bias)


def test_a_huge_bias_is_refused_in_a_large_vocabulary_too():
    """Case 60: the number of entries is bounded by itself."""
    params = SamplingParams(logit_bias=dict.fromkeys(range(100_000), 1.0))

    with pytest.raises(InvalidRequestError, match="65,536"):
        checked_sampling(params, vocab_size=200_000)


def test_nothing_to_generate_is_refused():
    """Case 64: max_tokens 0 is out of range, with log-probabilities or without."""
    for logprobs in (None, 0, 5):
        with pytest.raises(InvalidRequestError, match="max_tokens: got 0"):
            checked(max_tokens=0, logprobs=logprobs)


def test_min_tokens_cannot_exceed_max_tokens():
    """The refusal says the limit."""
    assert checked(min_tokens=5, max_tokens=5).min_tokens == 5
    with pytest.raises(InvalidRequestError, match=r"min_tokens: got 6, allowed: .*5"):
        checked(min_tokens=6, max_tokens=5)


def test_the_first_wrong_id_is_named():
    """A list of ids says where it is wrong."""
    with pytest.raises(InvalidRequestError, match=r"token_ids\[2\]: got 100, allowed: 0 to 99"):
        checked_token_ids([1, 2, VOCAB, -1], vocab_size=VOCAB)


@pytest.mark.parametrize("ids", [[], (), np.array([], dtype=np.int64)])
def test_no_ids_are_refused(ids):
    """Case 62: an empty list is no prompt."""
    with pytest.raises(InvalidRequestError, match="at least one"):
        checked_token_ids(ids, vocab_size=VOCAB)


def test_ids_of_any_integer_kind_become_ints():
    """Arrays and mixed lists are read once, into plain ints."""
    ids = checked_token_ids(np.array([3, 4], dtype=np.uint8), vocab_size=VOCAB)

    assert ids == [3, 4]
    assert {type(i) for i in ids} == {int}
    assert checked_token_ids([np.int32(1), 2], vocab_size=VOCAB) == [1, 2]


@pytest.mark.parametrize("text", [None, 5, b"bytes", "half \ud83d", "\udc00"])
def test_text_must_be_unicode(text):
    """Half a surrogate pair is refused before a tokenizer meets it."""
    with pytest.raises(InvalidRequestError, match="prompt"):
        checked_text(text)


def test_any_valid_text_passes():
    """Emptiness is judged in tokens, later."""
    assert checked_text("") == ""
    assert checked_text("日本 \x00 😀") == "日本 \x00 😀"


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        ("hi", "messages"),
        (None, "messages"),
        ([ChatMessage("robot", "x")], "messages[0].role"),
        ([ChatMessage("user", "x"), ChatMessage("user", None)], "messages[1].content"),
        ([ChatMessage("user", "\ud800")], "messages[0].content"),
        ([{"role": "user", "content": "x"}], "messages[0]"),
    ],
)
def test_bad_messages_are_refused_by_place(messages, field):
    """Which message, and what about it."""
    with pytest.raises(InvalidRequestError) as caught:
        checked_messages(messages)

    assert caught.value.field == field


def test_all_roles_and_empty_content_pass():
    """An assistant may have said nothing."""
    messages = [ChatMessage(role, "") for role in ("system", "user", "assistant", "tool")]

    assert checked_messages(tuple(messages)) == messages


def test_a_deadline_is_a_moment_on_the_clock():
    """Seconds from now; none is none."""
    assert checked_deadline(None, 10.0) is None
    assert checked_deadline(2, 10.0) == 12.0


@pytest.mark.parametrize("timeout_s", [0, -1.0])
def test_a_passed_deadline_is_its_own_error(timeout_s):
    """The caller sees DEADLINE_EXCEEDED, not a bad argument."""
    with pytest.raises(DeadlineError):
        checked_deadline(timeout_s, 10.0)


@pytest.mark.parametrize("timeout_s", [NAN, INF, "5", True])
def test_a_deadline_must_be_a_finite_number(timeout_s):
    """Anything else names the field."""
    with pytest.raises(InvalidRequestError, match="timeout_s"):
        checked_deadline(timeout_s, 10.0)


def test_cache_modes_are_not_strings():
    """The wire's word was converted before."""
    assert checked_cache_mode(CacheMode.OFF) is CacheMode.OFF
    with pytest.raises(InvalidRequestError, match="off, read, write"):
        checked_cache_mode("off")


def test_sampling_must_be_sampling_params():
    """A dictionary is not quietly ignored."""
    with pytest.raises(InvalidRequestError, match="sampling"):
        checked_sampling({"n": 1}, vocab_size=VOCAB)
