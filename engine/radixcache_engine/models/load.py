"""Loads a local HF folder (config and safetensors) as a causal language model.

Local files only: nothing is fetched and no code from the folder is ever run.
"""

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from radixcache.errors import (
    InvalidRequestError,
    ModelLoadError,
    ModelNotFoundError,
    ModelRefusedError,
)
from radixcache_engine.models.fingerprint import kv_key, tokenizer_digest, weights_digest
from radixcache_engine.models.memory import available_bytes

__all__ = [
    "LoadedModel",
    "ModelFolder",
    "describe",
    "load_model",
    "open_folder",
    "resolve_device",
    "resolve_dtype",
]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_BF16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
_HEADROOM = 1.05  # of the weights: activations and the loader's own buffers
_SCHEME = "plain"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder whose files were found whole and whose config was understood."""

    path: Path
    config: Any  # transformers PreTrainedConfig
    weight_files: tuple[Path, ...]
    num_parameters: int  # as stored


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in memory, with what the rest of the engine must know of it."""

    model: PreTrainedModel = field(repr=False)
    config: Any = field(repr=False)  # transformers PreTrainedConfig
    dtype: str
    device: str
    fingerprint: str  # sha256 of config and weights
    kv_key: str  # everything that changes KV
    context_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    architecture: str


