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


def called_names(function, class_name):
    """What a function calls, as (class or None, name), as far as names tell."""
    known = {
        "forest": "Forest",
        "_forest": "Forest",
        "policy": "SortedPolicy",
        "sizes": "Sizes",
        "lost": "LostPrefixes",
        "_tree": "RadixTree",
    }
    for call in (found for found in ast.walk(function) if isinstance(found, ast.Call)):
        if isinstance(call.func, ast.Name):
            yield (None, call.func.id)
        elif isinstance(call.func, ast.Attribute):
            base = call.func.value
            name = base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")
            owner = class_name if name == "self" else known.get(name)
            if owner is not None:
                yield (owner, call.func.attr)


def test_no_function_of_the_tree_package_reaches_itself():
    """Case 45: neither directly nor by way of others does a function call itself."""
    graph = {}
    for path in pathlib.Path(radixcache.tree.__file__).parent.glob("*.py"):
        module = ast.parse(path.read_text())
        for owner in ast.walk(module):
            if isinstance(owner, ast.Module | ast.ClassDef):
                name = owner.name if isinstance(owner, ast.ClassDef) else None
                for function in owner.body:
                    if isinstance(function, ast.FunctionDef):
                        calls = set(called_names(function, name))
                        graph.setdefault((name, function.name), set()).update(calls)

    assert (None, "evict_blocks") in graph[("RadixTree", "evict")]
    assert ("Sizes", "cut") in graph[("Forest", "unlink")]
    list(graphlib.TopologicalSorter(graph).static_order())  # CycleError names the loop
