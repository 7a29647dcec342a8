"""Servers and clients for tests of the wire."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from radixcache.client import Client
from radixcache.v1 import engine_service_pb2_grpc
from radixcache_engine.server.grpc_server import GrpcServer
from tests.doubles import ScriptedFront


@dataclass
class Served:
    """A running server, and the front behind it."""

    front: Any
    server: GrpcServer
    address: str


@contextmanager
def serving(front: Any = None, *, port: int = 0, **options: Any) -> Iterator[Served]:
    """Serve a front (the scripted one by default) on a free port of 127.0.0.1."""
    own = ScriptedFront() if front is None else None
    front = front or own
    server = GrpcServer(front, front.engine, port=port, **options)
    server.start()
    try:
        yield Served(front, server, server.address)
    finally:
        server.stop()
        if own is not None:
            own.stop()


@contextmanager
def raw_engine(address: str, *options: tuple[str, int]) -> Iterator[Any]:
    """A stub of EngineService without our client around it, for what our client never does."""
    with grpc.insecure_channel(address, options=options) as channel:
        yield engine_service_pb2_grpc.EngineServiceStub(channel)


def ask_models(address: str) -> list[str]:
    """Ask a server for its models; for child processes, which need a function they can import."""
    with Client(address, timeout=20) as client:
        return [model.name for model in client.models()]
