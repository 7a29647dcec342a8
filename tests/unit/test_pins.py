"""Pins: what they guard, for how long, at whose cost, and that their locks end with them."""

import sys
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from radixcache.cache import PrefixCache
from radixcache.errors import (
    CacheCorruptionError,
    InvalidRequestError,
    NotCachedError,
    OutOfBlocksError,
    PinNotFoundError,
    QuotaError,
)
from radixcache.types import Namespace
from tests.cache_driver import HandClock

NS = "model"
A, B = Namespace(NS, "a"), Namespace(NS, "b")


def made(num_blocks=33, block_size=2, **settings):
    """A cache and its clock, which stands at 1,000 s."""
    clock = HandClock()
    return PrefixCache(num_blocks, block_size=block_size, clock=clock, **settings), clock


def warm(cache, tokens, namespace=NS):
    """Publish a sequence and let it go."""
    lease = cache.acquire(namespace, tokens)
    lease.extend(len(tokens))
    lease.commit(tokens, len(tokens))
    lease.release()


def use(cache, tokens, namespace=NS, **how):
    """Look a prompt up as a request does, and let it go."""
    cache.acquire(namespace, tokens, **how).release()


class TestWhatIsGuarded:
    def test_a_pin_guards_what_is_cached_in_whole_blocks(self):
        """It says how much that was, and when it ends."""
        cache, _ = made()
        warm(cache, [1, 2, 3, 4, 5, 6])
        pin = cache.create_pin(NS, [1, 2, 3, 4, 9, 9, 9], ttl_s=60, priority=3)

        assert (pin.num_tokens, pin.priority, pin.ttl_s, pin.num_hits) == (4, 3, 60.0, 0)
        assert (pin.created_s, pin.expires_s) == (1_000.0, 1_060.0)
        assert pin.namespace == Namespace(NS, "")
        assert cache.list_pins() == [pin]
        assert (cache.num_locked_blocks, cache.num_evictable_blocks) == (2, 1)
        with pytest.raises(FrozenInstanceError):
            pin.priority = 9

    @pytest.mark.parametrize("tokens", [[7, 7], [1], []])
    def test_nothing_cached_is_an_error(self, tokens):
        """An unknown prefix, part of a block, and no tokens at all: nothing is locked."""
        cache, _ = made()
        warm(cache, [1, 2, 3, 4])

        with pytest.raises(NotCachedError, match=r"no whole block cached.* at least 2 tokens"):
            cache.create_pin(NS, tokens, ttl_s=60)
        assert (cache.num_pins, cache.num_locked_blocks) == (0, 0)
        cache.check()

    def test_pinned_blocks_survive_pressure(self):
        """Running sequences get the rest of the pool, then OutOfBlocksError that names the pins."""
        cache, _ = made(11, 1)
        warm(cache, [1, 2, 3, 4, 5])
        cache.create_pin(NS, [1, 2, 3], ttl_s=60)
        lease = cache.acquire(NS, [9] * 7)
        lease.extend(7)

        assert cache.match_len(NS, [1, 2, 3, 4, 5]) == 3
        with pytest.raises(OutOfBlocksError, match="1 pins guard 3 tokens"):
            lease.extend(8)
        assert cache.evict(99) == 0
        cache.check()

    def test_any_form_of_tokens(self):
        """A list, an array or a generator of the same ids name the same pin."""
        cache, _ = made()
        warm(cache, [1, 2, 3, 4])
        forms = [[1, 2, 3, 4], np.array([1, 2, 3, 4]), (n for n in [1, 2, 3, 4]), (1, 2, 3, 4, 5)]
        ids = {cache.create_pin(NS, form, ttl_s=60).pin_id for form in forms}

        assert len(ids) == 1

    def test_a_scope_sees_its_own_and_public_prefixes(self):
        """A tenant may pin a PUBLIC prefix, in its own quota; not another tenant's."""
        cache, _ = made()
        warm(cache, [1, 2, 3, 4])
        warm(cache, [5, 6], A)

        assert cache.create_pin(B, [1, 2, 3, 4], ttl_s=60).namespace == B
        with pytest.raises(NotCachedError):
            cache.create_pin(B, [5, 6], ttl_s=60)
        assert cache.list_pins(NS) == []
        assert len(cache.list_pins(B)) == 1

    def test_two_pins_on_one_path_are_independent(self):
        """The longer one goes, the shorter one still guards its part."""
        cache, _ = made()
        warm(cache, [1, 2, 3, 4])
        short = cache.create_pin(NS, [1, 2], ttl_s=60)
        long = cache.create_pin(NS, [1, 2, 3, 4], ttl_s=60)

        assert cache.list_pins() == [short, long]
        assert cache.delete_pin(long.pin_id)
        assert cache.evict(99) == 1
        assert cache.match_len(NS, [1, 2, 3, 4]) == 2
        cache.check()

    def test_later_turns_do_not_grow_a_pinned_node(self):
        """What is published behind a pin's end is not pinned."""
        cache, _ = made()
        warm(cache, [1, 2])
        cache.create_pin(NS, [1, 2], ttl_s=60)
        warm(cache, [1, 2, 3, 4])

        assert cache.num_locked_blocks == 1
        assert cache.evict(9) == 1
        cache.check()


