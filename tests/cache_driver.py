"""Drives a PrefixCache as an engine would, with a store that knows what each slot must hold."""

from radixcache.cache import PrefixCache
from radixcache.errors import OutOfBlocksError


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

    def __init__(self, num_blocks, block_size, policy="lru"):
        self.size = block_size
        self.store = ContentStore(block_size)
        self.cache = PrefixCache(num_blocks, block_size=block_size, store=self.store, policy=policy)
        self.running = []
        self.holds = []  # (hold, tokens, space)
        self.quotas = set()  # namespaces

    def content(self, space, tokens, position):
        """What KV of a position is made of."""
        return (space.kv_key, tuple(tokens[: position + 1]))

    def acquire(self, space, tokens, *, read=True, publish=True, priority=0):
        """Admit a sequence."""
        free = self.cache.num_free_blocks
        how = {"read": read, "publish": publish, "priority": priority}
        lease = self.cache.acquire(space, tokens, **how)
        assert self.cache.num_free_blocks == free
        assert lease.num_cached_tokens % self.size == 0
        assert lease.num_cached_tokens <= (len(tokens) - 1 if read else 0)
        self.running.append(Sequence(lease, list(tokens), space))

    def compute(self, which, num_tokens):
        """Write KV of the next tokens, making room first; a refusal must change nothing."""
        seq = self.running[which % len(self.running)]
        target = min(len(seq.tokens), seq.written + num_tokens)
        if not self._make_room(seq.space, lambda: seq.lease.extend(target), seq.lease):
            return
        for position in range(seq.written, target):
            block = seq.lease.block_table[position // self.size]
            # A reader never writes a shared block.
            assert block in seq.lease.own_block_ids
            content = self.content(seq.space, seq.tokens, position)
            self.store.write(block, position % self.size, content)
        seq.written = target

    def _make_room(self, space, allocate, lease):
        """Do what allocates; a refusal changes nothing, and no guarantee is broken either way."""
        table, free = list(lease.block_table), self.cache.num_free_blocks
        nodes, held = self.cache.num_nodes, self._guaranteed(space)
        try:
            allocate()
        except OutOfBlocksError:
            assert lease.block_table == table
            if not self.quotas:
                assert (self.cache.num_free_blocks, self.cache.num_nodes) == (free, nodes)
            return False
        finally:
            for account, before in held.items():
                assert account.num_blocks >= min(before, account.guaranteed_blocks)
        return True

    def _guaranteed(self, asker):
        """What other namespaces with a quota hold."""
        quotas = self.cache._tree._forest.quotas.items()
        return {account: account.num_blocks for space, account in quotas if space != asker}

    def set_quota(self, space, limit, guaranteed):
        """Give a namespace limits in blocks, if the pool can promise them."""
        spare = self.cache.num_blocks - 1 - self.cache._tree.num_guaranteed_blocks(besides=space)
        guaranteed = min(guaranteed, spare)
        max_tokens = None if limit is None else max(limit, guaranteed) * self.size
        self.cache.set_quota(space, max_tokens=max_tokens, guaranteed_tokens=guaranteed * self.size)
        self.quotas.add(space)

    def remove_quota(self, space):
        """Take them away."""
        assert self.cache.remove_quota(space) == (space in self.quotas)
        self.quotas.discard(space)

    def commit(self, which):
        """Publish what is written."""
        seq = self.running[which % len(self.running)]
        seq.lease.commit(seq.tokens, seq.written)

    def append(self, which, token):
        """The model drew a token."""
        self.running[which % len(self.running)].tokens.append(token)

    def fork(self, which, back):
        """Branch off at the written length or up to ``back`` tokens before it."""
        seq = self.running[which % len(self.running)]
        length = max(0, min(seq.written, seq.lease.num_covered_tokens) - back)
        twins = []
        if not self._make_room(seq.space, lambda: twins.append(seq.lease.fork(length)), seq.lease):
            return
        twin = twins[0]
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
        room = seq.written + num_drafts
        if not self._make_room(seq.space, lambda: seq.lease.extend(room), seq.lease):
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
        evictable, held = self.cache.num_evictable_blocks, self._guaranteed(None)
        gone = self.cache.evict(num_blocks)
        if self.quotas:
            assert gone <= min(num_blocks, evictable)
        else:
            assert gone == min(num_blocks, evictable)
        for account, before in held.items():
            assert account.num_blocks >= min(before, account.guaranteed_blocks)

    def flush(self, space):
        """Forget; afterwards nothing of the namespace is found."""
        self.cache.flush(space)
        for seq in self.running:
            covered = space is None or (
                space.kv_key == seq.space.kv_key and space.scope in ("", seq.space.scope)
            )
            if covered and (space is None or space.scope == ""):
                assert self.cache.match_len(seq.space, seq.tokens) == 0

    def check(self):
        """The cache checks out, and everybody reads exactly what belongs to them."""
        self.cache.check()
        for account in self.cache._tree._forest.quotas.values():
            # What is above a limit is in use, or stands below what is.
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
        for space in [*self.quotas]:
            self.remove_quota(space)
        self.cache.evict(10**9)
        self.cache.check()
        assert self.cache.num_free_blocks == self.cache.num_blocks - 1
        assert self.cache.num_nodes == 0
        assert not self.store.slots
