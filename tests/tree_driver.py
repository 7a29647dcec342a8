"""Drives a RadixTree and the naive model side by side and compares every answer."""

import itertools

from radixcache.tree import RadixTree
from radixcache.types import Namespace
from tests.naive_tree import RANKS, NaiveTree


def tokens_of(symbols, block_size, tail=0):
    """Spell symbols as blocks. Two symbols differ only in a block's last token where they can."""
    tokens = []
    for symbol in symbols:
        tokens += [symbol // 2] * (block_size - 1) + [symbol if block_size == 1 else symbol % 2]
    return tokens + [7] * min(tail, block_size - 1)


def pair(space):
    """A namespace as the model names it."""
    return None if space is None else (space.kv_key, space.scope)


class TreeDriver:
    """Each method does one thing to both and asserts that they agree."""

    def __init__(self, block_size, policy="lru"):
        self.size = block_size
        self.policy = policy
        self.tree = RadixTree(block_size, policy=policy)
        self.model = NaiveTree(block_size, policy)
        self.ids = itertools.count(1)
        self.locks = []  # pairs (tree's, model's)

    def _find(self, start, parts, scope, num_tokens, ids):
        assert num_tokens % self.size == 0
        depth = num_tokens // self.size
        assert depth == self.model.longest_len(start, parts, scope)
        return self.model.verify_path(start, parts, scope, ids[:depth])

    def match(self, space: Namespace, tokens):
        """Compare a look-up; it must change nothing."""
        before = self._shape()
        found = self.tree.match(tokens, namespace=space)
        root = self.model.root(space.kv_key)
        self._find(root, self.model.whole(tokens), space.scope, found.num_tokens, found.block_ids)
        assert len(found.block_ids) * self.size == found.num_tokens
        assert self.tree.match_len(tokens, namespace=space) == found.num_tokens
        assert self._shape() == before

    def _shape(self):
        return [
            (n.node_id, len(n.key), n.last_access, n.num_hits, n.lock_count, n.priority)
            for n in self.tree._forest.nodes()
        ]

    def insert(self, space: Namespace, tokens, priority=0):
        """Insert with fresh block ids."""
        parts = self.model.whole(tokens)
        mine = [next(self.ids) for _ in parts]
        got = self.tree.insert(tokens, mine, namespace=space, priority=priority)
        root = self.model.root(space.kv_key)
        end = self._find(root, parts, space.scope, got.num_present, got.block_ids)
        depth = got.num_present // self.size
        assert got.block_ids[depth:] == type(got.block_ids)("i", mine[depth:])
        assert len(got.block_ids) == len(parts)
        if parts:
            node = self.tree.match(tokens, namespace=space)._node
            self.model.touch(end, priority)
            self._add(node, end, parts[depth:], mine[depth:], pair(space), 0, priority)

    def _add(self, node, end, parts, ids, space, num_held, priority, *, detached=False):
        """Add to the model what has just become the end of a node of the tree."""
        like = end if self.model.grows(end, space, num_held) else None
        # What comes back after an eviction is worth what the tree remembers: see test_tree_lost.
        hits = 0 if like else node.num_hits
        details = {"like": like, "hits": hits, "priority": priority, "detached": detached}
        return self.model.add(end, parts, ids, space[1], **details)

    def lock(self, space: Namespace, tokens, max_tokens=None, priority=0):
        """Lock the longest prefix."""
        lock = self.tree.lock(tokens, namespace=space, max_tokens=max_tokens, priority=priority)
        parts = self.model.whole(tokens[:max_tokens])
        root = self.model.root(space.kv_key)
        end = self._find(root, parts, space.scope, lock.num_tokens, lock.block_ids)
        self.model.touch(end, priority)
        held = self.model.lock(end, space.kv_key, space.scope, priority=priority)
        self.locks.append((lock, held))

    def lock_match(self, space: Namespace, tokens, priority=0):
        """Lock what a look-up has found, without finding it again."""
        found = self.tree.match(tokens, namespace=space)
        lock = self.tree.lock_match(found, priority=priority)
        root = self.model.root(space.kv_key)
        whole = self.model.whole(tokens)
        end = self._find(root, whole, space.scope, lock.num_tokens, lock.block_ids)
        assert (lock.num_tokens, lock.namespace) == (found.num_tokens, space)
        self.model.touch(end, priority)
        held = self.model.lock(end, space.kv_key, space.scope, priority=priority)
        self.locks.append((lock, held))

    def share(self, which, blocks):
        """Lock part of a locked path again."""
        lock, held = self.locks[which % len(self.locks)]
        depth = blocks % (lock.num_tokens // self.size + 1)
        again = self.tree.share(lock, depth * self.size)
        end = held.end
        while len(end.path()) > depth:
            end = end.parent
        assert again.block_ids == end.ids()
        self.locks.append((again, self._lock_like(held, end)))

    def _lock_like(self, held, end):
        details = {"detached": held.detached, "priority": held.priority}
        return self.model.lock(end, held.kv_key, held.scope, **details)

    def unlock(self, which):
        """End a lock."""
        lock, held = self.locks.pop(which % len(self.locks))
        assert lock.block_ids == held.end.ids()
        freed = self.tree.unlock(lock)
        assert len(set(freed)) == len(freed)
        assert set(freed) == self.model.unlock(held)

    def extend(self, which, tokens):
        """Publish from a lock's end on."""
        which %= len(self.locks)
        lock, held = self.locks[which]
        parts = self.model.whole(tokens)
        mine = [next(self.ids) for _ in parts]
        got = self.tree.extend(lock, tokens, mine)
        end, depth = held.end, got.num_present // self.size
        if held.detached == end.detached:
            end = self._find(end, parts, held.scope, got.num_present, got.block_ids)
        else:
            assert depth == 0
        assert list(got.block_ids[depth:]) == mine[depth:]
        if parts:
            self.model.touch(end, held.priority, stop=held.end)
        else:
            self.model.tick += 1
        space, num_held = (held.kv_key, held.scope), int(end is held.end)
        new = (parts[depth:], mine[depth:], space, num_held, held.priority)
        end = self._add(got.lock._node, end, *new, detached=held.detached)
        twin = self._lock_like(held, end)
        assert not self.model.unlock(held)
        assert got.lock.block_ids == end.ids()
        self.locks[which] = (got.lock, twin)

    def evict(self, num_blocks, asker=None, **why):
        """Evict; the very same blocks must go."""
        first = self.tree._forest.policy.victim()
        tail = None if first is None else memoryview(first.ids).cast("i")[-1]
        gone = self.tree.evict(num_blocks, namespace=asker, **why)
        assert len(set(gone)) == len(gone)
        if self.policy in RANKS:
            assert set(gone) == self.model.evict(num_blocks, pair(asker))
            return
        if num_blocks and tail is not None and not self.model.quotas:
            assert tail in gone
        before = {space: self.model.num_held(space) for space in self.model.quotas}
        self._judge(set(gone), num_blocks, asker=pair(asker))
        for space, (_, guaranteed) in self.model.quotas.items():
            if space != pair(asker):
                assert self.model.num_held(space) >= min(before[space], guaranteed)

    def _judge(self, gone, num_blocks, **whose):
        """Any order will do, but tails go, no more than wanted, fewer only if none are left."""
        assert len(gone) <= num_blocks
        self._drop(gone)
        if len(gone) < num_blocks:
            assert not any(self.model.evictable(**whose))

    def _drop(self, gone):
        """Take evicted blocks out of the model, each when nothing follows it any more."""
        left = set(gone)
        while left:
            tails = [i for i in left if not self.model.blocks[i].children]
            assert tails, f"{left} have children that stay"
            for block_id in tails:
                self.model.remove(self.model.blocks[block_id])
            left.difference_update(tails)

    def set_quota(self, space, limit, guaranteed):
        """Give a namespace limits."""
        self.tree.set_quota(space, max_blocks=limit, guaranteed_blocks=guaranteed)
        self.model.quotas[pair(space)] = (limit, guaranteed)

    def remove_quota(self, space):
        """Take them away."""
        had = self.model.quotas.pop(pair(space), None)
        assert self.tree.remove_quota(space) == (had is not None)

    def trim(self):
        """Make namespaces keep their limits."""
        gone = self.tree.trim()
        if self.policy in RANKS:
            assert set(gone) == self.model.trim()
            return
        before = {space: self.model.num_held(space) for space in self.model.quotas}
        touched = {self.model.blocks[block_id].space for block_id in gone}
        self._drop(set(gone))
        for space in touched:
            limit = self.model.quotas[space][0]
            assert limit is not None
            assert self.model.num_held(space) >= min(before[space], limit)
        for space, (limit, _) in self.model.quotas.items():
            if limit is not None and self.model.num_held(space) > limit:
                assert not any(self.model.evictable(only=space))

    def flush(self, space):
        """Forget everything (None), a kv_key or a scope."""
        gone = self.tree.flush(space)
        parts = (None,) if space is None else pair(space)
        assert set(gone) == self.model.flush(*parts)

    def view(self, order):
        """A picture shows every findable block, and how many lie below each node."""
        ends = {
            n.node_id: self.model.blocks[memoryview(n.ids).cast("i")[-1]]
            for n in self.tree._forest.nodes()
        }
        picture = self.tree.view(10**6, order=order)
        assert picture.complete
        seen = {0}
        for shown in picture.nodes:
            end = ends[shown.node_id]
            own = shown.num_tokens // self.size
            below = len(end.subtree()) - 1
            assert shown.subtree_tokens == (own + below) * self.size
            assert shown.num_locks == end.locks
            assert pair(Namespace(shown.namespace, shown.scope)) == end.space
            assert shown.parent_id in seen
            seen.add(shown.node_id)
        findable = sum(not block.detached for block in self.model.blocks.values())
        assert sum(shown.num_tokens for shown in picture.nodes) == findable * self.size

    def check(self):
        """Verify the tree's own invariants and its figures against the model's."""
        self.tree.check()
        blocks = self.model.blocks.values()
        assert self.tree.num_blocks == len(blocks)
        assert self.tree.num_locked_blocks == sum(b.locks > 0 for b in blocks)
        assert self.tree.num_evictable_blocks == sum(b.locks == 0 for b in blocks)
        assert self.tree.num_detached_blocks == sum(b.detached for b in blocks)
        assert self.tree.num_locks == len(self.locks)
        assert set(self.tree.all_block_ids()) == set(self.model.blocks)
        for space, account in self.tree._forest.quotas.items():
            assert account.num_blocks == self.model.num_held(pair(space))
        self._check_what_counts()

    def _check_what_counts(self):
        """Each block's node has the figure that its policy goes by, where that is one figure."""
        names = {"lfu": ("num_hits", "hits"), "fifo": ("created", "created")}
        names["priority"] = ("priority", "priority")
        if self.policy not in names:
            return
        of_node, of_block = names[self.policy]
        for node in self.tree._forest.nodes():
            if not node.detached:
                for block_id in memoryview(node.ids).cast("i"):
                    block = self.model.blocks[block_id]
                    assert getattr(block, of_block) == getattr(node, of_node)
