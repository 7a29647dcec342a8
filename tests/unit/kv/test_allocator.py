"""One owner a block."""

import random
from array import array

import pytest

from radixcache.errors import CacheCorruptionError, InvalidRequestError, OutOfBlocksError
from radixcache.kv.allocator import BlockAllocator
from radixcache.kv.capacity import (
    blocks_for,
    pool_blocks_for,
    pool_capacity_tokens,
    usable_blocks,
)


def test_block_0_is_never_handed_out():
    """Ids run from 1; the first ones go out in order."""
    allocator = BlockAllocator(5)

    assert allocator.allocate(4) == [1, 2, 3, 4]
    assert allocator.state(0) == "reserved"
    with pytest.raises(OutOfBlocksError, match="1 blocks wanted, 0 free"):
        allocator.allocate(1)


def test_what_does_not_fit_takes_nothing():
    """A refused allocation leaves the free list alone."""
    allocator = BlockAllocator(4)

    with pytest.raises(OutOfBlocksError):
        allocator.allocate(4)
    assert allocator.num_free == 3
    allocator.check(leased=[], tree=[])


def test_blocks_change_hands_and_come_back():
    """Free → leased → tree → free, with the counts."""
    allocator = BlockAllocator(6)
    ids = allocator.allocate(3)
    allocator.publish(ids[:2])

    counts = (allocator.num_free, allocator.num_leased, allocator.num_tree)
    assert counts == (2, 1, 2)
    assert [allocator.state(block) for block in ids] == ["owned by the tree"] * 2 + ["leased"]
    allocator.check(leased=ids[2:], tree=ids[:2])
    allocator.reclaim(ids[:2])
    allocator.free(ids[2:])
    assert allocator.num_free == 5
    allocator.check(leased=[], tree=[])


@pytest.mark.parametrize("verb", ["free", "publish", "reclaim"])
@pytest.mark.parametrize("bad", [[2], [3], [0], [1, 1], [-1], [99]], ids=repr)
def test_a_wrong_owner_is_an_error_and_changes_nothing(verb, bad):
    """Double free, free of the tree's block, publication of a free block, block 0, unknown ids."""
    allocator = BlockAllocator(6)
    leased = allocator.allocate(2)  # 1, 2
    allocator.publish([2])
    good = {"free": [1], "publish": [1], "reclaim": [2]}[verb]
    if set(bad) <= set(good) and len(bad) == 1:
        bad = [5]
    before = [allocator.state(block) for block in range(6)]

    with pytest.raises(CacheCorruptionError, match=rf"{verb}: block"):
        getattr(allocator, verb)([*good, *bad])
    assert [allocator.state(block) for block in range(6)] == before
    allocator.check(leased=leased[:1], tree=[2])


@pytest.mark.parametrize("num_blocks", [40, 150])
def test_random_traffic_stays_exact(num_blocks):
    """Case 79: allocate, free and reuse in any order; counts never drift or go negative."""
    dice, allocator = random.Random(1), BlockAllocator(num_blocks)
    leased, tree = [], []
    for _ in range(2_000):
        verb = dice.choice(["allocate", "free", "publish", "reclaim"])
        if verb == "allocate" and allocator.num_free:
            leased += allocator.allocate(dice.randrange(allocator.num_free + 1))
        elif verb == "reclaim":
            dice.shuffle(tree)
            cut = dice.randrange(len(tree) + 1)
            allocator.reclaim(tree[:cut])
            del tree[:cut]
        elif verb in ("free", "publish"):
            dice.shuffle(leased)
            cut = dice.randrange(len(leased) + 1)
            getattr(allocator, verb)(leased[:cut])
            tree += leased[:cut] if verb == "publish" else []
            del leased[:cut]
        allocator.check(leased=leased, tree=tree)
        assert allocator.num_leased == len(leased)
        assert allocator.num_tree == len(tree)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda a: a._free.append(a._free[0]), "is free twice"),
        (lambda a: a._free.append(1), "block 1 should be free but is leased"),
        (lambda a: a._free.pop(), "lost block: .* is free to nobody"),
        (lambda a: a._states.__setitem__(0, 0), "lost block: 0 is free"),
        (lambda a: setattr(a, "_num_tree", 7), "num_tree says 7"),
    ],
)
def test_check_names_the_fault(damage, fault):
    """Case 82: the pool's own books."""
    allocator = BlockAllocator(5)
    allocator.allocate(2)
    damage(allocator)

    with pytest.raises(CacheCorruptionError, match=fault):
        allocator.check()


