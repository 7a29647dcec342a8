"""Stop strings over token bytes."""

import subprocess
import sys

import pytest

from radixcache_engine.sampling.stop import StopHit, StopMatcher, StopSet


def feed(stops, pieces):
    """Feed pieces one by one; return the first hit and the pieces used."""
    matcher = StopMatcher(stops, pieces)
    for token_id in range(len(pieces)):
        hit = matcher.feed(token_id)
        if hit is not None:
            return hit, token_id + 1
    return None, len(pieces)


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["ab"], [b"xa", b"b"], StopHit("ab", 1)),
        (["ab"], [b"aa", b"b"], StopHit("ab", 1)),
        (["ab"], [b"a", b"a", b"b"], StopHit("ab", 1)),
        (["b"], [b"xx", b"abc tail"], StopHit("b", 3)),
        (["é"], [b"x\xc3", b"\xa9y"], StopHit("é", 1)),
        (["\U0001f600"], [b"\xf0", b"\x9f", b"\x98", b"\x80"], StopHit("\U0001f600", 0)),
        (["end", "ending"], [b"the ending"], StopHit("end", 4)),
        (["ending", "end"], [b"the ending"], StopHit("ending", 4)),
        (["bc", "abc"], [b"xabc"], StopHit("abc", 1)),
        (["b", "abc"], [b"xabc"], StopHit("abc", 1)),
        (["b", "abc"], [b"xa", b"b", b"c"], StopHit("b", 2)),
        (["aa"], [b"a", b"aaa"], StopHit("aa", 0)),
        (["abab"], [b"abaa", b"bab"], StopHit("abab", 3)),
        (["x"], [b"", b"", b"x"], StopHit("x", 0)),
        (["no"], [b"n", b"n", b"m"], None),
        ([], [b"anything"], None),
    ],
)
def test_text_ends_before_the_earliest_match(stops, pieces, expected):
    """Case 123: over tokens, overlapping, inside one token, inside a character, two stops."""
    hit, _ = feed(stops, pieces)

    assert hit == expected


def test_equal_stops_report_the_first_given():
    """Duplicates are one stop."""
    assert feed(["ab", "ab"], [b"ab"])[0] == StopHit("ab", 0)


def test_a_hit_is_found_with_the_token_that_completes_it():
    """No later token is waited for."""
    assert feed(["stop"], [b"st", b"op", b"more"])[1] == 2


def test_matching_goes_on_after_a_hit_that_was_ignored():
    """min_tokens lets the caller ignore a hit; the next one is still found."""
    matcher = StopMatcher(["ab"], [b"ab", b"xa", b"b"])

    assert matcher.feed(0) == StopHit("ab", 0)
    assert matcher.feed(1) is None
    assert matcher.feed(2) == StopHit("ab", 3)


@pytest.mark.parametrize(
    ("stops", "text", "held"),
    [
        (["ab"], b"xa", 1),
        (["ab"], b"xab", 0),
        (["ab"], b"xb", 0),
        (["abab"], b"xaba", 3),
        (["abab"], b"xabab", 2),
        (["aaa"], b"aa", 2),
        (["ab", "abc"], b"ab", 2),
        (["abcd", "bce"], b"xabc", 3),
        (["abcd", "bce"], b"xbc", 2),
        ([], b"abc", 0),
    ],
)
def test_only_a_proper_prefix_of_a_stop_is_held_back(stops, text, held):
    """Case 123: hold back a suffix that may still become a stop, and nothing else."""
    matcher = StopMatcher(stops, [text])
    matcher.feed(0)

    assert matcher.num_held_bytes == held
    assert matcher.num_text_bytes == len(text)


def test_ids_beyond_the_table_have_no_text():
    """A model's embedding may be longer than its vocabulary."""
    matcher = StopMatcher(["a"], [b"a"])

    assert matcher.feed(7) is None
    assert matcher.num_text_bytes == 0


def test_sequences_share_one_automaton():
    """N samples build the stops once and do not disturb each other."""
    stops = StopSet(["ab"])
    first, second = StopMatcher(stops, [b"a", b"b"]), StopMatcher(stops, [b"a", b"b"])
    first.feed(0)

    assert second.feed(1) is None
    assert first.feed(1) == StopHit("ab", 0)


def test_the_work_does_not_grow_with_repetition():
    """A text that nearly matches at every byte costs a constant number of steps a byte."""

    class Counting(StopSet):
        __slots__ = ("looked",)

        def __init__(self, stops):
            self.looked = 0
            super().__init__(stops)
            children = self._children

            class Count(list):
                def __getitem__(inner, index):
                    self.looked += 1
                    return children[index]

            self._children = Count(children)

    stops = Counting(["a" * 255 + "b", "a" * 200 + "c"])
    stops.looked = 0
    matcher = StopMatcher(stops, [b"a" * 100])
    for _ in range(100):
        matcher.feed(0)

    assert stops.looked <= 4 * 10_000


def test_importing_it_does_not_load_torch():
    """The scheduler matches stops and must stay free of torch."""
    script = "import sys, radixcache_engine.sampling.stop; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
