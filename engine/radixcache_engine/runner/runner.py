"""The runner: one model, one KV pool, one packed forward a step."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from radixcache.attention import AttentionBackend, AttentionPlan, create_backend
from radixcache.errors import ModelLoadError
from radixcache.kv.capacity import pool_capacity_tokens
from radixcache.kv.layout import KVLayout
from radixcache.kv.pool import KVPool
from radixcache.types import ModelInfo
from radixcache_engine.config import EngineConfig
from radixcache_engine.models.load import (
    LoadedModel,
    ModelFolder,
    describe,
    load_model,
    open_folder,
    resolve_device,
    resolve_dtype,
)
from radixcache_engine.models.memory import available_bytes, usable_cores
from radixcache_engine.models.packed import PackedModel
from radixcache_engine.models.probe import probe_model
from radixcache_engine.models.refuse import refuse_config
from radixcache_engine.runner.sizing import pool_blocks
from radixcache_engine.types import Batch

__all__ = ["Runner"]

_log = logging.getLogger(__name__)
_PROBE_BLOCK = 16  # tokens; a larger block would hold a whole probe prompt


@dataclass(frozen=True, slots=True)
class _Done:
    """Ticket of a step that ran when it was launched."""

    logits: torch.Tensor

    def result(self) -> torch.Tensor:
        """Return float32 ``[rows that want logits, vocab_size]``, in batch order."""
        return self.logits


class Runner:
    """Implements :class:`radixcache_engine.types.Worker` in this process.

    Not thread-safe: the step loop owns it.

    Attributes:
        pool: the KV memory; also the block store that copies and poisons blocks.
        model_info: the model as clients see it.
        kv_key: the tree's root for this model: everything that changes KV.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        packed: PackedModel,
        pool: KVPool,
        backend: AttentionBackend,
        *,
        name: str,
        validate: bool = False,
    ) -> None:
        self.pool = pool
        self.kv_key = loaded.kv_key
        self._packed = packed
        self._backend = backend
        self._validate = validate
        self.model_info = ModelInfo(
            name=name,
            architecture=loaded.architecture,
            context_len=loaded.context_len,
            vocab_size=loaded.vocab_size,
            block_size=pool.layout.block_size,
            kv_capacity_tokens=pool_capacity_tokens(pool.num_blocks, pool.layout.block_size),
            dtype=loaded.dtype,
            device=loaded.device,
            attention_backend=backend.name,
            eos_token_ids=loaded.eos_token_ids,
        )

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, the reserved block 0 included."""
        return self.pool.num_blocks

    @classmethod
    def load(cls, config: EngineConfig, folder: Path, name: str) -> "Runner":
        """Load, refuse or probe, and size the pool.

        Args:
            config: the engine's settings.
            folder: a HF folder with ``config.json`` and safetensors.
            name: the name the model is served under.

        Raises:
            ModelNotFoundError: no such folder.
            ModelRefusedError: the model cannot be run exactly; says why.
            ModelLoadError: broken files, or not enough memory for weights or pool.
        """
        torch.set_num_threads(config.threads or usable_cores())
        device = resolve_device(config.device)
        dtype = resolve_dtype(config.dtype, device)
        source = open_folder(folder)
        refuse_config(source.config)
        backend = create_backend(config.attention_backend, device=device)
        packed = _load_packed(source, backend, config, dtype=dtype, device=device)
        loaded = describe(source, packed.model, dtype=dtype, device=device)
        if config.max_context_len is not None:
            loaded = _limit_context(loaded, config.max_context_len)
        spec = packed.specs[0]
        layout = KVLayout(
            num_layers=len(packed.specs),
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            block_size=config.block_size,
            dtype=dtype,
        )
        num_blocks = pool_blocks(layout, config.kv_tokens, available_bytes(device))
        pool = KVPool(layout, num_blocks, device=device, poison=config.poison_freed)
        return cls(loaded, packed, pool, backend, name=name, validate=config.check_every_step)

    def launch(self, batch: Batch) -> _Done:
        """Run one step: every row's new tokens through the model, their KV into the pool.

        Returns:
            A ticket whose result is float32 ``[rows that want logits, vocab_size]``.

        Raises:
            CacheCorruptionError: a block table that does not cover its row or leaves the pool.
        """
        rows = batch.rows
        plan = AttentionPlan.build(
            [row.start for row in rows],
            [len(row.token_ids) for row in rows],
            [row.block_table for row in rows],
            block_size=self.pool.layout.block_size,
        )
        plan.check_bounds(self.pool.num_blocks)
        if self._validate:
            plan.validate(self.pool.num_blocks, self.pool.layout.block_size)
        token_ids = torch.tensor(
            [token for row in rows for token in row.token_ids], dtype=torch.int64
        )
        ends = zip(rows, plan.row_ends, strict=True)
        keep = torch.tensor([end - 1 for row, end in ends if row.wants_logits], dtype=torch.int64)
        return _Done(self._packed.forward(token_ids, plan, self.pool, self._backend, keep=keep))


def _load_packed(
    source: ModelFolder,
    backend: AttentionBackend,
    config: EngineConfig,
    *,
    dtype: str,
    device: str,
) -> PackedModel:
    if not config.probe:
        return PackedModel(load_model(source, dtype=dtype, device=device))
    try:
        packed = PackedModel(load_model(source, dtype="float32", device=device))
    except ModelLoadError as error:
        if dtype == "float32":
            raise
        raise ModelLoadError(
            f"{error}; the load-time probe needs them, probe=False skips it"
        ) from error
    text = source.config.get_text_config(decoder=True)
    worst = probe_model(
        packed,
        backend,
        vocab_size=text.vocab_size,
        context_len=getattr(text, "max_position_embeddings", None) or _PROBE_BLOCK,
        block_size=min(config.block_size, _PROBE_BLOCK),
    )
    _log.info("probe passed: largest difference of two logits %.2g", worst)
    if dtype == "float32":
        return packed
    # Loading again, not casting: a cast would also round rope tables that must stay float32.
    del packed
    return PackedModel(load_model(source, dtype=dtype, device=device))


def _limit_context(loaded: LoadedModel, limit: int) -> LoadedModel:
    return replace(loaded, context_len=min(limit, loaded.context_len))
