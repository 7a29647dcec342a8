"""A naive model of the radix tree: one dictionary entry a block, every look-up exhaustive.

It knows nothing of nodes, splits, joins or sorted containers. A block is found under (the block or
root before it, scope, its tokens). Equal lengths may be reached by several paths, so
``verify_path`` judges the tree's choice instead of predicting it.

Eviction is predicted block by block for the policies in ``RANKS``. One thing that the tree's nodes
do shows in single blocks and is stated here: blocks that grow a leaf in place (nobody but the
caller holds it, same namespace) are one with it, so they take over its hits, birth and priority.
"""

from dataclasses import dataclass, field

PUBLIC = ""

RANKS = {
    "lru": lambda block: block.tick,
    "lfu": lambda block: (block.hits, block.tick),
    "slru": lambda block: (block.hits >= 1, block.tick),
    "fifo": lambda block: block.created,
    "priority": lambda block: (block.priority, block.tick),
}
"""What goes first, by policy. A policy that is not here is only judged, see TreeDriver."""


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
    hits: int = 0
    created: int = 0
    priority: int = 0
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

    @property
    def space(self):
        """Whose it is."""
        return (self.kv_key, self.scope)

    def subtree(self):
        """This block, or of a root none, and all findable ones below it."""
        found, stack = [], [self]
        while stack:
            block = stack.pop()
            if not block.detached:
                found.append(block)
                stack += block.children
        return found


@dataclass(eq=False)
class ModelLock:
    """A live lock of the model."""

    end: Block
    kv_key: str
    scope: str
    detached: bool = False
    priority: int = 0


class NaiveTree:
    """Blocks in dictionaries; semantics as ``RadixTree`` documents them."""

    def __init__(self, block_size, policy="lru"):
        self.block_size = block_size
        self.rank = RANKS.get(policy)
        self.quotas = {}  # (kv_key, scope) -> (limit or None, guarantee), in the order given
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

    def touch(self, end, priority=0, stop=None):
        """Make the whole path the most recent; count a hit on its blocks below ``stop``."""
        self.tick += 1
        path = end.path()
        for block in path:
            block.tick = self.tick
        for block in path[len(stop.path()) if stop else 0 :]:
            block.hits += 1
            block.priority = max(block.priority, priority)

    def grows(self, end, space, num_held):
        """Whether what is added at ``end`` becomes one with the leaf that ends there."""
        return (
            end.parent is not None
            and not end.children
            and end.locks == num_held
            and end.space == space
        )

    def add(self, end, parts, ids, scope, *, like=None, hits=0, priority=0, detached=False):
        """Add blocks after ``end``; returns the new end.

        ``like``: the block they are one with; ``hits``: of the others, remembered from before.
        """
        birth = like or Block(None, None, hits=hits, created=self.tick, priority=priority)
        for part, block_id in zip(parts, ids, strict=True):
            block = Block(block_id, end, scope, part, end.kv_key, tick=self.tick)
            block.hits, block.created, block.priority = birth.hits, birth.created, birth.priority
            block.detached = detached
            assert block_id not in self.blocks
            self.blocks[block_id] = block
            end.children.append(block)
            if not detached or (end.detached and end.parent is not None):
                self.edges[end, scope, part] = block
            end = block
        return end

    def lock(self, end, kv_key, scope, *, detached=False, priority=0):
        """Lock a path."""
        lock = ModelLock(end, kv_key, scope, detached, priority)
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

    def num_held(self, space):
        """Findable blocks of a namespace."""
        return sum(b.space == space and not b.detached for b in self.blocks.values())

    def num_over(self, space):
        """Blocks that others' pressure may take from a namespace with a quota."""
        return max(0, self.num_held(space) - self.quotas[space][1])

    def evictable(self, asker=None, only=None):
        """Childless unlocked blocks that may go, in groups that have an order each."""
        leaves = [b for b in self.blocks.values() if not b.children and not b.locks]
        if only is not None:
            return [[b for b in leaves if b.space == only]]
        groups = [[b for b in leaves if b.space not in self.quotas]]
        for space in self.quotas:
            if space == asker or self.num_over(space):
                groups.append([b for b in leaves if b.space == space])
        return groups

    def victim(self, asker=None, only=None):
        """The block to go next: each group's first, and of these the least recent."""
        firsts = []
        for group in self.evictable(asker, only):
            if group:
                first = min(group, key=self.rank)
                assert [self.rank(b) for b in group].count(self.rank(first)) == 1
                firsts.append(first)
        return min(firsts, key=lambda b: b.tick, default=None)

    def evict(self, num_blocks, asker=None, only=None):
        """Evict one block after the other; returns their ids."""
        gone = set()
        while len(gone) < num_blocks:
            block = self.victim(asker, only)
            if block is None:
                break
            self.remove(block)
            gone.add(block.block_id)
        return gone

    def trim(self):
        """Evict what namespaces hold above their limits; returns the ids."""
        gone = set()
        # PUBLIC last: its blocks may have to wait for the private ones that stand on them.
        for space in sorted(self.quotas, key=lambda space: space[1] == PUBLIC):
            limit = self.quotas[space][0]
            if limit is not None:
                gone |= self.evict(self.num_held(space) - limit, only=space)
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
