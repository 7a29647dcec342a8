"""Which models cannot be run exactly over cached blocks, told from the config alone.

A cached prefix may only be reused when its keys and values are a pure function of the prefix's
tokens. Each rule names what breaks that. What a config does not show is found by the trace
(``packed.py``) and by the probe (``probe.py``).
"""

from collections.abc import Callable, Iterator
from typing import Any

from radixcache.errors import ModelRefusedError

__all__ = ["refuse_config"]

_ATTENTION_LAYERS = ("full_attention", "sliding_attention", "attention")
_MLP_LAYERS = ("sparse", "dense")
_RECURRENT_TYPES = frozenset(
    {
        *("bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba"),
        *("kimi_linear", "lfm2", "lfm2_moe", "mamba", "mamba2", "minimax", "nemotron_h"),
        *("olmo_hybrid", "qwen3_next", "recurrent_gemma", "reformer", "rwkv", "xlnet", "xlstm"),
        *("zamba", "zamba2", "zaya"),
    }
)
# Fields that only a config with recurrent, convolutional or linear-attention layers has.
_STATE_FIELDS = (
    "mamba_d_state",
    "mamba_d_conv",
    "ssm_state_size",
    "conv_L_cache",
    "linear_conv_kernel_dim",
    "linear_num_value_heads",
    "hybrid_override_pattern",
    "layers_block_type",
    "lru_width",
)
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope", "su")
_OTHER_POSITIONS = ("alibi", "relative_key", "relative_key_query")


def refuse_config(config: Any) -> None:
    """Refuse a model whose config shows that it cannot be run exactly.

    Args:
        config: a transformers ``PreTrainedConfig``.

    Raises:
        ModelRefusedError: with the model type and the reason.
    """
    text = config.get_text_config(decoder=True)
    for rule in _RULES:
        for part in (config, text):
            reason = rule(part)
            if reason:
                kind = getattr(config, "model_type", "") or type(config).__name__
                raise ModelRefusedError(f"{kind} models cannot be served: {reason}")


def _encoder(config: Any) -> str | None:
    if getattr(config, "is_encoder_decoder", False):
        return "encoder-decoder (cross-attention reads more than the prefix)"
    if getattr(config, "add_cross_attention", False) or getattr(
        config, "cross_attention_layers", None
    ):
        return "cross-attention reads more than the prefix"
    return None


def _recurrent(config: Any) -> str | None:
    if getattr(config, "model_type", "") in _RECURRENT_TYPES:
        return "recurrent or linear-attention layers keep state that blocks do not hold"
    for name in _STATE_FIELDS:
        if getattr(config, name, None):
            return f"recurrent, convolutional or linear-attention layers ({name})"
    return None


def _layer_types(config: Any) -> str | None:
    for kind in getattr(config, "layer_types", None) or ():
        if kind not in _ATTENTION_LAYERS and kind not in _MLP_LAYERS:
            return f"layers of type {kind}"
    return None


def _chunked(config: Any) -> str | None:
    if getattr(config, "attention_chunk_size", None):
        return f"chunked attention (attention_chunk_size {config.attention_chunk_size})"
    return None


def _rope(config: Any) -> str | None:
    for rope in _rope_dicts(config):
        kind = rope.get("rope_type") or rope.get("type")
        if kind in _LENGTH_DEPENDENT_ROPE:
            return (
                f"rope type {kind} depends on the length of the sequence, so cached keys of a "
                "short prompt are wrong in a long one"
            )
    return None


def _positions(config: Any) -> str | None:
    kind = getattr(config, "position_embedding_type", None)
    if kind in _OTHER_POSITIONS:
        return f"positions by {kind} do not go through position_ids"
    nested = getattr(config, "attn_config", None)
    if getattr(config, "alibi", False) or getattr(nested, "alibi", False):
        return "positions by alibi do not go through position_ids"
    if getattr(config, "model_type", "") in ("bloom", "mpt"):
        return "positions by alibi do not go through position_ids"
    return None


def _sinks(config: Any) -> str | None:
    if getattr(config, "model_type", "") == "gpt_oss":
        return "attention sinks are not supported"
    return None


def _bidirectional(config: Any) -> str | None:
    if getattr(config, "use_bidirectional_attention", False) is True:
        return "its attention is bidirectional"
    if getattr(config, "is_causal", True) is False:
        return "its attention is not causal"
    return None


def _latent(config: Any) -> str | None:
    if not getattr(config, "kv_lora_rank", None):
        return None
    key = (getattr(config, "qk_nope_head_dim", 0) or 0) + (
        getattr(config, "qk_rope_head_dim", 0) or 0
    )
    value = getattr(config, "v_head_dim", key)
    if key != value:
        return f"latent attention with keys of {key} and values of {value} numbers a head"
    return None


def _sparse(config: Any) -> str | None:
    if getattr(config, "index_topk", None):
        return "sparse attention chosen by an indexer with a cache of its own"
    return None


def _quantised(config: Any) -> str | None:
    found = getattr(config, "quantization_config", None)
    if not found:
        return None
    method = found.get("quant_method") if isinstance(found, dict) else found
    return f"its weights are quantised ({method}); load a plain or GGUF version"


def _rope_dicts(config: Any) -> Iterator[dict[str, Any]]:
    for name in ("rope_parameters", "rope_scaling"):
        rope = getattr(config, name, None)
        if isinstance(rope, dict):
            yield rope
            # One dictionary a layer type, as in Gemma 3.
            yield from (part for part in rope.values() if isinstance(part, dict))


_RULES: tuple[Callable[[Any], str | None], ...] = (
    _encoder,
    _recurrent,
    _layer_types,
    _chunked,
    _rope,
    _positions,
    _sinks,
    _bidirectional,
    _latent,
    _sparse,
    _quantised,
)
