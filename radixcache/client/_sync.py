"""The blocking client."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, Self, TypeVar, Unpack, overload

import grpc
from google.protobuf.message import Message

from radixcache.client import _base, _responses
from radixcache.client._base import CHANNEL_OPTIONS, DEFAULT_ADDRESS, BaseClient
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

__all__ = ["AnswerStream", "Client"]

_Response = TypeVar("_Response")


class AnswerStream(Iterator[Delta]):
    """The deltas of one answer as they come; one reader.

    Leaving a ``for`` loop over it, ``close``, the end of a ``with`` block and losing the last
    reference all end the request on the server. ``next(stream)`` takes one delta and keeps it open.
    """

    def __init__(self, call: Any, address: str) -> None:
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

    def answer(self) -> Answer:
        """Read what is left; return the whole answer.

        Raises:
            RadixCacheError: the request failed, or the stream was closed before its end.
        """
        while self._next() is not None:
            pass
        return self._assembly.answer()

    def close(self) -> None:
        """End the request, if it has not ended. Idempotent."""
        if not self._ended:
            self._fail(RequestAbortedError("the stream was closed before its end"))

    def __iter__(self) -> Iterator[Delta]:
        try:
            while (delta := self._next()) is not None:
                yield delta
        finally:
            self.close()

    def __next__(self) -> Delta:
        delta = self._next()
        if delta is None:
            raise StopIteration
        return delta

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        # grpc keeps a call alive that nobody refers to any more, and the server would go on.
        self.close()

    def _next(self) -> Delta | None:
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            self._receive()
        return self._pending.popleft()

    def _receive(self) -> None:
        try:
            self._pending.extend(self._assembly.add(next(self._call)))
        except StopIteration:
            self._ended = True
        except grpc.RpcError as error:
            if self._error is None:
                self._fail(read_error(error, self._address))
        except BaseException:
            # An interrupt: whoever catches it should not have to know about the call.
            self.close()
            raise

    def _fail(self, error: RadixCacheError) -> None:
        self._ended, self._error = True, error
        self._call.cancel()


class Client(BaseClient):
    """A blocking client of one server. Thread-safe: share it between threads.

    Every call raises the errors of ``radixcache.errors`` that the server met, and
    ``ServerUnreachableError`` when nobody answers.

    Args:
        address: ``host:port`` of the server.
        timeout: seconds a call may take where it does not say itself; None: for ever.
        max_concurrency: requests of one list of prompts that are under way at a time.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout: float | None = None,
        max_concurrency: int = 256,
    ) -> None:
        super().__init__(address, timeout=timeout, max_concurrency=max_concurrency)
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._engine = engine_service_pb2_grpc.EngineServiceStub(self._channel)
        self._cache = cache_service_pb2_grpc.CacheServiceStub(self._channel)

    @overload
    def generate(self, prompt: str | None = None, **options: Unpack[GenerateOptions]) -> Answer: ...
    @overload
    def generate(
        self, prompt: list[str] | tuple[str, ...], **options: Unpack[SamplingOptions]
    ) -> list[Answer]: ...
    def generate(self, prompt: Any = None, **options: Any) -> Answer | list[Answer]:
        """Continue a prompt.

        Args:
            prompt: text, or a list of texts, which run together; the first failure ends the rest.
            **options: see :class:`~radixcache.client.GenerateOptions`.

        Returns:
            The answer, or one for each prompt in their order.
        """
        check("generate", options, GenerateOptions)
        if isinstance(prompt, list | tuple):
            return self._generate_all([_base.generate_request(p, options) for p in prompt], options)
        with self._open(_base.generate_request(prompt, options), options) as stream:
            return stream.answer()

    def stream(self, prompt: str | None = None, **options: Unpack[GenerateOptions]) -> AnswerStream:
        """Continue a prompt; arguments as :meth:`generate`. The request starts at once."""
        check("stream", options, GenerateOptions)
        return self._open(_base.generate_request(prompt, options), options)

    def chat(self, messages: Messages, **options: Unpack[SamplingOptions]) -> Answer:
        """Answer a conversation: ``[{"role": "user", "content": "..."}, ...]``."""
        check("chat", options, SamplingOptions)
        return self.generate(messages=messages, **options)

    def match(self, prompt: str | None = None, **options: Unpack[PromptOptions]) -> MatchResult:
        """Say how much of a prompt is cached; changes nothing."""
        check("match", options, PromptOptions)
        request = _base.match_request(prompt, options)
        return _responses.to_match(self._call(self._cache.Match, request))

    def stats(self) -> Stats:
        """Return counters since the server's start and sizes now."""
        request = cache_service_pb2.StatsRequest()
        return _responses.to_stats(self._call(self._cache.Stats, request))

    def flush(self) -> FlushResult:
        """Forget every cached prefix."""
        response = self._call(self._cache.Flush, cache_service_pb2.FlushRequest())
        return FlushResult(flushed_tokens=response.flushed_tokens)

    def tree(self, max_nodes: int = 1_000) -> TreeView:
        """Return a picture of the tree, the largest subtrees first."""
        request = _base.tree_request(max_nodes)
        return _responses.to_tree(self._call(self._cache.GetTree, request))

    def tokenize(
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
        return list(self._call(self._engine.Tokenize, request).token_ids)

    def detokenize(self, token_ids: Sequence[int], *, model: str = "") -> str:
        """Return the text of token ids."""
        request = _base.detokenize_request(token_ids, model=model)
        return self._call(self._engine.Detokenize, request).text

    def models(self) -> list[ModelInfo]:
        """Return the loaded models."""
        request = engine_service_pb2.ListModelsRequest()
        return _responses.to_models(self._call(self._engine.ListModels, request))

    def abort(self, request_id: str) -> int:
        """End the requests of that id; return how many were still open."""
        request = _base.abort_request(request_id)
        return self._call(self._engine.Abort, request).num_aborted

    def close(self) -> None:
        """End what still runs and hang up. Idempotent."""
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _open(
        self, request: engine_service_pb2.GenerateRequest, options: Mapping[str, Any]
    ) -> AnswerStream:
        timeout = self._time_for(options)
        return AnswerStream(self._start(self._engine.Generate, request, timeout), self._address)

    def _generate_all(
        self, requests: list[engine_service_pb2.GenerateRequest], options: Mapping[str, Any]
    ) -> list[Answer]:
        if not requests:
            return []
        streams: list[AnswerStream] = []
        leaving = threading.Event()

        def run(request: engine_service_pb2.GenerateRequest) -> Answer:
            with self._open(request, options) as stream:
                streams.append(stream)
                if leaving.is_set():
                    stream.close()
                return stream.answer()

        num_threads = min(len(requests), self._max_concurrency)
        with ThreadPoolExecutor(num_threads, thread_name_prefix="radixcache") as pool:
            futures = [pool.submit(run, request) for request in requests]
            try:
                done = wait(futures, return_when=FIRST_EXCEPTION).done
                for future in done:
                    future.result()
                return [future.result() for future in futures]
            finally:
                leaving.set()
                pool.shutdown(wait=False, cancel_futures=True)
                for stream in streams:
                    stream.close()

    def _call(self, method: Callable[..., _Response], request: Message) -> _Response:
        try:
            return self._start(method, request, self._timeout)
        except grpc.RpcError as error:
            raise read_error(error, self._address) from None

    def _start(
        self, method: Callable[..., _Response], request: Message, timeout: float | None
    ) -> _Response:
        self._check_open()
        try:
            return method(request, timeout=timeout)
        except ValueError:
            # Another thread has closed the channel in between.
            self._check_open()
            raise
