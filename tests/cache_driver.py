"""Drives a PrefixCache as an engine would, with a store that knows what each slot must hold."""

from collections import deque
from contextlib import contextmanager
from dataclasses import replace

from radixcache.cache import PrefixCache
from radixcache.errors import InvalidRequestError, NotCachedError, OutOfBlocksError, QuotaError


class HandClock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


class ContentStore:
    """A fake KV pool: (block, slot) -> what was written there. Freed blocks are poisoned.

    KV of a position depends on every token up to it and on the model, so that is what a slot
    holds: a wrong block can never pass for the right one.
    """

    def __init__(self, block_size):
        self.block_size = block_size
        self.slots = {}

    def write(self, block, slot, content):
        """Write one slot."""
        self.slots[block, slot] = content

    def copy_block(self, src, dst, num_tokens):
        """Copy the first slots; reading a poisoned one is an error."""
        assert 0 <= num_tokens <= self.block_size
        for slot in range(num_tokens):
            self.slots[dst, slot] = self.slots[src, slot]

    def on_free(self, block_ids):
        """Poison."""
        for block in block_ids:
            for slot in range(self.block_size):
                self.slots.pop((block, slot), None)


class Sequence:
    """A running sequence: its tokens, its lease, and how much of its KV is written."""

    def __init__(self, lease, tokens, space):
        self.lease = lease
        self.tokens = tokens
        self.space = space
        self.written = lease.num_cached_tokens
        assert self.written < len(tokens)


