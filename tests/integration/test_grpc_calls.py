"""Every call of both clients against a running server."""

import asyncio
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from radixcache.client import AsyncClient, Client
from radixcache.errors import (
    DeadlineError,
    EngineStoppedError,
    InvalidRequestError,
    ModelNotFoundError,
    OutOfBlocksError,
    RadixCacheError,
    RequestAbortedError,
    ServerUnreachableError,
    TooLongError,
)
from radixcache.types import ChatMessage, Delta, FlushResult, MatchResult, TokenLogprob
from radixcache.v1 import engine_service_pb2
from tests.doubles import Script, wait_until
from tests.wire import ask_models, raw_engine, serving


@pytest.fixture
def served():
    """A running server."""
    with serving() as served:
        yield served


@pytest.fixture
def client(served):
    """A client of it."""
    with Client(served.address, timeout=20) as client:
        yield client


def test_generate_returns_the_whole_answer(client):
    """Text, tokens, reason, usage, model and id."""
    answer = client.generate("hello", max_tokens=3, request_id="mine")

    assert (answer.text, answer.token_ids, answer.finish_reason) == ("0 1 2 ", (0, 1, 2), "length")
    assert (answer.request_id, answer.model) == ("mine", "scripted")
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens) == (5, 3)
    assert answer.usage.completion_tokens == 3


def test_a_stream_adds_up_to_the_answer(client):
    """Deltas as they come, the usage with the last, the answer from the same stream."""
    stream = client.stream("hello", max_tokens=5)
    assert stream.usage is None

    deltas = list(stream)

    assert "".join(delta.text for delta in deltas) == "0 1 2 3 4 "
    assert deltas[-1].finish_reason == "length"
    assert stream.usage.completion_tokens == 5
    assert stream.answer().text == "0 1 2 3 4 "
    assert stream.request_id == "made-up"


def test_next_takes_one_delta_and_keeps_the_stream(client):
    """Unlike leaving a loop."""
    with client.stream("hello", max_tokens=6) as stream:
        first = next(stream)
        rest = list(stream)

    assert "".join(delta.text for delta in [first, *rest]) == "0 1 2 3 4 5 "
    with pytest.raises(StopIteration):
        next(stream)


def test_chat_sends_messages(client, served):
    """Dicts and ChatMessages alike."""
    answer = client.chat(
        [{"role": "system", "content": "be brief"}, ChatMessage("user", "hi")], max_tokens=2
    )

    assert answer.text == "0 1 "
    assert served.front.seen[-1].messages == [
        ChatMessage("system", "be brief"),
        ChatMessage("user", "hi"),
    ]


def test_a_list_of_prompts_runs_together_and_keeps_its_order(client, served):
    """All of them are open at a time, and answer i belongs to prompt i."""
    gate = threading.Event()
    served.front.script = lambda request: Script(text=request.prompt, num_tokens=1, gate=gate)
    opener = threading.Thread(target=lambda: (served.front.wait_opened(40), gate.set()))
    opener.start()
    answers = client.generate([f"prompt {i}" for i in range(40)])
    opener.join()

    assert [answer.text for answer in answers] == [f"prompt {i}" for i in range(40)]
    assert client.generate([]) == []


def test_the_concurrency_of_a_list_is_bounded(served):
    """max_concurrency requests at a time, no more."""
    served.front.script = Script(num_tokens=1, silent_s=0.02)
    with Client(served.address, max_concurrency=2, timeout=20) as client:
        client.generate(["x"] * 8)
    streams = sorted(served.front.streams, key=lambda stream: stream.opened_at)
    gaps = [b.opened_at - a.opened_at for a, b in zip(streams, streams[2:], strict=False)]

    assert min(gaps) >= 0.02


def test_one_bad_prompt_of_a_list_ends_the_others(client, served):
    """The error is raised at once, and nothing goes on behind the caller's back."""
    refusal = InvalidRequestError("prompt", "", "at least one token")
    served.front.script = lambda request: (
        Script(refusal=refusal) if request.prompt == "" else Script(num_tokens=10**9)
    )

    with pytest.raises(InvalidRequestError, match="at least one token"):
        client.generate(["a", "b", "", "c"])
    assert all(stream.ended.wait(5) for stream in served.front.streams)


def test_the_small_calls(client, served):
    """Match, stats, flush, tree, tokenize, detokenize, models."""
    assert client.match("x") == MatchResult(matched_tokens=16, prompt_tokens=20)
    assert client.match(token_ids=[1, 2]).matched_tokens == 16
    assert client.stats() == served.front.engine.counters
    assert client.stats().hit_rate == 0.4
    assert client.flush() == FlushResult(flushed_tokens=7)
    assert client.tree(5).total_tokens == 5
    assert client.tree().nodes[0].num_tokens == 1_000
    assert client.tokenize("ab") == [1, 97, 98]
    assert client.tokenize("ab", add_special=False) == [97, 98]
    assert client.tokenize(messages=[{"role": "u", "content": "b"}]) == list(b"<u>b")
    assert client.detokenize([97, 98]) == "ab"
    assert client.models() == [served.front.engine.model]


