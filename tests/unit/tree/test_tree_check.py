"""Case 82: corrupt a tree on purpose; check() names each fault."""

import pytest

from radixcache.errors import CacheCorruptionError
from radixcache.tree import RadixTree
from radixcache.tree.account import Account
from radixcache.types import Namespace

NS = "model"


@pytest.fixture
def tree():
    """Root → A(2 blocks) → {B(1 block), C(2 blocks, locked)}; a locked, flushed path; a lock."""
    tree = RadixTree(2)
    tree.insert([50, 51, 52, 53], [50, 51], namespace="old")
    tree.lock([50, 51, 52, 53], namespace="old")
    tree.flush("old")
    tree.insert([1, 2, 3, 4, 5, 6], [1, 2, 3], namespace=NS)
    tree.insert([1, 2, 3, 4, 7, 8, 9, 10], [1, 2, 7, 9], namespace=NS)
    tree.lock([1, 2, 3, 4, 7, 8, 9, 10], namespace=NS)
    tree.check()
    return tree


def node(tree, block_id):
    """Return the node that holds a block."""
    for found in tree._forest.nodes():
        if block_id in memoryview(found.ids).cast("i"):
            return found
    raise LookupError(block_id)


def two_nodes_share_a_block(tree):
    """A block is listed twice."""
    node(tree, 3).ids[:] = node(tree, 1).ids[:4]


def a_block_is_dropped(tree):
    """A node has fewer block ids than blocks."""
    del node(tree, 9).ids[-4:]


def a_whole_block_is_dropped(tree):
    """Key and id of a block vanish together."""
    found = node(tree, 9)
    del found.ids[-4:]
    del found.key[-8:]


def a_lock_is_counted_twice(tree):
    """A lock count is one too high."""
    node(tree, 9).lock_count += 1


def a_lock_is_not_counted(tree):
    """A parent has lost a lock that its child has."""
    node(tree, 1).lock_count -= 1


def a_lock_is_forgotten(tree):
    """The tree lost the record of a live lock."""
    tree._locks.pop()


def a_lock_ends_elsewhere(tree):
    """A lock's length differs from its path's."""
    lock = next(lock for lock in tree._locks if lock.namespace.kv_key == NS)
    lock.num_tokens -= 2


def an_ended_lock_is_kept(tree):
    """An ended lock is still counted."""
    next(iter(tree._locks))._tree = None


def a_child_is_under_the_wrong_key(tree):
    """The parent's dictionary says another block."""
    children = node(tree, 1).children
    children[b"12345678"] = children.pop(node(tree, 3).edge)


def a_key_has_changed(tree):
    """The first block is no longer what the node is filed under."""
    node(tree, 3).key[0] ^= 1


def a_node_is_empty(tree):
    """A node without tokens."""
    found = node(tree, 3)
    found.key.clear()
    found.ids.clear()


def half_a_block(tree):
    """A key that ends within a block."""
    del node(tree, 3).key[-4:]


def a_leaf_has_an_empty_dictionary(tree):
    """No children, but not marked a leaf."""
    node(tree, 3).children = {}


def a_private_node_above_a_public_one(tree):
    """A scope inside a PUBLIC path whose child is PUBLIC."""
    above = node(tree, 1)
    root = tree._forest.roots[NS]
    del root.children[above.edge]
    above.account = tree._forest.account(root, "a")
    above.edge = b"a" + above.edge
    root.children[above.edge] = above


def blocks_are_miscounted(tree):
    """The size of the tree."""
    tree._forest.num_blocks += 1


def locked_blocks_are_miscounted(tree):
    """The locked size."""
    tree._forest.num_locked_blocks -= 1


def nodes_are_miscounted(tree):
    """The number of nodes."""
    tree._forest.num_nodes += 1


def detached_blocks_are_miscounted(tree):
    """The flushed size."""
    tree._forest.num_detached_blocks += 1


def an_account_is_wrong(tree):
    """The blocks of a namespace."""
    node(tree, 3).account.num_blocks += 1


def an_account_of_locks_is_wrong(tree):
    """The locked blocks of a namespace."""
    node(tree, 3).account.num_locked_blocks -= 1


def a_node_is_in_a_foreign_account(tree):
    """A node whose namespace has another account."""
    leaf = node(tree, 3)
    own, leaf.account = leaf.account, Account(leaf.account.namespace, leaf.account.policy)
    own.num_blocks -= leaf.num_blocks
    leaf.account.num_blocks += leaf.num_blocks


def a_depth_is_wrong(tree):
    """Where a node begins."""
    node(tree, 3).start += 4


def a_subtree_is_miscounted(tree):
    """What lies below a node."""
    tree._forest.sizes.settle()
    node(tree, 3).below += 1


def a_debt_is_not_listed(tree):
    """A change that would never reach the parent."""
    leaf = node(tree, 3)
    tree._forest.sizes.settle()
    leaf.owed += 1


def an_evictable_leaf_is_missing(tree):
    """The policy does not know a leaf it should."""
    tree._forest.policy.remove(node(tree, 3))


def a_locked_leaf_is_held(tree):
    """The policy would evict what is locked."""
    tree._forest.policy.add(node(tree, 9))


def an_entry_is_out_of_date(tree):
    """A leaf's recency changed behind the policy's back."""
    node(tree, 3).last_access -= 1


