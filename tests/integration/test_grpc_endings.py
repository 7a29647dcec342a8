"""However a call ends, its request ends with it, and the client learns how."""

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import grpc
import psutil
import pytest

from radixcache.client import AsyncClient, Client
from radixcache.errors import (
    DeadlineError,
    EngineStoppedError,
    RadixCacheError,
    RequestAbortedError,
)
from radixcache.v1 import cache_service_pb2, cache_service_pb2_grpc, engine_service_pb2
from tests.doubles import Script, wait_until
from tests.wire import raw_engine, serving

SOON_S = 2.0  # the bound of case 89
ENDLESS = Script(num_tokens=10**9)
SILENT = Script(gate=threading.Event())


@pytest.fixture
def served():
    """A server whose requests never end by themselves."""
    with serving() as served:
        served.front.script = ENDLESS
        yield served


@pytest.fixture
def client(served):
    """A client of it, whose time-out only bounds a test that fails."""
    with Client(served.address, timeout=30) as client:
        yield client


def ended_soon(served, count=1):
    """Whether the first ``count`` requests were aborted by the server, in time."""
    return all(s.aborted.wait(SOON_S) for s in served.front.streams[:count])


def raw_request():
    """A request as a client of another make would send it."""
    request = engine_service_pb2.GenerateRequest(request_id="raw")
    request.prompt.text = "x"
    return request


def test_leaving_the_loop_ends_the_request(client, served):
    """Case 89: break, with nobody holding the stream."""
    for _ in client.stream("x"):
        break

    assert ended_soon(served)


def test_leaving_the_loop_ends_the_request_of_a_stream_that_is_held(client, served):
    """Case 89: break, with the stream in a variable; what follows is an error, not silence."""
    stream = client.stream("x")
    for _ in stream:
        break

    assert ended_soon(served)
    with pytest.raises(RequestAbortedError, match="closed before its end"):
        stream.answer()


def test_an_exception_in_the_loop_ends_the_request(client, served):
    """Case 89: the reader fails."""

    def fail():
        for delta in client.stream("x"):
            raise LookupError(delta.text)

    with pytest.raises(LookupError):
        fail()
    gc.collect()

    assert ended_soon(served)


@pytest.mark.parametrize("num_read", [0, 1])
def test_losing_the_stream_ends_the_request(client, served, num_read):
    """Case 89: grpc itself would keep a dropped call alive for ever."""
    stream = client.stream("x")
    for _ in range(num_read):
        next(stream)
    served.front.wait_opened()
    del stream
    gc.collect()

    assert ended_soon(served)


def test_closing_ends_the_request(client, served):
    """By close and by the end of a with block; twice is once."""
    stream = client.stream("x")
    next(stream)
    stream.close()
    stream.close()
    with client.stream("x") as other:
        next(other)

    assert ended_soon(served, 2)
    with pytest.raises(RequestAbortedError):
        next(stream)


def test_closing_from_another_thread_frees_the_reader(client, served):
    """Which then gets an error, not the end of a stream."""
    served.front.script = SILENT
    stream = client.stream("x")
    closer = threading.Thread(target=lambda: (served.front.wait_opened(), stream.close()))
    closer.start()
    with pytest.raises(RequestAbortedError):
        next(stream)
    closer.join()

    assert ended_soon(served)


def test_closing_the_client_ends_its_requests(served):
    """And its readers."""
    client = Client(served.address)
    stream = client.stream("x")
    next(stream)
    client.close()

    with pytest.raises(RequestAbortedError):
        list(stream)
    assert ended_soon(served)


async def test_leaving_an_async_loop_ends_the_request(served):
    """Case 89: break."""
    async with AsyncClient(served.address, timeout=30) as client:
        stream = client.stream("x")
        async for _ in stream:
            break

        assert await asyncio.to_thread(ended_soon, served)
        with pytest.raises(RequestAbortedError):
            await stream.answer()


@pytest.mark.parametrize("script", [ENDLESS, SILENT], ids=["endless", "silent"])
async def test_cancelling_the_task_ends_the_request(served, script):
    """Case 89: between tokens and before the first; the task ends as cancelled."""
    served.front.script = script
    async with AsyncClient(served.address, timeout=30) as client:
        task = asyncio.create_task(client.generate("x"))
        await asyncio.to_thread(served.front.wait_opened)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert await asyncio.to_thread(ended_soon, served)


