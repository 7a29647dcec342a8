"""Drives a RadixTree and the naive model side by side and compares every answer."""

import itertools

from radixcache.tree import RadixTree
from radixcache.types import Namespace
from tests.naive_tree import NaiveTree


def tokens_of(symbols, block_size, tail=0):
    """Spell symbols as blocks. Two symbols differ only in a block's last token where they can."""
    tokens = []
    for symbol in symbols:
        tokens += [symbol // 2] * (block_size - 1) + [symbol if block_size == 1 else symbol % 2]
    return tokens + [7] * min(tail, block_size - 1)


class TreeDriver:
    """Each method does one thing to both and asserts that they agree."""

    def __init__(self, block_size):
        self.size = block_size
        self.tree = RadixTree(block_size)
        self.model = NaiveTree(block_size)
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
        nodes = self.tree._forest.nodes()
        return [(n.node_id, len(n.key), n.last_access, n.num_hits, n.lock_count) for n in nodes]

    def insert(self, space: Namespace, tokens):
        """Insert with fresh block ids."""
        parts = self.model.whole(tokens)
        mine = [next(self.ids) for _ in parts]
        got = self.tree.insert(tokens, mine, namespace=space)
        root = self.model.root(space.kv_key)
        end = self._find(root, parts, space.scope, got.num_present, got.block_ids)
        depth = got.num_present // self.size
        assert got.block_ids[depth:] == type(got.block_ids)("i", mine[depth:])
        assert len(got.block_ids) == len(parts)
        if parts:
            end = self.model.add(end, parts[depth:], mine[depth:], space.scope)
            self.model.touch(end)

    def lock(self, space: Namespace, tokens, max_tokens=None):
        """Lock the longest prefix."""
        lock = self.tree.lock(tokens, namespace=space, max_tokens=max_tokens)
        parts = self.model.whole(tokens[:max_tokens])
        root = self.model.root(space.kv_key)
        end = self._find(root, parts, space.scope, lock.num_tokens, lock.block_ids)
        self.model.touch(end)
        self.locks.append((lock, self.model.lock(end, space.kv_key, space.scope)))

    def share(self, which, blocks):
        """Lock part of a locked path again."""
        lock, held = self.locks[which % len(self.locks)]
        depth = blocks % (lock.num_tokens // self.size + 1)
        again = self.tree.share(lock, depth * self.size)
        end = held.end
        while len(end.path()) > depth:
            end = end.parent
        assert again.block_ids == end.ids()
        twin = self.model.lock(end, held.kv_key, held.scope, detached=held.detached)
        self.locks.append((again, twin))

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
        end = self.model.add(end, parts[depth:], mine[depth:], held.scope, detached=held.detached)
        twin = self.model.lock(end, held.kv_key, held.scope, detached=held.detached)
        if parts:
            self.model.touch(end)
        assert not self.model.unlock(held)
        assert got.lock.block_ids == end.ids()
        self.locks[which] = (got.lock, twin)

    def evict(self, num_blocks):
        """Evict; the very same blocks must go."""
        gone = self.tree.evict(num_blocks)
        assert len(set(gone)) == len(gone)
        assert set(gone) == self.model.evict(num_blocks)

    def flush(self, space):
        """Forget everything (None), a kv_key or a scope."""
        gone = self.tree.flush(space)
        parts = (None,) if space is None else (space.kv_key, space.scope)
        assert set(gone) == self.model.flush(*parts)

    def check(self):
        """Verify the tree's own invariants and its sizes against the model's."""
        self.tree.check()
        blocks = self.model.blocks.values()
        assert self.tree.num_blocks == len(blocks)
        assert self.tree.num_locked_blocks == sum(b.locks > 0 for b in blocks)
        assert self.tree.num_evictable_blocks == sum(b.locks == 0 for b in blocks)
        assert self.tree.num_detached_blocks == sum(b.detached for b in blocks)
        assert self.tree.num_locks == len(self.locks)
        assert set(self.tree.all_block_ids()) == set(self.model.blocks)
