"""Why a look-up matched as much as it did."""

from array import array

import pytest

from radixcache import PrefixCache
from radixcache.errors import InvalidRequestError
from radixcache.explanation import EvictedPrefix, Explanation, MissCause, NamespaceMatch
from radixcache.tree import RadixTree
from radixcache.tree import explain as explain_module
from radixcache.types import PUBLIC, Namespace
from tests.tree_forms import NS, put, run_shallow

A, B = Namespace(NS, "a"), Namespace(NS, "b")


class Clock:
    """Seconds that pass when told to."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    """A clock for one test."""
    return Clock()


@pytest.fixture
def tree(clock):
    """A tree of single tokens on that clock."""
    return RadixTree(1, clock=clock)


def why(tree, tokens, namespace=NS, **options):
    """Explain."""
    return tree.explain(tokens, namespace=namespace, **options)


# -- one for each cause ------------------------------------------------------------------------


def test_a_hit_says_that_one_token_is_computed_all_the_same(tree):
    """Whole match; the rule of at least one fresh token is part of the answer."""
    put(tree, range(2048), range(2048))
    found = why(tree, range(2048))

    assert (found.cause, found.matched_tokens, found.reusable_tokens) == (MissCause.HIT, 2048, 2047)
    assert found.summary == (
        "matched all 2,048 tokens; a request still computes the last token, because it reuses "
        "whole blocks and at least one token must be fresh"
    )


def test_a_hit_on_whole_blocks_costs_a_request_the_last_block():
    """What a look-up matches and what acquire reuses differ by a block; both are said."""
    cache = PrefixCache(num_blocks=9, block_size=4)
    lease = cache.acquire(NS, range(8))
    lease.extend(8)
    lease.commit(range(8), 8)
    lease.release()
    found = cache.explain(NS, range(8))

    assert (found.matched_tokens, found.reusable_tokens) == (8, 4)
    assert found.reusable_tokens == cache.acquire(NS, range(8)).num_cached_tokens
    assert "computes the last 4 tokens" in found.summary


def test_no_tokens_are_no_miss(tree):
    """The empty prompt."""
    assert why(tree, []).cause is MissCause.HIT
    assert why(tree, []).summary == "there are no tokens to match"
    assert why(tree, []).reusable_tokens == 0


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        (10, "matched 8 of 10 tokens; the last 2 tokens do not fill a block of 4"),
        (9, "matched 8 of 9 tokens; the last token does not fill a block of 4"),
        (3, "matched 0 of 3 tokens; the prompt is shorter than a block of 4"),
    ],
)
def test_a_tail_below_a_block_is_named_as_such(size, sentence):
    """Alignment, whatever else is cached there."""
    tree = RadixTree(4)
    put(tree, range(8), [1, 2])
    put(tree, [*range(8), 8, 9, 10, 99], [1, 2, 3])
    found = why(tree, range(size))

    assert (found.cause, found.tail_tokens) == (MissCause.ALIGNMENT, size % 4)
    assert found.summary == f"{sentence}, and only whole blocks are cached"
    assert found.reusable_tokens == found.matched_tokens


def test_evicted_names_the_time_the_pressure_and_how_much(tree, clock):
    """The sentence of the product."""
    put(tree, range(2048), range(2048))
    tree.evict(512, cause="room was needed for another sequence")
    clock.now += 40
    found = why(tree, range(2048))

    assert found.cause is MissCause.EVICTED
    assert found.evicted == EvictedPrefix(
        num_tokens=512, evicted_s=40.0, evicted_by="room was needed for another sequence"
    )
    assert found.summary == (
        "matched 1,536 of 2,048 tokens; the rest was evicted 40 s ago because room was needed "
        "for another sequence (512 tokens)"
    )


def test_evicted_in_part_says_how_much_would_have_matched(tree, clock):
    """What goes on beyond the lost piece was never there."""
    put(tree, [1, 2, 3, 4], range(4))
    tree.evict(3)
    clock.now += 0.25
    found = why(tree, [1, 2, 3, 9, 9])

    assert found.evicted.num_tokens == 2
    assert found.summary == (
        "matched 1 of 5 tokens; what follows was evicted 250 ms ago because evict() was called "
        "(2 of the 4 missing tokens)"
    )


def test_diverged_names_the_token_and_both_continuations(clock):
    """Exact to the token although blocks match whole; the branch with its use and age."""
    tree = RadixTree(4, clock=clock)
    put(tree, range(40), range(10))
    tree.unlock(tree.lock(range(40), namespace=NS))
    clock.now += 3
    prompt = [*range(10), *range(70, 91)]
    found = why(tree, prompt)
    fork = found.diverged

    assert (found.cause, found.matched_tokens, fork.at) == (MissCause.DIVERGED, 8, 10)
    assert fork.cached_token_ids == tuple(range(10, 26))
    assert fork.asked_token_ids == tuple(range(70, 86))
    assert (fork.num_hits, fork.last_access_s, fork.scope) == (1, 3.0, PUBLIC)
    assert (fork.node_id, fork.num_tokens) == (tree.view(1).nodes[0].node_id, 40)
    assert found.summary == (
        "matched 8 of 31 tokens; at token 10, counted from 0, the prompt goes on with 70 71 72 … "
        "and the nearest cached branch with 10 11 12 … (only whole blocks of 4 match)"
    )


def test_of_several_branches_the_one_that_agrees_longest_is_named():
    """Then the most used, then the most recent."""
    tree = RadixTree(4)
    put(tree, [1, 1, 1, 1], [1])
    for number, last in enumerate([[5, 0, 0, 0], [5, 6, 0, 0], [5, 6, 1, 0], [9, 9, 9, 9]]):
        put(tree, [1, 1, 1, 1, *last], [1, 10 + number])
    asked = [1, 1, 1, 1, 5, 6, 7, 8]

    assert why(tree, asked).diverged.cached_token_ids == (1, 0)
    tree.unlock(tree.lock([1, 1, 1, 1, 5, 6, 0, 0], namespace=NS))
    assert why(tree, asked).diverged.cached_token_ids == (0, 0)
    assert why(tree, asked).diverged.at == 6
    assert why(tree, [1, 1, 1, 1, 3, 3, 3, 3]).diverged.at == 4


def test_never_seen_says_that_nothing_else_was_looked_at(tree):
    """Nothing begins alike, or nothing goes on."""
    put(tree, [1, 2], [1, 2])
    first, rest = why(tree, [7, 8]), why(tree, [1, 2, 3])

    assert (first.cause, rest.cause) == (MissCause.NEVER_SEEN, MissCause.NEVER_SEEN)
    assert (first.diverged, first.num_namespaces_looked_at) == (None, 0)
    assert first.summary == (
        "matched 0 of 2 tokens; nothing that begins like it has been cached "
        "(other namespaces were not looked at)"
    )
    assert rest.summary == (
        "matched 2 of 3 tokens; the rest has not been cached (other namespaces were not looked at)"
    )


def test_a_namespace_that_was_never_used_has_seen_nothing(tree):
    """No root, no memory."""
    assert why(tree, [1], "unknown").cause is MissCause.NEVER_SEEN
    assert tree._forest.roots == {}


def test_eviction_comes_before_divergence_and_both_are_told(tree, clock):
    """A branch parts where the own continuation was lost."""
    put(tree, [1, 2, 3, 4], [1, 2, 3, 4])
    put(tree, [1, 2, 8, 9], [1, 2, 8, 9])
    tree.evict(2)
    found = why(tree, [1, 2, 3, 4])

    assert found.cause is MissCause.EVICTED
    assert found.evicted.num_tokens == 2
    assert (found.diverged.at, found.diverged.cached_token_ids) == (2, (8, 9))


# -- namespaces --------------------------------------------------------------------------------


def test_another_namespace_is_looked_at_only_when_asked(tree):
    """An operator learns who holds more; by default nobody does."""
    put(tree, [1, 2, 3], [1, 2, 3], A)
    put(tree, [1], [4], "other")
    put(tree, [1, 2], [4, 5], Namespace("other", "c"))
    put(tree, [1, 2, 7], [6, 7, 8], B)
    found = why(tree, [1, 2, 3, 4], B, look_elsewhere=True)

    assert found.cause is MissCause.OTHER_NAMESPACE
    assert found.elsewhere == (NamespaceMatch(namespace=NS, scope="a", matched_tokens=3),)
    assert (found.num_namespaces_looked_at, found.all_namespaces_looked_at) == (3, True)
    assert found.summary == (
        "matched 2 of 4 tokens; scope 'a' of namespace 'model' holds 3, which a look-up in this "
        "one does not see"
    )
    quiet = why(tree, [1, 2, 3, 4], B)
    assert (quiet.cause, quiet.elsewhere) == (MissCause.DIVERGED, ())
    third = why(tree, [1, 2], "third", look_elsewhere=True)
    assert [(m.namespace, m.scope, m.matched_tokens) for m in third.elsewhere] == [
        (NS, "a", 2),
        (NS, "b", 2),
        ("other", "c", 2),
        ("other", PUBLIC, 1),
    ]
    tree.flush(NS)
    tree.flush(Namespace("other", "c"))
    public = why(tree, [1, 2], "third", look_elsewhere=True).summary
    assert "the public scope of namespace 'other' holds 1" in public


def test_looking_elsewhere_is_bounded_and_says_so(tree, monkeypatch):
    """Three roots, room for two; then all, in vain."""
    for kv_key in "xyz":
        put(tree, [1], [ord(kv_key)], kv_key)
    none = why(tree, [2], look_elsewhere=True)
    monkeypatch.setattr(explain_module, "_MAX_NAMESPACES", 2)
    some = why(tree, [2], look_elsewhere=True)

    assert (none.num_namespaces_looked_at, none.all_namespaces_looked_at) == (3, True)
    assert none.summary.endswith("cached, nor in other namespaces")
    assert (some.num_namespaces_looked_at, some.all_namespaces_looked_at) == (2, False)
    assert some.summary.endswith("cached, nor in the 2 other namespaces looked at")


def test_a_tenant_learns_nothing_of_another_tenants_branches(tree):
    """Neither where they part, nor what was evicted."""
    put(tree, [1, 2], [1, 2])
    put(tree, [1, 2, 3, 4], [1, 2, 3, 4], A)
    put(tree, [1, 2, 5, 6], [1, 2, 5, 6], B)
    mine = why(tree, [1, 2, 5, 6], A)

    assert mine.diverged.cached_token_ids == (3, 4)
    assert mine.diverged.scope == "a"
    tree.evict(4)
    assert why(tree, [1, 2, 5, 6], A).cause is MissCause.NEVER_SEEN
    assert why(tree, [1, 2, 5, 6]).cause is MissCause.NEVER_SEEN
    assert why(tree, [1, 2, 5, 6], B).evicted.num_tokens == 2


def test_a_scope_sees_what_it_and_everybody_lost(tree, clock):
    """PUBLIC pieces, private ones below them, and a private branch beside a later PUBLIC path."""
    put(tree, [1, 2, 3], [1, 2, 3], A)
    put(tree, [1, 2], [11, 12])
    put(tree, [1, 2, 4], [11, 12, 14], A)
    tree.evict(1, cause="first")
    clock.now += 5
    # The private branch that began at the root went; what the PUBLIC path has now is shorter.
    assert why(tree, [1, 2, 3], A).evicted == EvictedPrefix(
        num_tokens=1, evicted_s=5.0, evicted_by="first"
    )
    assert why(tree, [1, 2, 3]).evicted is None
    tree.evict(99, cause="all")
    clock.now += 1
    assert why(tree, [1, 2, 4], A).evicted == EvictedPrefix(
        num_tokens=3, evicted_s=1.0, evicted_by="all"
    )
    assert why(tree, [1, 2, 4]).evicted.num_tokens == 2
    assert why(tree, [1, 2, 3], A).evicted.num_tokens == 3


# -- what becomes of the memory ----------------------------------------------------------------


def test_what_comes_back_is_not_lost_any_more(tree):
    """In part, then whole; the rest of the piece stays known."""
    put(tree, [1, 2, 3, 4], range(4))
    tree.evict(3)
    put(tree, [1, 2, 3, 7], range(10, 14))

    assert why(tree, [1, 2, 3, 4]).evicted.num_tokens == 1
    assert why(tree, [1, 2, 3, 7]).cause is MissCause.HIT
    put(tree, [1, 2, 3, 4], range(20, 24))
    assert len(tree._forest.lost) == 0
    assert tree._forest.lost.num_tokens == 0


def branched_and_trimmed(tree):
    """[1 2] of what was [1 2 3 4], which two branches 5 and 9 hung from."""
    put(tree, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    put(tree, [1, 2, 3, 4, 9], [1, 2, 3, 4, 9])
    tree.evict(4)
    assert why(tree, [1, 2, 3, 4, 9]).evicted.num_tokens == 3


def test_what_hung_from_a_trimmed_tail_hangs_from_nothing_that_grows_in_its_place(tree):
    """A leaf trimmed and grown again with other tokens has lost no branch of the old ones."""
    branched_and_trimmed(tree)
    put(tree, [1, 2, 6, 7], [1, 2, 6, 7])

    assert why(tree, [1, 2, 6, 7, 5]).cause is MissCause.NEVER_SEEN
    assert why(tree, [1, 2, 3, 4, 5]).evicted.num_tokens == 3
    tree._forest.lost.check()


def test_what_hung_from_a_trimmed_tail_comes_back_below_it(tree):
    """The same tail cached again has its lost branches again."""
    branched_and_trimmed(tree)
    put(tree, [1, 2, 3, 4], [1, 2, 3, 4])

    assert why(tree, [1, 2, 3, 4, 5]).evicted.num_tokens == 1
    put(tree, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert why(tree, [1, 2, 3, 4, 9]).evicted.num_tokens == 1


def test_the_namespace_that_vanished_is_remembered(tree, clock):
    """The root goes with its last block; the reason stays."""
    put(tree, [1, 2], [1, 2])
    tree.evict(2)
    clock.now += 7200

    assert tree._forest.roots == {}
    assert why(tree, [1, 2]).summary == (
        "matched 0 of 2 tokens; the rest was evicted 2 h ago because evict() was called (2 tokens)"
    )


def test_a_quota_is_named_as_the_pressure(tree, clock):
    """Evicted by the namespace's own limit."""
    put(tree, range(6), range(6), A)
    tree.set_quota(A, max_blocks=4)
    tree.trim()
    clock.now += 300
    found = why(tree, range(6), A)

    assert found.evicted.evicted_by == "the namespace's quota of 4 blocks was reached"
    assert "evicted 5 min ago because the namespace's quota of 4 blocks" in found.summary


