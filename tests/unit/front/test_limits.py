"""What context and KV pool leave to generate."""

import pytest

from radixcache.errors import TooLongError
from radixcache.types import ModelInfo
from radixcache_engine.front.limits import checked_max_tokens


def model(context_len=8192, kv_capacity_tokens=100_000):
    """A model with these limits."""
    return ModelInfo(context_len=context_len, kv_capacity_tokens=kv_capacity_tokens)


@pytest.mark.parametrize(
    ("prompt_len", "limits", "expected"),
    [
        (1, {}, 1024),
        (8000, {}, 192),
        (8191, {}, 1),
        (900, {"kv_capacity_tokens": 1000}, 101),
        (1000, {"kv_capacity_tokens": 1000}, 1),
    ],
)
def test_the_default_is_what_fits(prompt_len, limits, expected):
    """At most 1,024, less where context or pool end before."""
    assert checked_max_tokens(prompt_len, None, model(**limits)) == expected


def test_the_largest_request_fits_exactly():
    """The last token's KV is never needed, so the pool holds one token more than it has room."""
    assert checked_max_tokens(10, 8182, model()) == 8182
    assert checked_max_tokens(10, 91, model(kv_capacity_tokens=100)) == 91


@pytest.mark.parametrize(
    ("one_more", "limits", "words"),
    [
        (8183, {}, ["1 to 8,182", "10 tokens", "context is 8,192"]),
        (88, {"kv_capacity_tokens": 96}, ["1 to 87", "10 tokens", "holds 96", "--kv-tokens"]),
    ],
)
def test_one_token_more_is_refused_with_the_limit(one_more, limits, words):
    """The message says limit, cause and the setting to change."""
    with pytest.raises(TooLongError) as caught:
        checked_max_tokens(10, one_more, model(**limits))

    assert caught.value.field == "max_tokens"
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("prompt_len", [999, 1000])
def test_a_prompt_that_fits_the_pool_is_admitted(prompt_len):
    """Case 66: 999 and 1,000 tokens fit a pool of 1,000 with one new token."""
    assert checked_max_tokens(prompt_len, 1, model(kv_capacity_tokens=1000)) == 1


@pytest.mark.parametrize("max_tokens", [1, None])
def test_a_prompt_that_never_fits_the_pool_is_refused_at_once(max_tokens):
    """Case 66: 1,001 tokens never fit a pool of 1,000, whatever the model's context."""
    with pytest.raises(TooLongError, match=r"at most 1,000 tokens.*--kv-tokens") as caught:
        checked_max_tokens(1001, max_tokens, model(kv_capacity_tokens=1000))

    assert caught.value.grpc_status == "INVALID_ARGUMENT"


def test_a_prompt_that_fills_the_context_is_refused():
    """One position must be left to generate."""
    with pytest.raises(TooLongError, match=r"at most 8,191 tokens.*context is 8,192"):
        checked_max_tokens(8192, None, model())