def resolve_device(device: str) -> str:
    """Turn ``"auto"`` into cuda where there is one, else cpu.

    Raises:
        InvalidRequestError: no such kind of device.
        ModelLoadError: the device does not exist here.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise InvalidRequestError("device", device, "auto | cpu | cuda") from error
    if kind not in ("cpu", "cuda"):
        raise InvalidRequestError("device", device, "auto | cpu | cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ModelLoadError(f"device: {device} is not available here")
    return device


def resolve_dtype(dtype: str, device: str) -> str:
    """Turn ``"auto"`` into bfloat16 where the device computes it natively, else float32."""
    if dtype != "auto":
        return dtype
    if device.partition(":")[0] != "cpu":
        return "bfloat16"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "float32"
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    words = flags.partition(":")[2].split()
    return "bfloat16" if any(flag in words for flag in _BF16_FLAGS) else "float32"


def open_folder(path: Path) -> ModelFolder:
    """Read the config and check that every weight file is there and whole.

    Raises:
        ModelNotFoundError: there is no such folder.
        ModelLoadError: a file is missing or broken.
        ModelRefusedError: transformers does not know the architecture.
    """
    if not path.is_dir():
        raise ModelNotFoundError(f"{path}: no such model folder")
    config = _read_config(path)
    files = _weight_files(path)
    count = sum(_count_parameters(file) for file in files)
    return ModelFolder(path, config, files, count)


def load_model(folder: ModelFolder, *, dtype: str, device: str) -> PreTrainedModel:
    """Load the weights in ``dtype``, ready for inference, with the model's own attention.

    Raises:
        ModelLoadError: not enough memory, or weights that do not fit the config.
        ModelRefusedError: the architecture is no causal language model.
    """
    _check_memory(folder, dtype, device)
    # Its bar would run through ours and through a library user's own output.
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        # With output_loading_info the result is a pair, which transformers' types do not say.
        result: Any = AutoModelForCausalLM.from_pretrained(
            folder.path,
            config=folder.config,
            dtype=_DTYPES[dtype],
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ModelLoadError(f"{folder.path}: not enough memory for the weights") from error
    except ValueError as error:
        raise ModelRefusedError(f"{folder.path}: {_first_line(error)}") from error
    except (SafetensorError, OSError, RuntimeError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{folder.path}: {_first_line(error)}") from error
    model, report = result
    missing = sorted(report.get("missing_keys", ())) + sorted(
        str(key) for key in report.get("mismatched_keys", ())
    )
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelLoadError(f"{folder.path}: weights missing or misshapen: {missing[0]}{more}")
    loaded: PreTrainedModel = model.to(device).eval()
    return loaded.requires_grad_(False)


def describe(
    folder: ModelFolder, model: PreTrainedModel, *, dtype: str, device: str
) -> LoadedModel:
    """Gather what the engine must know; hashes all weights.

    Raises:
        ModelLoadError: a file cannot be read any more.
        ModelRefusedError: the config names no context length.
    """
    text = folder.config.get_text_config(decoder=True)
    try:
        weights = weights_digest(folder.path / "config.json", folder.weight_files)
        tokenizer = tokenizer_digest(folder.path)
    except OSError as error:
        raise ModelLoadError(f"{folder.path}: {_first_line(error)}") from error
    context_len = getattr(text, "max_position_embeddings", None)
    if not context_len:
        raise ModelRefusedError(f"{folder.path}: config.json names no max_position_embeddings")
    return LoadedModel(
        model=model,
        config=folder.config,
        dtype=dtype,
        device=device,
        fingerprint=weights,
        kv_key=kv_key(
            weights=weights, tokenizer=tokenizer, config=folder.config, dtype=dtype, scheme=_SCHEME
        ),
        context_len=int(context_len),
        vocab_size=int(text.vocab_size),
        eos_token_ids=_eos_token_ids(folder),
        architecture=type(model).__name__,
    )


def _read_config(path: Path) -> Any:
    file = path / "config.json"
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelLoadError(f"{path}: config.json is missing") from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file}: {_first_line(error)}") from error
    if not isinstance(raw, dict):
        raise ModelLoadError(f"{file}: must hold an object")
    try:
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError) as error:
        kind = raw.get("model_type", "none")
        raise ModelRefusedError(
            f"{path}: model type {kind} is not known to transformers or its config is not valid: "
            f"{_first_line(error)}"
        ) from error
    except Exception as error:
        raise ModelLoadError(f"{file}: {_first_line(error)}") from error


def _weight_files(path: Path) -> tuple[Path, ...]:
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        single = path / "model.safetensors"
        if single.is_file():
            return (single,)
        raise ModelLoadError(f"{path}: model.safetensors is missing (other formats are not read)")
    try:
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(shards.values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelLoadError(f"{index}: not a weight index: {_first_line(error)}") from error
    files = tuple(path / name for name in names)
    for file in files:
        if file.parent != path or not file.is_file():
            raise ModelLoadError(f"{path}: {file.name}, named in the index, is missing")
    return files


def _count_parameters(file: Path) -> int:
    # Opening checks the header against the file's length, so a cut-off download shows here.
    try:
        with safe_open(file, framework="pt") as tensors:
            return sum(
                math.prod(tensors.get_slice(name).get_shape())
                for name in tensors.keys()  # noqa: SIM118 - not a mapping
            )
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{file}: corrupted: {_first_line(error)}") from error


def _check_memory(folder: ModelFolder, dtype: str, device: str) -> None:
    needed = int(folder.num_parameters * _DTYPES[dtype].itemsize * _HEADROOM)
    free = available_bytes(device)
    if free is not None and needed > free:
        raise ModelLoadError(
            f"{folder.path}: the weights need {needed / 2**30:.1f} GiB in {dtype}, "
            f"{free / 2**30:.1f} GiB are free on {device}"
        )


def _eos_token_ids(folder: ModelFolder) -> tuple[int, ...]:
    found: list[int] = []
    sources: list[Any] = [folder.config.get_text_config(decoder=True), folder.config]
    with suppress(OSError, ValueError):  # a folder without generation_config.json is fine
        sources.insert(0, GenerationConfig.from_pretrained(folder.path, local_files_only=True))
    for source in sources:
        ids = getattr(source, "eos_token_id", None)
        for item in ids if isinstance(ids, list | tuple) else [ids]:
            if isinstance(item, int) and item not in found:
                found.append(item)
    return tuple(found)


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
