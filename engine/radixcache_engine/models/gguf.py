"""Converts a GGUF file once to a HF folder (float32 safetensors) in the user's cache folder.

Loading straight from GGUF costs a quarter of a minute at every start. A conversion is built in a
folder of its own, gets its marker last, and is renamed into place, so a folder under its final name
is whole or, should its files be cut later, recognised as broken and built again.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from radixcache.errors import ModelLoadError
from radixcache_engine.models.cache_folder import fail_clearly, file_sha256, locked
from radixcache_engine.models.gguf_header import GgufHeader, read_header
from radixcache_engine.models.progress import SILENT, Progress, Task

__all__ = ["convert_gguf", "find_converted"]

_VERSION = 1  # of what this file writes; another version is another folder
_MARKER = "radixcache.json"
_NUM_STAGES = 3  # config, tokenizer, writing; the tensors count one each
# Vocabularies trained on single digits. The file names this split, transformers falls back to
# GPT-2's, and "\n\n1" then comes apart into tokens the model has rarely seen.
_SINGLE_DIGITS = frozenset({"command-r", "refact", "smollm", "starcoder"})


def find_converted(cache: Path, sha256: str) -> Path | None:
    """Return the whole conversion of the GGUF file with that digest, if there is one.

    Looks at names and sizes only, so a warm start costs next to nothing.
    """
    folder = _folder(cache, sha256)
    try:
        marker = json.loads((folder / _MARKER).read_text())
        sizes = marker["files"]
        whole = marker["version"] == _VERSION and all(
            (folder / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return folder if whole and "config.json" in sizes else None


def convert_gguf(
    path: Path, cache: Path, progress: Progress = SILENT, *, sha256: str | None = None
) -> Path:
    """Return the HF folder of a GGUF file, converting it if that was not done before.

    Processes that ask at the same time convert once: the others wait and take the result.

    Args:
        path: the GGUF file.
        cache: the user's cache folder.
        progress: where long work is reported.
        sha256: the file's digest where the caller knows it.

    Raises:
        ModelLoadError: broken or cut-off file, unsupported architecture, full disk.
    """
    with fail_clearly(f"{path}: cannot be converted"):
        digest = sha256 or file_sha256(path, cache, progress)
        found = find_converted(cache, digest)
        if found is not None:
            return found
        header = read_header(path)
        with locked(cache, digest, progress):
            return find_converted(cache, digest) or _build(path, header, digest, cache, progress)


def _folder(cache: Path, sha256: str) -> Path:
    return cache / "models" / f"{sha256}-v{_VERSION}"


def _build(path: Path, header: GgufHeader, digest: str, cache: Path, progress: Progress) -> Path:
    target = _folder(cache, digest)
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".converting-{digest[:16]}-"
    for leftover in target.parent.glob(f"{prefix}*"):  # of a process that died; we hold its lock
        shutil.rmtree(leftover, ignore_errors=True)
    staged = Path(tempfile.mkdtemp(dir=target.parent, prefix=prefix))
    try:
        total = header.num_tensors + _NUM_STAGES
        with progress.task(f"converting {path.name} (once)", total) as task:
            _convert(path, header, staged, task)
        _seal(staged, digest)
        if target.exists():
            shutil.rmtree(target)
        staged.rename(target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return target


def _convert(path: Path, header: GgufHeader, staged: Path, task: Task) -> None:
    try:
        with _quiet_transformers():
            _convert_files(path, header, staged, task)
    except OSError as error:
        # transformers reports missing keys as OSError too; only real ones carry a number.
        if error.errno is not None:
            raise
        raise _not_convertible(path, header, error) from error
    except Exception as error:  # whatever transformers meets in a file it cannot read
        raise _not_convertible(path, header, error) from error


def _not_convertible(path: Path, header: GgufHeader, error: Exception) -> ModelLoadError:
    if isinstance(error, MemoryError):
        return ModelLoadError(f"{path}: not enough memory to convert the model")
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ModelLoadError(
        f"{path}: a GGUF file of architecture {header.architecture!r} that cannot be converted: "
        f"{reason}"
    )


def _convert_files(path: Path, header: GgufHeader, staged: Path, task: Task) -> None:
    import torch  # noqa: PLC0415 - a warm start must not pay for it
    from transformers import (  # noqa: PLC0415 - as above
        AutoConfig,
        AutoModelForCausalLM,
        AutoTokenizer,
        GgufConfig,
    )

    source: dict[str, Any] = {
        "pretrained_model_name_or_path": str(path.parent),
        "gguf_file": path.name,
        "local_files_only": True,
    }
    config = AutoConfig.from_pretrained(**source)
    task.advance(1)
    tokenizer = AutoTokenizer.from_pretrained(**source, config=config)
    _fix_digits(tokenizer, header)
    tokenizer.save_pretrained(staged)
    task.advance(1)
    with _tensors_counted(task):
        # Any: with this loading info asked for it is a pair, which its annotation does not know.
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            **source,
            config=config,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            output_loading_info=True,
        )
    model, found = loaded
    # transformers fills a missing weight with random numbers and only warns.
    lacking = sorted({*found["missing_keys"], *(str(key) for key in found["mismatched_keys"])})
    if lacking:
        raise ValueError(f"{len(lacking)} of its weights are missing or misshapen: {lacking[0]}")
    model.save_pretrained(staged)
    task.advance(1)


def _fix_digits(tokenizer: Any, header: GgufHeader) -> None:
    if header.metadata.get("tokenizer.ggml.pre") not in _SINGLE_DIGITS:
        return
    from tokenizers import pre_tokenizers  # noqa: PLC0415 - a warm start must not pay for it

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def _seal(staged: Path, digest: str) -> None:
    # Data first, marker last: after a power cut a marker without its data must not be possible.
    sizes = {}
    for file in sorted(staged.iterdir()):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
        file.chmod(0o644)
        sizes[file.name] = file.stat().st_size
    marker = {"version": _VERSION, "source_sha256": digest, "files": sizes}
    (staged / _MARKER).write_text(json.dumps(marker, indent=2))
    staged.chmod(0o755)


@contextmanager
def _tensors_counted(task: Task) -> Iterator[None]:
    # transformers draws a bar of its own here, which nothing switches off: ours takes its place.
    module = "transformers.modeling_gguf_pytorch_utils"
    reader: Any = import_module(module)

    def counted(tensors: Iterable[Any], **_: Any) -> Iterator[Any]:
        """Pass the tensors on, reporting each."""
        for tensor in tensors:
            yield tensor
            task.advance(1)

    original = reader.tqdm
    reader.tqdm = counted
    try:
        yield
    finally:
        reader.tqdm = original


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    from transformers.utils import logging  # noqa: PLC0415 - a warm start must not pay for it

    # Untyped in transformers 5.
    chosen: Any = logging
    verbosity, bars = chosen.get_verbosity(), chosen.is_progress_bar_enabled()
    chosen.set_verbosity_error()
    chosen.disable_progress_bar()
    try:
        yield
    finally:
        chosen.set_verbosity(verbosity)
        if bars:
            chosen.enable_progress_bar()
