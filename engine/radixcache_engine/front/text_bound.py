"""How much text one token can stand for, so that a hopeless text is refused unread."""

from collections.abc import Iterator
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

__all__ = ["max_bytes_per_token"]

# Where a tokenizer may drop text or fold any amount of it into one token, no bound is true. Real
# text stays far below this one, and refusing what does not is a documented limit.
_ANY_TOKENIZER = 1_024
# Composing characters takes UTF-8 apart by a factor of 3 and puts it together by 3 at the most.
_SHRINKS_BY = {"NFC": 9, "NFD": 3}
_SAFE_STEPS = frozenset({"ByteLevel", "Digits", "Split"})
# Vocabularies lack the bytes that no UTF-8 text has, and a few control characters that their
# training texts never had. The tokenizer drops those; here they count as text.
_MAX_UNKNOWN_BYTES = 32


def max_bytes_per_token(spec: dict[str, Any]) -> int:
    """Return the bytes of UTF-8 that one token stands for at most.

    The longest token's, for byte-level BPE, which loses nothing of a text; a wide limit for any
    other tokenizer.

    Args:
        spec: a ``tokenizer.json``, parsed.
    """
    model, added = spec["model"], spec.get("added_tokens") or ()
    vocab = model.get("vocab") or {}
    pieces = vocab if isinstance(vocab, dict) else [piece for piece, _ in vocab]
    # A character of a byte-level piece stands for one byte; for other pieces this is too much by
    # what the encoding adds, which is on the safe side.
    longest = max((len(piece.encode()) for piece in pieces), default=1)
    if not _is_lossless(spec, vocab):
        return max(longest, _ANY_TOKENIZER)
    longest = max(map(len, pieces), default=1)
    longest = max([longest, *(len(token["content"].encode()) for token in added)])
    factor = 1
    for step in _steps(spec.get("normalizer"), "normalizers"):
        factor *= _SHRINKS_BY[step["type"]]
    return longest * factor


def _is_lossless(spec: dict[str, Any], vocab: Any) -> bool:
    """Whether the bytes of a text all end up in its tokens."""
    model = spec["model"]
    if model.get("type") != "BPE" or not isinstance(vocab, dict):
        return False
    steps = list(_steps(spec.get("pre_tokenizer"), "pretokenizers"))
    kinds = {step["type"] for step in steps}
    num_unknown = sum(char not in vocab for char in ByteLevel.alphabet())
    return (
        "ByteLevel" in kinds
        and kinds <= _SAFE_STEPS
        and not any(step.get("behavior") == "Removed" for step in steps)
        and all(s["type"] in _SHRINKS_BY for s in _steps(spec.get("normalizer"), "normalizers"))
        # These swallow the blanks around them, however many there are.
        and not any(t.get("lstrip") or t.get("rstrip") for t in spec.get("added_tokens") or ())
        and num_unknown <= _MAX_UNKNOWN_BYTES
    )


def _steps(part: dict[str, Any] | None, plural: str) -> Iterator[dict[str, Any]]:
    pending = [part] if part else []
    while pending:
        step = pending.pop()
        if step["type"] == "Sequence":
            pending.extend(step[plural])
        else:
            yield step
