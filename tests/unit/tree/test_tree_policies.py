"""Cases E5–E11: which leaf goes first under each policy, and what keeps the order right."""

from functools import partial

import pytest

from radixcache.errors import InvalidRequestError
from radixcache.tree import RadixTree
from radixcache.tree.account import Account
from radixcache.tree.node import Node
from radixcache.tree.policies import POLICIES, policy_factory
from radixcache.tree.policy import (
    FifoPolicy,
    LfuPolicy,
    LruPolicy,
    PriorityPolicy,
    SlruPolicy,
)
from radixcache.types import Namespace
from tests.tree_forms import NS, get, put


def order_of(policy, leaves):
    """Give a policy leaves with these figures; return them as they would be evicted."""
    account = Account(Namespace.of(NS), policy)
    held = {}
    for number, figures in enumerate(leaves, 1):
        leaf = Node(number, None, account, b"", bytearray(), bytearray(), 0)
        for name, value in figures.items():
            setattr(leaf, name, value)
        held[leaf] = tuple(figures.values())
        policy.add(leaf)
    policy.check()
    order = []
    while (leaf := policy.victim()) is not None:
        policy.remove(leaf)
        order.append(held[leaf])
    return order


def use(tree, tokens, times=1):
    """Look up as a request does."""
    for _ in range(times):
        tree.unlock(tree.lock(tokens, namespace=NS))


class TestOrders:
    @pytest.mark.parametrize(
        ("policy", "leaves", "order"),
        [
            (LruPolicy(), [(5,), (1,), (3,)], [(1,), (3,), (5,)]),
            (LfuPolicy(), [(100, 1), (1, 10)], [(1, 10), (100, 1)]),
            (LfuPolicy(), [(2, 9), (2, 4), (1, 10)], [(1, 10), (2, 4), (2, 9)]),
            (
                SlruPolicy(2),
                [(5, 1), (0, 10), (0, 2), (3, 8)],
                [(0, 2), (0, 10), (5, 1), (3, 8)],
            ),
            (SlruPolicy(5), [(5, 1), (4, 2)], [(4, 2), (5, 1)]),
            (SlruPolicy(), [(1, 1), (0, 2)], [(0, 2), (1, 1)]),
            (FifoPolicy(), [(3, 1), (1, 9), (2, 5)], [(1, 9), (2, 5), (3, 1)]),
            (PriorityPolicy(), [(1, 1), (0, 9), (0, 5)], [(0, 5), (0, 9), (1, 1)]),
        ],
        ids=["lru", "lfu", "lfu-ties", "slru", "slru-5", "slru-default", "fifo", "priority"],
    )
    def test_leaves_go_in_the_order_of_their_rank(self, policy, leaves, order):
        """Cases E9–E11: by recency, hits, segment, birth and priority, exactly."""
        names = {
            LruPolicy: ("last_access",),
            LfuPolicy: ("num_hits", "last_access"),
            SlruPolicy: ("num_hits", "last_access"),
            FifoPolicy: ("created", "last_access"),
            PriorityPolicy: ("priority", "last_access"),
        }[type(policy)]

        assert order_of(policy, [dict(zip(names, leaf, strict=True)) for leaf in leaves]) == order

    @pytest.mark.parametrize("policy", POLICIES)
    def test_equal_leaves_go_oldest_node_first(self, policy):
        """With nothing to tell them apart, the order is still one."""
        policy = POLICIES[policy]()
        account = Account(Namespace.of(NS), policy)
        empty = (b"", bytearray(), bytearray(), 0)
        leaves = [Node(number, None, account, *empty) for number in (3, 1, 2)]
        for leaf in leaves:
            leaf.key, leaf.ids = bytearray(4), bytearray(4)
            policy.add(leaf)

        assert [leaf.node_id for leaf in policy] == [1, 2, 3]
        assert policy.victim() is leaves[1]

    def test_lru_evicts_what_was_used_longest_ago(self):
        """Case E5: in a tree, by look-ups that count."""
        tree = RadixTree(1, policy="lru")
        for token in (1, 2, 3):
            put(tree, [token], [token])
        use(tree, [1])

        assert [tree.evict(1)[0] for _ in range(3)] == [2, 3, 1]

    def test_lfu_evicts_what_was_used_least_often(self):
        """Cases E5 and E9: a much used prefix outlives a fresh one."""
        tree = RadixTree(1, policy="lfu")
        put(tree, [1], [1])
        use(tree, [1], times=5)
        put(tree, [2], [2])
        use(tree, [2], times=2)
        put(tree, [3], [3])
        use(tree, [3], times=2)

        assert [tree.evict(1)[0] for _ in range(3)] == [2, 3, 1]

    def test_slru_protects_what_was_used_again(self):
        """Cases E5 and E10: a scan of fresh prefixes passes without harm to those in use."""
        tree = RadixTree(1, policy="slru")
        put(tree, [1], [1])
        use(tree, [1])
        for token in range(10, 20):
            put(tree, [token], [token])

        assert [tree.evict(1)[0] for _ in range(10)] == list(range(10, 20))
        assert tree.evict(1) == [1]

    def test_slru_takes_its_threshold_from_the_caller(self):
        """Case E11: 4 of 5 hits are not enough."""
        tree = RadixTree(1, policy=partial(SlruPolicy, 5))
        put(tree, [1], [1])
        put(tree, [2], [2])
        use(tree, [1], times=5)
        use(tree, [2], times=4)

        assert [tree.evict(1)[0] for _ in range(2)] == [2, 1]

    def test_fifo_evicts_what_was_stored_first(self):
        """Case E5: use does not count; a conversation has the age of its first turn."""
        tree = RadixTree(1, policy="fifo")
        put(tree, [1], [1])
        put(tree, [2], [2])
        put(tree, [3], [3])
        use(tree, [1], times=5)
        put(tree, [1, 4], [1, 4])

        assert [tree.evict(1)[0] for _ in range(4)] == [4, 1, 2, 3]

    def test_priority_evicts_the_lowest_first(self):
        """Case E5: of equal ones the least recent."""
        tree = RadixTree(1, policy="priority")
        for token, priority in ((1, 1), (2, 0), (3, 2), (4, 0)):
            tree.insert([token], [token], namespace=NS, priority=priority)
        use(tree, [2])

        assert [tree.evict(1)[0] for _ in range(4)] == [4, 2, 1, 3]