class TestAgain:
    def test_the_same_again_is_the_same_pin_with_new_time(self):
        """An agent may ask at each turn; hits of the tree and the quota do not grow with it."""
        cache, clock = made()
        warm(cache, [1, 2, 3, 4])
        first = cache.create_pin(NS, [1, 2, 3, 4], ttl_s=60)
        hits = cache.view(9).nodes[0].num_hits
        clock.now += 50
        second = cache.create_pin(NS, [1, 2, 3, 4, 5], ttl_s=30, priority=2)

        assert (second.pin_id, second.created_s) == (first.pin_id, first.created_s)
        assert (second.expires_s, second.priority) == (1_080.0, 2)
        assert cache.list_pins() == [second]
        assert cache.view(9).nodes[0].num_hits == hits

    @pytest.mark.parametrize("block_size", [1, 2])
    def test_it_grows_to_what_is_cached_by_then(self, block_size):
        """A pin made before the prompt was all there."""
        cache, _ = made(block_size=block_size)
        warm(cache, [1, 2])
        first = cache.create_pin(NS, [1, 2, 3, 4], ttl_s=60)
        warm(cache, [1, 2, 3, 4][: 2 + block_size])
        second = cache.create_pin(NS, [1, 2, 3, 4], ttl_s=60)

        assert (first.num_tokens, second.num_tokens) == (2, 2 + block_size)
        assert first.pin_id == second.pin_id
        cache.check()
        assert cache.delete_pin(second.pin_id)
        assert cache.num_locked_blocks == 0

    def test_what_it_cannot_grow_to_leaves_it_as_it_was(self):
        """A quota that is too small for the rest."""
        cache, _ = made()
        warm(cache, [1, 2])
        cache.create_pin(NS, [1, 2, 3, 4], ttl_s=60)
        warm(cache, [1, 2, 3, 4])
        cache.set_pin_quota(NS, 3)
        before = cache.list_pins()

        with pytest.raises(QuotaError):
            cache.create_pin(NS, [1, 2, 3, 4], ttl_s=90, priority=9)
        assert cache.list_pins() == before

    def test_other_namespaces_have_pins_of_their_own(self):
        """The same PUBLIC prefix pinned by two tenants."""
        cache, _ = made()
        warm(cache, [1, 2])
        pins = [cache.create_pin(space, [1, 2], ttl_s=60) for space in (NS, A, B)]

        assert len({pin.pin_id for pin in pins}) == 3
        cache.delete_pin(pins[0].pin_id)
        cache.delete_pin(pins[1].pin_id)
        assert cache.num_locked_blocks == 1


