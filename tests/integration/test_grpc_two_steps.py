"""Cancel, deadline and disconnect over gRPC: at most two more steps, then the blocks are free.

The step thread is held inside a step until the call's end has reached the engine, so the bound is
exact: no step runs while the news travels.
"""

import threading

import grpc
import pytest

from radixcache.v1 import engine_service_pb2, engine_service_pb2_grpc
from radixcache_engine.front.front import Front
from radixcache_engine.front.tokenizer import Tokenizer
from radixcache_engine.server.grpc_server import GrpcServer
from tests.content_model import VOCAB, content_engine
from tests.doubles import wait_until
from tests.tiny_tokenizers import byte_level

WAIT_S = 60  # only bounds a test that fails


class HeldEngine:
    """An engine behind gRPC whose third step begins and then waits."""

    def __init__(self) -> None:
        self.engine = content_engine()
        self.worker = self.engine._loop._worker
        self.inside, self.go = threading.Event(), threading.Event()
        self.worker.before_step = self._pause
        front = Front(self.engine, Tokenizer(byte_level(), vocab_size=VOCAB))
        self.server = GrpcServer(front, self.engine, port=0)
        self.server.start()

    def _pause(self, batch) -> None:
        if len(self.worker.batches) == 2:
            self.inside.set()
            assert self.go.wait(WAIT_S)

    def close(self) -> None:
        self.go.set()
        self.server.stop()
        self.engine.close()


@pytest.fixture
def held():
    """An engine on the content model, served on a free port."""
    held = HeldEngine()
    yield held
    held.close()


def leave_by_cancel(call, channel):
    """The client cancels its call."""
    call.cancel()


def leave_by_deadline(call, channel):
    """The client's deadline passes."""
    with pytest.raises(grpc.RpcError) as caught:
        for _ in call:
            pass
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def leave_by_disconnect(call, channel):
    """The client's connection is gone."""
    channel.close()


@pytest.mark.parametrize(
    ("leave", "timeout"),
    [(leave_by_cancel, WAIT_S), (leave_by_deadline, 2), (leave_by_disconnect, WAIT_S)],
)
def test_a_call_that_ends_runs_at_most_two_more_steps(held, leave, timeout):
    """89, 115: once its end has arrived, the step under way is the request's last."""
    request = engine_service_pb2.GenerateRequest()
    request.prompt.token_ids.ids.extend([1, 2, 3])
    request.sampling.max_tokens = 1000
    request.sampling.ignore_eos = True
    engine = held.engine
    with grpc.insecure_channel(held.server.address) as channel:
        stub = engine_service_pb2_grpc.EngineServiceStub(channel)
        call = stub.Generate(request, timeout=timeout)
        next(call)
        assert held.inside.wait(WAIT_S)
        steps = len(held.worker.batches)
        leave(call, channel)
        wait_until(lambda: len(engine._inbox) > 0)
        held.go.set()
        wait_until(lambda: engine.stats().requests_running == 0)

    assert len(held.worker.batches) - steps <= 2
    assert engine.stats().blocks_leased == 0
    engine.check().result(WAIT_S)
    assert engine.stats().requests_aborted == 1
