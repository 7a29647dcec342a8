"""A naive model of the radix tree: one dictionary entry a block, every look-up exhaustive.

It knows nothing of nodes, splits or sorted containers. A block is found under (the block or root
before it, scope, its tokens). Equal lengths may be reached by several paths, so ``verify_path``
judges the tree's choice instead of predicting it.
"""

from dataclasses import dataclass, field

PUBLIC = ""


@dataclass(eq=False)
class Block:
    """One cached block, or a root (``block_id`` None)."""

    block_id: int | None
    parent: "Block | None"
    scope: str = PUBLIC
    tokens: tuple[int, ...] = ()
    kv_key: str = ""
    locks: int = 0
    tick: int = 0
    detached: bool = False
    children: list["Block"] = field(default_factory=list)  # all, findable or not

    def path(self) -> list["Block"]:
        """Blocks from the first to this one; empty for a root."""
        found = []
        block = self
        while block.parent is not None:
            found.append(block)
            block = block.parent
        return found[::-1]

    def ids(self) -> list[int]:
        """Block ids of the path."""
        return [block.block_id for block in self.path()]


@dataclass(eq=False)
class ModelLock:
    """A live lock of the model."""

    end: Block
    kv_key: str
    scope: str
    detached: bool = False


class NaiveTree:
    """Blocks in dictionaries; semantics as ``RadixTree`` documents them."""

    def __init__(self, block_size):
        self.block_size = block_size
        self.roots = {}
        self.edges = {}  # (parent, scope, tokens) -> Block, where findable from the parent
        self.blocks = {}  # block id -> Block, detached ones too
        self.locks = set()
        self.tick = 0

    def root(self, kv_key):
        """Root of a kv_key."""
        return self.roots.setdefault(kv_key, Block(None, None, kv_key=kv_key))

    def whole(self, tokens):
        """Token blocks as tuples; the tail that fills no block is dropped."""
        size = self.block_size
        return [tuple(tokens[i : i + size]) for i in range(0, len(tokens) // size * size, size)]

    def longest_len(self, start, parts, scope):
        """Length in blocks of the longest visible path from ``start``: try every branch."""
        frontier, depth = [start], 0
        while depth < len(parts):
            frontier = [
                self.edges[block, seen, parts[depth]]
                for block in frontier
                for seen in {scope, PUBLIC}
                if (block, seen, parts[depth]) in self.edges
            ]
            if not frontier:
                break
            depth += 1
        return depth

    def verify_path(self, start, parts, scope, ids):
        """Follow the tree's choice of blocks; every step must be visible. Returns the end."""
        block = start
        for part, block_id in zip(parts, ids, strict=False):
            child = self.blocks[block_id]
            assert child.parent is block
            assert child.scope in (scope, PUBLIC)
            assert self.edges[block, child.scope, part] is child
            block = child
        return block

    def touch(self, end):
        """Make the whole path the most recent."""
        self.tick += 1
        for block in end.path():
            block.tick = self.tick

    def add(self, end, parts, ids, scope, *, detached=False):
        """Add blocks after ``end``; returns the new end."""
        for part, block_id in zip(parts, ids, strict=True):
            block = Block(block_id, end, scope, part, end.kv_key, detached=detached)
            assert block_id not in self.blocks
            self.blocks[block_id] = block
            end.children.append(block)
            if not detached or (end.detached and end.parent is not None):
                self.edges[end, scope, part] = block
            end = block
        return end

    def lock(self, end, kv_key, scope, *, detached=False):
        """Lock a path."""
        lock = ModelLock(end, kv_key, scope, detached)
        for block in end.path():
            block.locks += 1
        self.locks.add(lock)
        return lock

    def unlock(self, lock):
        """Unlock; returns the ids of flushed blocks that went with it."""
        self.locks.remove(lock)
        for block in lock.end.path():
            block.locks -= 1
        gone = [b for b in lock.end.path() if b.detached and not b.locks]
        for block in reversed(gone):
            self.remove(block)
        return {block.block_id for block in gone}

    def remove(self, block):
        """Take out one childless block."""
        assert not block.children
        assert not block.locks
        del self.blocks[block.block_id]
        block.parent.children.remove(block)
        key = (block.parent, block.scope, block.tokens)
        if self.edges.get(key) is block:
            del self.edges[key]

    def evict(self, num_blocks):
        """Evict the least recent childless unlocked block, again and again."""
        gone = set()
        while len(gone) < num_blocks:
            leaves = [b for b in self.blocks.values() if not b.children and not b.locks]
            if not leaves:
                break
            oldest = min(leaves, key=lambda b: b.tick)
            assert [b.tick for b in leaves].count(oldest.tick) == 1
            self.remove(oldest)
            gone.add(oldest.block_id)
        return gone

    def flush(self, kv_key=None, scope=PUBLIC):
        """Forget; returns the ids that are free at once."""

        def covered(kv, sc):
            return kv_key is None or (kv_key == kv and scope in (PUBLIC, sc))

        hit = [b for b in self.blocks.values() if covered(b.kv_key, b.scope)]
        for block in hit:
            block.detached = block.detached or bool(block.locks)
            above = block.parent
            if not (block.detached and above.detached and above.parent is not None):
                self.edges.pop((above, block.scope, block.tokens), None)
        if scope == PUBLIC:
            for kv in [k for k in self.roots if covered(k, PUBLIC)]:
                self.roots.pop(kv).detached = True
        for lock in self.locks:
            lock.detached = lock.detached or covered(lock.kv_key, lock.scope)
        gone = [b for b in hit if not b.locks]
        for block in sorted(gone, key=lambda b: -len(b.path())):
            self.remove(block)
        return {block.block_id for block in gone}
