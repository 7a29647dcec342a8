"""Stop strings against brute force."""

from hypothesis import given
from hypothesis import strategies as st

from radixcache.types import FinishReason
from radixcache_engine.front.detokenizer import Detokenizer
from radixcache_engine.sampling.stop import StopMatcher, StopSet
from radixcache_engine.types import SequenceOutput

PIECES = st.lists(st.text("abé", max_size=4).map(str.encode), max_size=12)
# Byte pieces cut characters in two.
BYTES = st.lists(st.sampled_from([b"a", b"b", b"\xc3", b"\xa9", b"ab", b"\xa9b"]), max_size=16)
STOPS = st.lists(st.text("abé", min_size=1, max_size=4), max_size=4)


def brute_force(pieces, stops):
    """The first token after which a stop is in the text; of its matches the earliest start."""
    text = b""
    for count, piece in enumerate(pieces, 1):
        text += piece
        starts = [text.find(stop.encode()) for stop in stops]
        found = [start for start in starts if start >= 0]
        if found:
            return count, min(found)
    return None


@given(pieces=PIECES | BYTES, stops=STOPS)
def test_matches_are_those_of_a_search_in_the_whole_text(pieces, stops):
    """Case 123: same token, same place as looking through the joined text each time."""
    matcher = StopMatcher(stops, pieces)
    found = None
    for token_id in range(len(pieces)):
        hit = matcher.feed(token_id)
        if hit is not None:
            found = (token_id + 1, hit.num_text_bytes)
            before = b"".join(pieces)[hit.num_text_bytes :]

            assert before.startswith(hit.stop.encode())
            break

    assert found == brute_force(pieces, stops)


@given(pieces=PIECES | BYTES, stops=STOPS)
def test_held_bytes_are_the_longest_proper_prefix_at_the_end(pieces, stops):
    """Nothing more is held back than what a stop may still claim."""
    matcher = StopMatcher(stops, pieces)
    for token_id in range(len(pieces)):
        matcher.feed(token_id)
    text = b"".join(pieces)
    prefixes = {stop.encode()[:size] for stop in stops for size in range(len(stop.encode()))}
    held = max((len(p) for p in prefixes if text.endswith(p)), default=0)

    assert matcher.num_held_bytes == held


@given(pieces=PIECES | BYTES, stops=STOPS, data=st.data())
def test_streamed_text_is_everything_before_the_earliest_match(pieces, stops, data):
    """Case 123: the same text however the tokens are grouped into deltas."""
    end = brute_force(pieces, stops)
    count = len(pieces) if end is None else end[0]
    joined = b"".join(pieces[:count])
    expected = (joined if end is None else joined[: end[1]]).decode("utf-8", "replace")
    detokenizer = Detokenizer(pieces, StopSet(stops))
    reason = FinishReason.LENGTH if end is None else FinishReason.STOP
    parts, at = [], 0
    while at < count:
        size = data.draw(st.integers(1, count - at))
        output = SequenceOutput(0, list(range(at, at + size)), [])
        at += size
        if at == count:
            output.finish_reason = reason
            output.num_text_bytes = None if end is None else end[1]
        parts.append(detokenizer.feed(output))

    assert "".join(parts) == ("" if count == 0 else expected)
