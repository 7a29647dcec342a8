"""Anything a stream can say survives being cut, sent and put together again."""

from hypothesis import given
from hypothesis import strategies as st

from radixcache.client import _base, _responses
from radixcache.types import Delta, SamplingParams, TokenLogprob
from radixcache.v1 import engine_service_pb2
from radixcache_engine.server import convert

INT32 = st.integers(-(2**31), 2**31 - 1)
NUMBERS = st.floats(allow_nan=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)

LOGPROBS = st.builds(
    TokenLogprob, INT32, NUMBERS, st.lists(st.tuples(INT32, NUMBERS), max_size=3).map(tuple)
)
DELTAS = st.builds(
    Delta,
    index=st.integers(0, 127),
    text=TEXT,
    token_ids=st.lists(INT32, max_size=5).map(tuple),
    logprobs=st.lists(LOGPROBS, max_size=5).map(tuple),
    finish_reason=st.sampled_from([None, "stop", "length"]),
    stop_reason=st.one_of(st.none(), TEXT, INT32),
)
SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": INT32,
        "min_tokens": INT32,
        "temperature": NUMBERS,
        "top_k": INT32,
        "top_p": NUMBERS,
        "min_p": NUMBERS,
        "seed": st.integers(-(2**63), 2**63 - 1),
        "repetition_penalty": NUMBERS,
        "presence_penalty": NUMBERS,
        "frequency_penalty": NUMBERS,
        "logit_bias": st.dictionaries(INT32, NUMBERS, max_size=4),
        "stop": st.lists(TEXT, max_size=4).map(tuple),
        "stop_token_ids": st.lists(INT32, max_size=4).map(tuple),
        "ignore_eos": st.booleans(),
        "logprobs": INT32,
        "n": INT32,
    },
)


@given(st.lists(DELTAS, max_size=10))
def test_deltas_survive(deltas):
    """One by one, in order, each field exactly."""
    assembly = _responses.Assembly()
    received = []
    for response in convert.from_deltas(deltas):
        sent = response.SerializeToString()
        received += assembly.add(engine_service_pb2.GenerateResponse.FromString(sent))

    assert received == deltas


@given(TEXT, SAMPLING)
def test_requests_survive(prompt, options):
    """What is said arrives, and what is not said is the default."""
    sent = _base.generate_request(prompt, options).SerializeToString()
    message = engine_service_pb2.GenerateRequest.FromString(sent)
    got = convert.to_generate_request(message, timeout_s=None)

    assert got.prompt == prompt
    assert got.sampling == SamplingParams(**options)
