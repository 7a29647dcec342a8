"""The nodes of a tree and what adds to them, with the counts kept exact.

One root a ``kv_key``; below it nodes of whole blocks. Three facts hold after each method:

- a locked node's ancestors are locked (``lock_count`` counts the locks that end at or below it);
- the policies hold exactly the live leaves without a lock;
- a detached node (flushed while locked) is locked, and its parent lists it only if that parent is
  detached too. The others are the ``tops``.
"""

import logging
from collections.abc import Iterator

from radixcache.tree.account import Account
from radixcache.tree.handles import BlockIds
from radixcache.tree.keys import ID_BYTES
from radixcache.tree.lost import LostPrefixes, owner_id
from radixcache.tree.node import Node, Root
from radixcache.tree.policies import PolicyFactory
from radixcache.tree.policy import EvictionPolicy
from radixcache.tree.sizes import Sizes
from radixcache.tree.watch import TreeWatcher
from radixcache.types import PUBLIC, Clock, Namespace

__all__ = ["Forest", "inherit_recency"]

_log = logging.getLogger(__name__)


class Forest:
    """Roots, nodes, counts. Knows nothing of lock objects and validates nothing."""

    def __init__(
        self, block_size: int, make_policy: PolicyFactory, clock: Clock, remembered_tokens: int
    ) -> None:
        self.block_size = block_size
        self.unit = block_size * ID_BYTES  # packed bytes of one block's key ids
        self.make_policy = make_policy
        self.policy: EvictionPolicy = make_policy()  # of all namespaces without a quota
        self.clock = clock
        self.roots: dict[str, Root] = {}
        self.quotas: dict[Namespace, Account] = {}
        self.tops: set[Node] = set()
        self.sizes = Sizes()
        self.lost = LostPrefixes(self.unit, max_tokens=remembered_tokens)
        self.watcher: TreeWatcher | None = None
        self.tick = 0
        self.version = 0  # changes when blocks move between nodes or go
        self.num_nodes = 0  # roots not counted
        self.num_blocks = 0
        self.num_locked_blocks = 0
        self.num_detached_blocks = 0
        self._last_id = 0

    def next_id(self) -> int:
        """Return a node id that no node of this tree has had."""
        self._last_id += 1
        return self._last_id

    def root(self, kv_key: str) -> Root:
        """Return the root of a ``kv_key``, made if need be."""
        root = self.roots.get(kv_key)
        if root is None:
            root = Root(self.next_id(), self._new_account(Namespace(kv_key, PUBLIC)))
            self.roots[kv_key] = root
        return root

    def account(self, root: Root, scope: str) -> Account:
        """Return the account of a scope below ``root``, made if need be."""
        if scope == PUBLIC:
            return root.account
        account = root.accounts.get(scope)
        if account is None:
            account = self._new_account(Namespace(root.kv_key, scope))
            root.accounts[scope] = account
        return account

    def _new_account(self, namespace: Namespace) -> Account:
        return self.quotas.get(namespace) or Account(namespace, self.policy)

    def tell(self, what: str, *facts: object) -> None:
        """Call the watcher; one that raises is told nothing any more, the tree goes on."""
        try:
            getattr(self.watcher, what)(*facts)
        except Exception:
            self.watcher = None
            _log.exception("a watcher of the tree failed at %s and is told nothing any more", what)

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the roots, detached ones too, parents before children."""
        # Tops hang below live nodes, so they come last.
        stack: list[Node] = [*self.tops, *self.roots.values()]
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            if node.children is not None:
                stack.extend(node.children.values())

    def drop_root(self, root: Node) -> None:
        """Forget a root that holds nothing, so that dead namespaces cost nothing."""
        if root.children is None and not root.lock_count and not root.detached:
            del self.roots[root.account.namespace.kv_key]
            self.version += 1

    # -- recency and locks -------------------------------------------------------------------

    def touch(self, end: Node, priority: int) -> None:
        """Count a hit on the whole path to ``end``; takes ``end`` out of its policy."""
        if end.entry is not None:
            end.account.policy.remove(end)
        self.tick += 1
        tick, now = self.tick, self.clock()
        node: Node | None = end
        while node is not None:
            node.last_access = tick
            node.last_access_s = now
            node.num_hits += 1
            node = node.parent
        if priority:
            _raise_priority(end, None, priority)

    def lock(self, end: Node, stop: Node | None, priority: int) -> None:
        """Count one more lock and a hit on the path from ``end`` up to, and without, ``stop``.

        Takes ``end`` out of its policy. As :meth:`lock_again` and :meth:`touch`, in one walk.
        """
        if end.entry is not None:
            end.account.policy.remove(end)
        self.tick += 1
        tick, now = self.tick, self.clock()
        node: Node | None = end
        while node is not stop and node is not None:
            if not node.lock_count:
                self._first_lock(node)
            node.lock_count += 1
            node.last_access = tick
            node.last_access_s = now
            node.num_hits += 1
            node = node.parent
        if priority:
            _raise_priority(end, stop, priority)

    def lock_again(self, end: Node) -> None:
        """Count one more lock on the path to ``end``, without a hit."""
        if end.entry is not None:
            end.account.policy.remove(end)
        node: Node | None = end
        while node is not None:
            if not node.lock_count:
                self._first_lock(node)
            node.lock_count += 1
            node = node.parent

    def _first_lock(self, node: Node) -> None:
        num_blocks = len(node.ids) // ID_BYTES
        self.num_locked_blocks += num_blocks
        if not node.detached:
            node.account.num_locked_blocks += num_blocks

    def unlock(self, end: Node) -> BlockIds:
        """Count one lock less on the path to ``end``; return the blocks that went with it."""
        freed = BlockIds("i")
        root = end
        node: Node | None = end
        while node is not None:
            root = node
            node.lock_count -= 1
            if not node.lock_count:
                num_blocks = len(node.ids) // ID_BYTES
                self.num_locked_blocks -= num_blocks
                if not node.detached:
                    node.account.num_locked_blocks -= num_blocks
            node = node.parent
        above: Node | None = end
        while above is not None and above.detached and not above.lock_count:
            self._remove_detached(above, freed)
            above = above.parent
        if above is not None and above.children is None and not above.lock_count:
            self.settle(self._rejoin(above))
        if root.children is None:
            self.drop_root(root)
        return freed

    def settle(self, node: Node) -> None:
        """Hand a node to its policy if it is an evictable leaf."""
        if (
            node.children is None
            and not node.lock_count
            and not node.detached
            and node.entry is None
            and node.parent is not None
        ):
            node.account.policy.add(node)

    def _rejoin(self, leaf: Node) -> Node:
        """Undo needless cuts: join a leaf to the only-child chain above it; return the joined leaf.

        Locks of several turns leave a conversation in pieces, which every later look-up would pay
        for. The policy says which pieces it would not tell apart, so the order of eviction stays
        as it was. Each piece is copied once in its life.
        """
        if not self._continues(leaf):
            return leaf
        pieces = [leaf]
        top = leaf.parent
        assert top is not None, "_continues has looked"
        while self._continues(top):
            pieces.append(top)
            top = top.parent
            assert top is not None, "_continues has looked"
        pieces.reverse()
        for piece in pieces:
            top.key += piece.key
            top.ids += piece.ids
        top.children = None
        top.last_access, top.last_access_s = leaf.last_access, leaf.last_access_s
        self.sizes.join(top, pieces)
        self.lost.join(top, pieces)
        self.num_nodes -= len(pieces)
        self.version += 1
        return top

    def _continues(self, node: Node) -> bool:
        """Whether nothing keeps a node apart from its parent."""
        parent = node.parent
        return (
            parent is not None
            and parent.children is not None
            and len(parent.children) == 1
            and not node.lock_count
            and not parent.lock_count
            and not node.detached
            and parent.parent is not None
            and parent.account is node.account
            and node.account.policy.joins(parent, node)
        )

    # -- growth ------------------------------------------------------------------------------

    def split(self, node: Node, size: int) -> Node:
        """Cut a node after ``size`` bytes of key; return the new upper part.

        The object given stays the lower part, so handles on it keep their end. Cost: linear in
        the upper part.
        """
        parent = node.parent
        key, ids, ids_size = node.key, node.ids, size // self.block_size
        upper = Node(
            self.next_id(), parent, node.account, node.edge, key[:size], ids[:ids_size], node.start
        )
        del key[:size]
        del ids[:ids_size]
        node.edge = node.account.tag + node.key[: self.unit]
        upper.children = {node.edge: node}
        node.parent = upper
        upper.lock_count, upper.detached = node.lock_count, node.detached
        upper.num_hits, upper.created, upper.priority = node.num_hits, node.created, node.priority
        upper.last_access, upper.last_access_s = node.last_access, node.last_access_s
        node.start += size
        if node in self.tops:
            self.tops.remove(node)
            self.tops.add(upper)
        elif parent is not None and parent.children is not None:
            parent.children[upper.edge] = upper
        self.num_nodes += 1
        self.version += 1
        self.sizes.split(upper, node)
        self.lost.split(upper, node)
        return upper

    def append(
        self,
        node: Node,
        key: memoryview,
        ids: memoryview,
        account: Account,
        *,
        held: bool,
        detached: bool,
    ) -> Node:
        """Add whole blocks at the end of ``node``; return the node that now ends with them.

        A leaf that nobody but the caller holds grows in place, so that a conversation stays one
        node. ``held``: the caller has one lock on ``node``, which will cover the new end.
        """
        depth = node.start + len(node.key)
        lost = [] if detached else self.lost.find_run(owner_id(node), depth, account.tag, key)
        if self.watcher is not None and not detached:
            self.tell("stored", account.namespace, node.ids[-ID_BYTES:], key, ids)
        if (
            node.children is None
            and node.lock_count == int(held)
            and node.account is account
            and node.parent is not None
        ):
            node.key += key
            node.ids += ids
            end = node
        else:
            end = self._add_child(node, key, ids, account, detached)
            end.lock_count = int(held)
            if lost:  # asked for again: what it was worth before still counts
                end.num_hits = lost[0].lost.num_hits + 1
        end.last_access, end.last_access_s = self.tick, self.clock()
        num_blocks = len(ids) // ID_BYTES
        self._count_new(end, num_blocks, held, detached)
        if not detached:
            ghosts = [span.lost for span in lost] if lost else ()
            for ghost in ghosts:
                if ghost.noted_by is not account.policy:  # a quota came or went meanwhile
                    ghost.note = None
            account.policy.stored(end, num_blocks, ghosts)
            if lost:
                self.lost.restore(end, lost)
        return end

    def _count_new(self, end: Node, num_blocks: int, held: bool, detached: bool) -> None:
        self.num_blocks += num_blocks
        if held:
            self.num_locked_blocks += num_blocks
        if detached:
            self.num_detached_blocks += num_blocks
            return
        account = end.account
        account.num_blocks += num_blocks
        if held:
            account.num_locked_blocks += num_blocks
        self.sizes.grow(end, num_blocks)

    def _add_child(
        self, parent: Node, key: memoryview, ids: memoryview, account: Account, detached: bool
    ) -> Node:
        edge = account.tag + key[: self.unit]
        start = parent.start + len(parent.key)
        child = Node(self.next_id(), parent, account, edge, bytearray(key), bytearray(ids), start)
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

    def unlink(self, node: Node, parent: Node) -> None:
        """Take a node out of its parent, which may then be an evictable leaf or an empty root."""
        assert parent.children is not None, f"{parent!r} does not list {node!r}"
        del parent.children[node.edge]
        self.sizes.cut(node, parent)
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


def _raise_priority(end: Node, stop: Node | None, priority: int) -> None:
    node: Node | None = end
    while node is not stop and node is not None:
        node.priority = max(node.priority, priority)
        node = node.parent


def inherit_recency(parent: Node, child: Node) -> None:
    """Make good what ``RadixTree.extend`` left out to stay linear in the new tokens.

    It touches only the end of a path. A touch of the whole path would have made each ancestor at
    least as recent as its descendants; an ancestor's turn comes only after theirs, so it is soon
    enough to hand the recency up when a child goes.
    """
    if child.last_access > parent.last_access:
        parent.last_access = child.last_access
        parent.last_access_s = child.last_access_s
