"""A real server on the real model, in this process, on a free loopback port."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from radixcache_engine.config import EngineConfig
from radixcache_engine.core.build import build_engine
from radixcache_engine.core.engine import Engine
from radixcache_engine.front.front import Front
from radixcache_engine.front.tokenizer import Tokenizer
from radixcache_engine.models.registry import resolve
from radixcache_engine.server.grpc_server import GrpcServer


@dataclass
class Serving:
    """A running server and what it is made of."""

    address: str
    engine: Engine
    front: Front
    server: GrpcServer


@contextmanager
def serving(**settings) -> Iterator[Serving]:
    """Serve SmolLM2 with these engine settings until the block ends."""
    config = EngineConfig(**settings)
    folder = resolve(config.model)
    tokenizer = Tokenizer.load(folder.path)
    with serving_engine(build_engine(config, folder, tokenizer.token_bytes), tokenizer) as it:
        yield it


@contextmanager
def serving_engine(engine: Engine, tokenizer: Tokenizer) -> Iterator[Serving]:
    """Serve an engine that is already there, and end both."""
    front = Front(engine, tokenizer)
    server = GrpcServer(front, engine, host="127.0.0.1", port=0)
    port = server.start()
    try:
        yield Serving(f"127.0.0.1:{port}", engine, front, server)
    finally:
        server.stop(1.0)
        engine.close()