async def test_the_same_calls_awaited(served):
    """AsyncClient has the surface of Client."""
    async with AsyncClient(served.address, timeout=20) as client:
        answer = await client.generate("hello", max_tokens=3)
        stream = client.stream("hello", max_tokens=3)
        deltas = [delta async for delta in stream]

        assert answer.text == "".join(delta.text for delta in deltas) == "0 1 2 "
        assert stream.usage.completion_tokens == 3
        assert (await stream.answer()).text == "0 1 2 "
        assert (await client.chat([ChatMessage("user", "x")], max_tokens=1)).text == "0 "
        assert [a.text for a in await client.generate(["x"] * 20, max_tokens=1)] == ["0 "] * 20
        assert await client.generate([]) == []
        assert (await client.match("x")).matched_tokens == 16
        assert (await client.stats()).cached_tokens == 4
        assert (await client.flush()).flushed_tokens == 7
        assert (await client.tree(5)).total_tokens == 5
        assert await client.tokenize("ab") == [1, 97, 98]
        assert await client.detokenize([97]) == "a"
        assert [model.name for model in await client.models()] == ["scripted"]
        assert await client.abort("unknown") == 0


async def test_anext_takes_one_delta_and_keeps_the_stream(served):
    """Unlike leaving a loop."""
    async with AsyncClient(served.address, timeout=20) as client:
        stream = client.stream("hello", max_tokens=4)
        first = await anext(stream)
        rest = [delta async for delta in stream]

    assert "".join(delta.text for delta in [first, *rest]) == "0 1 2 3 "


async def test_an_async_list_with_a_bad_prompt_ends_the_others(served):
    """As with the blocking client."""
    refusal = InvalidRequestError("prompt", "", "at least one token")
    served.front.script = lambda request: (
        Script(refusal=refusal) if request.prompt == "" else Script(num_tokens=10**9)
    )
    async with AsyncClient(served.address, timeout=20) as client:
        with pytest.raises(InvalidRequestError, match="at least one token"):
            await client.generate(["a", "b", "", "c"])
    assert all(stream.ended.wait(5) for stream in served.front.streams)


def test_an_async_client_outlives_its_loop(served):
    """A second asyncio.run gets a connection of its own."""
    client = AsyncClient(served.address, timeout=20)

    for _ in range(2):
        assert asyncio.run(client.detokenize([97])) == "a"


def test_an_async_client_serves_one_loop_at_a_time(served):
    """A second loop beside the first is told so, instead of hanging."""

    async def main():
        async with AsyncClient(served.address, timeout=20) as client:
            await client.stats()
            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(lambda: asyncio.run(client.stats()))

    asyncio.run(main())


def test_requests_carry_their_parameters(client, served):
    """To the front, with the call's time-out as the request's own."""
    client.generate("x", max_tokens=1, temperature=0.0, stop="END", cache="off", timeout=7)
    seen = served.front.seen[-1]

    assert (seen.sampling.temperature, seen.sampling.stop) == (0.0, ("END",))
    assert seen.cache_mode.value == "off"
    # gRPC sends a time-out in whole steps of up to 10 ms, rounded up.
    assert 0 < seen.timeout_s <= 7.01


def test_no_time_out_is_none(served):
    """Without a deadline the engine gets none."""
    with Client(served.address) as client:
        client.generate("x", max_tokens=1)

    assert served.front.seen[-1].timeout_s is None


