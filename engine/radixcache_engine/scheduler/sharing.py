"""In-batch sharing: who computes a prefix that others wait for (design rule 11).

A *leader* is a running sequence whose prompt is still being computed. A *follower* is a waiting
sequence whose uncached prefix a leader is about to publish: it blocks until the leader has
published the whole common prefix, then finds it cached. A leader that ends early, for whatever
reason, frees its followers; the next one looked at leads.

Blocking starves nobody: a leader runs, and what it publishes is the follower's own prefix, so each
wait brings the follower forward. Its age keeps growing meanwhile and gives it its turn.
"""

import heapq
from array import array
from dataclasses import dataclass
from itertools import count

import numpy as np

from radixcache.types import CacheMode
from radixcache_engine.scheduler.sequence import Sequence, Status

__all__ = ["Promise", "SharingBoard", "common_prefix_len"]


@dataclass(frozen=True, slots=True)
class Promise:
    """What a leader will have published: ``target`` tokens of the follower's prompt."""

    leader: Sequence
    target: int


class SharingBoard:
    """Leaders, and who waits for which length of what they publish.

    Args:
        block_size: tokens a block; only whole blocks are shared.
        max_wait_s: a follower blocks at most this long on one leader; then it computes for
            itself.
    """

    def __init__(self, block_size: int, max_wait_s: float) -> None:
        self._block_size = block_size
        self._max_wait_s = max_wait_s
        # (scope, first block) -> leaders: who shares less than a block shares nothing.
        self._leaders: dict[tuple[str, bytes], dict[int, Sequence]] = {}
        # leader uid -> heap of (target, tie, follower)
        self._followers: dict[int, list[tuple[int, int, Sequence]]] = {}
        # heap of (gives up at, tie, follower); entries of sequences no longer blocked are skipped
        self._patience: list[tuple[float, int, Sequence]] = []
        self._tie = count()  # heap entries must never compare sequences
        self.num_blocked = 0

    def lead(self, sequence: Sequence) -> None:
        """Register a running sequence that publishes what it computes."""
        if sequence.request.request.cache_mode is CacheMode.WRITE and sequence.is_prefill:
            self._leaders.setdefault(self._key(sequence), {})[sequence.uid] = sequence

    def find(self, sequence: Sequence, matched_len: int) -> Promise | None:
        """Return the longest promise that exceeds what ``sequence`` finds in the tree by now.

        Args:
            sequence: a waiting sequence.
            matched_len: tokens of it found in the tree, whole blocks.
        """
        mode = sequence.request.request.cache_mode
        if mode is CacheMode.OFF or sequence.gave_up_waiting:
            return None
        # The last token is always computed afresh, so its block is not worth waiting for.
        limit = _align(len(sequence.tokens) - 1, self._block_size)
        best: Promise | None = None
        for leader in self._leaders.get(self._key(sequence), {}).values():
            floor = best.target if best is not None else matched_len
            if min(limit, len(leader.tokens)) <= floor:
                continue
            common = common_prefix_len(sequence.tokens, leader.tokens)
            target = min(_align(common, self._block_size), limit)
            if target > max(floor, leader.num_published):
                best = Promise(leader, target)
        return best

    def block(self, sequence: Sequence, promise: Promise, now: float) -> None:
        """Let ``sequence`` wait for ``promise`` from ``now`` on (engine clock)."""
        sequence.status = Status.BLOCKED
        followers = self._followers.setdefault(promise.leader.uid, [])
        heapq.heappush(followers, (promise.target, next(self._tie), sequence))
        if len(self._patience) > 2 * self.num_blocked + 64:
            self._patience = [e for e in self._patience if e[2].status is Status.BLOCKED]
            heapq.heapify(self._patience)
        heapq.heappush(self._patience, (now + self._max_wait_s, next(self._tie), sequence))
        self.num_blocked += 1

    def published(self, leader: Sequence) -> list[tuple[Sequence, int]]:
        """Return followers whose promise ``leader`` has kept by now, with their match length."""
        woken: list[tuple[Sequence, int]] = []
        followers = self._followers.get(leader.uid)
        while followers and followers[0][0] <= leader.num_published:
            target, _, follower = heapq.heappop(followers)
            self._wake(follower, target, woken)
        if not leader.is_prefill:
            woken += self.withdraw(leader)
        return woken

    def withdraw(self, leader: Sequence) -> list[tuple[Sequence, int]]:
        """Forget a leader; return the followers it leaves behind (match length unknown: 0)."""
        key = self._key(leader)
        group = self._leaders.get(key)
        if group is not None and group.pop(leader.uid, None) is not None and not group:
            del self._leaders[key]
        woken: list[tuple[Sequence, int]] = []
        for _, _, follower in self._followers.pop(leader.uid, ()):
            self._wake(follower, 0, woken)
        return woken

    def overdue(self, now: float) -> list[tuple[Sequence, int]]:
        """Return followers whose leader took longer than ``max_wait_s``: they wait no more."""
        woken: list[tuple[Sequence, int]] = []
        while self._patience and self._patience[0][0] <= now:
            self._wake(heapq.heappop(self._patience)[2], 0, woken)
        for follower, _ in woken:
            follower.gave_up_waiting = True
        return woken

    def forget(self, sequence: Sequence) -> list[tuple[Sequence, int]]:
        """Drop a sequence that ends (as leader or as follower); return followers set free."""
        if sequence.status is Status.BLOCKED:
            sequence.status = Status.FINISHED
            self.num_blocked -= 1
        return self.withdraw(sequence)

    def _key(self, sequence: Sequence) -> tuple[str, bytes]:
        return (sequence.request.request.scope, sequence.tokens[: self._block_size].tobytes())

    def _wake(
        self, follower: Sequence, matched_len: int, woken: list[tuple[Sequence, int]]
    ) -> None:
        # A follower may stand in both heaps, or have ended meanwhile: only the first wake counts.
        if follower.status is Status.BLOCKED:
            follower.status = Status.WAITING
            self.num_blocked -= 1
            woken.append((follower, matched_len))


def common_prefix_len(a: "array[int]", b: "array[int]") -> int:
    """Return how many leading ids two int32 arrays share. O(shorter), at memory speed."""
    x, y = np.frombuffer(a, np.int32), np.frombuffer(b, np.int32)
    n = min(len(x), len(y))
    differs = x[:n] != y[:n]
    at = int(differs.argmax()) if n else 0
    return at if n and differs[at] else n


def _align(length: int, block_size: int) -> int:
    return length - length % block_size