class TestTime:
    def test_it_ends_on_time(self):
        """Not a moment before, and without anybody asking for it."""
        cache, clock = made(5, 1)
        warm(cache, [1, 2])
        pin = cache.create_pin(NS, [1, 2], ttl_s=60)
        clock.now = 1_059.9
        assert cache.expire_pins() == 0
        assert cache.evict(9) == 0
        clock.now = 1_060.0

        assert cache.list_pins() == []
        assert cache.num_locked_blocks == 0
        assert not cache.delete_pin(pin.pin_id)
        cache.check()

    @pytest.mark.parametrize("moment", ["acquire", "can_allocate", "extend", "release", "delete"])
    def test_the_caches_own_moments_end_it(self, moment):
        """Each of what an engine does anyway."""
        cache, clock = made(5, 1)
        warm(cache, [1, 2])
        lease = cache.acquire(NS, [9, 9])
        cache.create_pin(NS, [1, 2], ttl_s=60)
        clock.now += 60
        {
            "acquire": lambda: cache.acquire(NS, [9, 9]),
            "can_allocate": lambda: cache.can_allocate(4),
            "extend": lambda: lease.extend(3),
            "release": lease.release,
            "delete": lambda: cache.delete_pin("pin-9"),
        }[moment]()

        assert cache.num_pins == 0

    def test_room_is_there_when_the_time_has_come(self):
        """can_allocate and extend see what a pin due now gives up."""
        cache, clock = made(5, 1)
        warm(cache, [1, 2])
        cache.create_pin(NS, [1, 2], ttl_s=60)
        lease = cache.acquire(NS, [9] * 4)

        assert not cache.can_allocate(4)
        clock.now += 60
        assert cache.can_allocate(4)
        lease.extend(4)

    def test_a_hit_starts_the_time_anew(self):
        """An acquire that finds the whole of it, of any scope that sees it."""
        cache, clock = made()
        warm(cache, [1, 2, 3, 4])
        cache.create_pin(NS, [1, 2, 3, 4], ttl_s=60)
        clock.now += 50
        use(cache, [1, 2, 3, 4, 5], A)

        [pin] = cache.list_pins()
        assert (pin.expires_s, pin.num_hits) == (1_110.0, 1)
        clock.now = 1_109.0
        assert cache.expire_pins() == 0
        clock.now = 1_110.0
        assert cache.expire_pins() == 1

    def test_a_hit_on_a_longer_prompt_renews_every_pin_on_its_way(self):
        """And a split of the pinned node in between changes nothing."""
        cache, clock = made()
        warm(cache, [1, 2, 3, 4, 5, 6])
        cache.create_pin(NS, [1, 2, 3, 4], ttl_s=60)
        cache.create_pin(NS, [1, 2, 3, 4, 5, 6], ttl_s=60)
        warm(cache, [1, 2, 9, 9])
        clock.now += 10
        use(cache, [1, 2, 3, 4, 7, 7])

        assert [pin.num_hits for pin in cache.list_pins()] == [1, 0]
        use(cache, [1, 2, 3, 4, 5, 6, 7])
        assert [pin.num_hits for pin in cache.list_pins()] == [2, 1]

    def test_a_prompt_that_is_just_the_pinned_prefix_is_a_hit(self):
        """Though its last block is computed anew; it counts once."""
        cache, clock = made()
        warm(cache, [1, 2, 3, 4])
        cache.create_pin(NS, [1, 2, 3, 4], ttl_s=60)
        cache.create_pin(NS, [1, 2], ttl_s=60)
        clock.now += 10
        use(cache, [1, 2, 3, 4])

        assert [(pin.num_hits, pin.expires_s) for pin in cache.list_pins()] == [(1, 1_070.0)] * 2
        use(cache, [1, 2, 9, 9])
        assert [pin.num_hits for pin in cache.list_pins()] == [1, 2]

    def test_looking_is_no_hit(self):
        """Match, a hold, a part of it, another branch, and a request that ignores the cache."""
        cache, clock = made()
        warm(cache, [1, 2, 3, 4])
        pin = cache.create_pin(NS, [1, 2, 3, 4], ttl_s=60)
        clock.now += 10
        cache.match(NS, [1, 2, 3, 4, 5])
        cache.match_len(NS, [1, 2, 3, 4, 5])
        cache.release_hold(cache.hold(NS, [1, 2, 3, 4, 5]))
        use(cache, [1, 2, 3])
        use(cache, [1, 2, 9, 9, 9])
        use(cache, [1, 2, 3, 4, 5], read=False)
        use(cache, [1, 2, 3, 4], read=False)
        use(cache, [1, 2, 3, 4], "other")

        assert cache.list_pins() == [pin]

    def test_an_update_moves_the_end_both_ways(self):
        """A shorter time counts from now; a longer one too."""
        cache, clock = made()
        warm(cache, [1, 2])
        pin = cache.create_pin(NS, [1, 2], ttl_s=60)
        clock.now += 10

        assert cache.update_pin(pin.pin_id, priority=5).expires_s == 1_060.0
        assert cache.update_pin(pin.pin_id, ttl_s=600).expires_s == 1_610.0
        assert cache.update_pin(pin.pin_id, ttl_s=5).expires_s == 1_015.0
        cache.check()
        clock.now = 1_015.0
        assert cache.expire_pins() == 1
        with pytest.raises(PinNotFoundError, match="pin_id: got 'pin-1'"):
            cache.update_pin(pin.pin_id, ttl_s=5)

    def test_thousands_end_at_once_under_a_low_recursion_limit(self):
        """The end of one pin does not nest in the end of another."""
        cache, clock = made(4_001, 1, max_pinned_tokens=4_000)
        for token in range(3_000):
            warm(cache, [token])
            cache.create_pin(NS, [token], ttl_s=60)
        clock.now += 60
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(200)
        try:
            assert cache.expire_pins() == 3_000
        finally:
            sys.setrecursionlimit(limit)
        assert (cache.num_locked_blocks, cache.num_pins) == (0, 0)
        cache.check()

    def test_the_heap_of_deadlines_stays_small(self):
        """However often pins are shortened or made and deleted; what is due still comes."""
        cache, clock = made(9, 1)
        warm(cache, [1])
        for ttl_s in range(5_000, 1_000, -1):
            pin = cache.create_pin(NS, [1], ttl_s=ttl_s)
        for _ in range(1_000):
            cache.delete_pin(cache.create_pin(NS, [1], ttl_s=90_000).pin_id)
        pin = cache.create_pin(NS, [1], ttl_s=90_000)

        assert len(cache._ledger.pins._due) < 100
        clock.now = pin.expires_s
        assert cache.expire_pins() == 1

    def test_pins_renewed_at_their_first_deadline_outlast_a_clean_up_of_the_heap(self):
        """Many come up at once, all were hit meanwhile, and all get a new entry."""
        cache, clock = made(301, 1, max_pinned_tokens=300)
        for token in range(150):
            warm(cache, [token, 500])
            cache.create_pin(NS, [token], ttl_s=60)
            cache.update_pin(cache.list_pins()[-1].pin_id, ttl_s=50)
            cache.update_pin(cache.list_pins()[-1].pin_id, ttl_s=40)
        clock.now += 20
        for token in range(150):
            use(cache, [token, 500])
        clock.now += 30

        assert cache.expire_pins() == 0
        cache.check()
        clock.now += 10
        assert cache.expire_pins() == 150


