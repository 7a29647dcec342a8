"""The drivers of tree and cache with an event log, and mirrors that must equal the tree always."""

import random

from radixcache.errors import EventsLostError
from radixcache.events import EventLog, Mirror
from radixcache.types import Namespace
from tests.cache_driver import CacheDriver
from tests.tree_driver import TreeDriver


class Followers:
    """Mirrors of one log: one from the start, late ones, and one that the network mistreats."""

    def __init__(self, log, snapshot):
        self.log = log
        self.snapshot = snapshot
        self.first = Mirror()
        self.late = []
        self.shaken = Mirror()
        self.num_resyncs = 0
        self.dice = random.Random(7)

    def join(self):
        """Begin a further mirror now."""
        mirror = Mirror()
        mirror.load(self.snapshot())
        self.late = [*self.late[-2:], mirror]

    def catch_up(self):
        """Hand every mirror the events it lacks, and compare it with the tree."""
        now = self.snapshot()
        for mirror in [self.first, *self.late]:
            seen = mirror.seq
            events = self.log.since(seen)
            assert [event.seq for event in events] == list(range(seen + 1, now.seq + 1))
            assert False not in [mirror.apply(event) for event in events]
            assert mirror.difference(now) is None
        self._shake()
        assert self.shaken.difference(now) is None

    def _shake(self):
        """Drop, repeat and reorder events as a bad connection would; then catch up."""
        events = self.log.since(max(0, self.shaken.seq - 3))
        sent = [event for event in events if self.dice.random() < 0.8]
        sent += [event for event in events if self.dice.random() < 0.2]
        if self.dice.random() < 0.3:
            self.dice.shuffle(sent)
        for event in sent:
            before = (self.shaken.seq, dict(self.shaken.blocks))
            try:
                new = self.shaken.apply(event)
            except EventsLostError:
                assert event.seq > before[0] + 1
                assert (self.shaken.seq, dict(self.shaken.blocks)) == before
            else:
                assert new == (event.seq == before[0] + 1)
        if self.dice.random() < 0.1:
            self.num_resyncs += 1
            self.shaken.load(self.snapshot())
        for event in self.log.since(self.shaken.seq):
            self.shaken.apply(event)


class MirrorDriver(TreeDriver):
    """A tree driver whose every check compares mirrors with tree and naive model."""

    def __init__(self, block_size):
        super().__init__(block_size)
        self.log = EventLog()
        self.tree.watch(self.log)
        self.followers = Followers(self.log, lambda: self.log.snapshot(self.tree))

    def set_quota(self, space, limit, guaranteed):
        """Give a namespace limits; no event comes of it."""
        seq = self.log.last_seq
        super().set_quota(space, limit, guaranteed)
        assert self.log.last_seq == seq

    def match(self, space, tokens):
        """Compare the mirror's look-up as well; it must name the same blocks."""
        super().match(space, tokens)
        self.followers.catch_up()
        found = self.tree.match(tokens, namespace=space).block_ids
        assert self.followers.first.match(space, tokens) == list(found)

    def unlock(self, which):
        """End a lock: whatever is freed or joined, nothing changes for others."""
        seq = self.log.last_seq
        super().unlock(which)
        assert self.log.last_seq == seq

    def extend(self, which, tokens):
        """Extend: behind a flushed lock nothing is told."""
        held = self.locks[which % len(self.locks)][1]
        seq, size = self.log.last_seq, len(self.model.blocks)
        super().extend(which, tokens)
        grown = len(self.model.blocks) > size and not held.detached
        assert self.log.last_seq - seq == int(grown)

    def check(self):
        """Every mirror equals the tree, and the tree's findable blocks are the naive model's."""
        super().check()
        self.followers.catch_up()
        found = {
            i: (block.parent_block_id, block.namespace, block.token_ids)
            for i, block in self.followers.first.blocks.items()
        }
        expected = {
            i: (block.parent.block_id, Namespace(block.kv_key, block.scope), block.tokens)
            for i, block in self.model.blocks.items()
            if not block.detached
        }
        assert found == expected


class MirrorCacheDriver(CacheDriver):
    """An engine's steps, where block ids are used again and again."""

    def __init__(self, num_blocks, block_size, policy="lru"):
        self.log = EventLog()
        super().__init__(num_blocks, block_size, policy, events=self.log)
        self.followers = Followers(self.log, self.cache.snapshot)

    def check(self):
        """Every mirror equals the tree and finds what the cache finds."""
        super().check()
        self.followers.catch_up()
        for seq in self.running:
            found = self.cache.match(seq.space, seq.tokens).block_ids
            assert self.followers.first.match(seq.space, seq.tokens) == list(found)
