"""Who waits for whom: the board of leaders and followers."""

from array import array

import pytest

from radixcache.types import CacheMode, SamplingParams
from radixcache_engine.sampling.stop import StopMatcher
from radixcache_engine.scheduler.sequence import Request, Sequence, Status
from radixcache_engine.scheduler.sharing import SharingBoard, common_prefix_len
from radixcache_engine.types import EngineRequest


def sequence(uid, prompt, *, arrival=0.0, scope="", mode=CacheMode.WRITE):
    """Return a waiting sequence."""
    request = EngineRequest(
        request_id=str(uid),
        token_ids=prompt,
        sampling=SamplingParams(max_tokens=4),
        scope=scope,
        cache_mode=mode,
        arrival=arrival,
    )
    return Sequence(Request(request), 0, uid, StopMatcher((), []))


class Published:
    """Stands in a sequence's lease: how much of it is in the tree."""

    def __init__(self, length):
        self.num_published_tokens = length
        self.num_cached_tokens = 0


@pytest.fixture
def board():
    """Blocks of 4 tokens, ten seconds of patience."""
    return SharingBoard(4, 10.0)


SHARED = list(range(1, 22))


def test_promise_is_the_whole_common_prefix(board):
    """The target is every whole block both have, short of the follower's own last token."""
    leader = sequence(1, [*SHARED, 90, 91])
    board.lead(leader)

    assert board.find(sequence(2, [*SHARED, 80, 81]), 0).target == 20
    assert board.find(sequence(3, SHARED[:8]), 0).target == 4
    assert board.find(sequence(4, SHARED[:9]), 4).target == 8


@pytest.mark.parametrize(
    "follower",
    [
        sequence(2, [7, 7, 7, 7, 7]),
        sequence(3, SHARED[:4]),
        sequence(4, SHARED, scope="other"),
        sequence(5, SHARED, mode=CacheMode.OFF),
    ],
    ids=["no common block", "one block only", "other scope", "cache off"],
)
def test_no_promise(board, follower):
    """Nothing to wait for: no common block, or nothing that the follower may see or use."""
    board.lead(sequence(1, SHARED))

    assert board.find(follower, 0) is None


def test_no_promise_of_what_is_there_already(board):
    """A prefix found in the tree by now needs no waiting."""
    board.lead(sequence(1, SHARED))

    assert board.find(sequence(2, SHARED), 20) is None
    assert board.find(sequence(2, SHARED), 16).target == 20


def test_readers_do_not_lead(board):
    """Who publishes nothing promises nothing."""
    board.lead(sequence(1, SHARED, mode=CacheMode.READ))

    assert board.find(sequence(2, SHARED), 0) is None


def test_followers_wake_at_their_target(board):
    """Each follower wakes when its whole common prefix is published, and not before."""
    leader, near, far = sequence(1, SHARED), sequence(2, SHARED[:9]), sequence(3, SHARED)
    board.lead(leader)
    for follower in (near, far):
        board.block(follower, board.find(follower, 0), 0.0)
    leader.lease = Published(4)

    assert board.published(leader) == []
    leader.lease = Published(8)

    assert board.published(leader) == [(near, 8)]
    leader.lease = Published(20)

    assert board.published(leader) == [(far, 20)]
    assert board.num_blocked == 0


def test_withdrawn_leader_frees_its_followers(board):
    """A leader that is preempted or ends leaves nobody waiting."""
    leader, follower = sequence(1, SHARED), sequence(2, SHARED)
    board.lead(leader)
    board.block(follower, board.find(follower, 0), 0.0)

    assert board.withdraw(leader) == [(follower, 0)]
    assert follower.status is Status.WAITING
    assert board.find(follower, 0) is None


def test_patience_ends_after_max_wait(board):
    """blocked(on) has a time-out: a follower wakes once, and then computes for itself."""
    leader, early, late = sequence(1, SHARED), sequence(2, SHARED), sequence(3, SHARED)
    board.lead(leader)
    board.block(late, board.find(late, 0), 5.0)
    board.block(early, board.find(early, 0), 1.0)

    assert board.overdue(10.9) == []
    assert board.overdue(11.0) == [(early, 0)]
    assert board.find(early, 0) is None
    assert board.withdraw(leader) == [(late, 0)]
    assert board.overdue(100.0) == []
    assert board.num_blocked == 0


def test_ended_follower_is_forgotten(board):
    """A follower that is aborted while blocked never wakes."""
    leader, follower = sequence(1, SHARED), sequence(2, SHARED)
    board.lead(leader)
    board.block(follower, board.find(follower, 0), 0.0)
    board.forget(follower)

    assert board.num_blocked == 0
    assert board.withdraw(leader) == []


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 5, 3], 1), ([4], [5], 0)],
)
def test_common_prefix_len(a, b, expected):
    """Length of the common beginning, whichever is longer."""
    assert common_prefix_len(array("i", a), array("i", b)) == expected
    assert common_prefix_len(array("i", b), array("i", a)) == expected
