"""``radixcache.v1.EngineService``: convert, call the front, convert."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, TypeVar

import grpc.aio

from radixcache.errors import InvalidRequestError, ModelNotFoundError
from radixcache.v1 import engine_service_pb2 as pb
from radixcache.v1 import engine_service_pb2_grpc
from radixcache_engine.core.api import EngineAPI
from radixcache_engine.server import convert
from radixcache_engine.server.bell import Bell
from radixcache_engine.server.front_api import FrontAPI, StreamAPI
from radixcache_engine.server.request_size import (
    check_detokenize_size,
    check_prompt_size,
    check_sampling_size,
    check_text_bytes,
    check_tokenize_size,
)

__all__ = ["EngineServicer"]

_R = TypeVar("_R")


class EngineServicer(engine_service_pb2_grpc.EngineServiceServicer):
    """Serves Generate and what belongs to it.

    Args:
        front: what does the work.
        engine: the engine behind it.
        bell: wakes a handler when its stream has something new.
        pool: opens requests. Reading and tokenising a message may take long; the loop stays free
            for running streams and health checks.
        text_pool: tokenises and decodes for their own sake, so that no request waits for it.
    """

    def __init__(
        self,
        front: FrontAPI,
        engine: EngineAPI,
        bell: Bell,
        *,
        pool: Executor,
        text_pool: Executor,
    ) -> None:
        self._front = front
        self._engine = engine
        self._bell = bell
        self._pool = pool
        self._text_pool = text_pool

    async def Generate(
        self, request: pb.GenerateRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Stream one request; however the call ends, the request ends with it."""
        check_prompt_size(request.prompt, self._engine.model)
        check_sampling_size(request.sampling)
        news = asyncio.Event()
        notify = partial(self._bell.ring, news)
        stream = await self._opened(partial(self._open, request, context.time_remaining(), notify))
        request_id = stream.request_id
        try:
            while True:
                await news.wait()
                news.clear()
                update = stream.poll()
                for response in convert.from_deltas(update.deltas):
                    response.request_id, request_id = request_id, ""
                    yield response
                if update.error is not None:
                    if update.usage is not None:
                        yield convert.from_usage(update.usage)
                    raise update.error
                if update.answer is not None:
                    yield convert.from_end(update.answer)
                    return
        finally:
            stream.abort()

    async def Tokenize(
        self, request: pb.TokenizeRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.TokenizeResponse:
        """Tokenise a text or a conversation."""
        self._check_model(request.model)
        check_tokenize_size(request)
        return await self._in_text_pool(partial(self._tokenize, request))

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.DetokenizeResponse:
        """Decode token ids."""
        self._check_model(request.model)
        check_detokenize_size(request)
        return await self._in_text_pool(partial(self._detokenize, request))

    async def ListModels(
        self, request: pb.ListModelsRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.ListModelsResponse:
        """List the one model of this server."""
        return convert.from_models([self._engine.model])

    async def Abort(
        self, request: pb.AbortRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.AbortResponse:
        """End requests by their client's id."""
        if not request.request_id:
            raise InvalidRequestError("request_id", "", "the id given with the request")
        return pb.AbortResponse(num_aborted=self._front.abort(request.request_id))

    def _open(
        self, request: pb.GenerateRequest, timeout_s: float | None, notify: Callable[[], None]
    ) -> StreamAPI:
        wanted = convert.to_generate_request(request, timeout_s=timeout_s)
        return self._front.open(wanted, notify)

    def _tokenize(self, request: pb.TokenizeRequest) -> pb.TokenizeResponse:
        match request.WhichOneof("input"):
            case "text":
                text = request.text
                check_text_bytes("text", len(text.encode()))
                add_special = request.add_special if request.HasField("add_special") else True
                ids = self._front.tokenize(text, add_special=add_special)
            case "messages":
                check_text_bytes("messages", request.messages.ByteSize())
                ids = self._front.chat_ids(convert.to_chat(request.messages))
            case _:
                raise InvalidRequestError("input", None, "one of text, messages")
        return pb.TokenizeResponse(token_ids=ids)

    def _detokenize(self, request: pb.DetokenizeRequest) -> pb.DetokenizeResponse:
        return pb.DetokenizeResponse(text=self._front.detokenize(list(request.token_ids)))

    async def _opened(self, opener: Callable[[], StreamAPI]) -> StreamAPI:
        opening = self._pool.submit(opener)
        try:
            return await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            # The thread may be past the point of no return; what it opens nobody would read.
            opening.add_done_callback(_abort_opened)
            raise

    async def _in_text_pool(self, work: Callable[[], _R]) -> _R:
        return await asyncio.get_running_loop().run_in_executor(self._text_pool, work)

    def _check_model(self, name: str) -> None:
        loaded = self._engine.model.name
        if name not in ("", loaded):
            raise ModelNotFoundError(f"no model {name!r} is served here; served: {loaded!r}")


def _abort_opened(opening: "Future[StreamAPI]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().abort()
