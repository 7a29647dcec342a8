"""Faults in forest.py: recency, locks, splits, joins, growth, removal."""

from functools import partial

from tests.faults.fault import Fault

_forest = partial(Fault, path="radixcache/tree/forest.py")

_LOCKS = (
    _forest(
        name="touch-stands-still",
        old="        self.tick += 1\n        tick, now = self.tick, self.clock()\n"
        "        node: Node | None = end\n        while node is not None:\n",
        new="        tick, now = self.tick, self.clock()\n"
        "        node: Node | None = end\n        while node is not None:\n",
        breaks="inserts one after the other have the same recency",
    ),
    _forest(
        name="touch-forgets-recency",
        old="while node is not None:\n            node.last_access = tick\n",
        new="while node is not None:\n",
        breaks="an insert does not keep what it found from being evicted",
    ),
    _forest(
        name="touch-lowers-priority",
        old="node.priority = max(node.priority, priority)",
        new="node.priority = priority",
        breaks="an insert of low priority takes a high one away from the path",
    ),
    _forest(
        name="touch-forgets-hits",
        old="            node.num_hits += 1\n            node = node.parent\n"
        "        if priority:\n            _raise_priority(end, None",
        new="            node = node.parent\n"
        "        if priority:\n            _raise_priority(end, None",
        breaks="an insert that finds a prefix does not count as its hit",
    ),
    _forest(
        name="touch-only-the-end",
        old="            node = node.parent\n        if priority:\n"
        "            _raise_priority(end, None",
        new="            break\n        if priority:\n            _raise_priority(end, None",
        breaks="the path above the end of an insert stays old and cold",
    ),
    _forest(
        name="lock-forgets-recency",
        old="            node.lock_count += 1\n            node.last_access = tick\n",
        new="            node.lock_count += 1\n",
        breaks="a lock does not make its path recent",
    ),
    _forest(
        name="lock-forgets-hits",
        old="            node.num_hits += 1\n            node = node.parent\n"
        "        if priority:\n            _raise_priority(end, stop",
        new="            node = node.parent\n"
        "        if priority:\n            _raise_priority(end, stop",
        breaks="a lock does not count as a hit",
    ),
    _forest(
        name="every-lock-is-a-hit",
        old="            node.lock_count += 1\n            node = node.parent\n",
        new="            node.lock_count += 1\n            node.last_access = self.tick\n"
        "            node.num_hits += 1\n            node = node.parent\n",
        breaks="a second lock of the same request counts once more and makes its path recent",
    ),
    _forest(
        name="lock-forgets-priority",
        old="            _raise_priority(end, stop, priority)\n",
        new="            pass\n",
        breaks="what a request of high priority locks keeps a low one",
    ),
    _forest(
        name="lock-passes-its-stop",
        old="while node is not stop and node is not None:\n            if not node.lock_count",
        new="while node is not None:\n            if not node.lock_count",
        breaks="an extension locks its own prefix once more",
    ),
    _forest(
        name="lock-counts-blocks-twice",
        old="                self._first_lock(node)\n            node.lock_count += 1\n"
        "            node.last_access",
        new="                pass\n            self._first_lock(node)\n"
        "            node.lock_count += 1\n            node.last_access",
        breaks="blocks under two locks count as two locked blocks",
    ),
    _forest(
        name="detached-blocks-on-the-account",
        old="if not node.detached:\n"
        "                    node.account.num_locked_blocks -= num_blocks",
        new="if True:\n                    node.account.num_locked_blocks -= num_blocks",
        breaks="flushed blocks stay on the account of their namespace",
    ),
    _forest(
        name="unlock-keeps-counting",
        old="            if not node.lock_count:\n"
        "                num_blocks = len(node.ids) // ID_BYTES\n"
        "                self.num_locked_blocks -= num_blocks",
        new="            if node is end:\n                num_blocks = len(node.ids) // ID_BYTES\n"
        "                self.num_locked_blocks -= num_blocks",
        breaks="blocks above the end of a lock count as locked for ever",
    ),
    _forest(
        name="unlock-frees-one-node",
        old="        while above is not None and above.detached and not above.lock_count:",
        new="        if above is not None and above.detached and not above.lock_count:",
        breaks="of a flushed path only the last node is freed with its last lock",
    ),
    _forest(
        name="unlock-frees-under-locks",
        old="        while above is not None and above.detached and not above.lock_count:",
        new="        while above is not None and above.detached:",
        breaks="a flushed path that others still hold is freed with the first lock",
    ),
    _forest(
        name="unlock-does-not-settle",
        old="            self.settle(self._rejoin(above))",
        new="            self._rejoin(above)",
        breaks="what has been locked once can never be evicted",
    ),
    _forest(
        name="unlock-does-not-rejoin",
        old="self.settle(self._rejoin(above))",
        new="self.settle(above)",
        breaks="conversations stay in pieces, one a turn",
    ),
    _forest(
        name="unlock-keeps-empty-roots",
        old="        if root.children is None:\n            self.drop_root(root)\n"
        "        return freed",
        new="        return freed",
        breaks="the root of a namespace that holds nothing stays for ever",
    ),
    _forest(
        name="dropped-roots-keep-matches",
        old="namespace.kv_key]\n            self.version += 1\n",
        new="namespace.kv_key]\n",
        breaks="a match of nothing can be locked on a root that is gone",
    ),
    _forest(
        name="drop-root-under-a-lock",
        old="root.children is None and not root.lock_count and not root.detached",
        new="root.children is None and not root.detached",
        breaks="a root goes although a lock on 0 tokens stands on it",
    ),
    _forest(
        name="drop-the-new-root",
        old="root.children is None and not root.lock_count and not root.detached",
        new="root.children is None and not root.lock_count",
        breaks="the last lock on a flushed root takes the new root of its kv_key away",
    ),
    _forest(
        name="settle-locked-leaves",
        old="            and not node.lock_count\n            and not node.detached\n"
        "            and node.entry",
        new="            and not node.detached\n            and node.entry",
        breaks="a locked leaf can be evicted",
    ),
    _forest(
        name="settle-inner-nodes",
        old="            node.children is None\n            and not node.lock_count\n"
        "            and not node.detached",
        new="            not node.lock_count\n            and not node.detached",
        breaks="a node can be evicted from under its children",
    ),
    _forest(
        name="settle-roots",
        old="            and node.entry is None\n            and node.parent is not None\n",
        new="            and node.entry is None\n",
        breaks="an empty root can be evicted",
    ),
)