def a_leaf_is_held_twice(tree):
    """The policy holds one leaf under two entries."""
    leaf = node(tree, 3)
    old = leaf.entry
    leaf.last_access -= 1
    tree._forest.policy.add(leaf)
    leaf.last_access += 1
    leaf.entry = old


def a_stray_entry(tree):
    """A node believes the policy holds it."""
    node(tree, 1).entry = object()


def the_container_is_out_of_order(tree):
    """The sorted container itself is broken."""
    policy = tree._forest.policy
    tree.insert([60, 61], [60], namespace=NS)
    policy.victim()  # asking puts the leaves into order
    policy._entries._lists[0].reverse()


def a_flushed_path_is_findable(tree):
    """A detached node is still listed."""
    old = node(tree, 50)
    old.parent.children = {old.edge: old}


def a_flushed_path_is_not_marked(tree):
    """A detached top that claims to be live."""
    node(tree, 50).detached = False


def a_live_node_is_marked_flushed(tree):
    """A live node that claims to be detached."""
    node(tree, 9).detached = True
    tree._forest.num_detached_blocks += 2
    for lock in tree._locks:
        lock._detached = True


def a_lock_missed_the_flush(tree):
    """A lock on a flushed path that would publish findably."""
    next(lock for lock in tree._locks if lock._detached)._detached = False


def a_flushed_path_has_leaked(tree):
    """A flushed path that nobody holds."""
    lock = next(lock for lock in tree._locks if lock._detached)
    tree._locks.remove(lock)
    found = lock._node
    found.lock_count = 0
    tree._forest.num_locked_blocks -= 2


def a_root_has_leaked(tree):
    """A root that holds nothing."""
    tree._forest.root("empty")


def a_root_is_misfiled(tree):
    """A root under another kv_key."""
    tree._forest.roots["other"] = tree._forest.roots.pop(NS)


def a_node_from_the_future(tree):
    """A recency that no operation gave."""
    node(tree, 9).last_access = 10**9


@pytest.mark.parametrize(
    ("corrupt", "fault"),
    [
        (two_nodes_share_a_block, "duplicate block: 1 is in"),
        (a_block_is_dropped, "dropped block"),
        (a_whole_block_is_dropped, "wrong lock end|wrong size: num_blocks"),
        (a_lock_is_counted_twice, "wrong lock count"),
        (a_lock_is_not_counted, "wrong lock count"),
        (a_lock_is_forgotten, "wrong lock count"),
        (a_lock_ends_elsewhere, "wrong lock end"),
        (an_ended_lock_is_kept, "wrong lock record"),
        (a_child_is_under_the_wrong_key, "wrong child key"),
        (a_key_has_changed, "wrong child key"),
        (a_node_is_empty, "empty node"),
        (half_a_block, "part of a block"),
        (a_leaf_has_an_empty_dictionary, "empty children"),
        (a_private_node_above_a_public_one, "wrong scope"),
        (blocks_are_miscounted, "wrong size: num_blocks"),
        (locked_blocks_are_miscounted, "wrong size: num_locked_blocks"),
        (nodes_are_miscounted, "wrong size: num_nodes"),
        (detached_blocks_are_miscounted, "wrong size: num_detached_blocks"),
        (an_account_is_wrong, "wrong account: num_blocks"),
        (an_account_of_locks_is_wrong, "wrong account: num_locked_blocks"),
        (a_node_is_in_a_foreign_account, "wrong account: .* not the one of its namespace"),
        (a_depth_is_wrong, "wrong depth"),
        (a_subtree_is_miscounted, "wrong size: .* below"),
        (a_debt_is_not_listed, "wrong size: .* owes and is not listed"),
        (an_evictable_leaf_is_missing, "sorted container: .* is evictable but not held"),
        (a_locked_leaf_is_held, "sorted container: .* is held but not evictable"),
        (an_entry_is_out_of_date, "sorted container: .* entry out of date"),
        (a_leaf_is_held_twice, "sorted container"),
        (a_stray_entry, "sorted container: .* has an entry but is not held"),
        (the_container_is_out_of_order, "sorted container"),
        (a_flushed_path_is_findable, "findable after a flush"),
        (a_flushed_path_is_not_marked, "wrong detachment"),
        (a_live_node_is_marked_flushed, "wrong detachment"),
        (a_lock_missed_the_flush, "wrong detachment"),
        (a_flushed_path_has_leaked, "leaked"),
        (a_root_has_leaked, "leaked: root 'empty'"),
        (a_root_is_misfiled, "wrong root"),
        (a_node_from_the_future, "wrong recency"),
    ],
)
def test_check_names_the_fault(tree, corrupt, fault):
    """Case 82: each kind of corruption is found and named."""
    corrupt(tree)

    with pytest.raises(CacheCorruptionError, match=fault):
        tree.check()


def test_check_accepts_scopes_and_flushed_private_paths():
    """A sound tree with every kind of node passes."""
    tree, tenant = RadixTree(1), Namespace(NS, "a")
    tree.insert([1, 2], [1, 2], namespace=NS)
    tree.insert([1, 2, 3], [1, 2, 3], namespace=tenant)
    lock = tree.lock([1, 2, 3], namespace=tenant)
    tree.flush(tenant)
    tree.check()
    tree.flush(NS)
    tree.check()

    assert sorted(tree.unlock(lock)) == [1, 2, 3]
    tree.check()
