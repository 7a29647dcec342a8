"""What a lease reads, may write, publishes and gives back."""

import pytest

from radixcache.cache import PrefixCache
from radixcache.errors import (
    CacheCorruptionError,
    InvalidRequestError,
    LockError,
    OutOfBlocksError,
)
from radixcache.types import Namespace
from tests.cache_driver import ContentStore

NS = "model"


def warm(cache, tokens, namespace=NS):
    """Publish a sequence and let it go."""
    lease = cache.acquire(namespace, tokens)
    lease.extend(len(tokens))
    lease.commit(tokens, len(tokens))
    lease.release()


class TestAcquire:
    @pytest.mark.parametrize("blocks", [1, 2, 3])
    @pytest.mark.parametrize("size", [1, 4, 16])
    def test_one_token_stays_fresh(self, size, blocks):
        """Cases 26 and 43: a prompt that is cached whole, to the token, still leaves one to run."""
        cache, tokens = PrefixCache(64, block_size=size), list(range(size * blocks))
        warm(cache, tokens)
        assert cache.match_len(NS, tokens) == len(tokens)
        lease = cache.acquire(NS, tokens)

        assert lease.num_cached_tokens == (len(tokens) - 1) // size * size
        lease.extend(len(tokens))
        assert len(lease.own_block_ids) >= 1
        assert lease.block_table[-1] not in cache.match(NS, tokens).block_ids
        cache.check()

    def test_a_prompt_made_of_an_earlier_prompt_and_its_output(self):
        """Case 43: everything is cached; len - 1 at most is used."""
        cache = PrefixCache(64, block_size=4)
        warm(cache, list(range(24)))

        assert cache.acquire(NS, list(range(24))).num_cached_tokens == 20
        assert cache.acquire(NS, list(range(25))).num_cached_tokens == 24

    def test_acquiring_allocates_nothing(self):
        """Room is asked for by extend alone."""
        cache = PrefixCache(4, block_size=2)
        leases = [cache.acquire(NS, list(range(100))) for _ in range(5)]

        assert cache.num_free_blocks == 3
        assert [lease.block_table for lease in leases] == [[]] * 5

    def test_reading_can_be_switched_off(self):
        """read=False finds nothing, although it is there; publishing then finds the duplicate."""
        cache = PrefixCache(16, block_size=2)
        warm(cache, [1, 2, 3, 4])
        lease = cache.acquire(NS, [1, 2, 3, 4, 5], read=False)
        assert (lease.num_cached_tokens, lease.block_table) == (0, [])
        lease.extend(5)
        lease.commit([1, 2, 3, 4, 5], 5)

        assert lease.block_table[:2] == cache.match(NS, [1, 2, 3, 4]).block_ids
        assert cache.counters.duplicate_blocks == 2
        cache.check()

    @pytest.mark.parametrize("chunks", [1, 2, 30])
    def test_publishing_can_be_switched_off(self, chunks):
        """Case 72: a request that does not cache works in chunks and gives all its memory back."""
        cache, tokens = PrefixCache(64, block_size=2), list(range(60))
        lease = cache.acquire(NS, tokens, publish=False)
        for chunk in range(1, chunks + 1):
            lease.extend(60 * chunk // chunks)
            lease.commit(tokens, 60 * chunk // chunks)
            cache.check()
        lease.release()

        assert cache.match_len(NS, tokens) == 0
        assert cache.num_free_blocks == 63

    def test_no_tokens_are_refused(self):
        """A sequence has at least one token."""
        with pytest.raises(InvalidRequestError, match=r"tokens: got .*at least one"):
            PrefixCache(4).acquire(NS, [])


class TestPublishing:
    def test_nothing_is_findable_before_it_is_computed(self):
        """Case 2: blocks allocated and given back unwritten are never a hit."""
        cache, tokens = PrefixCache(32, block_size=2), list(range(16))
        lease = cache.acquire(NS, tokens)
        lease.extend(16)
        assert cache.match_len(NS, tokens) == 0
        lease.release()

        assert cache.acquire(NS, tokens).num_cached_tokens == 0

    def test_chunks_are_published_as_they_are_computed(self):
        """Whole blocks only; what is not written stays the lease's own."""
        cache, tokens = PrefixCache(32, block_size=4), list(range(30))
        lease = cache.acquire(NS, tokens)
        lease.extend(30)
        found = []
        for written in (3, 7, 8, 21, 30):
            lease.commit(tokens, written)
            found.append((lease.num_published_tokens, cache.match_len(NS, tokens)))
            cache.check()

        assert found == [(0, 0), (4, 4), (8, 8), (20, 20), (28, 28)]
        assert cache.num_nodes == 1

    def test_a_published_prefix_is_locked(self):
        """Case 7: blocks that a running sequence reads are never evicted, however short of them."""
        cache, tokens = PrefixCache(5, block_size=2), list(range(8))
        lease = cache.acquire(NS, tokens)
        lease.extend(6)
        lease.commit(tokens, 6)

        assert cache.num_evictable_blocks == 0
        lease.extend(8)
        with pytest.raises(OutOfBlocksError):
            cache.acquire(NS, [99, 98]).extend(1)
        cache.check()

    def test_the_second_of_two_equal_sequences_is_re_pointed(self):
        """Case 5: B's table points at A's blocks before its duplicates can be handed out again."""
        store = ContentStore(2)
        cache, tokens = PrefixCache(32, block_size=2, store=store), list(range(9))
        a, b = cache.acquire(NS, tokens), cache.acquire(NS, tokens)
        for lease in (a, b):
            lease.extend(9)
            for position in range(9):
                store.write(lease.block_table[position // 2], position % 2, position)
        duplicates = b.block_table[:4]
        a.commit(tokens, 9)
        b.commit(tokens, 9)

        assert b.block_table[:4] == a.block_table[:4]
        assert b.block_table[4] != a.block_table[4]
        other = cache.acquire(NS, [50] * 9)
        other.extend(9)
        assert set(duplicates) <= set(other.block_table)
        for block in other.block_table:
            store.write(block, 0, "other")
        read = [store.slots[b.block_table[i // 2], i % 2] for i in range(9)]
        assert read == list(range(9))
        cache.check()

    def test_what_cannot_be_written_yet_cannot_be_committed(self):
        """A length beyond the tokens or beyond the table is an error, nothing is published."""
        cache = PrefixCache(8, block_size=2)
        lease = cache.acquire(NS, [1, 2, 3, 4])
        lease.extend(2)
        for length in (3, 5):
            with pytest.raises(InvalidRequestError, match="length"):
                lease.commit([1, 2, 3, 4], length)

        assert cache.match_len(NS, [1, 2, 3, 4]) == 0

    def test_publishing_needs_no_room(self):
        """Case 71: with every block locked a sequence still commits and ends; extend refuses."""
        cache = PrefixCache(4, block_size=1)
        a, b = cache.acquire(NS, [1, 2]), cache.acquire(NS, [3])
        a.extend(2)
        b.extend(1)
        b.commit([3], 1)
        before = repr(cache)
        with pytest.raises(OutOfBlocksError, match="1 blocks wanted; 0 are free, 0 evictable"):
            b.extend(2)
        assert repr(cache) == before
        assert cache.counters.refused_allocations == 1
        a.commit([1, 2], 2)
        a.release()
        b.extend(2)

        cache.check()

    def test_matched_blocks_are_never_handed_to_their_reader(self):
        """Case 3: 8 blocks, a cached prefix of 4, 2 free; asking for 3 more takes none of the 4."""
        cache, prefix = PrefixCache(9, block_size=2), list(range(8))
        warm(cache, prefix)
        warm(cache, [70, 71, 72, 73])
        assert cache.num_free_blocks == 2
        lease = cache.acquire(NS, [*prefix, *range(20, 26)])
        assert lease.num_cached_tokens == 8
        lease.extend(14)

        assert len(set(lease.block_table)) == 7
        assert cache.match_len(NS, prefix) == 8
        assert cache.match_len(NS, [70, 71, 72, 73]) == 2
        lease.release()
        full = cache.acquire(NS, [*prefix, *range(30, 40)])
        with pytest.raises(OutOfBlocksError):
            full.extend(18)
        full.release()
        assert cache.num_locked_blocks == 0
        cache.check()


class TestFork:
    def test_published_blocks_are_shared_and_the_rest_is_copied_at_once(self):
        """A block that can still be written has exactly one owner."""
        store = ContentStore(4)
        cache, tokens = PrefixCache(16, block_size=4, store=store), list(range(10))
        lease = cache.acquire(NS, tokens)
        lease.extend(10)
        for position in range(10):
            store.write(lease.block_table[position // 4], position % 4, position)
        lease.commit(tokens, 5)
        twin = lease.fork(10)

        assert twin.block_table[0] == lease.block_table[0]
        assert not set(twin.own_block_ids) & set(lease.own_block_ids)
        assert [store.slots[twin.block_table[i // 4], i % 4] for i in range(10)] == tokens
        assert (twin.num_published_tokens, twin.num_cached_tokens) == (4, 0)
        assert cache.counters.copied_blocks == 2
        store.write(twin.block_table[2], 1, "twin")
        assert store.slots[lease.block_table[2], 1] == 9
        cache.check()
        lease.release()
        cache.check()
        twin.release()
        assert cache.num_leased_blocks == 0

    def test_a_fork_may_begin_within_the_published_prefix(self):
        """The block it begins in is copied, because the fork will write into it."""
        store = ContentStore(4)
        cache, tokens = PrefixCache(16, block_size=4, store=store), list(range(12))
        lease = cache.acquire(NS, tokens)
        lease.extend(12)
        for position in range(12):
            store.write(lease.block_table[position // 4], position % 4, position)
        lease.commit(tokens, 12)
        twin = lease.fork(6)

        assert twin.block_table[0] == lease.block_table[0]
        assert twin.block_table[1] != lease.block_table[1]
        assert [store.slots[twin.block_table[1], slot] for slot in (0, 1)] == [4, 5]
        assert twin.num_published_tokens == 4
        cache.check()
        twin.extend(8)
        twin.commit([0, 1, 2, 3, 4, 5, 88, 99], 8)
        assert cache.match_len(NS, [0, 1, 2, 3, 4, 5, 88, 99]) == 8
        cache.check()

    def test_a_fork_without_room_leaves_everything_as_it_was(self):
        """OutOfBlocksError: no lock, no block, no lease stays behind."""
        cache, tokens = PrefixCache(5, block_size=2), list(range(6))
        lease = cache.acquire(NS, tokens)
        lease.extend(6)
        before = repr(cache)
        with pytest.raises(OutOfBlocksError):
            lease.fork(6)

        assert repr(cache) == before
        assert cache.num_leases == 1
        cache.check()

    def test_a_failing_copy_leaves_everything_as_it_was(self):
        """An error of the store passes through; what was taken goes back."""

        class Broken(ContentStore):
            def copy_block(self, src, dst, num_tokens):
                raise OSError("copy failed")

        cache = PrefixCache(9, block_size=2, store=Broken(2))
        lease = cache.acquire(NS, [1, 2, 3])
        lease.extend(3)
        before = repr(cache)
        with pytest.raises(OSError, match="copy failed"):
            lease.fork(3)

        assert repr(cache) == before
        cache.check()

    def test_a_fork_of_more_than_is_covered_is_refused(self):
        """Nothing can be copied that is not there."""
        cache = PrefixCache(9, block_size=2)
        lease = cache.acquire(NS, [1, 2, 3])
        lease.extend(3)

        for length in (5, -1):
            with pytest.raises(InvalidRequestError, match="length"):
                lease.fork(length)


class TestTruncate:
    @pytest.mark.parametrize(("length", "kept"), [(9, 3), (8, 2), (5, 2), (4, 1), (12, 3), (99, 3)])
    def test_blocks_past_the_length_go_back(self, length, kept):
        """Rejected drafts: only blocks with no token left are dropped."""
        cache = PrefixCache(16, block_size=4)
        lease = cache.acquire(NS, [1] * 12)
        lease.extend(12)
        lease.truncate(length)

        assert len(lease.block_table) == kept
        assert cache.num_leased_blocks == kept
        cache.check()

    def test_the_published_prefix_is_final(self):
        """Truncating into it is refused; down to it is allowed."""
        cache, tokens = PrefixCache(16, block_size=4), list(range(12))
        lease = cache.acquire(NS, tokens)
        lease.extend(12)
        lease.commit(tokens, 8)
        with pytest.raises(
            InvalidRequestError, match=r"length: got 7, allowed: 8 \(published\) or"
        ):
            lease.truncate(7)
        lease.truncate(8)

        assert lease.own_block_ids == []
        cache.check()


class TestEnd:
    @pytest.mark.parametrize(
        "use",
        [
            lambda lease: lease.release(),
            lambda lease: lease.extend(1),
            lambda lease: lease.commit([1], 1),
            lambda lease: lease.fork(0),
            lambda lease: lease.truncate(0),
            lambda lease: lease.hold(),
        ],
        ids=["release", "extend", "commit", "fork", "truncate", "hold"],
    )
    def test_a_released_lease_is_of_no_use(self, use):
        """A second release, or any other use, raises and changes nothing."""
        cache = PrefixCache(8, block_size=1)
        lease = cache.acquire(NS, [1, 2])
        lease.extend(2)
        lease.commit([1, 2], 1)
        lease.release()
        before = repr(cache)

        with pytest.raises(LockError, match="after its release"):
            use(lease)
        assert repr(cache) == before
        assert (lease.live, lease.block_table, lease.own_block_ids) == (False, [], [])
        cache.check()

    def test_a_hold_outlives_its_lease(self):
        """A state's prefix stays until the hold is released, and a hold is released once."""
        cache, tokens = PrefixCache(8, block_size=2), [1, 2, 3, 4, 5]
        lease = cache.acquire(NS, tokens)
        lease.extend(5)
        lease.commit(tokens, 5)
        hold = lease.hold()
        lease.release()

        assert cache.evict(99) == 0
        assert (hold.num_tokens, len(hold.block_ids)) == (4, 2)
        cache.release_hold(hold)
        with pytest.raises(LockError):
            cache.release_hold(hold)
        assert cache.evict(99) == 2
        cache.check()

    def test_retraction_loses_no_block(self):
        """Cases 56 and 77: prompt 37, decode 5, retract, resume, a thousand times; blocks of 16."""
        cache, prompt = PrefixCache(9, block_size=16), list(range(37))
        for round_ in range(1_000):
            lease = cache.acquire(NS, prompt)
            assert lease.num_cached_tokens == (32 if round_ else 0)
            lease.extend(42)
            lease.commit([*prompt, *range(5)], 41)
            lease.release()
            assert cache.num_free_blocks + cache.num_evictable_blocks == 8
        cache.check()

    def test_a_replaced_match_leaves_nothing_behind(self):
        """Case 51: matched, matched longer later, aborted before it ran; the books are exact."""
        cache, tokens = PrefixCache(32, block_size=2), list(range(20))
        warm(cache, tokens[:8])
        waiting = cache.acquire(NS, tokens)
        assert waiting.num_cached_tokens == 8
        warm(cache, tokens[:18])
        longer = cache.acquire(NS, tokens)
        waiting.release()
        assert longer.num_cached_tokens == 18
        longer.release()

        assert cache.num_locked_blocks == 0
        assert cache.num_free_blocks + cache.num_evictable_blocks == 31
        cache.check()

    def test_recycled_blocks_are_not_found_by_their_old_content(self):
        """Case 79: prompts of exactly k blocks, evicted and reused; the old content misses."""
        for blocks in range(1, 6):
            cache, old = PrefixCache(7, block_size=2), list(range(2 * blocks))
            warm(cache, old)
            assert cache.evict(99) == blocks
            warm(cache, [100 + token for token in range(12)])

            assert cache.match_len(NS, old) == 0
            cache.check()


@pytest.mark.parametrize("length", [-4, -5, 2.0, "3", None], ids=repr)
@pytest.mark.parametrize("call", ["extend", "commit", "fork", "truncate"])
def test_a_length_is_a_whole_number(call, length):
    """A negative or fractional length is refused by every call, and changes nothing."""
    cache, tokens = PrefixCache(16, block_size=2), list(range(8))
    lease = cache.acquire(NS, tokens)
    lease.extend(8)
    table = list(lease.block_table)
    with pytest.raises(InvalidRequestError, match="length: got"):
        lease.commit(tokens, length) if call == "commit" else getattr(lease, call)(length)

    assert (lease.block_table, lease.num_published_tokens) == (table, 0)
    assert (cache.num_nodes, cache.num_leases) == (0, 1)
    cache.check()


def test_a_lease_and_its_lock_that_disagree_are_named():
    """Case 82: check() compares each table with what its lock guards."""
    cache = PrefixCache(8, block_size=1)
    lease = cache.acquire(NS, [1, 2])
    lease.extend(2)
    lease.commit([1, 2], 2)
    lease.block_table[0], lease.block_table[1] = lease.block_table[1], lease.block_table[0]

    with pytest.raises(CacheCorruptionError, match="its table differs"):
        cache.check()


def test_scopes_share_what_is_public_only():
    """Case 15 through the lease: a tenant's commits are its own, PUBLIC ones are everybody's."""
    cache, tokens = PrefixCache(32, block_size=2), list(range(9))
    warm(cache, tokens[:4])
    warm(cache, tokens, Namespace(NS, "t1"))

    assert cache.match_len(Namespace(NS, "t1"), tokens) == 8
    assert cache.match_len(Namespace(NS, "t2"), tokens) == 4
    assert cache.match_len(NS, tokens) == 4


def test_a_lease_prints_its_state():
    """Readable in a debugger."""
    cache = PrefixCache(8, block_size=2)
    lease = cache.acquire(NS, [1, 2, 3])
    lease.extend(3)
    lease.commit([1, 2, 3], 3)

    assert repr(lease) == "<Lease of 2 blocks, 2 tokens published, live>"
    assert lease.num_covered_tokens == 4
    lease.release()
    assert repr(lease).endswith("released>")
