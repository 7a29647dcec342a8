"""The awaited client: the surface of :class:`~radixcache.client.Client`, for one event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, Unpack, overload

import grpc
import grpc.aio
from google.protobuf.message import Message

from radixcache.client import _base, _responses
from radixcache.client._base import CHANNEL_OPTIONS, BaseClient
from radixcache.client._errors import read_error
from radixcache.client._options import (
    GenerateOptions,
    Messages,
    PromptOptions,
    SamplingOptions,
    check,
)
from radixcache.errors import RadixCacheError, RequestAbortedError
from radixcache.types import (
    Answer,
    Delta,
    FlushResult,
    MatchResult,
    ModelInfo,
    Stats,
    TreeView,
    Usage,
)
from radixcache.v1 import (
    cache_service_pb2,
    cache_service_pb2_grpc,
    engine_service_pb2,
    engine_service_pb2_grpc,
)

__all__ = ["AsyncAnswerStream", "AsyncClient"]

_Response = TypeVar("_Response")


class AsyncAnswerStream(AsyncIterator[Delta]):
    """The deltas of one answer as they come; one reader.

    Leaving an ``async for`` loop over it, ``close``, the end of an ``async with`` block, cancelling
    the task that reads and losing the last reference all end the request on the server.
    ``anext(stream)`` takes one delta and keeps it open.
    """

    def __init__(self, call: Any, address: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._call = call
        self._address = address
        self._assembly = _responses.Assembly()
        self._pending: deque[Delta] = deque()
        self._ended = False
        self._error: RadixCacheError | None = None

    @property
    def usage(self) -> Usage | None:
        """What the request cost; None until the server has said so, at the end."""
        return self._assembly.usage

    @property
    def request_id(self) -> str:
        """The request's id; empty until the first delta."""
        return self._assembly.request_id

    async def answer(self) -> Answer:
        """Read what is left; return the whole answer.

        Raises:
            RadixCacheError: the request failed, or the stream was closed before its end.
        """
        while await self.next_delta() is not None:
            pass
        return self._assembly.answer()

    async def close(self) -> None:
        """End the request, if it has not ended. Idempotent."""
        self.cancel()

    def cancel(self) -> None:
        """End the request without waiting, if it has not ended. Idempotent; any thread."""
        if not self._ended:
            self._fail(RequestAbortedError("the stream was closed before its end"))

    async def next_delta(self) -> Delta | None:
        """Return the next delta; None after the last.

        Raises:
            RadixCacheError: the request failed, or the stream was closed before its end.
        """
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            await self._receive()
        return self._pending.popleft()

    def __aiter__(self) -> AsyncIterator[Delta]:
        return _Loop(self)

    async def __anext__(self) -> Delta:
        delta = await self.next_delta()
        if delta is None:
            raise StopAsyncIteration
        return delta

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        # grpc keeps a call alive that nobody refers to any more, and the server would go on.
        self.cancel()

    async def _receive(self) -> None:
        try:
            response = await self._call.read()
        except grpc.RpcError as error:
            if self._error is None:
                self._fail(read_error(error, self._address))
            return
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._error is not None and task is not None and not task.cancelling():
                return  # another task has closed the stream; this one was not cancelled
            self.cancel()
            raise
        if response is grpc.aio.EOF:
            self._ended = True
        else:
            self._pending.extend(self._assembly.add(response))

    def _fail(self, error: RadixCacheError) -> None:
        self._ended, self._error = True, error
        if self._loop.is_closed():
            return
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            self._call.cancel()
        else:
            # The garbage collector may come by in any thread.
            self._loop.call_soon_threadsafe(self._call.cancel)


class _Loop(AsyncIterator[Delta]):
    """What an ``async for`` holds: the loop's end, however it comes, is the request's end."""

    def __init__(self, stream: AsyncAnswerStream) -> None:
        self._stream = stream

    async def __anext__(self) -> Delta:
        return await anext(self._stream)

    def __del__(self) -> None:
        self._stream.cancel()