def test_another_sequence_is_named_as_the_pressure(clock):
    """Evicted by a lease that needed room, in the cache that users have."""
    cache = PrefixCache(num_blocks=5, block_size=2, clock=clock)
    for first in (0, 100):
        tokens = range(first, first + 6)
        lease = cache.acquire(NS, tokens)
        lease.extend(6)
        lease.commit(tokens, 6)
        lease.release()
        clock.now += 10
    found = cache.explain(NS, range(6))

    assert found.summary == (
        "matched 2 of 6 tokens; the rest was evicted 10 s ago because room was needed for "
        "another sequence (4 tokens)"
    )
    cache.evict(1)
    assert cache.explain(NS, range(6)).evicted.evicted_s in (0.0, 10.0)


def test_a_flush_forgets_what_was_lost_and_is_told(tree, clock):
    """Of the namespaces that it reached, no others."""
    for namespace in (A, B, "other"):
        put(tree, [1, 2], [1, 2], namespace)
    tree.evict(99)
    tree.flush(A)
    clock.now += 5

    assert why(tree, [1, 2], B).cause is MissCause.EVICTED
    mine = why(tree, [1, 2], A)
    assert (mine.cause, mine.flushed_s, mine.evicted) == (MissCause.NEVER_SEEN, 5.0, None)
    assert mine.summary == (
        "matched 0 of 2 tokens; nothing that begins like it has been cached since the flush "
        "5 s ago (other namespaces were not looked at)"
    )
    tree.flush(NS)
    assert why(tree, [1, 2], B).flushed_s == 0.0
    assert why(tree, [1, 2], "other").flushed_s is None
    tree.flush()
    assert why(tree, [1, 2], "other").flushed_s == 0.0
    assert len(tree._forest.lost) == 0
    tree._forest.lost.check()


