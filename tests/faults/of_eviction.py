"""Faults in evict, flush, account, quota and policy: what goes, and in which order."""

from functools import partial

from tests.faults.fault import Fault

_evict = partial(Fault, path="radixcache/tree/evict.py")
_flush = partial(Fault, path="radixcache/tree/flush.py")
_account = partial(Fault, path="radixcache/tree/account.py")
_quota = partial(Fault, path="radixcache/tree/quota.py")
_base = partial(Fault, path="radixcache/tree/base.py")
_policy = partial(Fault, path="radixcache/tree/policy.py")

_EVICTION = (
    _evict(
        name="evict-one-more",
        old="        allowed = missing\n",
        new="        allowed = missing + 1\n",
        breaks="eviction overshoots by a block",
    ),
    _evict(
        name="evict-a-leaf-only",
        old="        missing -= _take(forest, leaf, allowed, freed, eviction)\n",
        new="        _take(forest, leaf, allowed, freed, eviction)\n        break\n",
        breaks="eviction stops after one leaf",
    ),
    _evict(
        name="evict-whole-leaves",
        old="whole = num_blocks <= allowed",
        new="whole = True",
        breaks="eviction takes whole leaves, however few blocks were wanted",
    ),
    _evict(
        name="evict-names-the-head",
        old="gone = gone[-allowed * ID_BYTES :]",
        new="gone = gone[: allowed * ID_BYTES]",
        breaks="a trim hands out the blocks of the part that stays",
    ),
    _evict(
        name="trim-takes-ids-for-tokens",
        old="cut = len(key) - num_blocks * forest.unit",
        new="cut = len(key) - num_blocks * ID_BYTES",
        breaks="a trim of blocks longer than a token leaves key ids without blocks",
    ),
    _evict(
        name="trim-forgets-sizes",
        old="    forest.sizes.grow(leaf, -num_blocks)\n",
        new="",
        breaks="a trimmed leaf counts in its subtree as before",
    ),
    _evict(
        name="trim-grows",
        old="forest.sizes.grow(leaf, -num_blocks)",
        new="forest.sizes.grow(leaf, num_blocks)",
        breaks="a trimmed leaf looks larger",
    ),
    _evict(
        name="trim-filed-under-its-head",
        old="edge = account.tag + tail[: forest.unit]",
        new="edge = account.tag + key[: forest.unit]",
        breaks="what was trimmed is remembered as if it began as the leaf does",
    ),
    _evict(
        name="trim-filed-as-public",
        old="edge = account.tag + tail[: forest.unit]",
        new="edge = bytes(tail[: forest.unit])",
        breaks="what a tenant lost by a trim is remembered where everybody finds it",
    ),
    Fault(
        name="trim-remembered-at-the-start",
        path="radixcache/tree/evict.py",
        old="forest.lost.remember(leaf.node_id, leaf.start + cut, lost)",
        new="forest.lost.remember(leaf.node_id, leaf.start, lost)",
        breaks="a trimmed tail is remembered where nobody looks for it",
    ),
    Fault(
        name="removal-remembered-below-itself",
        path="radixcache/tree/evict.py",
        old="forest.lost.remember(owner_id(parent), leaf.start, lost)",
        new="forest.lost.remember(leaf.node_id, leaf.start, lost)",
        breaks="an evicted leaf is remembered where nobody looks for it",
    ),
    _evict(
        name="removal-uncounted",
        old="    forest.num_nodes -= 1\n",
        new="",
        breaks="evicted leaves count as nodes",
    ),
    _evict(
        name="evict-off-the-books",
        old="    forest.num_blocks -= len(freed)\n",
        new="",
        breaks="evicted blocks count as cached",
    ),
    _evict(
        name="evict-keeps-matches",
        old="    forest.version += 1\n",
        new="",
        breaks="a match read after an eviction hands out blocks that are somebody else's",
    ),
    _evict(
        name="evict-off-the-account",
        old="    account.num_blocks -= num_blocks\n",
        new="",
        breaks="a namespace goes on paying for what was evicted",
    ),
    _evict(
        name="policy-not-told-of-eviction",
        old="note = account.policy.evicted(leaf, num_blocks)",
        new="note = None",
        breaks="a policy never learns what was evicted",
    ),
    _evict(
        name="removed-names-the-whole-leaf",
        old='forest.tell("removed", memoryview(gone))',
        new='forest.tell("removed", memoryview(leaf.ids))',
        breaks="watchers drop blocks that are still there",
    ),
    _evict(
        name="the-newest-namespace-first",
        old="leaf.last_access < best.last_access",
        new="leaf.last_access > best.last_access",
        breaks="of two namespaces the one used last gives way first",
    ),
    _evict(
        name="guarantee-overrun",
        old="allowed = min(missing, account.num_over_guarantee)",
        new="allowed = missing",
        breaks="others' pressure takes a namespace below its guarantee",
    ),
    _evict(
        name="guarantee-against-oneself",
        old="if account.num_over_guarantee or account is asker:",
        new="if account.num_over_guarantee:",
        breaks="a namespace cannot make room for itself from its own guaranteed blocks",
    ),
    _account(
        name="quota-without-locked-blocks",
        old="max(0, self.num_blocks - self.max_blocks)",
        new="max(0, self.num_blocks - self.num_locked_blocks - self.max_blocks)",
        breaks="blocks in use do not count towards a quota",
    ),
    _account(
        name="quota-one-above",
        old="max(0, self.num_blocks - self.max_blocks)",
        new="max(0, self.num_blocks - self.max_blocks - 1)",
        breaks="a namespace keeps one block above its quota",
    ),
    _account(
        name="no-guarantee",
        old="max(0, self.num_blocks - self.guaranteed_blocks)",
        new="max(0, self.num_blocks)",
        breaks="a guarantee guards nothing",
    ),
    _quota(
        name="quota-takes-all-leaves",
        old=" if leaf.account is account]",
        new="]",
        breaks="a namespace with a quota becomes the owner of everybody's leaves",
    ),
    _quota(
        name="quota-forgets-leaves",
        old="    for leaf in leaves:\n        policy.add(leaf)\n",
        new="",
        breaks="what a namespace held before it got a quota can never be evicted",
    ),
    _quota(
        name="quota-on-a-second-account",
        old="account = forest.account(root, namespace.scope)",
        new="account = Account(namespace, forest.policy)",
        breaks="a quota does not see what its namespace holds already",
    ),
    _quota(
        name="quota-removed-in-name",
        old="    _move_leaves(account, forest.policy)\n",
        new="",
        breaks="leaves of a namespace without a quota any more are never evicted",
    ),
    _quota(
        name="quota-trims-anybody",
        old="cause=cause, only=account)",
        new="cause=cause)",
        breaks="a namespace above its quota pushes others out",
    ),
    _quota(
        name="quota-equal-to-guarantee",
        old="guaranteed_blocks > max_blocks:",
        new="guaranteed_blocks >= max_blocks:",
        breaks="a namespace whose quota is all guaranteed is refused",
    ),
    _quota(
        name="kept-from-oneself",
        old="if account.guaranteed_blocks and account is not own",
        new="if account.guaranteed_blocks",
        breaks="a namespace is told that its own guaranteed blocks cannot make room for it",
    ),
    _account(
        name="kept-though-in-use",
        old="evictable = self.num_blocks - self.num_locked_blocks\n",
        new="evictable = self.num_blocks\n",
        breaks="room that is there is refused, because guaranteed blocks in use count as kept",
    ),
    _quota(
        name="public-trimmed-first",
        old="key=lambda account: account.scope == PUBLIC)",
        new="key=lambda account: account.scope != PUBLIC)",
        breaks="PUBLIC blocks above a quota stay because private ones stood on them a moment ago",
    ),
    _base(
        name="own-guarantee-counts-as-others",
        old=" for space, account in quotas if space != own)",
        new=" for space, account in quotas)",
        breaks="a guarantee cannot be changed when the pool is promised in full",
    ),
)