class TestQuota:
    def test_a_namespaces_pins_stay_within_its_quota(self):
        """The error says what was got, what is allowed and what to change; nothing changes."""
        cache, _ = made()
        for first in (1, 3, 5):
            warm(cache, [first, 2, 3, 4])
        cache.set_pin_quota(NS, 8)
        pins = [cache.create_pin(NS, [first, 2, 3, 4], ttl_s=60) for first in (1, 3)]

        with pytest.raises(
            QuotaError, match=r"got 4 more than the 8 of now, allowed: 8 in .*quota"
        ):
            cache.create_pin(NS, [5, 2, 3, 4], ttl_s=60)
        assert cache.list_pins() == pins
        cache.check()
        cache.set_pin_quota(NS, 12)
        cache.create_pin(NS, [5, 2, 3, 4], ttl_s=60)

    def test_lower_priorities_of_the_namespace_make_room(self):
        """The lowest first, of these the soonest to end; as few as will do."""
        cache, _ = made()
        for first in range(5):
            warm(cache, [first, 9])
        cache.set_pin_quota(NS, 8)
        later = cache.create_pin(NS, [0, 9], ttl_s=90, priority=1)
        high = cache.create_pin(NS, [1, 9], ttl_s=10, priority=2)
        sooner = cache.create_pin(NS, [2, 9], ttl_s=60, priority=1)
        lowest = cache.create_pin(NS, [3, 9], ttl_s=900, priority=-1)

        def left():
            return [pin for pin in cache.list_pins() if pin.priority < 3]

        cache.create_pin(NS, [4, 9], ttl_s=60, priority=3)
        assert left() == [later, high, sooner]
        assert cache.delete_pin(cache.list_pins()[-1].pin_id)
        cache.set_pin_quota(NS, 6)
        cache.create_pin(NS, [4, 9], ttl_s=60, priority=3)
        assert left() == [later, high]
        assert lowest not in cache.list_pins()
        assert cache.match_len(NS, [2, 9]) == 2
        cache.check()

    def test_equal_priorities_do_not_make_room(self):
        """Who was first stays."""
        cache, _ = made()
        warm(cache, [1, 2])
        warm(cache, [3, 4])
        cache.set_pin_quota(NS, 2)
        pin = cache.create_pin(NS, [1, 2], ttl_s=60, priority=1)

        with pytest.raises(QuotaError):
            cache.create_pin(NS, [3, 4], ttl_s=60, priority=1)
        assert cache.list_pins() == [pin]

    def test_nothing_is_dropped_for_a_pin_that_does_not_fit_anyway(self):
        """Three lower ones are not enough for it."""
        cache, _ = made()
        for first in range(3):
            warm(cache, [first, 9])
        warm(cache, [7] * 10)
        cache.set_pin_quota(NS, 9)
        pins = [cache.create_pin(NS, [first, 9], ttl_s=60) for first in range(3)]

        with pytest.raises(QuotaError, match="lower priority would not make enough room"):
            cache.create_pin(NS, [7] * 10, ttl_s=60, priority=9)
        assert cache.list_pins() == pins

    def test_what_is_dropped_may_guard_part_of_the_same_prefix(self):
        """The new lock is there before the old one goes, even above the namespace's block quota."""
        cache, _ = made()
        warm(cache, [1, 2, 3, 4])
        cache.set_pin_quota(NS, 4)
        cache.create_pin(NS, [1, 2], ttl_s=60)
        cache.set_quota(NS, max_tokens=2)
        assert cache.match_len(NS, [1, 2, 3, 4]) == 2
        cache.set_quota(NS, max_tokens=0)
        pin = cache.create_pin(NS, [1, 2, 3], ttl_s=60, priority=1)

        assert pin.num_tokens == 2
        cache.check()

    def test_shared_tokens_count_for_each_pin(self):
        """Two pins of two tokens on one block are four tokens."""
        cache, _ = made()
        warm(cache, [1, 2])
        cache.set_pin_quota(NS, 3)
        cache.create_pin(NS, [1, 2, 3, 4], ttl_s=60)

        with pytest.raises(QuotaError):
            cache.create_pin(NS, [1, 2, 5, 6], ttl_s=60)

    def test_quotas_of_namespaces_without_one(self):
        """None sets it, and takes it away; a namespace's own goes before it."""
        cache, _ = made()
        warm(cache, [1, 2])
        cache.set_pin_quota(None, 0)
        cache.set_pin_quota(A, 2)
        cache.create_pin(A, [1, 2], ttl_s=60)
        with pytest.raises(QuotaError):
            cache.create_pin(B, [1, 2], ttl_s=60)
        cache.set_pin_quota(None, None)
        cache.create_pin(B, [1, 2], ttl_s=60)
        cache.set_pin_quota(NS, 0)

        with pytest.raises(QuotaError):
            cache.create_pin(NS, [1, 2], ttl_s=60)

    def test_a_lower_quota_leaves_what_is_there(self):
        """Only new pins are refused."""
        cache, clock = made()
        warm(cache, [1, 2, 3, 4])
        pin = cache.create_pin(NS, [1, 2, 3, 4], ttl_s=60)
        cache.set_pin_quota(NS, 2)

        assert cache.list_pins() == [pin]
        assert cache.create_pin(NS, [1, 2, 3, 4], ttl_s=60).pin_id == pin.pin_id
        with pytest.raises(QuotaError):
            cache.create_pin(NS, [1, 2], ttl_s=60)
        clock.now += 60
        cache.create_pin(NS, [1, 2], ttl_s=60)

    def test_all_pins_together_leave_half_the_pool(self):
        """By default; the error names the setting. Other namespaces' pins never make room."""
        cache, _ = made(11, 1)
        warm(cache, [1, 2, 3, 4, 5, 6])
        cache.create_pin(A, [1, 2, 3], ttl_s=60, priority=0)

        with pytest.raises(QuotaError, match=r"allowed: 5 in all namespaces.*max_pinned_tokens"):
            cache.create_pin(B, [1, 2, 3], ttl_s=60, priority=9)
        cache.create_pin(A, [1, 2, 3, 4, 5], ttl_s=60, priority=1)
        assert [pin.num_tokens for pin in cache.list_pins()] == [5]
        assert made(11, 1, max_pinned_tokens=0)[0].num_pins == 0