class CacheDriver:
    """Engine-like steps on a small pool. Each ends in a state that ``check`` must accept."""

    def __init__(self, num_blocks, block_size, policy="lru", **settings):
        self.size = block_size
        self.store = ContentStore(block_size)
        self.clock = HandClock()
        self.cache = PrefixCache(
            num_blocks,
            block_size=block_size,
            store=self.store,
            policy=policy,
            clock=self.clock,
            **settings,
        )
        self.running = []
        self.holds = []  # (hold, tokens, space)
        self.served = deque(maxlen=8)  # (space, tokens) published lately
        self.pins = {}  # id -> Pin as it must be listed
        self.pinned = {}  # id -> tokens it guards
        self.num_displaced = self.num_expired = 0

    def content(self, space, tokens, position):
        """What KV of a position is made of."""
        return (space.kv_key, tuple(tokens[: position + 1]))

    @property
    def _accounts(self):
        return self.cache._tree._forest.quotas

    @property
    def has_guarantees(self):
        """Whether pressure may end before everything evictable is gone."""
        return any(account.guaranteed_blocks for account in self._accounts.values())

    @contextmanager
    def pressure(self, asker):
        """Whatever happens inside leaves everybody but ``asker`` what is guaranteed to them."""
        least = {
            space: min(account.num_blocks, account.guaranteed_blocks)
            for space, account in self._accounts.items()
            if space != asker
        }
        yield
        for space, blocks in least.items():
            assert self._accounts[space].num_blocks >= blocks

    def acquire(self, space, tokens, *, read=True, publish=True, priority=0):
        """Admit a sequence; pins whose whole prefix it found are renewed, no others."""
        free = self.cache.num_free_blocks
        lease = self.cache.acquire(space, tokens, read=read, publish=publish, priority=priority)
        assert self.cache.num_free_blocks == free
        found = self.cache.match(space, tokens).block_ids if read else []
        for pin_id, pin in self.pins.items():
            blocks = self._pin_blocks(pin_id)
            exact = len(tokens) == pin.num_tokens and found == blocks
            if exact or lease.block_table[: len(blocks)] == blocks:
                self.pins[pin_id] = replace(
                    pin, expires_s=self.clock.now + pin.ttl_s, num_hits=pin.num_hits + 1
                )
        assert lease.num_cached_tokens % self.size == 0
        assert lease.num_cached_tokens <= (len(tokens) - 1 if read else 0)
        self.running.append(Sequence(lease, list(tokens), space))

    def serve(self, space, tokens, *, stays):
        """Admit a sequence, compute and publish all it has, as far as there is room."""
        self.acquire(space, tokens)
        self.compute(-1, len(tokens))
        self.commit(-1)
        if not stays:
            self.release(-1)

    def compute(self, which, num_tokens):
        """Write KV of the next tokens, making room first; a refusal must change nothing."""
        seq = self.running[which % len(self.running)]
        target = min(len(seq.tokens), seq.written + num_tokens)
        lacking = max(0, -(-target // self.size) - len(seq.lease.block_table))
        promised = self.cache.can_allocate(lacking, seq.space)
        before = (list(seq.lease.block_table), self.cache.num_free_blocks, self.cache.num_nodes)
        try:
            with self.pressure(seq.space):
                seq.lease.extend(target)
        except OutOfBlocksError:
            after = (seq.lease.block_table, self.cache.num_free_blocks, self.cache.num_nodes)
            assert after[0] == before[0]
            assert after == before or (promised and self.has_guarantees)
            return
        assert promised
        for position in range(seq.written, target):
            block = seq.lease.block_table[position // self.size]
            # A reader never writes a shared block.
            assert block in seq.lease.own_block_ids
            content = self.content(seq.space, seq.tokens, position)
            self.store.write(block, position % self.size, content)
        seq.written = target

    def commit(self, which):
        """Publish what is written."""
        seq = self.running[which % len(self.running)]
        seq.lease.commit(seq.tokens, seq.written)
        if seq.lease.num_published_tokens:
            self.served.append((seq.space, seq.tokens[: seq.lease.num_published_tokens]))

    def append(self, which, token):
        """The model drew a token."""
        self.running[which % len(self.running)].tokens.append(token)

    def fork(self, which, back):
        """Branch off at the written length or up to ``back`` tokens before it."""
        seq = self.running[which % len(self.running)]
        length = max(0, min(seq.written, seq.lease.num_covered_tokens) - back)
        before = self.cache.num_free_blocks
        try:
            with self.pressure(seq.space):
                twin = seq.lease.fork(length)
        except OutOfBlocksError:
            assert self.cache.num_free_blocks == before or self.has_guarantees
            return
        tokens = seq.tokens[:length]
        child = Sequence.__new__(Sequence)
        child.lease, child.tokens, child.space, child.written = twin, tokens, seq.space, length
        child.tokens.append(9)
        self.running.append(child)

    def reject(self, which, num_drafts):
        """Write drafts beyond the sequence's end, then drop them all."""
        seq = self.running[which % len(self.running)]
        if seq.written < len(seq.tokens):
            return
        try:
            with self.pressure(seq.space):
                seq.lease.extend(seq.written + num_drafts)
        except OutOfBlocksError:
            return
        for position in range(seq.written, seq.written + num_drafts):
            block = seq.lease.block_table[position // self.size]
            assert block in seq.lease.own_block_ids
            self.store.write(block, position % self.size, "draft")
        seq.lease.truncate(seq.written)

    def roll_back(self, which):
        """Cut a sequence back to what is published."""
        seq = self.running[which % len(self.running)]
        length = max(seq.lease.num_published_tokens, 1)
        if length < seq.written:
            seq.lease.truncate(length)
            seq.written = length
            del seq.tokens[length + 1 :]

    def release(self, which):
        """End a sequence, finished or not."""
        seq = self.running.pop(which % len(self.running))
        seq.lease.release()

    def hold_lease(self, which):
        """Keep a sequence's published prefix beyond its end."""
        seq = self.running[which % len(self.running)]
        hold = seq.lease.hold()
        self.holds.append((hold, seq.tokens[: hold.num_tokens], seq.space))

    def hold(self, space, tokens):
        """Lock what is cached of a prompt."""
        hold = self.cache.hold(space, tokens)
        self.holds.append((hold, list(tokens[: hold.num_tokens]), space))

    def release_hold(self, which):
        """End a hold."""
        self.cache.release_hold(self.holds.pop(which % len(self.holds))[0])

    def evict(self, num_blocks):
        """Evict under pressure from outside."""
        evictable = self.cache.num_evictable_blocks
        with self.pressure(None):
            num_gone = self.cache.evict(num_blocks)
        assert num_gone <= min(num_blocks, evictable)
        assert self.has_guarantees or num_gone == min(num_blocks, evictable)

    def pin(self, space, tokens, ttl_s, priority):
        """Pin what is cached of a prompt; lower priorities of the namespace may give way."""
        before = self.cache.list_pins()
        cached = self.cache.match_len(space, tokens)
        try:
            pin = self.cache.create_pin(space, tokens, ttl_s=ttl_s, priority=priority)
        except NotCachedError:
            assert cached == 0
            return
        except QuotaError:
            assert self.cache.list_pins() == before
            return
        assert cached == pin.num_tokens > 0
        assert (pin.ttl_s, pin.expires_s) == (ttl_s, self.clock.now + ttl_s)
        live = {pin.pin_id for pin in self.cache.list_pins()}
        for gone in self.pins.keys() - live:
            old = self.pins.pop(gone)
            assert old.namespace == space
            assert old.priority < priority
            self.num_displaced += 1
        self.pins[pin.pin_id] = pin
        self.pinned[pin.pin_id] = list(tokens[: pin.num_tokens])

    def pin_served(self, which, length, ttl_s, priority):
        """Pin the beginning of what was published lately, or of something close to it."""
        space, tokens = self.served[which % len(self.served)]
        self.pin(space, [*tokens[:length], 7, 7], ttl_s, priority)

    def update_pin(self, which, ttl_s, priority):
        """Change a pin."""
        pin_id = list(self.pins)[which % len(self.pins)]
        self.pins[pin_id] = self.cache.update_pin(pin_id, ttl_s=ttl_s, priority=priority)
        assert self.pins[pin_id].expires_s == self.clock.now + ttl_s

    def delete_pin(self, which):
        """End a pin."""
        pin_id = list(self.pins)[which % len(self.pins)]
        assert self.cache.delete_pin(pin_id)
        del self.pins[pin_id]
        assert not self.cache.delete_pin(pin_id)

    def set_pin_quota(self, space, num_blocks):
        """Limit the pins that are made from now on."""
        self.cache.set_pin_quota(space, None if num_blocks is None else num_blocks * self.size)

    def wait(self, seconds):
        """Let time pass; pins end exactly on time."""
        self.clock.now += seconds
        late = [id_ for id_, pin in self.pins.items() if pin.expires_s <= self.clock.now]
        assert self.cache.expire_pins() == len(late)
        for pin_id in late:
            del self.pins[pin_id]
        self.num_expired += len(late)

    def set_quota(self, space, max_blocks, guaranteed_blocks):
        """Limit a namespace and guard its share; what does not add up is refused."""
        others = self.cache._tree.num_guaranteed_blocks(besides=space)
        limit = None if max_blocks is None else max_blocks * self.size
        fits = others + guaranteed_blocks < self.cache.num_blocks
        fits = fits and (max_blocks is None or guaranteed_blocks <= max_blocks)
        try:
            self.cache.set_quota(
                space, max_tokens=limit, guaranteed_tokens=guaranteed_blocks * self.size
            )
        except InvalidRequestError:
            assert not fits
        else:
            assert fits

    def remove_quota(self, space):
        """Take a quota away."""
        had_one = space in self._accounts
        assert self.cache.remove_quota(space) == had_one

    def _pin_blocks(self, pin_id):
        return self.cache._ledger.pins._pins[pin_id].lock.block_ids.tolist()

    def flush(self, space):
        """Forget; afterwards nothing of the namespace is found, and no pin of it is left."""
        self.cache.flush(space)
        live = {pin.pin_id for pin in self.cache.list_pins()}
        for gone in self.pins.keys() - live:
            old = self.pins.pop(gone).namespace
            assert space is None or (space.kv_key == old.kv_key and space.scope in ("", old.scope))
        for seq in self.running:
            covered = space is None or (
                space.kv_key == seq.space.kv_key and space.scope in ("", seq.space.scope)
            )
            if covered and (space is None or space.scope == ""):
                assert self.cache.match_len(seq.space, seq.tokens) == 0

    def check(self):
        """The cache checks out, and everybody reads exactly what belongs to them."""
        self.cache.check()
        assert {pin.pin_id: pin for pin in self.cache.list_pins()} == self.pins
        num_locks = len(self.running) + len(self.holds) + len(self.pins)
        assert self.cache._tree.num_locks == num_locks
        for pin_id, pin in self.pins.items():
            tokens = self.pinned[pin_id]
            assert self.cache.match_len(pin.namespace, tokens) == pin.num_tokens
            self._reads(pin.namespace, tokens, pin.num_tokens, self._pin_blocks(pin_id))
        for account in self._accounts.values():
            assert not account.num_over_quota or account.policy.victim() is None
        for seq in self.running:
            table = seq.lease.block_table
            assert len(set(table)) == len(table)
            assert 0 not in table
            self._reads(seq.space, seq.tokens, seq.written, table)
        for hold, tokens, space in self.holds:
            self._reads(space, tokens, hold.num_tokens, hold.block_ids)
        sizes = (
            self.cache.num_free_blocks,
            self.cache.num_evictable_blocks,
            self.cache.num_locked_blocks,
            self.cache.num_leased_blocks,
        )
        assert sum(sizes) + 1 == self.cache.num_blocks

    def _reads(self, space, tokens, length, table):
        for position in range(length):
            slot = (table[position // self.size], position % self.size)
            assert self.store.slots[slot] == self.content(space, tokens, position)

    def finish(self):
        """End everything; the pool must be whole again."""
        while self.running:
            self.release(0)
        while self.holds:
            self.release_hold(0)
        while self.pins:
            self.delete_pin(0)
        for space in list(self._accounts):
            assert self.cache.remove_quota(space)
        self.cache.evict(10**9)
        self.cache.check()
        assert self.cache.num_free_blocks == self.cache.num_blocks - 1
        assert self.cache.num_nodes == 0
        assert not self.store.slots
