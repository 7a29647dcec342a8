"""Faults in tree.py, lease.py, cache.py and the allocator: what callers ask for."""

from functools import partial

from tests.faults.fault import Fault

_tree = partial(Fault, path="radixcache/tree/tree.py")
_lease = partial(Fault, path="radixcache/lease.py")
_cache = partial(Fault, path="radixcache/cache.py")
_allocator = partial(Fault, path="radixcache/kv/allocator.py")

_TREE = (
    Fault(
        name="insert-takes-all-ids",
        path="radixcache/tree/tree.py",
        old="new_ids = ids[depth // forest.block_size :]\n        try",
        new="new_ids = ids[: len(ids) - depth // forest.block_size]\n        try",
        breaks="an insert files the blocks of the present part under the new one",
    ),
    _tree(
        name="insert-leaves-an-empty-root",
        old="            forest.drop_root(root)\n            raise",
        new="            raise",
        breaks="a refused insert leaves the root of its namespace behind",
    ),
    Fault(
        name="insert-does-not-settle",
        path="radixcache/tree/tree.py",
        old="        forest.settle(end)\n        done = ",
        new="        done = ",
        breaks="what was inserted can never be evicted",
    ),
    _tree(
        name="insert-forgets-priority",
        old="            end.priority = max(end.priority, priority)\n        forest.settle(end)",
        new="        forest.settle(end)",
        breaks="what a request of high priority inserts has a low one",
    ),
    _tree(
        name="insert-without-a-hit",
        old="        forest.touch(end, priority)\n",
        new="        forest.touch(end, priority=0)\n",
        breaks="a prefix that a request of high priority finds keeps a low one",
    ),
    Fault(
        name="insert-reports-bytes",
        path="radixcache/tree/tree.py",
        old="done.num_present = depth // ID_BYTES",
        new="done.num_present = depth",
        breaks="an insert reports four times what was present",
    ),
    _tree(
        name="lock-without-limit",
        old="size = min(size, checked_count(max_tokens",
        new="size = max(size, checked_count(max_tokens",
        breaks="a lock goes further than its caller asked for",
    ),
    _tree(
        name="share-at-a-boundary",
        old="while start >= wanted * ID_BYTES and",
        new="while start > wanted * ID_BYTES and",
        breaks="a shared lock that ends between two nodes cuts off an empty one",
    ),
    _tree(
        name="share-forgets-a-flush",
        old="        shared._detached = lock._detached\n",
        new="",
        breaks="a lock shared from a flushed one publishes findably",
    ),
    _tree(
        name="share-odd-lengths",
        old="if wanted > lock.num_tokens or wanted % self.block_size:",
        new="if wanted > lock.num_tokens:",
        breaks="a lock may end within a block",
    ),
    _tree(
        name="share-counts-a-hit",
        old="self._forest.lock_again(end)",
        new="self._forest.lock(end, None, 0)",
        breaks="a second lock of one request counts as a second request",
    ),
    _tree(
        name="share-forgets-priority",
        old="self._new_lock(end, lock._account, wanted, lock._priority)",
        new="self._new_lock(end, lock._account, wanted, 0)",
        breaks="what a fork of a request publishes has no priority",
    ),
    _tree(
        name="extend-from-the-root",
        old="forest.lock(end, start, priority)",
        new="forest.lock(end, None, priority)",
        breaks="an extension locks its prefix twice and counts it as hit again",
    ),
    _tree(
        name="extend-meets-the-living",
        old="        if lock._detached == start.detached:\n",
        new="        if True:\n",
        breaks="a flushed lock joins what was published since",
    ),
    _tree(
        name="extend-forgets-a-flush",
        old="        new._detached = lock._detached\n        return Extended",
        new="        return Extended",
        breaks="an extension of a flushed lock publishes findably the next time",
    ),
    _tree(
        name="extend-forgets-priority",
        old="            end.priority = max(end.priority, priority)\n            present",
        new="            present",
        breaks="what a request of high priority computes has a low one",
    ),
    _tree(
        name="extend-forgets-the-class",
        old="        new = self._new_lock(end, account, num_tokens, priority)\n",
        new="        new = self._new_lock(end, account, num_tokens, 0)\n",
        breaks="after its first chunk a request has no priority",
    ),
    _tree(
        name="extend-takes-bad-ids",
        old="        check_block_ids(new_ids)\n        end = self._hit(end",
        new="        end = self._hit(end",
        breaks="an extension takes over negative and repeated block ids",
    ),
    _tree(
        name="extend-claims-its-prefix",
        old="return Extended(new, depth // ID_BYTES, present)",
        new="return Extended(new, (depth + len(view)) // ID_BYTES, present)",
        breaks="an extension says that what it added was there before",
    ),
    _tree(
        name="extend-names-the-whole-path",
        old="present = gather(end, stop=start)",
        new="present = gather(end)",
        breaks="an extension returns the blocks of its prefix too",
    ),
    _tree(
        name="extend-is-too-short",
        old="num_tokens = lock.num_tokens + len(view) // ID_BYTES",
        new="num_tokens = lock.num_tokens + depth // ID_BYTES",
        breaks="a lock that was extended does not know its length",
    ),
    _tree(
        name="locks-work-anywhere",
        old="        if lock._tree is not self:\n",
        new="        if not lock.live:\n",
        breaks="a lock of another tree is accepted",
    ),
    _tree(
        name="evict-for-nobody",
        old="cause=cause, asker=asker)",
        new="cause=cause)",
        breaks="a namespace cannot make room for itself from its own guaranteed blocks",
    ),
    _tree(
        name="hit-of-the-whole-node",
        old="node.account.policy.hit(node, inside // forest.unit)",
        new="node.account.policy.hit(node, node.num_blocks)",
        breaks="a policy takes a hit on the front of a node for one on all of it",
    ),
    Fault(
        name="lock-match-of-anybody",
        path="radixcache/tree/tree.py",
        old="        if account.scope != space.scope:\n",
        new="        if account is None:\n",
        breaks="a tenant that locks a PUBLIC match publishes to everybody",
    ),
    _tree(
        name="lock-match-though-stale",
        old="        match._require_current()\n",
        new="",
        breaks="a match is locked whose blocks have moved",
    ),
    _tree(
        name="lock-match-anywhere",
        old="        if match._forest is not forest:\n",
        new="        if match is None:\n",
        breaks="a match of another tree is locked",
    ),
    Fault(
        name="match-of-anybody",
        path="radixcache/tree/tree.py",
        old="return longest(root, view, space.scope, self._forest.unit)[2] // ID_BYTES",
        new='return longest(root, view, "", self._forest.unit)[2] // ID_BYTES',
        breaks="match_len does not see what match sees",
    ),
)

