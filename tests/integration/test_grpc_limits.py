"""Large messages, slow readers and long silences."""

import gc
import itertools
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import grpc
import pytest

from radixcache.client import Client
from radixcache.errors import EngineStoppedError, RadixCacheError, ServerUnreachableError
from radixcache.types import Delta, TokenLogprob
from radixcache.v1 import engine_service_pb2, engine_service_pb2_grpc
from radixcache_engine.server.convert import MAX_RESPONSE_BYTES
from tests.doubles import Script, wait_until
from tests.wire import raw_engine, serving

FLOOD = Script(num_tokens=10**9, text="x" * 40_000)  # fills every buffer on the way in a second
PINGS = (
    ("grpc.keepalive_time_ms", 500),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)


@pytest.fixture
def served():
    """A server that gives slow readers up after a second."""
    with serving(idle_write_s=1.0) as served:
        yield served


def raw_request():
    """A request as a client of another make would send it."""
    request = engine_service_pb2.GenerateRequest()
    request.prompt.text = "x"
    return request


def test_a_prompt_of_200_000_ids_arrives(served):
    """Case 114."""
    ids = list(range(200_000))
    with Client(served.address, timeout=30) as client:
        client.generate(token_ids=ids, max_tokens=1)

        assert served.front.seen[-1].token_ids == ids
        assert client.detokenize([97] * 200_000) == "a" * 200_000


def test_a_prompt_of_5_megabytes_arrives(served):
    """Case 114; and its tokens come back."""
    text = "č" * 2_500_000
    with Client(served.address, timeout=30) as client:
        client.generate(text, max_tokens=1)

        assert served.front.seen[-1].prompt == text
        assert len(client.tokenize(text, add_special=False)) == 5_000_000


def test_a_large_answer_comes_in_small_parts(served):
    """Case 114: 5 MB of log-probabilities, no message of 1 MiB."""
    logprobs = tuple(TokenLogprob(i, -1.5, ((1, -0.5),) * 20) for i in range(20_000))
    large = Delta(token_ids=tuple(range(20_000)), logprobs=logprobs, finish_reason="length")
    served.front.script = Script(num_tokens=0, last=large)
    with raw_engine(served.address) as stub:
        sizes = [response.ByteSize() for response in stub.Generate(raw_request(), timeout=30)]
    with Client(served.address, timeout=30) as client:
        answer = client.generate("x")

    assert sum(sizes) > 5_000_000
    assert max(sizes) < MAX_RESPONSE_BYTES
    assert answer.logprobs == logprobs


def test_a_message_above_the_limit_is_refused(served):
    """By the server too, for a client without a limit; others are not disturbed."""
    request = raw_request()
    request.prompt.text = "x" * (65 << 20)
    with raw_engine(served.address, ("grpc.max_send_message_length", -1)) as stub:
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(request, timeout=30))
        request.prompt.text = "x"

        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert list(stub.Generate(request, timeout=30))
    assert len(served.front.seen) == 1


def test_a_slow_reader_holds_no_queue(served):
    """Case 95: once the way is full the server takes nothing more; then it gives the reader up."""
    served.front.script = lambda request: FLOOD if request.prompt == "x" else Script()
    with raw_engine(served.address) as stub, Client(served.address, timeout=30) as client:
        call = stub.Generate(raw_request())
        next(call)
        stream = served.front.streams[0]
        wait_until(lambda: stream.num_buffered and _is_still(lambda: stream.num_polls))
        made, polls = stream.num_made, stream.num_polls

        assert client.generate("quick", max_tokens=5).token_ids == tuple(range(5))
        assert stream.num_polls == polls
        assert stream.num_made > made
        assert stream.num_buffered == 1
        assert stream.aborted.wait(5)
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() is grpc.StatusCode.ABORTED
        assert "read nothing for 1 s" in caught.value.details()


def test_a_dropped_call_is_given_up(served):
    """Case 89: grpc never tells the server of a call that was dropped without a cancel."""
    served.front.script = FLOOD
    with raw_engine(served.address) as stub:
        call = stub.Generate(raw_request())
        next(call)
        del call
        gc.collect()

        assert served.front.streams[0].aborted.wait(10)


