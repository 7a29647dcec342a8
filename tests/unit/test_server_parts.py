"""The small parts of the server, alone."""

import asyncio
import threading

import pytest

from radixcache.errors import EngineStoppedError, InvalidRequestError
from radixcache_engine.server.address import check_host, join, listen_error
from radixcache_engine.server.bell import Bell
from radixcache_engine.server.open_calls import OpenCalls


async def test_a_bell_wakes_from_another_thread():
    """Every event that was rung is set."""
    bell = Bell(asyncio.get_running_loop())
    events = [asyncio.Event() for _ in range(20)]
    threads = [threading.Thread(target=bell.ring, args=(event,)) for event in events]
    for thread in threads:
        thread.start()
    async with asyncio.timeout(5):
        for event in events:
            await event.wait()
    for thread in threads:
        thread.join()


async def test_a_step_costs_one_wake_up():
    """However many requests it notifies; and the next step wakes again."""
    wakes = []

    class Loop:
        def call_soon_threadsafe(self, callback):
            wakes.append(callback)

    bell = Bell(Loop())
    events = [asyncio.Event() for _ in range(256)]
    for event in events:
        bell.ring(event)

    assert len(wakes) == 1

    wakes.pop()()
    bell.ring(events[0])

    assert all(event.is_set() for event in events)
    assert len(wakes) == 1


def test_a_bell_of_a_closed_loop_is_silent():
    """The step thread must not be hurt by a server that has gone."""
    loop = asyncio.new_event_loop()
    bell = Bell(loop)
    loop.close()

    bell.ring(asyncio.Event())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_permission(host):
    """Any of its names."""
    check_host(host, allow_remote=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_other_hosts_need_permission(host):
    """Because there is no authentication yet."""
    with pytest.raises(InvalidRequestError, match=r"host.*allow_remote"):
        check_host(host, allow_remote=False)
    check_host(host, allow_remote=True)


def test_addresses_are_joined():
    """IPv6 in brackets."""
    assert join("127.0.0.1", 1) == "127.0.0.1:1"
    assert join("::1", 1) == "[::1]:1"


def test_a_listen_error_is_one_line_with_the_reason():
    """Even when the second try by hand finds nothing wrong."""
    assert "10.255.255.1:1" in str(listen_error("10.255.255.1", 1))
    assert "\n" not in str(listen_error("no.such.host.invalid", 1))
    assert "cannot be used" in str(listen_error("127.0.0.1", 0))


async def test_open_calls_are_waited_for():
    """Our own calls are, health's are not."""
    calls = OpenCalls()
    with calls.track("/grpc.health.v1.Health/Watch"):
        assert await calls.wait_idle(0.01)
    with calls.track("/radixcache.v1.EngineService/Generate"):
        assert not await calls.wait_idle(0.01)

    assert await calls.wait_idle(0.01)


async def test_ended_calls_are_cancelled_and_no_more_begin():
    """The task of each is cancelled; a call that comes later is told."""
    calls = OpenCalls()
    started = asyncio.Event()

    async def serve():
        with calls.track("/radixcache.v1.EngineService/Generate"):
            started.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(serve())
    await started.wait()
    calls.end_all()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(EngineStoppedError), calls.track("/radixcache.v1.CacheService/Stats"):
        pass

    assert calls.ended
