"""The probe and the trace catch what a config does not show."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

from radixcache.attention import AttentionPlan
from radixcache.attention.reference import ReferenceBackend
from radixcache.errors import CacheCorruptionError, ModelRefusedError
from radixcache.kv.layout import KVLayout
from radixcache.kv.pool import KVPool
from radixcache_engine.models.packed import PackedModel
from radixcache_engine.models.probe import probe_model
from tests.runner_cases import random_ids
from tests.tiny_models import CONTEXT, VOCAB, tiny_config


def tiny(model_type="llama", **changes):
    """Return a random model with its own attention."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(
        tiny_config(model_type, **changes), attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.12)
    return model


def probe(model, backend=None, **changes):
    """Probe a model as loading does."""
    settings = {"vocab_size": VOCAB, "context_len": CONTEXT} | changes
    return probe_model(PackedModel(model), backend or ReferenceBackend(), **settings)


def test_a_good_model_passes_with_its_figure():
    """The probe returns the largest difference, which is float32 rounding."""
    assert 0 < probe(tiny()) < 1e-4


@pytest.mark.parametrize("size", [1, 3, 16])
def test_a_short_context_is_kept_to(size):
    """Prompts never pass the context length; a learned position table would end there."""
    assert probe(tiny("gpt2", n_positions=max(2, size)), context_len=max(2, size)) < 1e-4


class Off(ReferenceBackend):
    """A backend with one fault, by name."""

    def __init__(self, fault):
        self.fault = fault

    def run(self, layer, q, plan, pool, **settings):
        """Run with the fault."""
        if self.fault == "scale":
            settings["scale"] *= 1.05
        if self.fault == "window":
            settings["window"] = 30
        if self.fault == "shifted" and plan.positions[0] > 0:
            # As if the cached part were one token shorter.
            plan.positions.sub_(1)
            try:
                return super().run(layer, q, plan, pool, **settings)
            finally:
                plan.positions.add_(1)
        if self.fault == "fresh only" and plan.positions[0] > 0:
            fresh = replace(plan, seq_lens=plan.seq_lens - plan.positions[0])
            return super().run(layer, q, fresh, pool, **settings)
        if self.fault == "mixed rows" and plan.num_rows > 1:
            return super().run(layer, q.flip(0), plan, pool, **settings)
        return super().run(layer, q, plan, pool, **settings)


@pytest.mark.parametrize("fault", ["scale", "window", "shifted", "fresh only", "mixed rows"])
def test_a_backend_with_a_fault_is_caught(fault):
    """Scale, window, an off-by-one on warm rows, ignored cache, mixed rows: all refused."""
    with pytest.raises(ModelRefusedError, match=r"logits differ by .*\(allowed 0.001\)"):
        probe(tiny(), Off(fault))


class NoPositions(LlamaAttention):
    """Rotates by place in the batch, not by position: right cold and alone, wrong warm."""

    def forward(self, hidden_states, position_embeddings=None, **kwargs):
        """Replace the positions it was given."""
        cos, sin = position_embeddings
        places = torch.arange(hidden_states.shape[1])[None]
        angle = places[..., None].float() * 10_000.0 ** (-torch.arange(0, 16, 2) / 16.0)
        angle = torch.cat((angle, angle), dim=-1)
        turned = (angle.cos().to(cos.dtype), angle.sin().to(sin.dtype))
        return super().forward(hidden_states, position_embeddings=turned, **kwargs)


class Remembering(LlamaAttention):
    """Adds something of all tokens of the call to each: KV is no function of the prefix."""

    def forward(self, hidden_states, **kwargs):
        """Look at the whole call."""
        mixed = hidden_states + hidden_states.cumsum(dim=1) * 0.05
        return super().forward(mixed, **kwargs)


@pytest.mark.parametrize(("attention", "road"), [(NoPositions, "warm"), (Remembering, "warm")])
def test_an_attention_that_ignores_the_cache_is_caught(attention, road):
    """A model that is right cold and wrong over cached blocks is refused, naming the road."""
    model = tiny()
    for layer, block in enumerate(model.model.layers):
        block.self_attn.__class__ = attention
        block.self_attn.layer_idx = layer
    with pytest.raises(ModelRefusedError, match=f"over cached blocks: {road}"):
        probe(model)


def test_a_model_that_gives_nan_is_refused():
    """NaN is no small difference."""
    model = tiny()
    model.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(ModelRefusedError, match="differ by nan"):
        probe(model)


def test_windows_are_crossed():
    """A window that the model's own mask has and its attention call lacks is found."""
    model = tiny("mistral", sliding_window=50)
    packed = PackedModel(model)

    assert {spec.window_left for spec in packed.specs} == {49}
    with pytest.raises(ModelRefusedError, match="differ"):
        probe_model(packed, Off("window"), vocab_size=VOCAB, context_len=CONTEXT)


def refused(model):
    """Return why the trace refuses a model."""
    with pytest.raises(ModelRefusedError) as caught:
        PackedModel(model)
    return str(caught.value)


def test_a_window_that_the_attention_is_not_told_is_refused():
    """A sliding layer that hides its window is refused even where no probe could cross it."""
    model = tiny("gemma2", sliding_window=200)
    model.model.layers[0].self_attn.sliding_window = None

    assert "layer 0 is sliding_attention with a window of 200" in refused(model)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_bidirectional_models_are_refused(name):
    """An encoder that calls itself a causal LM is refused."""
    assert "not causal" in refused(tiny(name, is_decoder=False))


def test_sinks_are_refused():
    """Attention sinks change the softmax; they are refused where the config does not tell."""
    assert "attention sinks" in refused(tiny("gpt_oss"))


def test_differing_head_dims_are_refused():
    """Keys and values of different sizes do not fit one pool."""
    assert "differ in head dim" in refused(tiny("deepseek_v3", num_key_value_heads=6, head_dim=64))


def test_a_mask_of_its_own_is_refused():
    """A model that hands its attention a mask attends by something the cache does not hold."""
    assert "a mask of its own" in refused(tiny("doge"))


def test_attention_outside_the_interface_is_refused():
    """A model whose attention cannot be replaced is refused, not run beside our cache."""
    assert "attention interface" in refused(tiny("xglm"))


def test_a_layer_that_skips_attention_is_refused():
    """Layers that keep their state elsewhere are counted as missing."""
    model = tiny()
    model.model.layers = model.model.layers[:2]

    assert "only 2 of 3 layers" in refused(model)


def test_a_forward_that_fails_is_refused_with_its_reason():
    """A forward that cannot take packed rows is a refusal, not a crash."""
    model = tiny()
    model.model.norm.weight.data = torch.ones(5)

    assert "cannot run packed rows" in refused(model)


def test_layers_may_not_change_after_loading():
    """A forward that runs fewer layers than at load is an error, never short KV."""
    packed = PackedModel(tiny())
    pool = KVPool(KVLayout(num_layers=3, num_kv_heads=2, head_dim=16, block_size=16), 3)
    plan = AttentionPlan.build([0], [5], [[1]], block_size=16)
    packed.model.model.layers = packed.model.model.layers[:2]
    with pytest.raises(CacheCorruptionError, match="ran 2 attention layers, 3 at load"):
        packed.forward(
            torch.tensor(random_ids(5)), plan, pool, ReferenceBackend(), keep=torch.tensor([4])
        )


def test_attention_outside_a_step_is_an_error():
    """The replaced attention cannot be run by accident without a pool."""
    packed = PackedModel(tiny())
    with pytest.raises(CacheCorruptionError, match="outside a step"):
        packed.model(input_ids=torch.tensor([[5, 6]]), use_cache=False)