_FLUSHING = (
    _flush(
        name="flush-leaves-debts",
        old="    forest.sizes.settle()\n",
        new="",
        breaks="flushed nodes report sizes to live ones later",
    ),
    Fault(
        name="flush-misses-locks",
        path="radixcache/tree/flush.py",
        old="        if space is None or covers(space, lock.namespace):\n",
        new="        if space is None:\n",
        breaks="what was being computed when its namespace was flushed becomes findable",
    ),
    Fault(
        name="flush-hits-other-scopes",
        path="radixcache/tree/lost.py",
        old="space.scope in (PUBLIC, other.scope)",
        new="True",
        breaks="one tenant's flush keeps another from publishing",
    ),
    Fault(
        name="flush-of-a-key-spares-tenants",
        path="radixcache/tree/lost.py",
        old="space.scope in (PUBLIC, other.scope)",
        new="space.scope == other.scope",
        breaks="tenants' locks survive the flush of their kv_key and publish findably",
    ),
    _flush(
        name="flush-keeps-the-root",
        old="    root.detached = True\n",
        new="",
        breaks="a flushed root that is still locked counts as live",
    ),
    _flush(
        name="flush-keeps-children",
        old="    root.children = None\n",
        new="",
        breaks="a lock on a flushed root extends into blocks that are free",
    ),
    _flush(
        name="flush-only-at-the-top",
        old="                stack.append(child)\n",
        new="                pass\n",
        breaks="a tenant's flush misses what hangs below PUBLIC nodes",
    ),
    _flush(
        name="flush-keeps-links",
        old="                forest.unlink(child, parent)\n",
        new="",
        breaks="a tenant's flushed blocks can still be found",
    ),
    _flush(
        name="flush-keeps-matches",
        old="    forest.version += 1\n",
        new="",
        breaks="a match read after a flush hands out free blocks",
    ),
    _flush(
        name="flush-off-the-books",
        old="    forest.num_blocks -= len(freed)\n",
        new="",
        breaks="flushed blocks count as cached",
    ),
    _flush(
        name="cleared-means-all",
        old='forest.tell("cleared", space)',
        new='forest.tell("cleared", None)',
        breaks="watchers of any flush forget everything",
    ),
    _flush(
        name="flushed-leaves-stay-evictable",
        old="                node.account.policy.remove(node)\n",
        new="                pass\n",
        breaks="blocks that a flush freed are evicted once more",
    ),
    _flush(
        name="flush-lists-freed-children",
        old="for edge, child in children.items() if child.lock_count}",
        new="for edge, child in children.items()}",
        breaks="a flushed and locked node lists children that are free",
    ),
    _flush(
        name="flush-keeps-recency",
        old="    inherit_recency(top, newest)\n",
        new="",
        breaks="a flushed private path does not hand its recency to the PUBLIC one it stood on",
    ),
    _flush(
        name="flush-forgets-tops",
        old="        forest.tops.add(top)\n",
        new="        pass\n",
        breaks="flushed paths under a lock are not accounted for",
    ),
    _flush(
        name="flush-keeps-locked-on-the-account",
        old="    node.account.num_locked_blocks -= num_blocks\n",
        new="",
        breaks="a namespace goes on paying for locked blocks that it has flushed",
    ),
    _flush(
        name="flush-keeps-free-on-the-account",
        old="            node.account.num_blocks -= len(node.ids) // ID_BYTES\n",
        new="",
        breaks="a namespace goes on paying for what it has flushed",
    ),
)