def test_a_split_makes_nothing_younger():
    """Case E5: the upper part of an old prefix is as old, under fifo, as the whole was."""
    tree = RadixTree(1, policy="fifo")
    put(tree, [1, 2], [1, 2])
    put(tree, [5], [5])
    use(tree, [1])

    assert [tree.evict(1)[0] for _ in range(3)] == [2, 1, 5]


class TestPriorities:
    def priorities(self, tree):
        """Priority of each node, by its block ids."""
        nodes = tree._forest.nodes()
        return {tuple(memoryview(n.ids).cast("i")): n.priority for n in nodes}

    def test_a_path_keeps_the_highest_it_has_had(self):
        """Case E6: an insert raises the whole path, a lower one later takes nothing away."""
        tree = RadixTree(1, policy="priority")
        put(tree, [1, 2], [1, 2])
        put(tree, [1, 3], [1, 3])
        tree.insert([1, 2, 4], [1, 2, 4], namespace=NS, priority=5)
        tree.insert([1, 3, 9], [1, 3, 9], namespace=NS, priority=2)
        put(tree, [1, 2, 4], [1, 2, 4])

        assert self.priorities(tree) == {(1,): 5, (2, 4): 5, (3, 9): 2}
        assert list(tree.evict(2)) == [3, 9]

    def test_a_split_copies_it(self):
        """Case E6: both parts of a node that is cut have the priority of the whole."""
        tree = RadixTree(1, policy="priority")
        tree.insert([1, 2, 3, 4], [1, 2, 3, 4], namespace=NS, priority=3)
        put(tree, [1, 2, 9], [1, 2, 9])

        assert self.priorities(tree) == {(1, 2): 3, (3, 4): 3, (9,): 0}

    @pytest.mark.parametrize("first", [[], [1, 2]])
    def test_what_a_lock_finds_and_publishes_has_its_priority(self, first):
        """Case E6: from its first chunk to its last, a fork's part included."""
        tree = RadixTree(1, policy="priority")
        put(tree, first, first)
        lock = tree.lock(first, namespace=NS, priority=4)
        lock = tree.extend(lock, [3], [3]).lock
        twin = tree.share(lock)
        lock = tree.extend(lock, [5], [5]).lock
        twin = tree.extend(twin, [6], [6]).lock
        put(tree, [9], [9])

        assert {value for key, value in self.priorities(tree).items() if key != (9,)} == {4}
        tree.unlock(lock)
        tree.unlock(twin)
        assert tree.evict(1) == [9]

    def test_an_extension_over_present_blocks_raises_them(self):
        """Case E6: what somebody else published meanwhile is part of the path."""
        tree = RadixTree(1, policy="priority")
        lock = tree.lock([], namespace=NS, priority=4)
        put(tree, [1, 2], [1, 2])
        lock = tree.extend(lock, [1, 2, 3], [11, 12, 13]).lock
        tree.unlock(lock)

        assert set(self.priorities(tree).values()) == {4}