def test_several_sequences(client, served):
    """Deltas of n sequences in one stream become n choices."""
    served.front.script = Script(
        num_tokens=1, last=Delta(index=1, text="other", token_ids=(9,), finish_reason="stop")
    )
    answer = client.generate("x", n=2)

    assert [choice.text for choice in answer.choices] == ["0 ", "other"]
    assert [choice.finish_reason for choice in answer.choices] == ["length", "stop"]


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("temperature", float("nan"), "0 to 100"),
        TooLongError("prompt", "9,000 tokens", "at most 8,192"),
        ModelNotFoundError("no model 'x' is served here"),
        OutOfBlocksError("10,000 requests are waiting"),
        EngineStoppedError("the engine is draining"),
        DeadlineError("the deadline passed while it waited"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_refusal_arrives_as_it_was_raised(client, served, error):
    """At the opening of the request, and in the middle of it."""
    for script in (Script(refusal=error), Script(num_tokens=2, failure=error)):
        served.front.script = script
        with pytest.raises(type(error)) as caught:
            client.generate("x")

        assert str(caught.value) == str(error)
    assert client.models()


def test_a_failed_request_still_says_what_it_cost(client, served):
    """Rule 14: usage comes before the error."""
    served.front.script = Script(num_tokens=2, failure=RequestAbortedError("shut down"))
    stream = client.stream("x")

    with pytest.raises(RequestAbortedError, match="shut down"):
        list(stream)
    assert stream.usage.completion_tokens == 2
    with pytest.raises(RequestAbortedError, match="shut down"):
        stream.answer()


def test_an_unexpected_fault_keeps_its_details_at_home(client, served, caplog):
    """The client gets an id, the log gets the id and the traceback, the server goes on."""
    served.front.script = Script(refusal=KeyError("a secret"))

    with pytest.raises(RadixCacheError, match=r"internal error [0-9a-f]{16}") as caught:
        client.generate("x")
    error_id = str(caught.value).split()[2].rstrip(";")

    assert "secret" not in str(caught.value)
    assert error_id in caplog.text
    assert "a secret" in caplog.text
    assert client.models()


@pytest.mark.parametrize("call", ["tokenize", "detokenize"])
def test_an_unknown_model_is_not_found(client, call):
    """Naming what is served."""
    with pytest.raises(ModelNotFoundError, match="'gpt' is served here; served: 'scripted'"):
        getattr(client, call)("" if call == "tokenize" else [1], model="gpt")


def test_tokenize_without_input_is_refused(served):
    """A raw client may send neither."""
    with raw_engine(served.address) as stub, pytest.raises(grpc.RpcError) as caught:
        stub.Tokenize(engine_service_pb2.TokenizeRequest(), timeout=10)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_nobody_there_is_said_at_once():
    """With the address and the remedy."""
    with serving() as gone:
        address = gone.address
    with Client(address, timeout=20) as client, pytest.raises(ServerUnreachableError) as caught:
        client.generate("x")

    assert address in str(caught.value)
    assert "scripts/serve" in str(caught.value)


def test_a_client_finds_a_server_that_comes_back():
    """After a failed try the next one soon succeeds, with the same client."""
    with serving() as gone:
        port = int(gone.address.rpartition(":")[2])
    with Client(gone.address, timeout=20) as client:
        with pytest.raises(ServerUnreachableError):
            client.stats()
        with serving(port=port):
            wait_until(lambda: _answers(client))


def _answers(client):
    try:
        return bool(client.models())
    except ServerUnreachableError:
        return False


async def test_nobody_there_is_said_at_once_when_awaited():
    """The same for AsyncClient, calls and streams."""
    with serving() as gone:
        address = gone.address
    async with AsyncClient(address, timeout=20) as client:
        with pytest.raises(ServerUnreachableError, match=address):
            await client.stats()
        with pytest.raises(ServerUnreachableError, match=address):
            await client.generate("x")


def test_a_server_that_is_not_ours_is_named():
    """UNIMPLEMENTED, from something else that speaks gRPC."""
    with ThreadPoolExecutor(1) as pool:
        other = grpc.server(pool)
        port = other.add_insecure_port("127.0.0.1:0")
        other.start()
        with (
            Client(f"127.0.0.1:{port}", timeout=20) as client,
            pytest.raises(RadixCacheError, match="cannot do this"),
        ):
            client.stats()
        other.stop(0).wait()


def test_many_threads_share_a_client(client):
    """Client is thread-safe."""
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda i: client.generate("x", max_tokens=1 + i % 7), range(200)))

    assert [len(answer.token_ids) for answer in answers] == [1 + i % 7 for i in range(200)]


def test_two_clients_do_not_disturb_each_other(served):
    """Closing one ends its own streams only."""
    served.front.script = Script(num_tokens=10**9)
    with Client(served.address) as first, Client(served.address) as second:
        doomed, alive = first.stream("x"), second.stream("x")
        next(doomed)
        next(alive)
        first.close()

        with pytest.raises(RequestAbortedError):
            list(doomed)
        assert next(alive).token_ids


def test_a_spawned_child_can_call(served):
    """Case 94: after gRPC has started here, a child made by spawn works."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply(ask_models, (served.address,)) == ["scripted"]


def test_logprobs_arrive(client, served):
    """Through the whole road."""
    logprob = TokenLogprob(0, -0.25, ((0, -0.25), (7, -1.5)))
    served.front.script = Script(
        num_tokens=0,
        last=Delta(token_ids=(0,), logprobs=(logprob,), finish_reason="stop", stop_reason=0),
    )
    answer = client.generate("x", logprobs=2)

    assert answer.logprobs == (logprob,)
    assert (answer.finish_reason, answer.stop_reason) == ("stop", 0)