_JOINS = (
    _forest(
        name="join-past-siblings",
        old="            and len(parent.children) == 1\n",
        new="",
        breaks="a node joins its parent although that has other children, which are lost",
    ),
    _forest(
        name="join-across-scopes",
        old="            and parent.account is node.account\n",
        new="",
        breaks="private blocks become part of a PUBLIC node",
    ),
    _forest(
        name="join-into-locked",
        old="            and not parent.lock_count\n",
        new="",
        breaks="a node joins a locked parent, whose lock then covers too much",
    ),
    _forest(
        name="join-against-the-policy",
        old="            and node.account.policy.joins(parent, node)\n",
        new="",
        breaks="joining two nodes changes which goes first",
    ),
    _forest(
        name="join-keeps-old-recency",
        old="        top.last_access, top.last_access_s = leaf.last_access, leaf.last_access_s\n",
        new="",
        breaks="a joined node is as old as its upper part was",
    ),
    _forest(
        name="join-upside-down",
        old="        pieces.reverse()\n",
        new="",
        breaks="three or more pieces are joined in the wrong order",
    ),
    _forest(
        name="join-counts-one",
        old="self.num_nodes -= len(pieces)",
        new="self.num_nodes -= 1",
        breaks="the number of nodes is wrong after three pieces have become one",
    ),
    _forest(
        name="join-keeps-matches",
        old="        self.num_nodes -= len(pieces)\n        self.version += 1\n",
        new="        self.num_nodes -= len(pieces)\n",
        breaks="a match read after a join names blocks twice",
    ),
    _forest(
        name="join-forgets-sizes",
        old="        self.sizes.join(top, pieces)\n",
        new="",
        breaks="what the pieces owed their parents never arrives",
    ),
    _forest(
        name="join-forgets-the-lost",
        old="        self.lost.join(top, pieces)\n",
        new="",
        breaks="what was evicted below a piece is not remembered after a join",
    ),
)