def test_many_slow_readers_leave_the_others_alone(served):
    """Case 95: forty who read one message and stop, beside one who reads on."""
    served.front.script = lambda request: (
        Script(num_tokens=10**9, text="x" * 4_000, tokens_per_tick=10)
        if request.prompt == "x"
        else Script()
    )
    with raw_engine(served.address) as stub, Client(served.address, timeout=30) as client:
        calls = [stub.Generate(raw_request()) for _ in range(40)]
        for call in calls:
            next(call)
        for _ in range(5):
            assert len(client.generate("quick", max_tokens=20).token_ids) == 20
        assert all(stream.aborted.wait(20) for stream in served.front.streams[:40])
        for call in calls:
            call.cancel()


def test_a_silent_request_survives_pings():
    """Case 93: where an ordinary server hangs up on a client that pings, ours lets it wait.

    The ordinary server is the proof that these pings would be too many.
    """
    with serving() as served, ThreadPoolExecutor(2) as pool:
        served.front.script = Script(num_tokens=1, silent_s=6.0)
        ours = pool.submit(_generate_with_pings, served.address)
        ordinary = pool.submit(_ordinary_server, _generate_with_pings)

        assert ours.result() == 2  # the token, and the end
        with pytest.raises(grpc.RpcError, match="Too many pings"):
            ordinary.result()


@pytest.mark.slow
def test_our_client_waits_through_a_long_silence():
    """Case 93: its own 10 s pings and a prefill of 45 s."""
    with serving() as served, Client(served.address) as client:
        served.front.script = Script(num_tokens=1, silent_s=45.0)

        assert client.generate("x").text == "0 "


@pytest.mark.slow
def test_each_side_notices_that_the_other_has_gone():
    """Case 93's other half: pings that nobody answers end the wait, though the sockets are open."""
    with serving() as served, _cut_line(served.address) as (address, cut):
        served.front.script = Script(num_tokens=10**9, silent_s=0.2)
        # Where the ping options have no effect the loss shows after 60 s only, which is later
        # than this client waits.
        with Client(address, timeout=50) as client:
            stream = client.stream("x")
            next(stream)
            cut.set()
            with pytest.raises((ServerUnreachableError, EngineStoppedError)):
                list(stream)

        assert served.front.streams[0].aborted.wait(45)


def test_a_long_tokenisation_blocks_nobody(served):
    """Megabytes are tokenised beside the event loop: running streams go on."""
    served.front.script = lambda request: Script(open_s=1.0 if request.prompt == "x" else 0.0)
    with Client(served.address, timeout=30) as client:
        slow = client.stream("x")
        wait_until(lambda: served.front.seen)

        assert client.generate("quick").token_ids
        assert len(served.front.streams) == 1  # the long one is still being opened
        assert slow.answer().token_ids


@contextmanager
def _cut_line(address):
    """A way to a server that swallows everything once it is cut, as a lost machine would."""
    host, _, port = address.rpartition(":")
    cut = threading.Event()

    def carry(source, target):
        with suppress(OSError):
            while data := source.recv(65_536):
                if not cut.is_set():
                    target.sendall(data)

    def accept():
        near = listener.accept()[0]
        for source, target in ((near, far), (far, near)):
            pool.submit(carry, source, target)
        return near

    with (
        ThreadPoolExecutor(3) as pool,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection((host, int(port))) as far,
    ):
        accepted = pool.submit(accept)
        yield f"127.0.0.1:{listener.getsockname()[1]}", cut
        with suppress(OSError):
            far.shutdown(socket.SHUT_RDWR)
        with accepted.result() as near, suppress(OSError):
            near.shutdown(socket.SHUT_RDWR)


def _is_still(value):
    before = value()
    time.sleep(0.1)
    return value() == before


def _generate_with_pings(address):
    with raw_engine(address, *PINGS) as stub:
        return len(list(stub.Generate(raw_request(), timeout=30)))


def _ordinary_server(ask):
    """Ask a grpc server with no options of ours, whose Generate is silent for 6 s."""

    class Silent(engine_service_pb2_grpc.EngineServiceServicer):
        def Generate(self, request, context):
            threading.Event().wait(6.0)
            yield from itertools.repeat(engine_service_pb2.GenerateResponse(), 2)

        Tokenize = Detokenize = ListModels = Abort = None

    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        engine_service_pb2_grpc.add_EngineServiceServicer_to_server(Silent(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            return ask(f"127.0.0.1:{port}")
        finally:
            server.stop(0).wait()


def test_errors_of_the_transport_are_ours(served):
    """Nothing of grpc's own reaches a user of the client."""
    served.front.script = FLOOD
    with Client(served.address, timeout=5) as client:
        stream = client.stream("x")
        next(stream)
        served.server.stop()
        with pytest.raises(RadixCacheError):
            list(stream)
