"""A model's tokenizer: text to ids and back, and the chat template.

Reads ``tokenizer.json`` with the ``tokenizers`` library alone; transformers is imported only for
folders that have no such file.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from radixcache.errors import InvalidRequestError, ModelLoadError
from radixcache.types import ChatMessage
from radixcache_engine.front.chat_template import ChatTemplate
from radixcache_engine.front.text_bound import max_bytes_per_token
from radixcache_engine.front.token_bytes import build_token_table

__all__ = ["Tokenizer"]

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
_SHORT_TEXT = 4_096  # characters; a few milliseconds


class Tokenizer:
    """Text to ids and back. Safe to use from many threads.

    Text that spells a special token (``<|im_start|>``) is encoded as that token, as transformers
    does.

    Attributes:
        token_bytes: the text of every id as bytes; ``b""`` for special tokens.
        eos_token_ids: tokens that end a sequence, ascending.
        vocab_size: ids are 0 to ``vocab_size - 1``.
        max_bytes_per_token: bytes of UTF-8 that one token stands for at most.
    """

    def __init__(
        self,
        fast: FastTokenizer,
        *,
        vocab_size: int = 0,
        eos_token_ids: Iterable[int] = (),
        chat_template: ChatTemplate | None = None,
    ) -> None:
        fast.no_truncation()
        fast.no_padding()
        self._fast = fast
        self._chat_template = chat_template
        spec = json.loads(fast.to_str())
        table = build_token_table(fast, spec, vocab_size)
        self.max_bytes_per_token = max_bytes_per_token(spec)
        self.token_bytes = table.token_bytes
        self._strips_space = table.strips_space
        self.vocab_size = len(self.token_bytes)
        self.eos_token_ids = tuple(sorted(set(eos_token_ids)))

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read the tokenizer of a HF folder.

        Raises:
            ModelLoadError: no tokenizer there, or a broken one.
        """
        fast = _fast_tokenizer(folder)
        settings = {**_json(folder / "special_tokens_map.json"), **_tokenizer_config(folder)}
        special = _special_tokens(settings)
        config = _json(folder / "config.json")
        config = {**config, **(config.get("text_config") or {})}
        ends = _json(folder / "generation_config.json").get("eos_token_id")
        eos = _ids(config.get("eos_token_id") if ends is None else ends)
        # Chat models end a turn with the tokenizer's token, which some configs forget.
        own = fast.token_to_id(special["eos_token"]) if "eos_token" in special else None
        source = _template_source(folder, settings)
        return cls(
            fast,
            vocab_size=int(config.get("vocab_size") or 0),
            eos_token_ids=eos if own is None else [*eos, own],
            chat_template=None if source is None else ChatTemplate(source, special),
        )

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the ids of a text; empty for a text without tokens.

        Args:
            text: valid Unicode.
            add_special: let the tokenizer add what it adds to a prompt (a begin token, if any).

        Raises:
            InvalidRequestError: the text holds half of a surrogate pair.
        """
        try:
            if len(text) <= _SHORT_TEXT:
                encoding = self._fast.encode(text, add_special_tokens=add_special)
            else:
                # A batch is encoded without the interpreter's lock; a single text keeps every
                # other thread waiting, the step loop and the server's with them.
                (encoding,) = self._fast.encode_batch([text], add_special_tokens=add_special)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequestError("prompt", text, "valid Unicode text") from error
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Iterable[int], *, continues: bool = False) -> str:
        """Return the text of ids, special tokens left out; broken UTF-8 becomes U+FFFD.

        Args:
            ids: 0 to ``vocab_size - 1``; others have no text.
            continues: the ids follow other text, so a leading space is part of it. Otherwise the
                space that some tokenizers put in front when encoding is taken off again.
        """
        size = self.vocab_size
        joined = b"".join(self.token_bytes[i] for i in ids if 0 <= i < size)
        text = joined.decode("utf-8", errors="replace")
        return text[1:] if self._strips_space and not continues and text[:1] == " " else text

    def apply_chat_template(
        self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Return the ids of a chat, ready for the model's next turn.

        Raises:
            InvalidRequestError: the model has no chat template, or it refuses the messages.
        """
        if self._chat_template is None:
            raise InvalidRequestError(
                "messages", f"{len(messages)} messages", "prompt or token_ids: no chat template"
            )
        text = self._chat_template.render(messages, add_generation_prompt=add_generation_prompt)
        return self.encode(text, add_special=False)


def _fast_tokenizer(folder: Path) -> FastTokenizer:
    file = folder / "tokenizer.json"
    try:
        if file.is_file():
            fast: FastTokenizer = FastTokenizer.from_file(str(file))
            return fast
        from transformers import AutoTokenizer  # noqa: PLC0415 - slow, and rarely needed

        loaded: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        backend: FastTokenizer = loaded.backend_tokenizer
        return backend
    except Exception as error:  # the Rust library raises bare Exception
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelLoadError(f"{folder}: the tokenizer cannot be loaded: {reason}") from error


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ModelLoadError(f"{path}: got {type(found).__name__}, expected a JSON object")
    return found


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    return _json(folder / "tokenizer_config.json")


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in _SPECIAL_NAMES:
        value = settings.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[name] = content
    return found


def _template_source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    source = _json(folder / "chat_template.json").get("chat_template")
    source = settings.get("chat_template") if source is None else source
    if isinstance(source, list):  # several named ones
        named = {entry.get("name"): entry.get("template") for entry in source}
        source = named.get("default")
    return source if isinstance(source, str) else None


def _ids(value: object) -> list[int]:
    if isinstance(value, int):
        return [value]
    return [int(entry) for entry in value] if isinstance(value, list) else []
