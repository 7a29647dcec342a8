"""The server as its operator sees it: address, health, reflection, stop."""

import socket
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from radixcache.client import Client
from radixcache.errors import AddressError, EngineStoppedError, InvalidRequestError
from radixcache_engine.server.grpc_server import GrpcServer
from tests.doubles import Script, ScriptedFront, wait_until
from tests.wire import serving

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICES = ["", "radixcache.v1.EngineService", "radixcache.v1.CacheService"]


@pytest.fixture
def served():
    """A server that calls a step loop stuck after 0.3 s."""
    with serving(stuck_after_s=0.3) as served:
        yield served


@pytest.fixture
def health(served):
    """The health service, as a probe calls it."""
    with grpc.insecure_channel(served.address) as channel:
        yield health_pb2_grpc.HealthStub(channel)


@pytest.fixture
def front():
    """A front that no server serves yet."""
    front = ScriptedFront()
    yield front
    front.stop()


def check(health, service=""):
    """The status of a service."""
    return health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status


@pytest.mark.parametrize("service", SERVICES)
def test_a_working_engine_is_healthy(health, service):
    """Case 117, for the server and for each of its services."""
    assert check(health, service) == SERVING


def test_health_of_an_unknown_service_is_not_found(health):
    """As the health protocol wants it; a Watch says SERVICE_UNKNOWN and waits."""
    with pytest.raises(grpc.RpcError) as caught:
        check(health, "other.v1.Service")
    watch = health.Watch(health_pb2.HealthCheckRequest(service="other.v1.Service"), timeout=10)

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


def test_a_hung_step_loop_is_not_healthy(health, served):
    """Case 117: however well the server itself answers; a Watch tells of it."""
    watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=20)
    assert next(watch).status == SERVING

    served.front.engine.hang()
    wait_until(lambda: check(health) == NOT_SERVING)

    assert next(watch).status == NOT_SERVING
    with Client(served.address, timeout=10) as client:
        assert client.models()
    served.front.engine.hung.clear()
    assert check(health) == SERVING
    assert next(watch).status == SERVING
    watch.cancel()


def test_a_check_waits_behind_nothing(health, served):
    """Case 117: every worker thread is busy tokenising, and health still answers."""
    served.front.script = Script(open_s=5.0)
    with Client(served.address, timeout=30) as client:
        streams = [client.stream("x") for _ in range(12)]
        wait_until(lambda: len(served.front.seen) >= 4)

        assert check(health) == SERVING
        assert served.front.streams == []  # every one of them is still being opened
        for stream in streams:
            stream.close()


def test_a_check_counts_as_no_request(health, served):
    """Probes never show up in the engine."""
    for _ in range(20):
        check(health)

    assert served.front.seen == []


def test_a_draining_server_is_not_healthy(served):
    """Running requests go on, and whoever watches is told to look elsewhere."""
    gate = threading.Event()
    served.front.script = Script(num_tokens=1, gate=gate)
    with grpc.insecure_channel(served.address) as channel, Client(served.address) as client:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=20)
        assert next(watch).status == SERVING
        stream = client.stream("x")
        served.front.wait_opened()
        stopper = threading.Thread(target=served.server.stop, args=(20,))
        stopper.start()

        assert next(watch).status == NOT_SERVING
        gate.set()
        assert stream.answer().text == "0 "
        stopper.join(10)
        assert not stopper.is_alive()
        with pytest.raises(grpc.RpcError) as caught:
            next(watch)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_reflection_lists_the_services(served):
    """What grpcurl asks first."""
    with grpc.insecure_channel(served.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        services = set(database.get_services())
        file = database.FindFileContainingSymbol("radixcache.v1.EngineService")

    assert {*SERVICES[1:], "grpc.health.v1.Health"} <= services
    assert file.package == "radixcache.v1"
    assert [method.name for method in file.service[0].method] == [
        "Generate",
        "Tokenize",
        "Detokenize",
        "ListModels",
        "Abort",
    ]


def test_a_taken_port_is_one_clear_line(served, front):
    """Also when another server of ours has it: ports are never shared."""
    port = int(served.address.rpartition(":")[2])
    with pytest.raises(AddressError) as caught:
        GrpcServer(front, front.engine, port=port).start()

    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port}: already in use; "
        "stop what listens there or choose another port"
    )


def test_a_port_taken_by_something_else(front):
    """Whatever listens there."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(AddressError, match="already in use"):
            GrpcServer(front, front.engine, port=port).start()


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_of_another_machine(front, host):
    """Is said to be just that."""
    with pytest.raises(AddressError, match=host):
        GrpcServer(front, front.engine, host=host, port=0, allow_remote=True).start()


def test_other_machines_are_kept_out_by_default(front):
    """A server without authentication is opened to them by name only."""
    with pytest.raises(InvalidRequestError, match="allow_remote"):
        GrpcServer(front, front.engine, host="0.0.0.0")


def test_a_port_is_free_again_after_a_stop(front):
    """At once: a restart must not wait."""
    server = GrpcServer(front, front.engine, port=0)
    port = server.start()
    server.stop()
    again = GrpcServer(front, front.engine, port=port)

    assert again.start() == port
    assert again.address == f"127.0.0.1:{port}"
    with Client(again.address, timeout=10) as client:
        assert client.models()
    again.stop()


def test_a_stopped_server_leaves_no_thread(front):
    """Neither its loop's nor its workers'."""
    before = set(threading.enumerate())
    server = GrpcServer(front, front.engine, port=0)
    server.start()
    with Client(server.address, timeout=10) as client:
        client.generate("x")
    server.stop()
    ours = [t.name for t in set(threading.enumerate()) - before if t.name.startswith("grpc-")]

    assert ours == []


def test_a_front_that_has_stopped_refuses(served):
    """The engine's word reaches the client."""
    served.front.stop()
    with Client(served.address, timeout=10) as client, pytest.raises(EngineStoppedError):
        client.generate("x")