class TestHits:
    def hits(self, tree):
        """Hits of each node, by its first block."""
        return {memoryview(n.ids).cast("i")[0]: n.num_hits for n in tree._forest.nodes()}

    def test_inserts_and_locks_count_once_each(self):
        """Case E7: on the whole path they find, and nothing on what they add."""
        tree = RadixTree(1)
        put(tree, [1, 2], [1, 2])
        put(tree, [1, 2, 3], [1, 2, 3], Namespace(NS, "a"))
        use(tree, [1, 2])
        put(tree, [1, 5], [1, 5])

        assert self.hits(tree) == {1: 3, 2: 2, 3: 0, 5: 0}

    def test_one_request_is_one_hit_however_many_chunks_and_forks(self):
        """Case E7: share and extend count nothing more on what was locked."""
        tree = RadixTree(1)
        put(tree, [1], [1])
        lock = tree.lock([1], namespace=NS)
        fork = tree.share(lock)
        before = tree._forest.tick
        for token in (2, 3, 4):
            lock = tree.extend(lock, [token], [token]).lock
        tree.unlock(tree.share(fork))

        assert self.hits(tree) == {1: 1, 2: 0}
        assert tree._forest.tick == before + 3

    def test_a_look_up_counts_nothing(self):
        """Case E7: match and view leave hits alone."""
        tree = RadixTree(1)
        put(tree, [1, 2], [1, 2])
        get(tree, [1, 2])
        tree.match_len([1], namespace=NS)
        tree.view(9)

        assert self.hits(tree) == {1: 0}


class TestJoining:
    """Two nodes become one only if that changes nothing in the order of eviction."""

    @pytest.mark.parametrize(
        ("policy", "joined"),
        [("lru", 1), ("lfu", 2), ("slru", 2), ("fifo", 2), ("priority", 1)],
    )
    def test_a_used_prefix_and_a_fresh_tail(self, policy, joined):
        """They differ in hits, segment and birth, not in recency and priority."""
        tree = RadixTree(1, policy=policy)
        put(tree, [1], [1])
        old, new = (tree.lock([1], namespace=NS) for _ in range(2))
        new = tree.extend(new, [2], [2]).lock
        tree.unlock(old)
        tree.unlock(new)
        tree.check()

        assert tree.num_nodes == joined

    def test_priorities_that_differ_stay_apart(self):
        """A tail of low priority does not hide behind its prefix."""
        tree = RadixTree(1, policy="priority")
        put(tree, [1, 2], [1, 2])
        tree.unlock(tree.lock([1], namespace=NS, priority=1))
        use(tree, [1, 2])
        put(tree, [5], [5])
        tree.check()

        assert tree.num_nodes == 3
        assert [tree.evict(1)[0] for _ in range(3)] == [2, 5, 1]

    def test_fifo_keeps_apart_what_was_used_at_different_times(self):
        """Among namespaces with quotas the least recent gives way: a join must not age a prefix."""
        tree = RadixTree(1, policy="fifo")
        put(tree, [1, 2], [1, 2])
        tail = tree.lock([1, 2], namespace=NS)
        put(tree, [9], [9], "other")
        prefix = tree.lock([1], namespace=NS)
        tree.unlock(prefix)
        tree.unlock(tail)
        tree.set_quota("other")

        assert tree.num_nodes == 3
        assert [tree.evict(1)[0] for _ in range(3)] == [2, 9, 1]


