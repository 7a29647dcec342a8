"""Pins and guarantees under a running engine: it serves, waits or refuses, and stays sound."""

import pytest

from radixcache.errors import OutOfBlocksError
from radixcache.types import Namespace
from tests.content_model import ContentLoop, continuation

KEY = "content"


def test_pins_leave_an_engine_able_to_serve():
    """With as much pinned as may be, other requests of half the pool still run, one by one."""
    loop = ContentLoop(kv_tokens=64, block_size=4)
    prompt = list(range(1, 33))
    loop.add(prompt, max_tokens=1)
    loop.run()
    pin = loop.cache.create_pin(Namespace(KEY, "s"), prompt, ttl_s=1e6)
    assert pin.num_tokens == 32
    answers = [loop.add([first] * 20, max_tokens=10) for first in (40, 50, 60)]
    loop.run()

    assert [a.tokens for a in answers] == [continuation([f] * 20, 10) for f in (40, 50, 60)]
    assert loop.cache.match_len(Namespace(KEY, "s"), prompt) == 32
    loop.cache.delete_pin(pin.pin_id)
    loop.assert_nothing_leaked()


def test_a_request_that_pins_leave_no_room_for_is_refused():
    """It would wait for ever otherwise; when the pin has expired the same request runs."""
    loop = ContentLoop(kv_tokens=64, block_size=4)
    prompt = list(range(1, 33))
    loop.add(prompt, max_tokens=1)
    loop.run()
    loop.cache.create_pin(Namespace(KEY, "s"), prompt, ttl_s=60)
    refused = loop.add([77] * 40, max_tokens=4)
    loop.run()
    assert isinstance(refused.terminal.error, OutOfBlocksError)
    assert "pinned" in str(refused.terminal.error)
    loop.clock.now += 60
    served = loop.add([77] * 40, max_tokens=4)
    loop.run()

    assert served.tokens == continuation([77] * 40, 4)
    loop.assert_nothing_leaked()


@pytest.mark.parametrize("public", [False, True], ids=["own path", "on a PUBLIC path"])
def test_a_guarantee_makes_others_wait_or_fail_and_nothing_leaks(public):
    """Also where can_allocate could not foresee it: PUBLIC blocks that guaranteed ones need."""
    loop = ContentLoop(kv_tokens=64, block_size=4)
    shared = list(range(1, 25))
    if public:
        loop.add(shared, scope="", max_tokens=1)
        loop.run()
    loop.add([*shared, *range(30, 38)], scope="b", max_tokens=1)
    loop.run()
    tenant = Namespace(KEY, "b")
    size = loop.cache.match_len(tenant, [*shared, *range(30, 38)])
    assert size == 32
    loop.cache.set_quota(tenant, guaranteed_tokens=8 if public else 32)
    small, large = loop.add([77] * 20, max_tokens=4), loop.add([88] * 40, max_tokens=4)
    loop.run()

    assert small.tokens == continuation([77] * 20, 4)
    assert isinstance(large.terminal.error, OutOfBlocksError)
    assert loop.cache.match_len(tenant, [*shared, *range(30, 38)]) == 32
    loop.cache.remove_quota(tenant)
    again = loop.add([88] * 40, max_tokens=4)
    loop.run()
    assert again.tokens == continuation([88] * 40, 4)
    loop.assert_nothing_leaked()


def test_a_decode_that_meets_a_guarantee_ends_soundly():
    """It was admitted, grows until nothing is left for it, and is refused, not stuck."""
    loop = ContentLoop(kv_tokens=64, block_size=4)
    loop.add(list(range(1, 33)), scope="b", max_tokens=1)
    loop.run()
    loop.cache.set_quota(Namespace(KEY, "b"), guaranteed_tokens=32)
    growing = loop.add([77] * 20, max_tokens=40)
    loop.run()

    assert isinstance(growing.terminal.error, OutOfBlocksError)
    assert loop.cache.match_len(Namespace(KEY, "b"), list(range(1, 33))) == 32
    loop.assert_nothing_leaked()