def test_a_memory_that_had_to_forget_says_since_when(tree, clock):
    """NEVER_SEEN is not claimed for what lies further back."""
    tree._forest.lost._max_records = 1
    for token in (1, 2):
        put(tree, [token], [token])
        tree.evict(1)
        clock.now += 30
    found = why(tree, [1])

    assert (found.cause, found.forgotten_s) == (MissCause.NEVER_SEEN, 60.0)
    assert "been cached, unless it was evicted more than 60 s ago" in found.summary
    assert why(tree, [2]).cause is MissCause.EVICTED
    assert why(tree, [2]).forgotten_s == 60.0
    tree.flush()
    assert "since the flush" in why(tree, [1]).summary


# -- bounds ------------------------------------------------------------------------------------


def test_a_fork_of_very_many_branches_is_not_searched_whole(monkeypatch):
    """The newest are compared, and it is said that others were not."""
    monkeypatch.setattr(explain_module, "_MAX_BRANCHES", 10)
    tree = RadixTree(2)
    for token in range(30):
        put(tree, [token, 0], [token])
    late, early = why(tree, [25, 1]), why(tree, [5, 1])

    assert (late.cause, late.diverged.at) == (MissCause.DIVERGED, 1)
    assert (early.cause, early.diverged) == (MissCause.NEVER_SEEN, None)
    assert not early.all_branches_looked_at
    assert early.summary.startswith("matched 0 of 2 tokens; its first block has not been cached")