class TestNames:
    def test_unknown_names_are_refused_with_those_there_are(self):
        """Case E5: the error says what was asked for and every name that works."""
        for name in ("", "LRU", "mru", "filo"):
            with pytest.raises(InvalidRequestError) as refused:
                RadixTree(policy=name)
            assert all(known in str(refused.value) for known in POLICIES)
            assert repr(name) in str(refused.value)

    @pytest.mark.parametrize("policy", POLICIES)
    def test_every_name_makes_a_tree_that_works(self, policy):
        """Case E5: each policy holds what is evictable, and gives it up."""
        tree = RadixTree(2, policy=policy)
        put(tree, [1, 1, 2, 2, 3, 3], [1, 2, 3])
        put(tree, [1, 1, 4, 4], [1, 4])
        use(tree, [1, 1, 2, 2])
        tree.check()

        assert sorted(tree.evict(9)) == [1, 2, 3, 4]
        tree.check()

    def test_two_trees_share_no_order(self):
        """A name makes a new policy each time; a factory of one's own is used as it is."""
        assert POLICIES["lru"]() is not POLICIES["lru"]()
        made = []
        factory = policy_factory(lambda: made.append(LruPolicy()) or made[-1])
        tree = RadixTree(1, policy=factory)
        put(tree, [1], [1])

        assert [len(policy) for policy in made] == [1]


class Listener(LruPolicy):
    """Writes down what it is told, and leaves a note with what goes."""

    def __init__(self, told):
        super().__init__()
        self.told = told

    def hit(self, node, num_blocks):
        self.told.append(("hit", node.node_id, node.num_blocks, num_blocks))

    def stored(self, node, num_blocks, ghosts):
        notes = [ghost.note for ghost in ghosts]
        self.told.append(("stored", node.node_id, node.num_blocks, num_blocks, notes))

    def evicted(self, leaf, num_blocks):
        self.told.append(("evicted", leaf.node_id, leaf.num_blocks, num_blocks))
        return f"note {len(self.told)}"


class TestWhatPoliciesLearn:
    def test_growth_hits_and_evictions(self):
        """How much of which node, before it is cut; what is pure tells them nothing."""
        told = []
        tree = RadixTree(2, policy=partial(Listener, told))
        put(tree, [1, 1, 2, 2, 3, 3], [1, 2, 3])
        (node,) = tree._forest.nodes()
        assert told[-1] == ("stored", node.node_id, 3, 3, [])
        told.clear()
        tree.match([1, 1, 2, 2], namespace=NS)
        tree.view(9)
        assert told == []
        tree.unlock(tree.lock([1, 1, 2, 2], namespace=NS))
        assert told == [("hit", node.node_id, 3, 2)]
        told.clear()
        put(tree, [1, 1, 2, 2, 3, 3, 4, 4], [1, 2, 3, 4])

        assert told == [("hit", node.node_id, 1, 1), ("stored", node.node_id, 2, 1, [])]

    def test_what_comes_back_comes_with_its_notes(self):
        """Trimmed in two steps, back in one: the nearest piece first."""
        told = []
        tree = RadixTree(1, policy=partial(Listener, told))
        put(tree, [1, 2, 3, 4], [1, 2, 3, 4])
        (node,) = tree._forest.nodes()
        told.clear()
        tree.evict(1)
        tree.evict(2)
        put(tree, [1, 2, 3, 4], [1, 2, 3, 4])

        assert told == [
            ("evicted", node.node_id, 4, 1),
            ("evicted", node.node_id, 3, 2),
            ("hit", node.node_id, 1, 1),
            ("stored", node.node_id, 4, 3, ["note 2", "note 1"]),
        ]
