"""The hook that cache events are built on: a watcher knows what can be found, at each step."""

import random
from array import array

import pytest

from radixcache.tree import RadixTree
from radixcache.types import PUBLIC, Namespace
from tests.tree_driver import TreeDriver
from tests.tree_forms import NS, put
from tests.tree_steps import random_step

A = Namespace(NS, "a")


class Recorder:
    """Writes down what it is told."""

    def __init__(self):
        self.told = []

    def stored(self, namespace, parent, key, ids):
        key, ids = (array("i", bytes(part)).tolist() for part in (key, ids))
        self.told.append(("stored", namespace, array("i", bytes(parent)).tolist(), key, ids))

    def removed(self, ids):
        self.told.append(("removed", array("i", bytes(ids)).tolist()))

    def cleared(self, namespace):
        self.told.append(("cleared", namespace))


class Mirror(Recorder):
    """Keeps the findable blocks: id -> (namespace, id of the block before, key ids)."""

    def __init__(self, block_size):
        super().__init__()
        self.size = block_size
        self.blocks = {}

    def stored(self, namespace, parent, key, ids):
        super().stored(namespace, parent, key, ids)
        _, _, before, key, ids = self.told.pop()
        assert not before or before[0] in self.blocks
        for number, block in enumerate(ids):
            assert block not in self.blocks
            part = tuple(key[number * self.size : (number + 1) * self.size])
            self.blocks[block] = (namespace, *before, part)
            before = [block]

    def removed(self, ids):
        for block in array("i", bytes(ids)):
            del self.blocks[block]

    def cleared(self, namespace):
        for block, (owner, *_) in [*self.blocks.items()]:
            if namespace is None or (
                owner.kv_key == namespace.kv_key and namespace.scope in (PUBLIC, owner.scope)
            ):
                del self.blocks[block]


def test_it_hears_who_stored_what_and_after_which_block():
    """Growth, a branch inside a node, and a tenant's part below a PUBLIC one."""
    tree, watcher = RadixTree(2), Recorder()
    tree.watch(watcher)
    put(tree, [1, 1, 2, 2], [5, 6])
    put(tree, [1, 1, 2, 2, 3, 3, 9], [5, 6, 7])
    put(tree, [1, 1, 4, 4], [50, 8])
    put(tree, [1, 1, 2, 2, 5, 5], [0, 0, 9], A)
    space = Namespace(NS, "")

    assert watcher.told == [
        ("stored", space, [], [1, 1, 2, 2], [5, 6]),
        ("stored", space, [6], [3, 3], [7]),
        ("stored", space, [5], [4, 4], [8]),
        ("stored", A, [6], [5, 5], [9]),
    ]


def test_it_hears_exactly_what_was_evicted_and_flushed():
    """Tails in the order of their tokens; of a flush whose it was."""
    tree, watcher = RadixTree(1), Recorder()
    put(tree, [1, 2, 3], [1, 2, 3])
    put(tree, [7], [7], A)
    tree.watch(watcher)
    tree.evict(2)
    tree.flush(A)
    tree.evict(9)
    tree.flush()

    assert watcher.told == [
        ("removed", [2, 3]),
        ("cleared", A),
        ("removed", [1]),
        ("cleared", None),
    ]


def test_it_hears_nothing_of_what_cannot_be_found():
    """After a flush a locked path grows unseen; and nothing more once nobody watches."""
    tree, watcher = RadixTree(1), Recorder()
    put(tree, [1], [1])
    lock = tree.lock([1], namespace=NS)
    tree.flush()
    tree.watch(watcher)
    lock = tree.extend(lock, [2], [2]).lock
    tree.unlock(lock)
    tree.match([1], namespace=NS)
    assert watcher.told == []
    tree.watch(None)
    put(tree, [1], [1])

    assert watcher.told == []


@pytest.mark.parametrize("block_size", [1, 4])
def test_a_mirror_holds_what_can_be_found(block_size):
    """Case V6: 1,500 random operations; a second index built from the calls equals the tree."""
    driver, dice = TreeDriver(block_size), random.Random(block_size)
    mirror = Mirror(block_size)
    driver.tree.watch(mirror)
    for step in range(1_500):
        random_step(driver, dice)
        findable = [b for b in driver.model.blocks.values() if not b.detached]
        assert mirror.blocks.keys() == {b.block_id for b in findable}
        if step % 50 == 0:
            for b in findable:
                owner, *before, part = mirror.blocks[b.block_id]
                assert (owner.kv_key, owner.scope, part) == (b.kv_key, b.scope, b.tokens)
                assert before == ([] if b.parent.parent is None else [b.parent.block_id])


@pytest.mark.parametrize("at", ["stored", "removed", "cleared"])
def test_a_watcher_that_raises_harms_nobody(at, caplog):
    """The change is whole, the failure is logged, and nothing more is told."""

    class Failing(Recorder):
        pass

    def fail(self, *facts):
        raise RuntimeError("the watcher's own fault")

    setattr(Failing, at, fail)
    tree, watcher = RadixTree(1), Failing()
    tree.watch(watcher)
    lock = tree.lock([1], namespace=NS)
    lock = tree.extend(lock, [1], [1]).lock
    put(tree, [1, 2, 3], [1, 2, 3])
    tree.evict(1)
    tree.flush(NS)
    tree.check()
    told = list(watcher.told)
    put(tree, [7], [7])

    assert tree.unlock(lock) == [1]
    assert watcher.told == told
    assert f"failed at {at}" in caplog.text
    tree.check()