def test_a_chain_of_20000_nodes_is_explained_and_forgotten_without_recursion():
    """Case 45: cached, then lost piece by piece."""
    depth = 20_000

    def work():
        tree = RadixTree(1)
        tokens = array("i", range(depth))
        tree.insert(tokens, tokens, namespace=NS)
        for end in range(depth - 1, 0, -1):
            tree.unlock(tree.lock(tokens, namespace=NS, max_tokens=end))
        assert tree.num_nodes == depth
        more = array("i", [*tokens, 1])
        assert why(tree, more, A).matched_tokens == depth
        for _ in range(depth // 100):
            tree.evict(100)
        lost = why(tree, more, A)
        assert (lost.cause, lost.evicted.num_tokens) == (MissCause.EVICTED, depth)
        tree.insert(tokens, tokens, namespace=NS)
        assert why(tree, tokens).cause is MissCause.HIT
        tree.flush()

    run_shallow(work)


def test_memory_of_an_evicted_leaf_is_about_its_tokens(tree):
    """A leaf trimmed to a half does not keep the room of the whole."""
    put(tree, range(100_000), range(100_000))
    tree.evict(49_000)
    tree.evict(51_000)
    held = sum(lost.key.__alloc__() for lost in tree._forest.lost._order)

    assert tree._forest.lost.num_tokens == 100_000
    assert held < 100_000 * 4 * 1.2


@pytest.mark.parametrize("bad", [[1.5], [2**31], "text"])
def test_bad_tokens_are_refused(tree, bad):
    """As a match refuses them."""
    with pytest.raises(InvalidRequestError, match="tokens"):
        why(tree, bad)
    with pytest.raises(TypeError, match="namespace"):
        why(tree, [1], 7)


def test_an_explanation_is_a_plain_value():
    """It can be made and compared without a tree."""
    assert Explanation(prompt_tokens=4, block_size=2) == Explanation(prompt_tokens=4, block_size=2)
    assert Explanation(prompt_tokens=4, block_size=2).cause is MissCause.NEVER_SEEN


def test_other_scopes_branches_hide_nothing_and_do_not_show():
    """A thousand newer branches of another tenant change neither the answer nor its bounds."""
    tree, mine, theirs = RadixTree(2), Namespace(NS, "a"), Namespace(NS, "b")
    tree.insert([5, 6], [0], namespace=mine)
    alone = tree.explain([5, 8], namespace=mine)
    for i in range(1_100):
        tree.insert([1_000 + i, 1], [5_000 + i], namespace=theirs)
    found = tree.explain([5, 8], namespace=mine)

    assert (found.cause, found.diverged.at) == (MissCause.DIVERGED, 1)
    assert (found.all_branches_looked_at, found.summary) == (True, alone.summary)
    assert not tree.explain([5, 8], namespace=theirs).all_branches_looked_at