class TestFlush:
    def test_pins_of_what_is_flushed_are_gone_and_their_blocks_free(self):
        """At once, where no lease holds them."""
        cache, _ = made(9, 1)
        warm(cache, [1, 2, 3])
        cache.create_pin(NS, [1, 2, 3], ttl_s=60)

        assert cache.flush() == 3
        assert cache.list_pins() == []
        assert (cache.num_free_blocks, cache.num_locked_blocks) == (8, 0)
        cache.check()

    def test_a_lease_keeps_what_it_reads(self):
        """The flushed blocks go with the last of both."""
        cache, clock = made(9, 1)
        warm(cache, [1, 2, 3])
        cache.create_pin(NS, [1, 2, 3], ttl_s=60)
        lease = cache.acquire(NS, [1, 2, 3, 4])
        cache.flush(NS)

        assert cache.num_free_blocks == 5
        clock.now += 60
        lease.release()
        assert cache.num_free_blocks == 8
        cache.check()

    def test_a_scopes_flush_ends_the_pins_of_what_it_published(self):
        """Its pin of a PUBLIC prefix stays, for the prefix stays, and so do those of others."""
        cache, _ = made()
        warm(cache, [1, 2])
        warm(cache, [1, 2, 3, 4], A)
        warm(cache, [1, 2, 3, 4], B)
        public = cache.create_pin(A, [1, 2], ttl_s=60)
        cache.create_pin(A, [1, 2, 3, 4], ttl_s=60)
        other = cache.create_pin(B, [1, 2, 3, 4], ttl_s=60)
        cache.flush(A)

        assert cache.list_pins() == [public, other]
        cache.check()
        assert cache.delete_pin(public.pin_id)
        assert cache.delete_pin(other.pin_id)
        assert cache.evict(9) == 2
        cache.check()


