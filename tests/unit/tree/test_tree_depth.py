"""Cases 44 and 45: nothing in the tree depends on the interpreter's stack."""

import ast
import copy
import gc
import graphlib
import pathlib
import pickle
from array import array

import pytest

import radixcache.tree
from radixcache.tree import RadixTree
from radixcache.tree.policies import POLICIES
from radixcache.tree.view import ORDERS
from radixcache.types import Namespace
from tests.tree_forms import run_shallow

DEPTH = 20_000
NS = "model"


def chain(tree, depth):
    """A path of ``depth`` nodes of one token, each with a lock: one lock an extension."""
    locks = [tree.lock([], namespace=NS)]
    for token in range(depth):
        locks.append(tree.share(locks[-1]))
        locks[-2] = tree.extend(locks[-2], array("i", [token]), array("i", [token])).lock
        locks[-1], locks[-2] = locks[-2], locks[-1]
    return locks


def test_a_chain_of_20000_nodes_passes_through_every_call():
    """Case 45: build, look up, split, list, print, evict, flush and drop a very deep tree."""

    def work():
        tree = RadixTree(1)
        tokens = array("i", range(DEPTH))
        tree.insert(tokens, tokens, namespace=NS)
        for end in range(DEPTH - 1, 0, -1):
            tree.unlock(tree.lock(tokens, namespace=NS, max_tokens=end))
        assert tree.num_nodes == DEPTH

        assert tree.match_len(tokens, namespace=NS) == DEPTH
        assert tree.match(tokens, namespace=NS).block_ids == tokens
        tenant = Namespace(NS, "a")
        assert tree.match_len(tokens, namespace=tenant) == DEPTH
        more = array("i", [*range(DEPTH), 1, 2, 3])
        blocks = range(DEPTH + 3)
        assert tree.insert(more, blocks, namespace=tenant).num_present == DEPTH
        assert len(tree.view(DEPTH + 10).nodes) == DEPTH + 1
        lock = tree.lock(tokens, namespace=NS)
        half = tree.share(lock, DEPTH // 2)
        assert len(lock.block_ids) == DEPTH
        tree.check()
        assert str(DEPTH + 1) in repr(tree)
        assert repr(lock._node)
        assert tree == tree  # comparison must not walk the tree
        assert tree != RadixTree(1)
        tree.unlock(lock)
        assert len(tree.evict(100)) == 100
        tree.flush()
        tree.check()
        assert len(tree.unlock(half)) == DEPTH // 2
        assert tree.num_nodes == 0

    run_shallow(work)


def deep(policy="lru"):
    """A path of 20,000 nodes of one block; its tokens are its block ids."""
    tree = RadixTree(1, policy=policy)
    tokens = array("i", range(DEPTH))
    tree.insert(tokens, tokens, namespace=NS)
    for end in range(DEPTH - 1, 0, -1):
        tree.unlock(tree.lock(tokens, namespace=NS, max_tokens=end))
    assert tree.num_nodes == DEPTH
    return tree, tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_a_deep_path_is_evicted_and_comes_back_under_every_policy(policy):
    """Case 45: eviction climbs the chain, the memory of lost prefixes walks it down again."""

    def work():
        tree, tokens = deep(policy)
        gone = tree.evict(DEPTH - 5)
        assert sorted(gone) == list(range(5, DEPTH))
        tree.check()
        again = tree.insert(tokens, tokens, namespace=NS)
        assert again.num_present == 5
        tree.check()
        assert len(tree.evict(10**9)) == DEPTH

    run_shallow(work)


def test_a_deep_path_passes_through_quotas_pictures_watchers_and_scopes():
    """Case 45: the calls that are not on a request's road."""

    class Counter:
        """Counts blocks."""

        num_stored = num_removed = num_cleared = 0

        def stored(self, namespace, parent, key, ids):
            self.num_stored += len(ids) // 4

        def removed(self, ids):
            self.num_removed += len(ids) // 4

        def cleared(self, namespace):
            self.num_cleared += 1

    def work():
        tree, tokens = deep()
        watcher = Counter()
        tree.replay(watcher)
        assert watcher.num_stored == DEPTH
        tree.watch(watcher)
        for order in ORDERS:
            assert len(tree.view(DEPTH, order=order).nodes) == DEPTH
        assert tree.view(1).nodes[0].subtree_tokens == DEPTH
        tree.set_quota(NS, max_blocks=DEPTH - 100, guaranteed_blocks=DEPTH - 200)
        assert len(tree.trim()) == 100
        assert len(tree.evict(10**6)) == 100
        assert watcher.num_removed == 200
        assert tree.remove_quota(NS)
        lock = tree.lock_match(tree.match(tokens, namespace=NS), priority=3)
        lock = tree.extend(lock, [7], [DEPTH + 1]).lock
        tenant = Namespace(NS, "a")
        assert tree.lock(tokens, namespace=tenant).num_tokens == DEPTH - 200
        tree.flush(tenant)
        tree.flush(NS)
        assert watcher.num_cleared == 2
        tree.check()
        assert not tree.unlock(lock)[1:]

    run_shallow(work)


def test_branches_all_along_a_deep_path_add_up():
    """Case 45: nodes all along the chain owe their parents, each its own change."""

    def work():
        tree, tokens = deep()
        for end in range(0, DEPTH - 1, 500):
            branch = tokens[:end]
            branch.append(-1)
            tree.insert(branch, [*range(end), DEPTH + end], namespace=NS)
        assert tree.view(1).nodes[0].subtree_tokens == DEPTH + len(range(500, DEPTH - 1, 500))
        tree.check()

    run_shallow(work)


def test_a_deep_tree_is_freed_without_recursion():
    """Case 45: dropping the last reference to a deep tree ends in the collector, not in a crash."""

    def work():
        tree = RadixTree(1)
        tokens = array("i", range(DEPTH))
        tree.insert(tokens, tokens, namespace=NS)
        for end in range(DEPTH - 1, 0, -1):
            tree.unlock(tree.lock(tokens, namespace=NS, max_tokens=end))
        del tree
        gc.collect()

    run_shallow(work)


def test_prompts_each_one_token_longer():
    """Case 44: lengths 1 to 20,000; the chain that never branches stays one node."""

    def work():
        tree = RadixTree(1)
        tokens = array("i", range(DEPTH))
        for length in range(1, DEPTH + 1, 7):
            key = memoryview(tokens)[:length]
            tree.insert(key, key, namespace=NS)
        assert tree.num_nodes == 1
        assert tree.match_len(tokens, namespace=NS) == DEPTH - DEPTH % 7 + (1 if DEPTH % 7 else 0)
        tree.check()

    run_shallow(work)


def test_chunks_of_one_token_on_a_long_prompt():
    """Case 44: 2,000 one-token chunks, each guarded by a lock of its own, in every order."""

    def work():
        tree = RadixTree(1)
        locks = chain(tree, 2_000)
        assert tree.num_nodes == 2_000
        tree.check()
        for lock in locks[::2] + locks[1::2]:
            tree.unlock(lock)
        tree.check()
        assert len(tree.evict(10**9)) == 2_000

    run_shallow(work)


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_flushed_chain_of_locks_ends_without_recursion(newest_first):
    """Case 45: flush 2,000 locked nodes, one below the other, then unlock them either way round."""

    def work():
        tree = RadixTree(1)
        locks = chain(tree, 2_000)
        assert len(tree.flush()) == 0
        tree.check()
        locks.sort(key=lambda lock: lock.num_tokens, reverse=newest_first)
        freed = [block for lock in locks for block in tree.unlock(lock)]
        assert sorted(freed) == list(range(2_000))
        tree.check()
        assert (tree.num_nodes, tree.num_blocks, tree.num_locks) == (0, 0, 0)

    run_shallow(work)


@pytest.mark.parametrize(
    "operation", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda operation: operation.__name__
)
def test_copies_are_refused_clearly(operation):
    """Case 45: a second tree over the same blocks would be two owners of one block."""
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        operation(RadixTree(1))


OWNERS = {
    "account": "Account",
    "_book": "AgeBook",
    "entry": "Node",
    "forest": "Forest",
    "_forest": "Forest",
    "heap": "_Picture",
    "lost": "LostPrefixes",
    "match": "Match",
    "node": "Node",
    "parent": "Node",
    "path": "_Path",
    "picture": "_Picture",
    "policy": "EvictionPolicy",
    "_rival": "LruRival",
    "root": "Root",
    "sizes": "Sizes",
    "tree": "RadixTree",
    "_tree": "RadixTree",
}
"""What kind of thing a name stands for in the package, as far as its methods are called."""

VALUES = {"BlockIds", "Extended", "Inserted", "Lock", "Eviction", "Lost", "LostSpan", "TreeWatcher"}
VALUES |= {"_Entry", "_Fork", "_Note", "_Span"}
"""Classes whose methods call nothing of the package, or are somebody else's to write."""


def called_names(function, class_name):
    """What a function calls, as (class or None, name), as far as names tell."""
    for call in (found for found in ast.walk(function) if isinstance(found, ast.Call)):
        if isinstance(call.func, ast.Name):
            yield (None, call.func.id)
        elif isinstance(call.func, ast.Attribute):
            base = call.func.value
            name = base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")
            owner = class_name if name == "self" else OWNERS.get(name)
            if owner is not None:
                yield (owner, call.func.attr)


def relatives(bases):
    """Of each class itself, its bases and what is derived from it, all the way."""
    found = {name: {name} for name in bases}
    for _ in bases:
        for name, above in bases.items():
            for base in above & found.keys():
                found[name] |= found[base]
    return {name: found[name] | {n for n in found if name in found[n]} for name in found}


def test_no_function_of_the_tree_package_reaches_itself():
    """Case 45: neither directly nor by way of others, nor of bases or derived classes."""
    calls, bases = {}, {}
    for path in pathlib.Path(radixcache.tree.__file__).parent.glob("*.py"):
        module = ast.parse(path.read_text())
        for owner in ast.walk(module):
            if isinstance(owner, ast.Module | ast.ClassDef):
                name = owner.name if isinstance(owner, ast.ClassDef) else None
                if name is not None:
                    bases[name] = {base.id for base in owner.bases if isinstance(base, ast.Name)}
                for function in owner.body:
                    if isinstance(function, ast.FunctionDef):
                        found = set(called_names(function, name))
                        calls.setdefault((name, function.name), set()).update(found)
    family = relatives(bases)
    graph = {
        caller: {
            (relative, name) for owner, name in called for relative in family.get(owner, {owner})
        }
        & calls.keys()
        for caller, called in calls.items()
    }

    assert (None, "evict_blocks") in graph["RadixTree", "evict"]
    assert ("Sizes", "cut") in graph["Forest", "unlink"]
    assert ("LfuPolicy", "rank") in graph["SortedPolicy", "_sort"]
    assert ("SortedPolicy", "victim") in graph[None, "_victim"]
    known = set().union(*(family[owner] for owner in OWNERS.values())) | VALUES
    assert bases.keys() <= known, "say in OWNERS what a new class is called by"
    list(graphlib.TopologicalSorter(graph).static_order())  # CycleError names the loop