_ORDERS = (
    _policy(
        name="whatever-is-first-goes",
        old="elif entry is self._entries[0]:",
        new="elif self._entries:",
        breaks="a leaf that is used again takes the next victim out of the order in its place",
    ),
    _policy(
        name="newest-first",
        old="leaf: Node = self._entries[0][2]",
        new="leaf: Node = self._entries[-1][2]",
        breaks="the leaf that should go last goes first",
    ),
    _policy(
        name="unsorted-leaves-uncounted",
        old="return len(self._entries) + len(self._unsorted)",
        new="return len(self._entries)",
        breaks="a policy does not say how many leaves it holds",
    ),
    _policy(
        name="unsorted-leaves-stay",
        old="            del self._unsorted[leaf]\n",
        new="            pass\n",
        breaks="a leaf in use comes into the order of eviction later",
    ),
    _policy(
        name="sorted-twice",
        old="        self._unsorted.clear()\n",
        new="",
        breaks="a leaf is put into order again each time somebody asks",
    ),
    _policy(
        name="victim-of-the-sorted",
        old="        if self._unsorted:\n            self._sort()\n        if not self._entries",
        new="        if not self._entries",
        breaks="what became evictable since the last eviction does not go",
    ),
    _policy(
        name="lru-by-birth",
        old="        return leaf.last_access\n",
        new="        return leaf.created\n",
        breaks="lru does not see what is used",
    ),
    _policy(
        name="lru-joins-anything",
        old="        return upper.last_access <= lower.last_access\n",
        new="        return True\n",
        breaks="joining makes the recent upper part as old as the lower one",
    ),
    _policy(
        name="lfu-by-recency",
        old="return (leaf.num_hits, leaf.last_access)",
        new="return (leaf.last_access, leaf.num_hits)",
        breaks="lfu evicts what is used often before what was used lately",
    ),
    _policy(
        name="lfu-joins-unequal",
        old="upper.num_hits == lower.num_hits and",
        new="upper.num_hits >= lower.num_hits and",
        breaks="a cold tail gets the hits of the prefix it is joined to",
    ),
    _policy(
        name="slru-one-hit-late",
        old="return (leaf.num_hits >= self.threshold, leaf.last_access)",
        new="return (leaf.num_hits > self.threshold, leaf.last_access)",
        breaks="a leaf is protected one hit too late",
    ),
    _policy(
        name="slru-default",
        old="threshold: int = 1)",
        new="threshold: int = 2)",
        breaks="the first use of a leaf does not protect it",
    ),
    _policy(
        name="slru-joins-segments",
        old="return same and upper.last_access",
        new="return upper.last_access",
        breaks="an unused tail is protected by the prefix it is joined to",
    ),
    _policy(
        name="fifo-by-recency",
        old='        """Return the tick of its first block."""\n        return leaf.created\n',
        new='        """Return the tick of its first block."""\n        return leaf.last_access\n',
        breaks="fifo keeps what is used",
    ),
    _policy(
        name="fifo-joins-ages",
        old="return upper.created == lower.created",
        new="return True",
        breaks="a new tail becomes as old as the prefix it is joined to",
    ),
    _policy(
        name="priority-upside-down",
        old="return (leaf.priority, leaf.last_access)",
        new="return (-leaf.priority, leaf.last_access)",
        breaks="what matters most is evicted first",
    ),
    _policy(
        name="priority-joins-unequal",
        old="upper.priority == lower.priority and",
        new="upper.priority >= lower.priority and",
        breaks="a tail of low priority gets the high one of its prefix",
    ),
    Fault(
        name="any-policy-name",
        path="radixcache/tree/policies.py",
        old="    if policy not in POLICIES:\n",
        new="    if not policy:\n",
        breaks="an unknown policy name raises an error that does not say which there are",
    ),
)

FAULTS = (*_EVICTION, *_FLUSHING, *_ORDERS)
