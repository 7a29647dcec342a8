"""One node, and the look-up that walks nodes."""

from weakref import WeakValueDictionary

from radixcache.tree.account import Account
from radixcache.tree.handles import BlockIds
from radixcache.tree.keys import ID_BYTES, common_len, edge_tag
from radixcache.types import PUBLIC

__all__ = ["Node", "Place", "Root", "gather", "longest"]


class Node:
    """A run of whole blocks. A root is a node with an empty key and no parent.

    ``key`` and ``ids`` are bytearrays, because a bytearray grows at its end and shrinks at both
    ends without moving the rest.
    """

    __slots__ = (
        "account",  # of the namespace that owns the blocks
        "below",  # blocks from here down, as far as the children have reported
        "children",  # edge -> node; None for a leaf
        "created",  # tick
        "detached",  # flushed while locked: not findable, gone with its last lock
        "edge",  # scope tag + first block: its key in parent.children; of a root: b""
        "entry",  # the policy's record while the node is an evictable leaf, else None
        "ids",  # packed block ids
        "key",  # packed key ids, a positive whole number of blocks
        "last_access",  # tick
        "last_access_s",  # the same moment on the clock
        "lock_count",  # live locks that end here or below
        "node_id",  # unique within the tree, from 1
        "num_hits",  # locks and inserts that found it, those before an eviction included
        "owed",  # change of ``below`` not yet reported to the parent
        "parent",
        "priority",  # the highest that a request on this path has had
        "start",  # packed bytes of key ids before it
    )

    children: "dict[bytes, Node] | None"
    entry: object | None
    parent: "Node | None"

    def __init__(  # noqa: PLR0917  named arguments would cost as much as the rest
        self,
        node_id: int,
        parent: "Node | None",
        account: Account,
        edge: bytes,
        key: bytearray,
        ids: bytearray,
        start: int,
    ) -> None:
        self.node_id = node_id
        self.parent = parent
        self.account = account
        self.edge = edge
        self.key = key
        self.ids = ids
        self.start = start
        self.children = None
        self.entry = None
        self.detached = False
        self.lock_count = self.num_hits = self.priority = self.below = self.owed = 0
        self.created = self.last_access = 0
        self.last_access_s = 0.0

    def __repr__(self) -> str:
        size = len(self.key) // ID_BYTES
        return f"<Node {self.node_id}: {size} tokens, {self.lock_count} locks>"

    @property
    def num_blocks(self) -> int:
        """Blocks of this node alone."""
        return len(self.ids) // ID_BYTES

    @property
    def scope(self) -> str:
        """Who sees it."""
        return self.account.scope


class Root(Node):
    """Where a ``kv_key`` begins. Knows the accounts of the scopes below it."""

    __slots__ = ("accounts", "kv_key")

    def __init__(self, node_id: int, account: Account) -> None:
        super().__init__(node_id, None, account, b"", bytearray(), bytearray(), 0)
        self.kv_key = account.namespace.kv_key
        # Weak: an account lives as long as a node, a lock or a quota needs it.
        self.accounts: WeakValueDictionary[str, Account] = WeakValueDictionary()


Place = tuple[Node, int, int]
"""Where a look-up ended: the node, bytes into it, bytes from the start of the look-up."""


def _descend(node: Node, view: memoryview, pos: int, tag: bytes, unit: int) -> Place:
    """Follow the children of one scope from the end of ``node``, which lies at ``pos``."""
    end = len(view)
    while pos < end and node.children is not None:
        child = node.children.get(tag + view[pos : pos + unit])
        if child is None:
            break
        stop = pos + len(child.key)
        if child.key != view[pos:stop]:
            inside = common_len(child.key, view[pos:], unit)
            return child, inside, pos + inside
        node, pos = child, stop
    return node, len(node.key), pos


def longest(start: Node, view: memoryview, scope: str, unit: int) -> Place:
    """Return the end of the longest path below ``start`` that ``scope`` may see.

    ``view`` is whole blocks of packed key ids. A scope sees its own nodes and PUBLIC ones, and a
    private path may run beside a PUBLIC one that was published later. So the PUBLIC path is
    walked once, and then each private branch that leaves it. Cost: the tokens of the PUBLIC path
    plus those of each such branch.
    """
    own = start.account
    if scope == PUBLIC or own.scope != PUBLIC:
        return _descend(start, view, 0, own.tag, unit)
    best = _descend(start, view, 0, b"", unit)
    end, inside, pos = best
    if pos == len(view):
        return best
    tag = edge_tag(scope)
    fork: Node | None = end
    if inside < len(end.key):
        fork, pos = end.parent, pos - inside
    while fork is not None:
        if fork.children is not None and tag + view[pos : pos + unit] in fork.children:
            private = _descend(fork, view, pos, tag, unit)
            if private[2] > best[2]:
                best = private
        if fork is start:
            break
        pos -= len(fork.key)
        fork = fork.parent
    return best


def gather(node: Node, last_bytes: int | None = None, stop: Node | None = None) -> BlockIds:
    """Return the block ids from below ``stop`` (None: from the root) down to ``node``.

    ``last_bytes`` says how many packed bytes of ``node``'s own ids count; None: all.
    """
    parts: list[bytearray | memoryview] = []
    above: Node | None = node
    if last_bytes is not None:
        parts.append(memoryview(node.ids)[:last_bytes])
        above = node.parent
    while above is not stop and above is not None:
        parts.append(above.ids)
        above = above.parent
    parts.reverse()
    return BlockIds("i", b"".join(parts))
