"""What is too large or no message at all is refused before it costs anything."""

import logging
import threading

import grpc
import pytest

from radixcache.client import Client
from radixcache.v1 import cache_service_pb2 as cache_pb
from radixcache.v1 import cache_service_pb2_grpc
from radixcache.v1 import engine_service_pb2 as pb
from radixcache_engine.server import convert
from tests.doubles import wait_until
from tests.wire import raw_engine, serving

INVALID = grpc.StatusCode.INVALID_ARGUMENT
MAX_TOKENS = 300_000  # of the scripted engine
NO_MESSAGE = b"\xff\xff\xff"


@pytest.fixture
def served():
    """A scripted front behind a real server."""
    with serving() as served:
        yield served


@pytest.fixture
def stub(served):
    """EngineService without our client around it."""
    with raw_engine(served.address, ("grpc.max_receive_message_length", -1)) as stub:
        yield stub


@pytest.fixture
def read_by(monkeypatch):
    """Names of the threads on which requests are read item by item."""
    names = []

    def watch(name):
        real = getattr(convert, name)

        def watched(*args, **kwargs):
            names.append(threading.current_thread().name)
            return real(*args, **kwargs)

        monkeypatch.setattr(convert, name, watched)

    for name in ("to_generate_request", "to_match_request", "to_chat", "from_tree"):
        watch(name)
    return names


def chat(prompt, num_messages):
    """Fill a prompt with empty messages."""
    for _ in range(num_messages):
        prompt.messages.messages.add()


def test_requests_are_read_beside_the_event_loop(served, read_by):
    """The loop serves health checks and running streams; a long chat must not stop them."""
    with Client(served.address, timeout=20) as client:
        client.chat([{"role": "user", "content": "x"}])
        client.match(messages=[{"role": "user", "content": "x"}])
        client.tree(5)

    assert len(read_by) == 6  # generate, match and chat; match and chat; the tree
    assert all(name.startswith("grpc-work") for name in read_by)


def test_tokenising_has_threads_of_its_own(served, monkeypatch, read_by):
    """However many texts wait for them, a request is opened."""
    go_on = threading.Event()
    front, names = served.front, []

    def slow(*args, **kwargs):
        names.append(threading.current_thread().name)
        go_on.wait(20)
        return [1]

    monkeypatch.setattr(front, "tokenize", slow)
    monkeypatch.setattr(front, "chat_ids", slow)
    monkeypatch.setattr(front, "detokenize", lambda ids: str(slow()))
    with raw_engine(served.address) as stub, Client(served.address, timeout=20) as client:
        text, talk = pb.TokenizeRequest(text="x"), pb.TokenizeRequest()
        talk.messages.messages.add(role="user", content="x")
        calls = [stub.Tokenize.future(text), stub.Tokenize.future(talk)]
        calls += [stub.Detokenize.future(pb.DetokenizeRequest(token_ids=[1])) for _ in range(20)]
        wait_until(lambda: len(names) == 2)

        assert client.generate("quick", max_tokens=1).token_ids
        assert client.match("quick").matched_tokens == 16
        go_on.set()
        for call in calls:
            call.result(timeout=20)
    assert len(names) == 22
    assert all(name.startswith("grpc-text") for name in names)


def test_a_hopeless_prompt_is_refused_unread(served, stub, read_by):
    """More messages or ids than any sequence has tokens: counted, never read."""
    requests = [pb.GenerateRequest(), pb.GenerateRequest()]
    chat(requests[0].prompt, MAX_TOKENS + 1)
    requests[1].prompt.token_ids.ids.extend([1] * (MAX_TOKENS + 1))
    with grpc.insecure_channel(served.address) as channel:
        match = cache_service_pb2_grpc.CacheServiceStub(channel).Match
        for request, unit in zip(requests, ("messages", "tokens"), strict=True):
            for ask in (
                lambda request=request: list(stub.Generate(request, timeout=20)),
                lambda request=request: match(
                    cache_pb.MatchRequest(prompt=request.prompt), timeout=20
                ),
            ):
                with pytest.raises(grpc.RpcError, match=f"300,001 {unit}") as caught:
                    ask()
                assert caught.value.code() is INVALID

    assert read_by == served.front.seen == []


@pytest.mark.parametrize("field", ["stop", "stop_token_ids"])
def test_endless_lists_of_parameters_are_refused_unread(stub, read_by, field):
    """Counted like a prompt."""
    request = pb.GenerateRequest()
    request.prompt.text = "x"
    entries = getattr(request.sampling, field)
    entries.extend([1 if field == "stop_token_ids" else ""] * ((1 << 20) + 1))
    with pytest.raises(grpc.RpcError, match=rf"{field}: .*at most 1,048,576") as caught:
        list(stub.Generate(request, timeout=20))

    assert caught.value.code() is INVALID
    assert read_by == []


def test_tokenize_and_detokenize_have_limits(stub, read_by):
    """The largest is served; one more of anything is refused."""
    largest = pb.TokenizeRequest(text="x" * (8 << 20), add_special=False)
    assert len(stub.Tokenize(largest, timeout=60).token_ids) == 8 << 20
    largest.text += "x"
    talk = pb.TokenizeRequest()
    talk.messages.messages.add(role="user", content=largest.text)
    many = pb.TokenizeRequest()
    chat(many, 65_537)
    ids = pb.DetokenizeRequest(token_ids=[97] * (1 << 20))
    assert len(stub.Detokenize(ids, timeout=60).text) == 1 << 20
    ids.token_ids.append(97)
    for ask, request, said in (
        (stub.Tokenize, largest, "text: .*8,388,608 bytes"),
        (stub.Tokenize, talk, "messages: .*8,388,608 bytes"),
        (stub.Tokenize, many, "messages: .*65,537.*65,536 messages"),
        (stub.Detokenize, ids, "token_ids: .*1,048,577.*1,048,576 tokens"),
    ):
        with pytest.raises(grpc.RpcError, match=said) as caught:
            ask(request, timeout=20)
        assert caught.value.code() is INVALID

    assert read_by == []


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("/radixcache.v1.EngineService/Generate", "unary_stream"),
        ("/radixcache.v1.EngineService/Tokenize", "unary_unary"),
        ("/radixcache.v1.CacheService/Stats", "unary_unary"),
        ("/grpc.health.v1.Health/Check", "unary_unary"),
        ("/grpc.health.v1.Health/Watch", "unary_stream"),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "stream_stream"),
    ],
)
def test_bytes_that_are_no_message_are_refused_in_one_line(served, caplog, method, kind):
    """INVALID_ARGUMENT for the client, not a word in the log: any client could fill it."""
    caplog.set_level(logging.INFO)
    with grpc.insecure_channel(served.address) as channel:
        call = getattr(channel, kind)(method)
        request = iter([NO_MESSAGE]) if kind == "stream_stream" else NO_MESSAGE
        ask = call if kind == "unary_unary" else lambda *args, **kw: list(call(*args, **kw))
        with pytest.raises(grpc.RpcError) as caught:
            ask(request, timeout=20)

    assert caught.value.code() is INVALID
    assert caught.value.details().startswith("request: got '3 bytes'")
    assert method in caught.value.details()
    assert "\n" not in caught.value.details()
    assert caplog.records == []
