"""Tiny random models of many architectures, saved as HF folders."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB = 97
CONTEXT = 256
WINDOW = 12

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {},
    "gemma2": {
        "sliding_window": WINDOW,
        "layer_types": _SLIDING,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 24,
    },
    "gemma3_text": {
        "sliding_window": WINDOW,
        "layer_types": _SLIDING,
        "query_pre_attn_scalar": 24,
    },
    "mistral": {"sliding_window": WINDOW},
    "phi3": {"num_key_value_heads": 6, "head_dim": 8},
    "olmo2": {"num_key_value_heads": 6, "head_dim": 8},
    "gpt2": {"n_positions": CONTEXT, "n_inner": 64},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
}
"""Config fields that differ from the common ones, by model type."""


def tiny_config(model_type: str, **changes: Any) -> Any:
    """Return the config of a tiny model."""
    fields = _COMMON | ARCHITECTURES.get(model_type, {}) | changes
    return AutoConfig.for_model(model_type, **fields)


def save_tiny(folder: Path, model_type: str = "llama", **changes: Any) -> Path:
    """Make a random model, save it, return its folder."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(tiny_config(model_type, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            # Fresh models have weights near zero and so hardly any attention to get wrong.
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.12)
    model.save_pretrained(folder)
    return folder


def own_model(folder: Path) -> PreTrainedModel:
    """Load the model as transformers runs it by itself, in float32 with eager attention."""
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()


def own_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Return the model's own logits of every position, float32 ``[n, vocab]``."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0].float()
