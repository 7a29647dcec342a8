"""Models that cannot be run exactly are refused from their config, with the reason."""

from types import SimpleNamespace

import pytest
from transformers import AutoConfig

from radixcache.errors import ModelRefusedError
from radixcache_engine.models.refuse import refuse_config
from tests.tiny_models import ARCHITECTURES, tiny_config

REFUSED = {
    "mamba": ("mamba", {}, "recurrent or linear-attention"),
    "jamba": ("jamba", {}, "recurrent or linear-attention"),
    "lfm2": ("lfm2", {}, "recurrent or linear-attention"),
    "qwen3_next": ("qwen3_next", {}, "recurrent or linear-attention"),
    "t5": ("t5", {}, "encoder-decoder"),
    "bart": ("bart", {}, "encoder-decoder"),
    "cross": ("gpt2", {"add_cross_attention": True}, "cross-attention"),
    "sinks": ("gpt_oss", {}, "attention sinks"),
    "alibi": ("bloom", {}, "alibi"),
    "falcon-alibi": ("falcon", {"alibi": True}, "alibi"),
    "latent": ("deepseek_v3", {}, "keys of 192 and values of 128"),
    "chunked": ("llama4_text", {}, "chunked"),
    "bidirectional": ("gemma3_text", {"use_bidirectional_attention": True}, "bidirectional"),
    "quantised": ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantised .gptq"),
    "relative": ("llama", {"position_embedding_type": "relative_key"}, "relative_key"),
    "sparse": ("llama", {"index_topk": 64}, "indexer"),
    "state": ("llama", {"mamba_d_state": 16}, "mamba_d_state"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused_with_the_reason(case):
    """The message names the model type and what makes its KV no pure function of the prefix."""
    model_type, changes, reason = case
    with pytest.raises(ModelRefusedError, match=reason) as caught:
        refuse_config(AutoConfig.for_model(model_type, **changes))

    assert model_type in str(caught.value)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_length_dependent_rope_is_refused(kind):
    """Case 28: keys rotated by a base that depends on the length cannot be reused."""
    rope = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 2.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
        rope |= {"original_max_position_embeddings": 128}
    with pytest.raises(ModelRefusedError, match=f"rope type {kind} depends on the length"):
        refuse_config(tiny_config("llama", rope_parameters=rope))


def test_rope_of_one_layer_type_is_looked_at():
    """A rope per layer type is refused when any of them depends on the length."""
    plain = {"rope_type": "default", "rope_theta": 10_000.0}
    odd = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    config = tiny_config("gemma3_text")
    config.rope_parameters = {"full_attention": odd, "sliding_attention": plain}
    with pytest.raises(ModelRefusedError, match="rope type dynamic"):
        refuse_config(config)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_fixed_rope_scaling_is_fine(kind):
    """Scaled ropes that do not look at the length are served."""
    rope = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 2.0}
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 128} if kind != "linear" else {}

    refuse_config(tiny_config("llama", rope_parameters=rope))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_supported_ones_pass(name):
    """No rule catches a model that runs exactly."""
    refuse_config(tiny_config(name))


def test_a_nested_text_config_is_looked_at():
    """The rules see the decoder inside a composite config."""
    text = tiny_config("llama", index_topk=64)
    whole = SimpleNamespace(model_type="pictures", get_text_config=lambda decoder: text)
    with pytest.raises(ModelRefusedError, match="pictures models cannot be served: sparse"):
        refuse_config(whole)