async def test_cancelling_a_list_ends_all_of_it(served):
    """Every request of it."""
    async with AsyncClient(served.address, timeout=30) as client:
        task = asyncio.create_task(client.generate(["x"] * 5))
        await asyncio.to_thread(served.front.wait_opened, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert await asyncio.to_thread(ended_soon, served, 5)


async def test_closing_from_another_task_frees_the_reader(served):
    """The reading task was not cancelled, so it gets an error it can handle."""
    served.front.script = SILENT
    async with AsyncClient(served.address, timeout=30) as client:
        stream = client.stream("x")
        reader = asyncio.create_task(stream.answer())
        await asyncio.to_thread(served.front.wait_opened)
        await stream.close()
        with pytest.raises(RequestAbortedError):
            await reader

        assert await asyncio.to_thread(ended_soon, served)


async def test_losing_an_async_stream_ends_the_request(served):
    """Case 89: also when the collector comes by in another thread."""
    async with AsyncClient(served.address, timeout=30) as client:
        streams = [client.stream("x"), client.stream("x")]
        for stream in streams:
            await anext(stream)
        del stream
        streams.pop()
        await asyncio.to_thread(streams.pop)
        gc.collect()

        assert await asyncio.to_thread(ended_soon, served, 2)


async def test_the_end_of_an_async_with_ends_the_request(served):
    """Of the stream's own block."""
    async with AsyncClient(served.address, timeout=30) as client:
        async with client.stream("x") as stream:
            await anext(stream)

        assert await asyncio.to_thread(ended_soon, served)


@pytest.mark.parametrize("script", [ENDLESS, SILENT], ids=["endless", "silent"])
def test_a_deadline_ends_the_request(client, served, script):
    """On both sides, and the engine knew of it from the start."""
    served.front.script = script
    with pytest.raises(DeadlineError):
        client.generate("x", timeout=0.3)

    assert ended_soon(served)
    assert served.front.seen[0].timeout_s <= 0.3


def test_a_client_that_dies_ends_its_requests(served):
    """A killed process closes nothing in order."""
    code = (
        "import sys; from radixcache.client import Client\n"
        "stream = Client(sys.argv[1]).stream('x')\n"
        "print(next(stream).text, flush=True)\n"
        "for _ in stream: pass\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, served.address], stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout.readline()
        child.send_signal(signal.SIGKILL)

    assert ended_soon(served)


def test_a_raw_cancel_ends_the_request(served):
    """Of a client that is not ours."""
    with raw_engine(served.address) as stub:
        call = stub.Generate(raw_request())
        next(call)
        call.cancel()

        assert ended_soon(served)


def test_a_request_cancelled_while_it_is_being_opened_is_ended(served):
    """Tokenising cannot be interrupted; what comes out of it is thrown away."""
    served.front.script = Script(num_tokens=10**9, open_s=0.5)
    with Client(served.address, timeout=30) as client:
        stream = client.stream("x")
        wait_until(lambda: served.front.seen)
        stream.close()
        served.front.wait_opened()

        assert ended_soon(served)


def test_abort_ends_requests_by_their_id(client, served):
    """All of that id; unknown and ended ids are no error (case 65)."""
    twins = [client.stream("x", request_id="twin") for _ in range(2)]
    other = client.stream("x", request_id="other")
    for stream in (*twins, other):
        next(stream)

    assert client.abort("twin") == 2
    for stream in twins:
        with pytest.raises(RequestAbortedError):
            list(stream)
    assert client.abort("twin") == 0
    assert client.abort("never seen") == 0
    assert next(other).token_ids


def test_abort_needs_an_id(client):
    """The empty one would mean everybody's."""
    with pytest.raises(RadixCacheError, match="request_id"):
        client.abort("")


def test_an_abort_from_inside_reaches_a_waiting_client(client, served):
    """Case 91: though nothing else is sent, with the engine's own words and the usage."""
    served.front.script = SILENT
    stream = client.stream("x")
    inner = served.front.wait_opened()
    started = threading.Timer(0.1, inner.end, [RequestAbortedError("flushed away")])
    started.start()
    with pytest.raises(RequestAbortedError, match="flushed away"):
        next(stream)

    assert stream.usage.prompt_tokens == 5
    assert not inner.aborted.is_set()


def test_a_cancellation_from_inside_reaches_a_waiting_client(client, served):
    """Case 91: grpc would send nothing for a cancelled inner future, and the client would wait."""
    served.front.match_future = Future()
    timer = threading.Timer(0.1, served.front.match_future.cancel)
    timer.start()
    with pytest.raises(RequestAbortedError, match="ended inside the server"):
        client.match("x")


def test_a_caller_who_leaves_does_not_cancel_the_engines_future(served):
    """The step loop answers it later, and must not trip over it."""
    served.front.engine.flush_future = Future()
    with grpc.insecure_channel(served.address) as channel:
        stub = cache_service_pb2_grpc.CacheServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Flush(cache_service_pb2.FlushRequest(), timeout=0.2)
    time.sleep(0.1)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert not served.front.engine.flush_future.cancelled()
    served.front.engine.flush_future.set_result(None)


def test_stopping_tells_every_client():
    """Calls that outlast the grace get UNAVAILABLE with the reason, and their requests end."""
    with serving() as served:
        served.front.script = SILENT
        with Client(served.address, timeout=30) as client:
            streams = [client.stream("x") for _ in range(8)]
            served.front.wait_opened(8)
            stopper = threading.Thread(target=served.server.stop, args=(0.2,))
            stopper.start()
            for stream in streams:
                with pytest.raises(EngineStoppedError, match="stopping"):
                    next(stream)
            stopper.join(10)

            assert not stopper.is_alive()
            assert ended_soon(served, 8)


def test_stopping_lets_running_requests_finish():
    """Within the grace; and stops as soon as they have: a day's grace takes no day."""
    with serving() as served, Client(served.address, timeout=30) as client:
        served.front.script = Script(num_tokens=5, silent_s=0.3)
        stream = client.stream("x")
        served.front.wait_opened()
        served.server.stop(grace_s=86_400)

        assert stream.answer().text == "0 1 2 3 4 "


def test_stopping_twice_is_stopping_once():
    """And before the start it is nothing."""
    with serving() as served:
        served.server.stop()
        served.server.stop(1)


@pytest.mark.slow
def test_cancelled_streams_do_not_leak():
    """Case 90: memory after 2,000 cancelled calls and after 2,000 more."""
    process = psutil.Process()
    with serving() as served:
        served.front.script = ENDLESS
        with raw_engine(served.address) as stub:

            def run(count):
                for _ in range(count):
                    call = stub.Generate(raw_request())
                    next(call)
                    call.cancel()
                    served.front.streams.clear()
                    served.front.seen.clear()
                gc.collect()
                return process.memory_info().rss

            run(500)
            before = run(2_000)
            after = run(2_000)

    assert after - before < 2_000 * 200
