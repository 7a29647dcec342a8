"""The nodes of a tree and everything that changes them, with the counts kept exact.

One root a ``kv_key``; below it nodes of whole blocks. Three facts hold after each method:

- a locked node's ancestors are locked (``lock_count`` counts the locks that end at or below it);
- the policy holds exactly the live leaves without a lock;
- a detached node (flushed while locked) is locked, and its parent lists it only if that parent is
  detached too. The others are the ``tops``.
"""

from collections.abc import Iterator

from radixcache.tree.handles import BlockIds
from radixcache.tree.keys import ID_BYTES, edge_tag
from radixcache.tree.node import Node
from radixcache.tree.policy import EvictionPolicy
from radixcache.types import Clock

__all__ = ["Forest", "inherit_recency"]


class Forest:
    """Roots, nodes, counts. Knows nothing of lock objects and validates nothing."""

    def __init__(self, block_size: int, policy: EvictionPolicy, clock: Clock) -> None:
        self.block_size = block_size
        self.unit = block_size * ID_BYTES  # packed bytes of one block's key ids
        self.policy = policy
        self.clock = clock
        self.roots: dict[str, Node] = {}
        self.tops: set[Node] = set()
        self.tick = 0
        self.num_nodes = 0  # roots not counted
        self.num_blocks = 0
        self.num_locked_blocks = 0
        self.num_detached_blocks = 0
        self._last_id = 0

    def new_node(self, parent: Node | None, scope: str) -> Node:
        """Return a node with a fresh id, linked to its parent but not from it."""
        self._last_id += 1
        return Node(self._last_id, parent, scope)

    def root(self, kv_key: str) -> Node:
        """Return the root of a ``kv_key``, made if need be."""
        root = self.roots.get(kv_key)
        if root is None:
            root = self.new_node(None, "")
            root.kv_key = kv_key
            self.roots[kv_key] = root
        return root

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the roots, detached ones too, parents before children."""
        # Tops hang below live nodes, so they come last.
        stack = [*self.tops, *self.roots.values()]
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            if node.children is not None:
                stack.extend(node.children.values())

    def drop_root(self, root: Node) -> None:
        """Forget a root that holds nothing, so that dead namespaces cost nothing."""
        if root.children is None and not root.lock_count and not root.detached:
            del self.roots[root.kv_key]

    # -- recency and locks -------------------------------------------------------------------

    def touch(self, end: Node) -> None:
        """Count a hit on the whole path to ``end``; takes ``end`` out of the policy."""
        if end.entry is not None:
            self.policy.remove(end)
        self.tick += 1
        tick, now = self.tick, self.clock()
        node: Node | None = end
        while node is not None:
            node.last_access = tick
            node.last_access_s = now
            node.num_hits += 1
            node = node.parent

    def lock(self, end: Node, stop: Node | None = None, *, hit: bool) -> None:
        """Count one more lock on the path from ``end`` up to, and without, ``stop``.

        Takes ``end`` out of the policy. ``hit``: touch the path as well, in the same walk.
        """
        if end.entry is not None:
            self.policy.remove(end)
        self.tick += hit
        tick, now = self.tick, self.clock()
        node: Node | None = end
        while node is not stop and node is not None:
            if not node.lock_count:
                self.num_locked_blocks += len(node.ids) // ID_BYTES
            node.lock_count += 1
            if hit:
                node.last_access = tick
                node.last_access_s = now
                node.num_hits += 1
            node = node.parent

    def unlock(self, end: Node) -> BlockIds:
        """Count one lock less on the path to ``end``; return the blocks that went with it."""
        freed = BlockIds("i")
        node: Node | None = end
        root = end
        while node is not None:
            root = node
            node.lock_count -= 1
            if not node.lock_count:
                self.num_locked_blocks -= len(node.ids) // ID_BYTES
            node = node.parent
        above: Node | None = end
        while above is not None and above.detached and not above.lock_count:
            self._remove_detached(above, freed)
            above = above.parent
        if above is not None:
            self.settle(self._rejoin(above))
        self.drop_root(root)
        return freed

    def _rejoin(self, leaf: Node) -> Node:
        """Undo needless cuts: join a leaf to the only-child chain above it; return the joined leaf.

        Locks of several turns leave a conversation in pieces, which every later look-up would pay
        for. Only pieces with the recency of the leaf are joined, so the order of eviction stays
        as it was. Each piece is copied once in its life.
        """
        pieces = [leaf]
        top = leaf
        while leaf.children is None and self._continues(top):
            assert top.parent is not None, "_continues has looked"
            top = top.parent
            pieces.append(top)
        if top is leaf:
            return leaf
        del pieces[-1]
        pieces.reverse()
        top.key += b"".join([piece.key for piece in pieces])
        top.ids += b"".join([piece.ids for piece in pieces])
        top.children = None
        top.last_access, top.last_access_s = leaf.last_access, leaf.last_access_s
        self.num_nodes -= len(pieces)
        return top

    def _continues(self, node: Node) -> bool:
        """Whether nothing keeps a node apart from its parent."""
        parent = node.parent
        return (
            parent is not None
            and not node.lock_count
            and not parent.lock_count
            and not node.detached
            and parent.parent is not None
            and parent.children is not None
            and len(parent.children) == 1
            and parent.scope == node.scope
            and parent.last_access <= node.last_access
        )

    def settle(self, node: Node) -> None:
        """Hand a node to the policy if it is an evictable leaf."""
        if (
            node.children is None
            and not node.lock_count
            and not node.detached
            and node.entry is None
            and node.parent is not None
        ):
            self.policy.add(node)

    # -- growth ------------------------------------------------------------------------------

    def split(self, node: Node, size: int) -> Node:
        """Cut a node after ``size`` bytes of key; return the new upper part.

        The object given stays the lower part, so handles on it keep their end. Cost: linear in
        the upper part.
        """
        parent = node.parent
        upper = self.new_node(parent, node.scope)
        ids_size = size // self.block_size
        upper.key, upper.ids = node.key[:size], node.ids[:ids_size]
        del node.key[:size]
        del node.ids[:ids_size]
        upper.edge = node.edge
        node.edge = edge_tag(node.scope) + node.key[: self.unit]
        upper.children = {node.edge: node}
        node.parent = upper
        upper.lock_count, upper.detached = node.lock_count, node.detached
        upper.num_hits, upper.created = node.num_hits, node.created
        upper.last_access, upper.last_access_s = node.last_access, node.last_access_s
        if node in self.tops:
            self.tops.remove(node)
            self.tops.add(upper)
        elif parent is not None and parent.children is not None:
            parent.children[upper.edge] = upper
        self.num_nodes += 1
        return upper

    def append(
        self,
        node: Node,
        key: memoryview,
        ids: memoryview,
        *,
        scope: str,
        held: bool,
        detached: bool,
    ) -> Node:
        """Add whole blocks at the end of ``node``; return the node that now ends with them.

        A leaf that nobody but the caller holds grows in place, so that a conversation stays one
        node. ``held``: the caller has one lock on ``node``, which will cover the new end.
        """
        num_blocks = len(ids) // ID_BYTES
        self.num_blocks += num_blocks
        self.num_locked_blocks += num_blocks if held else 0
        self.num_detached_blocks += num_blocks if detached else 0
        if (
            node.children is None
            and node.lock_count == int(held)
            and node.scope == scope
            and node.parent is not None
        ):
            node.key += key
            node.ids += ids
            end = node
        else:
            end = self._add_child(node, key, ids, scope, detached)
            end.lock_count = int(held)
        end.last_access, end.last_access_s = self.tick, self.clock()
        return end

    def _add_child(
        self, parent: Node, key: memoryview, ids: memoryview, scope: str, detached: bool
    ) -> Node:
        child = self.new_node(parent, scope)
        child.key, child.ids = bytearray(key), bytearray(ids)
        child.edge = edge_tag(scope) + key[: self.unit]
        child.created = self.tick
        child.detached = detached
        self.num_nodes += 1
        if detached and not (parent.detached and parent.parent is not None):
            self.tops.add(child)
        elif parent.children is None:
            parent.children = {child.edge: child}
        else:
            parent.children[child.edge] = child
        return child

    # -- removal -----------------------------------------------------------------------------

    def evict(self, num_blocks: int) -> BlockIds:
        """Remove blocks from the tails of the policy's leaves; return them, fewer if none left."""
        freed = BlockIds("i")
        missing = num_blocks * ID_BYTES
        while missing > 0:
            leaf = self.policy.victim()
            if leaf is None:
                break
            if len(leaf.ids) > missing:
                freed.frombytes(memoryview(leaf.ids)[-missing:])
                del leaf.ids[-missing:]
                del leaf.key[-missing * self.block_size :]
                missing = 0
            else:
                missing -= len(leaf.ids)
                freed.frombytes(leaf.ids)
                self._remove_leaf(leaf)
        self.num_blocks -= len(freed)
        return freed

    def _remove_leaf(self, leaf: Node) -> None:
        self.policy.remove(leaf)
        parent = leaf.parent
        assert parent is not None, "a root is never evicted"
        self.num_nodes -= 1
        self.unlink(leaf, parent)

    def unlink(self, node: Node, parent: Node) -> None:
        """Take a node out of its parent, which may then be an evictable leaf or an empty root."""
        assert parent.children is not None, f"{parent!r} does not list {node!r}"
        del parent.children[node.edge]
        inherit_recency(parent, node)
        if not parent.children:
            parent.children = None
            self.settle(parent)
            if parent.parent is None:
                self.drop_root(parent)

    def _remove_detached(self, node: Node, freed: BlockIds) -> None:
        freed.frombytes(node.ids)
        num_blocks = len(node.ids) // ID_BYTES
        self.num_blocks -= num_blocks
        self.num_detached_blocks -= num_blocks
        if node.parent is None:  # an old root: nothing lists it
            return
        self.num_nodes -= 1
        inherit_recency(node.parent, node)
        if node in self.tops:
            self.tops.remove(node)
        else:
            siblings = node.parent.children
            assert siblings is not None, f"{node.parent!r} does not list {node!r}"
            del siblings[node.edge]
            if not siblings:
                node.parent.children = None


def inherit_recency(parent: Node, child: Node) -> None:
    """Make good what ``RadixTree.extend`` left out to stay linear in the new tokens.

    It touches only the end of a path. A touch of the whole path would have made each ancestor at
    least as recent as its descendants; an ancestor's turn comes only after theirs, so it is soon
    enough to hand the recency up when a child goes.
    """
    if child.last_access > parent.last_access:
        parent.last_access = child.last_access
        parent.last_access_s = child.last_access_s
