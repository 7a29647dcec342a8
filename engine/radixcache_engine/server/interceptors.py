"""Around every call: errors become statuses, writes have a time limit, a stop ends what runs.

Servicers raise; they never choose a status. A handler can be cancelled in two ways. When the client
cancels, its deadline passes or the connection is lost, grpc cancels the handler's task, and that
must be let through. A cancellation from inside (of something the handler waits for) must not: grpc
would send nothing, and the client would wait for ever.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from radixcache.errors import (
    EngineStoppedError,
    InvalidRequestError,
    RadixCacheError,
    RequestAbortedError,
)
from radixcache_engine.server.error_status import ErrorStatus
from radixcache_engine.server.open_calls import OpenCalls

__all__ = ["CallInterceptor"]

_log = logging.getLogger(__name__)


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler of the server.

    Args:
        calls: where running calls are kept.
        idle_write_s: how long a client may leave its stream unread before the call is ended.
    """

    def __init__(self, calls: OpenCalls, *, idle_write_s: float) -> None:
        self._calls = calls
        self._idle_write_s = idle_write_s

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler, wrapped."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return None
        codecs = (_forgiving(handler.request_deserializer), handler.response_serializer)
        if handler.unary_unary is not None:
            unary = self._unary(method, handler.unary_unary)
            return grpc.unary_unary_rpc_method_handler(unary, *codecs)
        if handler.unary_stream is not None:
            stream = self._stream(method, handler.unary_stream)
            return grpc.unary_stream_rpc_method_handler(stream, *codecs)
        if handler.stream_stream is not None:  # reflection
            both = self._both_streams(method, handler.stream_stream)
            return grpc.stream_stream_rpc_method_handler(both, *codecs)
        return handler

    def _unary(self, method: str, serve: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        async def wrapped(request: Any, context: Any) -> Any:
            async with self._guarded(method, context):
                return await serve(_decoded(method, request), context)

        return wrapped

    def _stream(self, method: str, serve: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(request: Any, context: Any) -> None:
            async with (
                self._guarded(method, context),
                aclosing(serve(_decoded(method, request), context)) as responses,
            ):
                async for response in responses:
                    await self._write(context, response)

        return wrapped

    def _both_streams(self, method: str, serve: Callable[..., Any]) -> Callable[..., Any]:
        async def decoded(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
            async for request in requests:
                yield _decoded(method, request)

        def serve_decoded(requests: AsyncIterator[Any], context: Any) -> Any:
            return serve(decoded(requests), context)

        return self._stream(method, serve_decoded)

    async def _write(self, context: Any, response: Any) -> None:
        # A client that has dropped its call without cancelling it reads no more, and grpc never
        # notices: its windows fill, and the write waits.
        try:
            async with asyncio.timeout(self._idle_write_s):
                await context.write(response)
        except TimeoutError:
            raise RequestAbortedError(
                f"the client read nothing for {self._idle_write_s:g} s"
            ) from None

    @asynccontextmanager
    async def _guarded(self, method: str, context: Any) -> AsyncIterator[None]:
        try:
            with self._calls.track(method):
                yield
        except asyncio.CancelledError:
            await self._answer_cancelled(context)
            raise
        except RadixCacheError as error:
            if error.grpc_status == "INTERNAL":
                _log.error("%s: %s", method, error, exc_info=error)
            await _send(context, error)
        except Exception:
            error_id = secrets.token_hex(8)
            _log.exception("%s: error %s", method, error_id)
            await _send(
                context, RadixCacheError(f"internal error {error_id}; the server's log has more")
            )

    async def _answer_cancelled(self, context: Any) -> None:
        task = asyncio.current_task()
        if context.cancelled():
            return
        if self._calls.ended:
            await _send(context, EngineStoppedError("the server is stopping"))
        if task is not None and task.cancelling() == 0:
            await _send(context, RequestAbortedError("the request was ended inside the server"))


@dataclass(frozen=True, slots=True)
class _Undecodable:
    """Stands for a request that is no message of its type."""

    num_bytes: int


def _forgiving(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    # grpc answers an exception here with UNKNOWN and logs a traceback, so any client could fill
    # the log.
    def decode(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return _Undecodable(len(data))

    return decode


def _decoded(method: str, request: Any) -> Any:
    if isinstance(request, _Undecodable):
        raise InvalidRequestError(
            "request", f"{request.num_bytes:,} bytes", f"a protobuf message as {method} takes it"
        )
    return request


async def _send(context: Any, error: RadixCacheError) -> None:
    status = ErrorStatus.of(error)
    await context.abort(status.code, status.message, status.trailers)
