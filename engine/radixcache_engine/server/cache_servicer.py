"""``radixcache.v1.CacheService``: convert, call the front or the engine, convert."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, TypeVar

import grpc.aio

from radixcache.types import MatchResult
from radixcache.v1 import cache_service_pb2 as pb
from radixcache.v1 import cache_service_pb2_grpc
from radixcache_engine.core.api import EngineAPI
from radixcache_engine.server import convert
from radixcache_engine.server.front_api import FrontAPI
from radixcache_engine.server.request_size import check_prompt_size

__all__ = ["CacheServicer"]

_R = TypeVar("_R")


class CacheServicer(cache_service_pb2_grpc.CacheServiceServicer):
    """Serves looks into the cache, and its emptying.

    Args:
        front: what does the work.
        engine: the engine behind it.
        pool: runs what may take long, such as reading and tokenising a prompt to look up.
    """

    def __init__(self, front: FrontAPI, engine: EngineAPI, pool: Executor) -> None:
        self._front = front
        self._engine = engine
        self._pool = pool

    async def Match(
        self, request: pb.MatchRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.MatchResponse:
        """Look a prompt up."""
        check_prompt_size(request.prompt, self._engine.model)
        found = await self._answer(partial(self._match, request))
        return pb.MatchResponse(
            matched_tokens=found.matched_tokens, prompt_tokens=found.prompt_tokens
        )

    async def Stats(
        self, request: pb.StatsRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.StatsResponse:
        """Return counters and sizes, without waiting for the step loop."""
        return convert.from_stats(self._engine.stats())

    async def Flush(
        self, request: pb.FlushRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.FlushResponse:
        """Forget every cached prefix."""
        flushed = await self._answer(self._engine.flush)
        return pb.FlushResponse(flushed_tokens=flushed.flushed_tokens)

    async def GetTree(
        self, request: pb.GetTreeRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.GetTreeResponse:
        """Return a bounded picture of the tree."""
        max_nodes = convert.to_max_nodes(request)
        view = await self._answer(partial(self._front.tree, max_nodes))
        in_pool = asyncio.get_running_loop().run_in_executor
        return await in_pool(self._pool, convert.from_tree, view)

    def _match(self, request: pb.MatchRequest) -> "Future[MatchResult]":
        return self._front.match(convert.to_match_request(request))

    async def _answer(self, ask: "Callable[[], Future[_R]]") -> _R:
        asked = await asyncio.get_running_loop().run_in_executor(self._pool, ask)
        # Shielded: the step loop answers this future, and must not find it cancelled by a caller
        # who has gone.
        return await asyncio.shield(asyncio.wrap_future(asked))
