"""Cases of bug reports on the real model behind the real server."""

import asyncio
import random
import time

import pytest

from radixcache import (
    AsyncClient,
    Client,
    DeadlineError,
    InvalidRequestError,
    RadixCacheError,
    RequestAbortedError,
    TooLongError,
)
from radixcache_engine.llm import LLM
from tests.serving import serving
from tests.wire import raw_engine

pytestmark = pytest.mark.model

TEXT = "The river had been rising since the evening, and nobody in the village slept. " * 12


@pytest.fixture(scope="module")
def served():
    """SmolLM2 behind gRPC, with a pool of 4,096 tokens."""
    with serving(kv_tokens=4096, probe=False, check_every_step=True) as it:
        yield it


@pytest.fixture
def client(served):
    """A client of that server, on an empty cache."""
    with Client(served.address) as it:
        it.flush()
        yield it


def wait_until(condition, what):
    """Poll for a state that must come; a bound on waiting, not on speed."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(f"never: {what}")


def assert_clean(served):
    """Nothing runs and every block can be had."""
    wait_until(lambda: served.engine.stats().requests_running == 0, "idle")
    stats = served.engine.stats()

    assert (stats.requests_waiting, stats.requests_blocked) == (0, 0)
    assert (stats.blocks_leased, stats.blocks_locked) == (0, 0)
    assert stats.blocks_free + stats.blocks_evictable == stats.blocks_total
    assert stats.prompt_tokens == stats.cached_tokens + stats.computed_tokens
    served.engine.check().result()


def test_flush_has_effect_on_every_door(client):
    """17: after Flush nothing is cached; the call never succeeds without effect."""
    first = client.generate(TEXT, max_tokens=2, temperature=0.0)
    warm = client.generate(TEXT, max_tokens=2, temperature=0.0)
    flushed = client.flush()
    cold = client.generate(TEXT, max_tokens=2, temperature=0.0)

    assert first.usage.cached_tokens == cold.usage.cached_tokens == 0
    assert warm.usage.cached_tokens > 0
    assert flushed.flushed_tokens >= warm.usage.cached_tokens


def test_too_long_is_refused_at_once_and_the_short_one_runs(client):
    """66, 68: a request that can never fit is refused with the limit; others are not held up."""
    ids = client.tokenize(TEXT * 40)[:4097]
    with pytest.raises(TooLongError, match=r"4,096 tokens.*--kv-tokens"):
        client.generate(token_ids=ids, max_tokens=1)
    with pytest.raises(TooLongError, match=r"max_tokens.*1 to 97 .*--kv-tokens"):
        client.generate(token_ids=ids[:4000], max_tokens=98)
    fits = client.generate(token_ids=ids[:4096], max_tokens=1, temperature=0.0)
    short = client.generate("Hello", max_tokens=2, temperature=0.0)

    assert fits.usage.completion_tokens == 1
    assert short.usage.completion_tokens == 2


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 100.1}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": float("inf")}, "presence_penalty"),
        ({"n": 129}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ["x" * 257]}, "stop"),
        ({"logit_bias": {49_152: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: 101.0}}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
        ({"cache": "sideways"}, "cache"),
    ],
)
def test_values_out_of_range_are_named(client, options, field):
    """Every range of the sampling parameters: the error names field and range."""
    with pytest.raises(InvalidRequestError, match=f"^{field}") as caught:
        client.generate("Hello", **options)

    assert caught.value.field.startswith(field)
    assert client.generate("Hello", max_tokens=1).usage.completion_tokens == 1


@pytest.mark.parametrize(
    "prompt", [{"token_ids": [49_152]}, {"token_ids": [-1]}, {"token_ids": []}]
)
def test_bad_ids_are_refused(client, prompt):
    """62: ids out of the vocabulary and empty prompts are refused, and harm nobody."""
    with pytest.raises(InvalidRequestError, match="token_ids"):
        client.generate(**prompt)
    with pytest.raises(InvalidRequestError, match="prompt"):
        client.generate("")


def test_a_list_of_prompts_keeps_its_order(client):
    """A list of prompts gives a list of answers in the same order."""
    prompts = ["word " * length for length in (9, 2, 30, 5)]
    answers = client.generate(prompts, max_tokens=4, temperature=0.0)

    lengths = [len(client.tokenize(prompt)) for prompt in prompts]
    assert [a.usage.prompt_tokens for a in answers] == lengths
    assert len(set(lengths)) == 4


def test_cancelled_stream_stops_the_work(client, served):
    """89, 115: leaving a stream frees its blocks; at most a few steps run on."""
    stream = client.stream(TEXT, max_tokens=1000, temperature=0.0, ignore_eos=True)
    next(iter(stream))
    steps = served.engine.stats().steps
    stream.close()
    wait_until(lambda: served.engine.stats().requests_running == 0, "freed")

    # The cancellation travels while steps go on; what runs after its arrival is counted exactly
    # in test_grpc_two_steps.py.
    assert served.engine.stats().steps - steps < 60
    assert_clean(served)


def test_a_dropped_raw_call_and_a_deadline_free_their_blocks(client, served):
    """89: a client that cancels, and one whose deadline passes, leave nothing behind."""
    from radixcache.v1 import engine_service_pb2 as pb  # noqa: PLC0415 - only here

    request = pb.GenerateRequest()
    request.prompt.text = TEXT
    request.sampling.max_tokens = 1000
    request.sampling.ignore_eos = True
    with raw_engine(served.address) as stub:
        call = stub.Generate(request)
        next(call)
        call.cancel()
    with pytest.raises(DeadlineError):
        client.generate(TEXT, max_tokens=1000, ignore_eos=True, timeout=0.5)

    assert_clean(served)


def test_abort_by_id_ends_the_call(client, served):
    """Abort by the client's id ends the call with ABORTED; a second abort finds nothing."""
    stream = client.stream(TEXT, max_tokens=1000, ignore_eos=True, request_id="mine")
    next(stream)

    assert client.abort("mine") == 1
    with pytest.raises(RequestAbortedError):
        for _ in stream:
            pass
    assert client.abort("mine") == 0
    assert_clean(served)


