"""What a model's KV depends on, as one string: the cache key of everything but the tokens."""

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from radixcache.kv.layout import LAYOUT_VERSION

__all__ = ["kv_key", "tokenizer_digest", "weights_digest"]

_CHUNK = 32 * 2**20  # bytes hashed as one piece of work
_THREADS = 4
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
)


def weights_digest(config_file: Path, weight_files: Iterable[Path]) -> str:
    """Hash the config and every byte of the weights (sha256, about 1 GB/s a core).

    Args:
        config_file: ``config.json``.
        weight_files: the safetensors files, in any order.

    Returns:
        64 hex digits.

    Raises:
        OSError: a file cannot be read.
    """
    total = hashlib.sha256(hashlib.sha256(config_file.read_bytes()).digest())
    with ThreadPoolExecutor(_THREADS) as pool:
        for path in sorted(weight_files):
            size = path.stat().st_size
            total.update(_field("file", f"{path.name}:{size}").encode())
            offsets = range(0, size, _CHUNK)
            for digest in pool.map(_hash_chunk, [path] * len(offsets), offsets):
                total.update(digest)
    return total.hexdigest()


def tokenizer_digest(folder: Path) -> str:
    """Hash the tokenizer's files; the digest of nothing where a model has none.

    Raises:
        OSError: a file cannot be read.
    """
    total = hashlib.sha256()
    for name in _TOKENIZER_FILES:
        path = folder / name
        if path.is_file():
            total.update(_field(name, hashlib.sha256(path.read_bytes()).hexdigest()).encode())
    return total.hexdigest()


def kv_key(*, weights: str, tokenizer: str, config: Any, dtype: str, scheme: str) -> str:
    """Join everything that changes KV, tagged and length-prefixed so that no two cases collide.

    Args:
        weights: :func:`weights_digest`.
        tokenizer: :func:`tokenizer_digest`.
        config: the transformers config, for the rope regime.
        dtype: of weights and KV.
        scheme: of the KV layout.
    """
    text = config.get_text_config(decoder=True)
    rope = json.dumps(getattr(text, "rope_parameters", None), sort_keys=True, default=str)
    fields = {
        "weights": weights,
        "tokenizer": tokenizer,
        "dtype": dtype,
        "rope": hashlib.sha256(rope.encode()).hexdigest(),
        "scheme": scheme,
        "layout": str(LAYOUT_VERSION),
        "adapter": "",  # none is built yet; its place keeps keys apart when it is
        "epoch": "0",
    }
    return "".join(_field(name, value) for name, value in fields.items())


def _field(name: str, value: str) -> str:
    return f"{len(name)}:{name}={len(value)}:{value};"


def _hash_chunk(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return hashlib.sha256(file.read(_CHUNK)).digest()