_SPLITS = (
    _forest(
        name="split-unlocks",
        old="upper.lock_count, upper.detached = node.lock_count, node.detached",
        new="upper.detached = node.detached",
        breaks="the upper part of a locked node has no lock",
    ),
    _forest(
        name="split-undoes-a-flush",
        old="upper.lock_count, upper.detached = node.lock_count, node.detached",
        new="upper.lock_count = node.lock_count",
        breaks="the upper part of a flushed node counts as live",
    ),
    _forest(
        name="split-forgets-hits",
        old="upper.num_hits, upper.created, upper.priority = node.num_hits, node.created, node",
        new="upper.created, upper.priority = node.created, node",
        breaks="the upper part of a node has lost its hits",
    ),
    _forest(
        name="split-is-a-birth",
        old="upper.num_hits, upper.created, upper.priority = node.num_hits, node.created, node",
        new="upper.num_hits, upper.created, upper.priority = node.num_hits, self.tick, node",
        breaks="the upper part of a node counts as new",
    ),
    _forest(
        name="split-forgets-priority",
        old="upper.num_hits, upper.created, upper.priority = node.num_hits, node.created, node"
        ".priority",
        new="upper.num_hits, upper.created = node.num_hits, node.created",
        breaks="the upper part of a node has lost its priority",
    ),
    _forest(
        name="split-forgets-recency",
        old="        upper.last_access, upper.last_access_s = node.last_access, "
        "node.last_access_s\n",
        new="        upper.last_access_s = node.last_access_s\n",
        breaks="the upper part of a node is older than anything",
    ),
    _forest(
        name="split-forgets-age",
        old="        upper.last_access, upper.last_access_s = node.last_access, "
        "node.last_access_s\n",
        new="        upper.last_access, upper.last_access_s = node.last_access, self.clock()\n",
        breaks="people see the upper part of a node as just used",
    ),
    _forest(
        name="split-forgets-depth",
        old="        node.start += size\n",
        new="",
        breaks="the lower part of a node claims to begin where the whole did",
    ),
    _forest(
        name="split-edge-without-scope",
        old="node.edge = node.account.tag + node.key[: self.unit]",
        new="node.edge = bytes(node.key[: self.unit])",
        breaks="the lower part of a private node hangs there as if it were PUBLIC",
    ),
    _forest(
        name="split-not-listed",
        old="            parent.children[upper.edge] = upper\n",
        new="            pass\n",
        breaks="the parent still lists the lower part, the upper one cannot be found",
    ),
    _forest(
        name="split-tops",
        old="            self.tops.add(upper)\n",
        new="            self.tops.add(node)\n",
        breaks="of a flushed node that was cut the lower part counts as the top",
    ),
    _forest(
        name="split-uncounted",
        old="        self.num_nodes += 1\n        self.version += 1\n",
        new="        self.version += 1\n",
        breaks="a cut does not add to the number of nodes",
    ),
    _forest(
        name="split-keeps-matches",
        old="        self.num_nodes += 1\n        self.version += 1\n",
        new="        self.num_nodes += 1\n",
        breaks="a match read after a cut hands out the wrong blocks",
    ),
    _forest(
        name="split-forgets-sizes",
        old="        self.sizes.split(upper, node)\n",
        new="",
        breaks="nothing seems to lie below the upper part of a node",
    ),
    _forest(
        name="split-forgets-the-lost",
        old="        self.lost.split(upper, node)\n",
        new="",
        breaks="what was evicted below the upper part is not remembered after a cut",
    ),
)

