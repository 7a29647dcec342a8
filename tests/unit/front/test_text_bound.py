"""How much text a token can stand for."""

import json

import pytest
from tokenizers import AddedToken, normalizers, pre_tokenizers

from radixcache_engine.front.text_bound import max_bytes_per_token
from tests import tiny_tokenizers


def bound(fast):
    """The bound of a tokenizer."""
    return max_bytes_per_token(json.loads(fast.to_str()))


def test_byte_level_tokens_stand_for_their_own_bytes():
    """The longest is what counts, an added token like any other."""
    fast = tiny_tokenizers.byte_level()
    assert bound(fast) == len("<|start|>")

    fast.add_tokens([AddedToken("č" * 20, special=False)])
    assert bound(fast) == 40


@pytest.mark.parametrize("text", ["hello " * 50, "<|start|>" * 50, "déjà" * 9, "\x00🙂ã" * 30])
def test_no_text_exceeds_the_bound(text):
    """Whatever the bytes: what is refused by its size could not have fitted."""
    fast = tiny_tokenizers.byte_level()

    assert len(text.encode()) <= bound(fast) * len(fast.encode(text).ids)


@pytest.mark.parametrize("text", ["\u212a" * 40, "\u1100\u1161\u11a8" * 40])
def test_composing_makes_room(text):
    """Kelvin signs and taken apart Hangul shrink to a third before they are tokenised."""
    fast = tiny_tokenizers.byte_level()
    fast.normalizer = normalizers.NFC()
    plain = bound(tiny_tokenizers.byte_level())

    assert bound(fast) == 9 * plain
    assert len(text.encode()) <= bound(fast) * len(fast.encode(text).ids)


def test_tokenizers_that_may_drop_text_get_a_wide_bound():
    """Unknown words of any length, blanks beside a token, removed separators."""
    greedy, cutting, lowering = (tiny_tokenizers.byte_level() for _ in range(3))
    greedy.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    cutting.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("-", "removed"), cutting.pre_tokenizer]
    )
    lowering.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    others = [
        tiny_tokenizers.sentencepiece(),
        tiny_tokenizers.metaspace(),
        tiny_tokenizers.wordpiece(),
        tiny_tokenizers.wordlevel(),
    ]

    assert [bound(fast) for fast in (greedy, cutting, lowering, *others)] == [1_024] * 7
