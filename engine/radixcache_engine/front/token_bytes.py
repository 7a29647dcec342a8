"""The text of every token id as bytes, from the vocabulary.

Joining these and decoding UTF-8 once gives the text of any sequence, wherever a character is split
over tokens. Stop strings and the detokeniser both work on this table.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

__all__ = ["TokenTable", "build_token_table"]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Text of the vocabulary.

    Attributes:
        token_bytes: by token id; ``b""`` for special tokens and for ids without a token.
        strips_space: whether decoding a whole text drops one leading space, because encoding
            puts one in front.
    """

    token_bytes: list[bytes]
    strips_space: bool


def build_token_table(fast: FastTokenizer, spec: dict[str, Any], vocab_size: int) -> TokenTable:
    """Build the table.

    Args:
        fast: the tokenizer.
        spec: its ``tokenizer.json``, parsed.
        vocab_size: rows of the model's embedding; the table has at least as many entries.
    """
    vocab = fast.get_vocab(with_added_tokens=True)
    size = max(vocab_size, 1 + max(vocab.values(), default=-1))
    added = fast.get_added_tokens_decoder()
    kinds = {str(part.get("type")): part for part in _decoder_parts(spec.get("decoder"))}
    to_bytes: Callable[[str, int], bytes]
    if "ByteLevel" in kinds:
        to_bytes, strips = _ByteLevel(), False
    elif _is_sentencepiece(kinds):
        to_bytes, strips = _SentencePiece("ByteFallback" in kinds), _strips_space(kinds)
    else:
        to_bytes, strips = _Probed(fast, vocab, set(added)), not kinds or "WordPiece" in kinds
    table = [b""] * size
    for piece, token_id in vocab.items():
        if token_id not in added:
            table[token_id] = to_bytes(piece, token_id)
    for token_id, token in added.items():
        table[token_id] = b"" if token.special else token.content.encode()
    return TokenTable(table, strips)


def _decoder_parts(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    pending = [decoder] if decoder else []
    while pending:
        part = pending.pop()
        yield part
        pending.extend(part.get("decoders") or ())


def _is_sentencepiece(kinds: dict[str, dict[str, Any]]) -> bool:
    replaces = kinds.get("Replace", {})
    return "Metaspace" in kinds or (
        replaces.get("pattern") == {"String": _SPACE_MARK} and replaces.get("content") == " "
    )


def _strips_space(kinds: dict[str, dict[str, Any]]) -> bool:
    metaspace = kinds.get("Metaspace")
    if metaspace is not None:
        return bool(metaspace.get("prepend_scheme", "always") != "never")
    strip = kinds.get("Strip", {})
    return strip.get("content") == " " and strip.get("start", 0) > 0


class _ByteLevel:
    """Vocabularies in which each character stands for a byte (GPT-2 and its heirs)."""

    def __init__(self) -> None:
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        hidden = sorted(set(range(256)) - set(printable))
        self._byte_of = {chr(byte): byte for byte in printable}
        self._byte_of.update({chr(256 + rank): byte for rank, byte in enumerate(hidden)})

    def __call__(self, piece: str, token_id: int) -> bytes:
        try:
            return bytes([self._byte_of[char] for char in piece])
        except KeyError:  # a piece outside the byte alphabet stands for itself
            return piece.encode()


class _SentencePiece:
    """Vocabularies that write a space as U+2581, perhaps with pieces for single bytes."""

    def __init__(self, byte_fallback: bool) -> None:
        self._byte_fallback = byte_fallback

    def __call__(self, piece: str, token_id: int) -> bytes:
        if self._byte_fallback and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match.group(1), 16)])
        return piece.replace(_SPACE_MARK, " ").encode()


class _Probed:
    """Any other decoder: what a token adds to the text of a token before it."""

    def __init__(self, fast: FastTokenizer, vocab: dict[str, int], added: set[int]) -> None:
        self._fast = fast
        plain = (token_id for piece, token_id in vocab.items() if piece.isalpha())
        self._anchor = next((token_id for token_id in plain if token_id not in added), None)
        self._before = "" if self._anchor is None else fast.decode([self._anchor])

    def __call__(self, piece: str, token_id: int) -> bytes:
        if self._anchor is not None:
            both = self._fast.decode([self._anchor, token_id])
            if both.startswith(self._before):
                return both[len(self._before) :].encode()
        return self._fast.decode([token_id]).encode()