class TestMisuse:
    @pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf"), 10**400, "60", None])
    def test_a_time_is_seconds(self, ttl_s):
        """Above 0 and finite."""
        cache, _ = made()
        warm(cache, [1, 2])
        pin = cache.create_pin(NS, [1, 2], ttl_s=60)

        with pytest.raises(InvalidRequestError, match=r"ttl_s.* above 0"):
            cache.create_pin(NS, [1, 2], ttl_s=ttl_s)
        if ttl_s is not None:
            with pytest.raises(InvalidRequestError, match="ttl_s"):
                cache.update_pin(pin.pin_id, ttl_s=ttl_s, priority=3)
        assert cache.list_pins() == [pin]

    @pytest.mark.parametrize("priority", [1.5, "1", None])
    def test_a_priority_is_a_whole_number(self, priority):
        """Any, below 0 too."""
        cache, _ = made()
        warm(cache, [1, 2])

        with pytest.raises(InvalidRequestError, match="priority"):
            cache.create_pin(NS, [1, 2], ttl_s=60, priority=priority)
        assert cache.create_pin(NS, [1, 2], ttl_s=60, priority=-(10**30)).priority < 0

    def test_limits_are_whole_numbers(self):
        """Of tokens, 0 or more."""
        cache, _ = made()
        for wrong in (-1, 1.5, "9"):
            with pytest.raises(InvalidRequestError, match="max_tokens"):
                cache.set_pin_quota(NS, wrong)
            with pytest.raises(InvalidRequestError, match="max_pinned_tokens"):
                made(max_pinned_tokens=wrong)
        with pytest.raises(TypeError, match="namespace"):
            cache.set_pin_quota(7, 1)

    def test_wrong_tokens_lock_nothing(self):
        """Ids beyond 32 bits."""
        cache, _ = made()
        with pytest.raises(InvalidRequestError, match="tokens"):
            cache.create_pin(NS, [2**40], ttl_s=60)
        assert cache.num_nodes == 0
        cache.check()

    def test_unknown_pins(self):
        """Deleting one is no error and says so; changing one is."""
        cache, _ = made()

        assert not cache.delete_pin("pin-1")
        with pytest.raises(PinNotFoundError):
            cache.update_pin("pin-1", priority=1)

    @pytest.mark.parametrize(
        ("damage", "fault"),
        [
            (lambda book, held: book._unlock(held.lock), "its lock has ended"),
            (lambda book, held: book._tree.flush(), "it outlived a flush"),
            (lambda book, held: book._due.clear(), "nothing will end it"),
            (lambda book, held: setattr(held, "due_s", held.expires_s + 1), "nothing will end it"),
            (lambda book, held: setattr(held, "expires_s", 0.0), "reminded of too late"),
            (lambda book, held: book._named.clear(), "not recorded under its name"),
            (lambda book, held: book._ends.clear(), "not recorded at its end"),
            (lambda book, held: book._used.clear(), "wrong sum of pins"),
            (lambda book, held: setattr(book, "num_tokens", 0), "wrong sum of pins"),
            (lambda book, held: setattr(book, "max_tokens", 1), "pins hold 4 of 1 tokens"),
            (lambda book, held: book._named.update({("x", b""): held}), "wrong index"),
            (lambda book, held: book._lengths.clear(), "wrong index"),
            (lambda book, held: book._due.append((0.0, "pin-0")), "out of order"),
        ],
    )
    def test_check_names_what_does_not_add_up(self, damage, fault):
        """Locks, sums, indexes and deadlines."""
        cache, _ = made()
        warm(cache, [1, 2, 3, 4])
        cache.create_pin(NS, [1, 2, 3, 4], ttl_s=60)
        cache.check()
        book = cache._ledger.pins
        damage(book, next(iter(book._pins.values())))

        with pytest.raises(CacheCorruptionError, match=fault):
            book.check()
        with pytest.raises(CacheCorruptionError):
            cache.check()
