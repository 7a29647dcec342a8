"""A stream of the client over a call that only records: what grpc might or might not do itself."""

import asyncio
import gc

import grpc.aio
import pytest

from radixcache.client import AnswerStream, AsyncAnswerStream
from radixcache.errors import RadixCacheError, RequestAbortedError
from radixcache.v1 import engine_service_pb2, output_pb2


class Call:
    """A call that yields what it is given, and remembers whether it was cancelled."""

    def __init__(self, *items):
        self.items = list(items)
        self.cancelled = 0

    def __next__(self):
        if not self.items:
            raise StopIteration
        item = self.items.pop(0)
        if isinstance(item, BaseException):
            raise item
        return item

    async def read(self):
        try:
            return next(self)
        except StopIteration:
            return grpc.aio.EOF

    def cancel(self):
        self.cancelled += 1


def tokens(*ids):
    """A message with one delta a token."""
    return engine_service_pb2.GenerateResponse(
        deltas=[output_pb2.Delta(token_ids=[i], text=f"{i} ") for i in ids]
    )


END = engine_service_pb2.GenerateResponse(usage=output_pb2.Usage(completion_tokens=3), model="m")


def test_a_lost_stream_cancels_its_call():
    """Case 89: without relying on grpc to notice."""
    call = Call(tokens(1), END)
    stream = AnswerStream(call, "a:1")
    next(stream)
    del stream
    gc.collect()

    assert call.cancelled == 1


async def test_a_lost_async_stream_cancels_its_call():
    """Case 89: in its own loop at once, from elsewhere through the loop."""
    call, other = Call(tokens(1), END), Call(tokens(1), END)
    streams = [AsyncAnswerStream(call, "a:1"), AsyncAnswerStream(other, "a:1")]
    del streams[0]
    gc.collect()

    assert call.cancelled == 1

    await asyncio.to_thread(streams.clear)
    await asyncio.sleep(0)

    assert other.cancelled == 1


def test_an_async_stream_of_a_closed_loop_is_silent():
    """Its connection went with the loop."""

    async def main():
        return AsyncAnswerStream(Call(END), "a:1")

    stream = asyncio.run(main())
    stream.cancel()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_cancels_the_call(interrupt):
    """Ctrl-C while waiting for a token does not leave the server at work."""
    call = Call(tokens(1), interrupt())
    stream = AnswerStream(call, "a:1")
    next(stream)
    with pytest.raises(interrupt):
        next(stream)

    assert call.cancelled == 1
    with pytest.raises(RequestAbortedError):
        next(stream)


def test_a_finished_stream_is_not_cancelled():
    """Neither by close nor by its end."""
    call = Call(tokens(1, 2), tokens(3), END)
    stream = AnswerStream(call, "a:1")

    assert stream.answer().token_ids == (1, 2, 3)
    assert stream.answer().model == "m"
    stream.close()
    del stream
    assert call.cancelled == 0


def test_a_stream_without_its_last_message_is_no_answer():
    """A truncated answer is never taken for a whole one."""
    stream = AnswerStream(Call(tokens(1)), "a:1")

    assert [delta.token_ids for delta in stream] == [(1,)]
    with pytest.raises(RadixCacheError, match="without saying what it cost"):
        stream.answer()


def test_several_deltas_of_a_message_come_one_by_one():
    """And the stream stays open between them."""
    stream = AnswerStream(Call(tokens(1, 2, 3), END), "a:1")

    assert [next(stream).token_ids for _ in range(3)] == [(1,), (2,), (3,)]
    assert stream.usage is None
    assert list(stream) == []
    assert stream.usage.completion_tokens == 3