def test_check_compares_with_the_owners():
    """A block that its owner forgot, or that somebody else claims, is named."""
    allocator = BlockAllocator(5)
    allocator.allocate(2)

    with pytest.raises(CacheCorruptionError, match="lost block: 2 is leased to nobody"):
        allocator.check(leased=[1])
    with pytest.raises(CacheCorruptionError, match="block 3 should be leased but is free"):
        allocator.check(leased=[1, 2, 3])
    with pytest.raises(CacheCorruptionError, match="block 1 is leased twice"):
        allocator.check(leased=[1, 2, 1])
    with pytest.raises(CacheCorruptionError, match="block 1 should be owned by the tree"):
        allocator.check(tree=[1])
    with pytest.raises(CacheCorruptionError, match=r"block 9 should be owned.*is not in"):
        allocator.check(tree=[9])


@pytest.mark.parametrize("num_blocks", [1, 0, -3, 2.5, None])
def test_a_pool_has_at_least_one_usable_block(num_blocks):
    """The reserved block alone is no pool."""
    with pytest.raises(InvalidRequestError, match="num_blocks"):
        BlockAllocator(num_blocks)


def test_a_negative_allocation_is_refused():
    """Nothing is taken for a count below 0."""
    with pytest.raises(InvalidRequestError, match="num_blocks"):
        BlockAllocator(3).allocate(-1)


@pytest.mark.parametrize("size", [1, 16, 64])
@pytest.mark.parametrize("tokens", [0, 1, 15, 16, 17, 1000])
def test_one_capacity_formula(size, tokens):
    """What fits by the formula is what the allocator can hand out."""
    blocks = blocks_for(tokens, size)
    assert (blocks - 1) * size < tokens <= blocks * size or tokens == blocks == 0
    pool = pool_blocks_for(max(tokens, 1), size)

    assert usable_blocks(pool) >= blocks
    assert pool_capacity_tokens(pool, size) == usable_blocks(pool) * size >= tokens
    assert len(BlockAllocator(pool).allocate(blocks)) == blocks


@pytest.mark.parametrize("verb", ["free", "publish", "reclaim"])
@pytest.mark.parametrize("bad", ["other", 0, -1, 500, "twice"])
@pytest.mark.parametrize("form", [list, lambda ids: array("i", ids)], ids=["list", "array"])
def test_a_wrong_owner_among_many_is_an_error_and_changes_nothing(verb, bad, form):
    """What is done at once for many blocks refuses what the loop for a few refuses."""
    allocator = BlockAllocator(200)
    ids = allocator.allocate(120)
    good, other = ids[:60], ids[60]
    if verb == "reclaim":
        allocator.publish(good)
    else:
        allocator.publish([other])
    before = [allocator.state(block) for block in range(200)]
    wrong = {"other": other, "twice": good[7]}.get(bad, bad)

    with pytest.raises(CacheCorruptionError, match=rf"{verb}: block {wrong}"):
        getattr(allocator, verb)(form([*good[:40], wrong, *good[40:]]))
    assert [allocator.state(block) for block in range(200)] == before
    getattr(allocator, verb)(form(good[::-1]))
    after = {"free": "free", "publish": "owned by the tree", "reclaim": "free"}[verb]
    assert {allocator.state(block) for block in good} == {after}
    allocator.check()