_GROWTH = (
    _forest(
        name="grow-a-foreign-leaf",
        old="            and node.account is account\n            and node.parent is not None\n",
        new="            and node.parent is not None\n",
        breaks="a tenant's blocks become part of a PUBLIC leaf",
    ),
    _forest(
        name="grow-a-shared-leaf",
        old="and node.lock_count == int(held)",
        new="and node.lock_count >= int(held)",
        breaks="a leaf that others hold grows, and their locks with it",
    ),
    _forest(
        name="never-grow",
        old="            node.children is None\n            and node.lock_count == int(held)",
        new="            node is None\n            and node.lock_count == int(held)",
        breaks="a conversation becomes a chain of nodes",
    ),
    _forest(
        name="grow-a-root",
        old="            and node.account is account\n            and node.parent is not None\n",
        new="            and node.account is account\n",
        breaks="the first blocks of a kv_key become part of its root",
    ),
    _forest(
        name="new-child-unlocked",
        old="            end.lock_count = int(held)\n",
        new="",
        breaks="what an extension adds is not locked",
    ),
    _forest(
        name="growth-forgets-recency",
        old="        end.last_access, end.last_access_s = self.tick, self.clock()\n"
        "        num_blocks",
        new="        num_blocks",
        breaks="what was just published is the first to go",
    ),
    Fault(
        name="growth-forgets-old-hits",
        path="radixcache/tree/forest.py",
        old="            if lost:  # asked",
        new="            if False:  # asked",
        breaks="a prefix that comes back after an eviction starts with no hits",
    ),
    Fault(
        name="growth-takes-the-last-ghost",
        path="radixcache/tree/forest.py",
        old="end.num_hits = lost[0].lost.num_hits + 1",
        new="end.num_hits = lost[-1].lost.num_hits + 1",
        breaks="a prefix that comes back has the hits of what lay below it",
    ),
    _forest(
        name="stored-after-the-first-block",
        old='self.tell("stored", account.namespace, node.ids[-ID_BYTES:], key, ids)',
        new='self.tell("stored", account.namespace, node.ids[:ID_BYTES], key, ids)',
        breaks="watchers learn the wrong block that new ones follow",
    ),
    _forest(
        name="stored-by-the-parents-owner",
        old='self.tell("stored", account.namespace,',
        new='self.tell("stored", node.account.namespace,',
        breaks="watchers take a tenant's blocks for PUBLIC ones",
    ),
    _forest(
        name="stored-though-flushed",
        old="if self.watcher is not None and not detached:",
        new="if self.watcher is not None:",
        breaks="watchers hear of blocks that no look-up can find",
    ),
    _forest(
        name="policy-not-told-of-growth",
        old="            account.policy.stored(end, num_blocks, ghosts)\n",
        new="            pass\n",
        breaks="a policy never learns of new blocks",
    ),
    _forest(
        name="held-growth-uncounted",
        old="            self.num_locked_blocks += num_blocks\n        if detached:",
        new="            pass\n        if detached:",
        breaks="what an extension adds does not count as locked",
    ),
    _forest(
        name="growth-off-the-account",
        old="        account.num_blocks += num_blocks\n",
        new="",
        breaks="new blocks do not count towards their namespace's quota",
    ),
    _forest(
        name="growth-off-the-sizes",
        old="        self.sizes.grow(end, num_blocks)\n",
        new="",
        breaks="new blocks do not count in the size of their subtree",
    ),
    _forest(
        name="flushed-growth-is-findable",
        old="        if detached and not (parent.detached and parent.parent is not None):\n",
        new="        if detached and parent.parent is None:\n",
        breaks="what is published after a flush below a live node can be found",
    ),
    _forest(
        name="child-at-its-parents-start",
        old="start = parent.start + len(parent.key)",
        new="start = parent.start",
        breaks="a node says that it lies where its parent begins",
    ),
    _forest(
        name="child-without-birthday",
        old="        child.created = self.tick\n",
        new="",
        breaks="nodes do not know which was stored first",
    ),
    _forest(
        name="child-edge-without-scope",
        old="        edge = account.tag + key[: self.unit]",
        new="        edge = bytes(key[: self.unit])",
        breaks="what a tenant publishes hangs there as if it were PUBLIC",
    ),
)

_REMOVAL = (
    _forest(
        name="bared-parent-stays",
        old="            parent.children = None\n            self.settle(parent)\n",
        new="            parent.children = None\n",
        breaks="a parent whose last child went can never be evicted",
    ),
    _forest(
        name="unlink-keeps-recency",
        old="        self.sizes.cut(node, parent)\n        inherit_recency(parent, node)\n",
        new="        self.sizes.cut(node, parent)\n",
        breaks="the prefix of a conversation in use is evicted as if it were old",
    ),
    _forest(
        name="unlink-forgets-sizes",
        old="        self.sizes.cut(node, parent)\n",
        new="",
        breaks="a parent counts blocks below it that are gone",
    ),
    _forest(
        name="unlink-keeps-empty-roots",
        old="            if parent.parent is None:\n                self.drop_root(parent)\n",
        new="",
        breaks="the root of a namespace stays when its last node is evicted",
    ),
    _forest(
        name="flushed-end-keeps-recency",
        old="        inherit_recency(node.parent, node)\n        if node in self.tops:",
        new="        if node in self.tops:",
        breaks="a flushed private path does not hand its recency to the PUBLIC one above",
    ),
    _forest(
        name="flushed-parent-keeps-dict",
        old="            if not siblings:\n                node.parent.children = None\n",
        new="",
        breaks="a flushed node whose children are gone does not count as a leaf",
    ),
    _forest(
        name="flushed-tops-leak",
        old="            self.tops.remove(node)\n        else:\n            siblings",
        new="            pass\n        else:\n            siblings",
        breaks="freed nodes of flushed paths are kept for ever",
    ),
    _forest(
        name="flushed-blocks-uncounted",
        old="        self.num_detached_blocks -= num_blocks\n",
        new="",
        breaks="freed blocks of flushed paths count as flushed for ever",
    ),
    _forest(
        name="recency-without-age",
        old="        parent.last_access_s = child.last_access_s\n",
        new="",
        breaks="people see the prefix of a conversation in use as long unused",
    ),
)

FAULTS = (*_LOCKS, *_JOINS, *_SPLITS, *_GROWTH, *_REMOVAL)