def test_tiny_pool_with_200_mixed_requests(served):
    """200 requests, aborts, deadlines and bad input over a small pool: each ends exactly once."""
    rng = random.Random(7)
    words = TEXT.split()

    async def one(client, i):
        prompt = TEXT[: rng.choice([0, 300, 900])] + " ".join(rng.sample(words, 5))
        options = {"max_tokens": rng.randint(1, 24), "n": rng.choice([1, 1, 2]), "ignore_eos": True}
        kind = rng.random()
        if kind < 0.15:
            stream = client.stream(prompt, **options)
            async for _ in stream:
                break
            return "left"
        if kind < 0.3:
            options["timeout"] = rng.uniform(0.05, 1.5)
        if kind > 0.95:
            options["temperature"] = -1.0
        answer = await client.generate(prompt, **options)
        assert len(answer.choices) == options["n"]
        return "answered"

    async def run():
        async with AsyncClient(served.address) as client:
            await client.flush()
            return await asyncio.gather(
                *(one(client, i) for i in range(200)), return_exceptions=True
            )

    ends = asyncio.run(run())
    unexpected = [
        e for e in ends if isinstance(e, BaseException) and not isinstance(e, RadixCacheError)
    ]

    assert unexpected == []
    assert ends.count("answered") > 100
    assert ends.count("left") > 10
    assert sum(isinstance(e, InvalidRequestError) for e in ends) > 3
    assert_clean(served)


def test_same_seed_same_text_whatever_else_runs():
    """108: a seeded request gives one text alone, in batches with others, and after preemption."""
    with LLM("smollm2", dtype="float32", kv_tokens=640, probe=False) as llm:
        alone = llm.generate("Once upon a time", max_tokens=24, seed=11, repetition_penalty=1.2)
        for _ in range(2):
            others = [f"Tell me about the number {i}" for i in range(9)]
            batch = llm.generate(
                [*others, "Once upon a time"], max_tokens=24, seed=11, repetition_penalty=1.2
            )

            assert batch[-1].token_ids == alone.token_ids
        unseeded = {llm.generate("Once upon a time", max_tokens=24).token_ids for _ in range(3)}

        assert len(unseeded) > 1


def test_a_state_continues_where_it_ended():
    """A state passed back continues; its prefix is found whole and stays while the state lives."""
    with LLM("smollm2", dtype="float32", kv_tokens=512, probe=False) as llm:
        state = llm.generate(TEXT[:400], max_tokens=8, temperature=0.0)
        held = llm.stats().blocks_locked
        for i in range(6):
            llm.generate(f"Number {i}: " + TEXT[: 300 + i], max_tokens=4, temperature=0.0)
        longer = llm.generate(state, max_tokens=8, temperature=0.0)
        whole = llm.generate(TEXT[:400], max_tokens=16, temperature=0.0, cache="off")

        assert held > 0
        assert state.token_ids + longer.token_ids == whole.token_ids
        # Everything whose KV was computed is found, in whole blocks.
        assert longer.usage.cached_tokens == (longer.usage.prompt_tokens - 1) // 16 * 16
        del state, longer
        wait_until(lambda: llm.stats().blocks_locked == 0, "unlocked")
        llm.check()


def test_resent_ids_hit_everything_and_text_hits_its_true_prefix(client):
    """131: a next turn sent as ids finds all that was computed; sent as text, its common prefix."""
    messages = [{"role": "user", "content": "Name three rivers of Europe, please."}]
    answer = client.chat(messages, max_tokens=24, temperature=0.0)
    prompt = client.tokenize(messages=messages)
    by_ids = [*prompt, *answer.token_ids, *client.tokenize(" And of Asia?")]
    matched = client.match(token_ids=by_ids).matched_tokens

    assert matched == (len(prompt) + len(answer.token_ids) - 1) // 16 * 16
    text_turn = [
        *messages,
        {"role": "assistant", "content": answer.text},
        {"role": "user", "content": "And of Asia?"},
    ]
    ids = client.tokenize(messages=text_turn)
    known = [*prompt, *answer.token_ids[:-1]]
    common = next(
        (i for i, (a, b) in enumerate(zip(ids, known, strict=False)) if a != b),
        min(len(ids), len(known)),
    )

    assert client.match(token_ids=ids).matched_tokens == common // 16 * 16
