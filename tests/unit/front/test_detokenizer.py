"""Text piece by piece: characters stay whole, stops never leak, deltas add up."""

import pytest

from radixcache.types import FinishReason
from radixcache_engine.front.detokenizer import Detokenizer
from radixcache_engine.sampling.stop import StopMatcher, StopSet
from radixcache_engine.types import SequenceOutput

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def stream(pieces, *, stops=(), finish=LENGTH, ends=(), group=1, stop_reason=None):
    """Deltas of a sequence as the engine would report it, ``group`` tokens at a time."""
    stop_set = StopSet(stops)
    matcher = StopMatcher(stop_set, pieces)
    detokenizer = Detokenizer(pieces, stop_set, ends)
    ids, cut = [], None
    for token_id in range(len(pieces)):
        ids.append(token_id)
        hit = matcher.feed(token_id)
        if hit is not None:
            finish, cut, stop_reason = STOP, hit.num_text_bytes, hit.stop
            break
    deltas = []
    for start in range(0, len(ids), group):
        output = SequenceOutput(0, ids[start : start + group], [])
        if start + group >= len(ids):
            output.finish_reason, output.num_text_bytes = finish, cut
            output.stop_reason = stop_reason
        deltas.append(detokenizer.feed(output))
    return deltas


def split(text, size=1):
    """The UTF-8 of a text in pieces of ``size`` bytes."""
    data = text.encode()
    return [data[i : i + size] for i in range(0, len(data), size)]


TEXTS = [
    "family \U0001f468\u200d\U0001f469\u200d\U0001f467 here",
    "日本語のテキスト",
    "Příliš žluťoučký kůň",
    "नमस्ते दुनिया",
    "flags \U0001f1e8\U0001f1ff and e\u0301",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_characters_are_never_split(text, size):
    """Case 124: emoji with joiners, CJK, Czech, Devanagari, in pieces of any size."""
    deltas = stream(split(text, size))

    assert "".join(deltas) == text
    assert "\ufffd" not in "".join(deltas)


def test_a_character_comes_with_its_last_byte():
    """Case 124: not one token later."""
    assert stream([b"a\xe6", b"\x97", b"\xa5", b"b"]) == ["a", "", "日", "b"]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_cut_by_the_end_is_one_replacement(cut):
    """Case 124: max_tokens in the middle of an emoji leaves one U+FFFD."""
    deltas = stream([b"ok ", *split("\U0001f600")[:cut]])

    assert "".join(deltas) == "ok \ufffd"


def test_an_invalid_run_does_not_end_the_stream():
    """Case 124: bytes that are no UTF-8 decode as they do in one piece."""
    pieces = [b"a\xff", b"\xfe", b"\xe6", b"x", b"\x80\x80", b"z"]
    deltas = stream(pieces)

    assert "".join(deltas) == b"".join(pieces).decode("utf-8", "replace")
    assert deltas[-1] == "z"


@pytest.mark.parametrize(
    ("stops", "pieces", "text"),
    [
        (["ab"], [b"xa", b"b"], "x"),
        (["ab"], [b"aa", b"b", b"tail"], "a"),
        (["b"], [b"xx", b"abc tail"], "xxa"),
        (["日"], [b"x\xe6", b"\x97", b"\xa5", b"y"], "x"),
        (["end", "ending"], [b"the en", b"ding"], "the "),
        (["\n\n"], [b"a\n", b"b\n", b"\n", b"c"], "a\nb"),
        (["zz"], [b"az", b"bz"], "azbz"),
    ],
)
@pytest.mark.parametrize("group", [1, 2, 9])
def test_text_stops_before_the_stop_string(stops, pieces, text, group):
    """Case 123: streamed token by token or in one piece, the text is the same."""
    assert "".join(stream(pieces, stops=stops, group=group)) == text


def test_only_what_may_become_a_stop_is_held_back():
    """Case 123: the rest goes out at once, and a false alarm is let go with the next token."""
    assert stream([b"one S", b"T", b"ill two", b"!"], stops=["STOP"]) == [
        "one ",
        "",
        "STill two",
        "!",
    ]


def test_what_was_held_back_comes_out_at_the_end():
    """Case 123: the sequence ends on something that only looked like a stop."""
    assert stream([b"x", b"ST"], stops=["STOP"]) == ["x", "ST"]


def test_a_cut_before_broken_bytes_keeps_their_replacement():
    """The text before a stop may itself end in half a character."""
    assert "".join(stream([b"a\xe6", b"STOP"], stops=["STOP"])) == "a\ufffd"


@pytest.mark.parametrize(
    ("ends", "stop_reason", "text"),
    [((2,), None, "ab"), ((), 2, "ab"), ((), None, "ab</s>"), ((7,), 9, "ab</s>")],
)
def test_the_token_that_ends_a_sequence_is_no_text(ends, stop_reason, text):
    """An end token or stop id is left out even where the vocabulary gives it text."""
    deltas = stream([b"a", b"b", b"</s>"], finish=STOP, ends=ends, stop_reason=stop_reason)

    assert "".join(deltas) == text


def test_an_end_token_in_mid_text_stays():
    """With ignore_eos, or when max_tokens ends the sequence, every token counts."""
    assert "".join(stream([b"</s>", b"x", b"</s>"], ends=(0, 2), finish=LENGTH)) == "</s>x</s>"


def test_ignored_stops_are_given_out():
    """Before min_tokens the engine passes over a stop string; its text is then plain text."""
    detokenizer = Detokenizer([b"ab", b"c", b"ab"], StopSet(["ab"]))
    first = detokenizer.feed(SequenceOutput(0, [0, 1], []))
    last = detokenizer.feed(SequenceOutput(0, [2], [], STOP, "ab", 3))

    assert first + last == "abc"


def test_an_end_without_tokens_is_an_end():
    """The engine may report the end by itself."""
    detokenizer = Detokenizer([b"a\xe6"], StopSet(()))
    first = detokenizer.feed(SequenceOutput(0, [0], []))

    assert first + detokenizer.feed(SequenceOutput(0, [], [], LENGTH)) == "a\ufffd"