class AsyncClient(BaseClient):
    """An awaited client of one server, for tasks of one event loop.

    It may be made anywhere; its connection belongs to the loop of the first call. Every call raises
    the errors of ``radixcache.errors`` that the server met, and ``ServerUnreachableError`` when
    nobody answers. Arguments are those of :class:`~radixcache.client.Client`.
    """

    _line: "_Line | None" = None

    @overload
    async def generate(
        self, prompt: str | None = None, **options: Unpack[GenerateOptions]
    ) -> Answer: ...
    @overload
    async def generate(
        self, prompt: list[str] | tuple[str, ...], **options: Unpack[SamplingOptions]
    ) -> list[Answer]: ...
    async def generate(self, prompt: Any = None, **options: Any) -> Answer | list[Answer]:
        """Continue a prompt.

        Args:
            prompt: text, or a list of texts, which run together; the first failure ends the rest.
            **options: see :class:`~radixcache.client.GenerateOptions`.

        Returns:
            The answer, or one for each prompt in their order.
        """
        check("generate", options, GenerateOptions)
        if isinstance(prompt, list | tuple):
            requests = [_base.generate_request(p, options) for p in prompt]
            return await self._generate_all(requests, options)
        async with self._open(_base.generate_request(prompt, options), options) as stream:
            return await stream.answer()

    def stream(
        self, prompt: str | None = None, **options: Unpack[GenerateOptions]
    ) -> AsyncAnswerStream:
        """Continue a prompt; arguments as :meth:`generate`. Not awaited itself, only read."""
        check("stream", options, GenerateOptions)
        return self._open(_base.generate_request(prompt, options), options)

    async def chat(self, messages: Messages, **options: Unpack[SamplingOptions]) -> Answer:
        """Answer a conversation: ``[{"role": "user", "content": "..."}, ...]``."""
        check("chat", options, SamplingOptions)
        return await self.generate(messages=messages, **options)

    async def match(
        self, prompt: str | None = None, **options: Unpack[PromptOptions]
    ) -> MatchResult:
        """Say how much of a prompt is cached; changes nothing."""
        check("match", options, PromptOptions)
        request = _base.match_request(prompt, options)
        return _responses.to_match(await self._call(self._cache.Match, request))

    async def stats(self) -> Stats:
        """Return counters since the server's start and sizes now."""
        request = cache_service_pb2.StatsRequest()
        return _responses.to_stats(await self._call(self._cache.Stats, request))

    async def flush(self) -> FlushResult:
        """Forget every cached prefix."""
        response = await self._call(self._cache.Flush, cache_service_pb2.FlushRequest())
        return FlushResult(flushed_tokens=response.flushed_tokens)

    async def tree(self, max_nodes: int = 1_000) -> TreeView:
        """Return a picture of the tree, the largest subtrees first."""
        request = _base.tree_request(max_nodes)
        return _responses.to_tree(await self._call(self._cache.GetTree, request))

    async def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Messages | None = None,
        add_special: bool = True,
        model: str = "",
    ) -> list[int]:
        """Return the token ids of a text or a conversation, as :meth:`generate` would see it."""
        request = _base.tokenize_request(
            text, messages=messages, add_special=add_special, model=model
        )
        return list((await self._call(self._engine.Tokenize, request)).token_ids)

    async def detokenize(self, token_ids: Sequence[int], *, model: str = "") -> str:
        """Return the text of token ids."""
        request = _base.detokenize_request(token_ids, model=model)
        return (await self._call(self._engine.Detokenize, request)).text

    async def models(self) -> list[ModelInfo]:
        """Return the loaded models."""
        request = engine_service_pb2.ListModelsRequest()
        return _responses.to_models(await self._call(self._engine.ListModels, request))

    async def abort(self, request_id: str) -> int:
        """End the requests of that id; return how many were still open."""
        request = _base.abort_request(request_id)
        return (await self._call(self._engine.Abort, request)).num_aborted

    async def close(self) -> None:
        """End what still runs and hang up. Idempotent."""
        self._closed = True
        line, self._line = self._line, None
        if line is not None and not line.loop.is_closed():
            await line.channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def _engine(self) -> "engine_service_pb2_grpc.EngineServiceAsyncStub":
        return self._connected().engine

    @property
    def _cache(self) -> "cache_service_pb2_grpc.CacheServiceAsyncStub":
        return self._connected().cache

    def _connected(self) -> "_Line":
        self._check_open()
        if self._line is None or self._line.loop.is_closed():
            self._line = _Line(self._address)
        if self._line.loop is not asyncio.get_running_loop():
            raise RuntimeError("this AsyncClient belongs to another event loop; make one for each")
        return self._line

    def _open(
        self, request: engine_service_pb2.GenerateRequest, options: Mapping[str, Any]
    ) -> AsyncAnswerStream:
        call = self._engine.Generate(request, timeout=self._time_for(options))
        return AsyncAnswerStream(call, self._address)

    async def _generate_all(
        self, requests: list[engine_service_pb2.GenerateRequest], options: Mapping[str, Any]
    ) -> list[Answer]:
        free = asyncio.Semaphore(self._max_concurrency)

        async def run(request: engine_service_pb2.GenerateRequest) -> Answer:
            async with free, self._open(request, options) as stream:
                return await stream.answer()

        tasks = [asyncio.create_task(run(request)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(
        self, method: Callable[..., Awaitable[_Response]], request: Message
    ) -> _Response:
        try:
            return await method(request, timeout=self._timeout)
        except grpc.RpcError as error:
            raise read_error(error, self._address) from None


class _Line:
    """A connection and the loop it belongs to."""

    def __init__(self, address: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.engine = engine_service_pb2_grpc.EngineServiceStub(self.channel)
        self.cache = cache_service_pb2_grpc.CacheServiceStub(self.channel)