_CACHE = (
    _lease(
        name="commit-keeps-duplicates",
        old="        ledger.free(own[:num_duplicates])\n",
        new="",
        breaks="blocks that another sequence had published already leak",
    ),
    _lease(
        name="commit-publishes-duplicates",
        old="ledger.allocator.publish(own[num_duplicates:])",
        new="ledger.allocator.publish(own)",
        breaks="duplicates count as the tree's",
    ),
    _lease(
        name="commit-does-not-repoint",
        old="        self.block_table[start // size : end // size] = extended.block_ids\n",
        new="",
        breaks="a sequence goes on reading blocks that it has freed",
    ),
    _lease(
        name="commit-of-half-blocks",
        old="length - length % size\n        if not self._publish",
        new="length\n        if not self._publish",
        breaks="a block that is still written counts as published",
    ),
    _lease(
        name="commit-without-permission",
        old="if not self._publish or end <= start:",
        new="if end <= start:",
        breaks="a request that must not write the cache does",
    ),
    Fault(
        name="commit-keeps-no-quota",
        path="radixcache/lease.py",
        old="        ledger.counters.duplicate_blocks += num_duplicates\n        ledger.keep_quotas(self.namespace)",
        new="        ledger.counters.duplicate_blocks += num_duplicates",
        breaks="a namespace grows past its quota until somebody else's lock ends",
    ),
    Fault(
        name="unlock-keeps-no-quota",
        path="radixcache/lease.py",
        old="        self.reclaim(self.tree.unlock(lock))\n        self.keep_quotas(lock.namespace)",
        new="        self.reclaim(self.tree.unlock(lock))",
        breaks="what was above a quota while in use stays there afterwards",
    ),
    _lease(
        name="allocate-for-nobody",
        old="self.tree.evict(missing, namespace=namespace, cause=_ROOM)",
        new="self.tree.evict(missing, cause=_ROOM)",
        breaks="a namespace is refused room that its own guaranteed blocks could give",
    ),
    _lease(
        name="fork-shares-a-written-block",
        old="shared = min(self.num_published_tokens, length - length % size)",
        new="shared = self.num_published_tokens",
        breaks="a fork shorter than what is published locks too much",
    ),
    _lease(
        name="fork-copies-too-little",
        old="min(size, length - position * size)",
        new="min(size, length - position * size) - 1",
        breaks="the last token of each copied block is missing",
    ),
    _lease(
        name="truncate-one-block-too-many",
        old="kept = blocks_for(length, self._block_size)",
        new="kept = length // self._block_size",
        breaks="dropping drafts drops the block that holds the last tokens",
    ),
    _lease(
        name="release-keeps-own-blocks",
        old="        ledger.free(own)\n        ledger.unlock",
        new="        ledger.unlock",
        breaks="the unpublished blocks of every sequence leak",
    ),
    _lease(
        name="release-keeps-the-lock",
        old="        ledger.unlock(self._lock)\n",
        new="",
        breaks="what a sequence has read can never be evicted",
    ),
    _cache(
        name="no-fresh-token",
        old="limit = len(tokens) - 1 if read else 0",
        new="limit = len(tokens) if read else 0",
        breaks="a prompt that is cached in full leaves nothing to compute",
    ),
    _cache(
        name="reads-against-its-will",
        old="limit = len(tokens) - 1 if read else 0",
        new="limit = len(tokens) - 1",
        breaks="a request that must not read the cache does",
    ),
    _cache(
        name="acquire-forgets-priority",
        old="max_tokens=limit, priority=priority)",
        new="max_tokens=limit)",
        breaks="a request's priority never reaches the tree",
    ),
    Fault(
        name="evicted-blocks-leak",
        path="radixcache/lease.py",
        old="        self.reclaim(evicted)\n        if evicted:",
        new="        if evicted:",
        breaks="blocks evicted from outside leak",
    ),
    Fault(
        name="too-much-guaranteed",
        path="radixcache/lease.py",
        old="left = room - tree.num_guaranteed_blocks(besides=space)",
        new="left = room",
        breaks="more is guaranteed than the pool has",
    ),
    Fault(
        name="quota-waits",
        path="radixcache/lease.py",
        old="guaranteed_blocks=guaranteed)\n        self.keep_quotas(space)",
        new="guaranteed_blocks=guaranteed)",
        breaks="a new quota does nothing until the next unlock",
    ),
    _allocator(
        name="reclaim-stays-on-the-tree",
        old="        self._num_tree -= len(block_ids)\n",
        new="",
        breaks="blocks that left the tree count as its own",
    ),
    _allocator(
        name="free-what-is-the-trees",
        old='self._move(block_ids, _LEASED, _FREE, "free")',
        new='self._move(block_ids, self._states[block_ids[0]], _FREE, "free")',
        breaks="a block that the tree owns can be freed by a lease",
    ),
    _allocator(
        name="many-moved-blindly",
        old="if np.count_nonzero(self._view[ids] == before) < len(ids):",
        new="if not len(ids):",
        breaks="of many blocks, those in the wrong state are moved all the same",
    ),
    _allocator(
        name="many-named-twice",
        old="if not rising and len(np.unique(ids)) < len(ids):",
        new="if rising and len(np.unique(ids)) < len(ids):",
        breaks="of many blocks, one that is named twice is freed twice",
    ),
    _allocator(
        name="refusal-half-done",
        old="                for moved in block_ids[:done]:\n                    states[moved] = before\n",
        new="",
        breaks="a refused free has freed some of the blocks",
    ),
)

FAULTS = (*_TREE, *_CACHE)
