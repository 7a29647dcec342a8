"""The gRPC server: one event loop in one thread of its own."""

import asyncio
import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from radixcache.v1 import cache_service_pb2_grpc, engine_service_pb2_grpc
from radixcache_engine.core.api import EngineAPI
from radixcache_engine.server.address import check_host, join, listen_error
from radixcache_engine.server.bell import Bell
from radixcache_engine.server.cache_servicer import CacheServicer
from radixcache_engine.server.engine_servicer import EngineServicer
from radixcache_engine.server.front_api import FrontAPI
from radixcache_engine.server.health import HEALTH_SERVICE, HealthServicer
from radixcache_engine.server.interceptors import CallInterceptor
from radixcache_engine.server.open_calls import OpenCalls

__all__ = ["MAX_MESSAGE_BYTES", "GrpcServer"]

_log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 << 20
"""Largest message in either direction; the client's limit is the same."""

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # With port sharing a second server on a taken port would silently get half of the calls.
    ("grpc.so_reuseport", 0),
    # A long prefill sends nothing for a while; clients that ping meanwhile are welcome. Wrong
    # names are ignored without a word, so a test watches the behaviour.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Finds clients whose machine has gone without closing the connection.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
)
_SERVICES = ("radixcache.v1.EngineService", "radixcache.v1.CacheService", HEALTH_SERVICE)
_POOL_THREADS = 4
_TEXT_THREADS = 2
_LAST_WORDS_S = 2.0  # for the statuses of calls that a stop has ended


class GrpcServer:
    """Serves a front over gRPC.

    Args:
        front: what does the work.
        engine: the engine behind it, whose heartbeat is the server's health.
        host: address to listen on.
        port: 0 takes a free one.
        allow_remote: permit an address that other machines reach.
        idle_write_s: a client that leaves its stream unread for so long is given up.
        stuck_after_s: a step loop silent for so long means NOT_SERVING.

    Raises:
        InvalidRequestError: ``host`` is reached by other machines and ``allow_remote`` is false.
    """

    def __init__(
        self,
        front: FrontAPI,
        engine: EngineAPI,
        *,
        host: str = "127.0.0.1",
        port: int = 50051,
        allow_remote: bool = False,
        idle_write_s: float = 60.0,
        stuck_after_s: float = 30.0,
    ) -> None:
        check_host(host, allow_remote=allow_remote)
        self._front = front
        self._engine = engine
        self._host = host
        self._port = port
        self._idle_write_s = idle_write_s
        self._health = HealthServicer(engine.heartbeat_age_s, stuck_after_s=stuck_after_s)
        self._bound: Future[int] = Future()
        self._stop_asked = asyncio.Event()
        self._grace_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="grpc-server", daemon=True)

    @property
    def address(self) -> str:
        """``host:port`` as bound; only after :meth:`start`."""
        return join(self._host, self._bound.result(timeout=0))

    def start(self) -> int:
        """Listen and serve; return the bound port. Once only.

        Raises:
            AddressError: the address is taken, or not of this machine.
        """
        self._thread.start()
        return self._bound.result()

    def stop(self, grace_s: float = 0.0) -> None:
        """Stop taking calls, wait up to ``grace_s`` for those that run, end the rest. Idempotent.

        Health says NOT_SERVING meanwhile. Clients of ended calls get UNAVAILABLE. The engine is not
        touched: whoever owns it closes it afterwards.
        """
        if self._loop is None or not self._thread.is_alive():
            return
        self._grace_s = grace_s
        try:
            self._loop.call_soon_threadsafe(self._stop_asked.set)
        except RuntimeError:
            _log.debug("the loop had ended already")
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._bound.done():
                raise
            self._bound.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_handle_loop_error)
        calls = OpenCalls()
        with (
            ThreadPoolExecutor(_POOL_THREADS, thread_name_prefix="grpc-work") as pool,
            ThreadPoolExecutor(_TEXT_THREADS, thread_name_prefix="grpc-text") as text_pool,
        ):
            server = self._build(calls, pool, text_pool)
            try:
                port = server.add_insecure_port(join(self._host, self._port))
            except RuntimeError:
                raise listen_error(self._host, self._port) from None
            await server.start()
            self._bound.set_result(port)
            await self._stop_asked.wait()
            await self._drain(server, calls)

    def _build(
        self, calls: OpenCalls, pool: ThreadPoolExecutor, text_pool: ThreadPoolExecutor
    ) -> grpc.aio.Server:
        interceptor = CallInterceptor(calls, idle_write_s=self._idle_write_s)
        server = grpc.aio.server(interceptors=[interceptor], options=_OPTIONS)
        bell = Bell(asyncio.get_running_loop())
        engine_service_pb2_grpc.add_EngineServiceServicer_to_server(
            EngineServicer(self._front, self._engine, bell, pool=pool, text_pool=text_pool), server
        )
        cache_service_pb2_grpc.add_CacheServiceServicer_to_server(
            CacheServicer(self._front, self._engine, pool), server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((*_SERVICES, reflection.SERVICE_NAME), server)
        return server

    async def _drain(self, server: grpc.aio.Server, calls: OpenCalls) -> None:
        self._health.drain()
        stopping = asyncio.create_task(server.stop(self._grace_s + _LAST_WORDS_S))
        await calls.wait_idle(self._grace_s)
        calls.end_all()
        await stopping
        # grpc returns before the clean-up of handlers it has cancelled.
        await calls.wait_idle(_LAST_WORDS_S)


def _handle_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # Where two loops of a process use grpc.aio, both wake for each event and the loser reads an
    # empty socket. grpc lets that surface as an error although nothing is wrong.
    if isinstance(context.get("exception"), BlockingIOError):
        return
    loop.default_exception_handler(context)
