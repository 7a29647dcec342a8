"""Loading: broken files, unknown models and too little memory end in one clear line."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from radixcache.errors import (
    InvalidRequestError,
    ModelLoadError,
    ModelNotFoundError,
    ModelRefusedError,
)
from radixcache_engine.models import load, memory
from radixcache_engine.models.fingerprint import kv_key, tokenizer_digest, weights_digest
from radixcache_engine.models.load import (
    describe,
    load_model,
    open_folder,
    resolve_device,
    resolve_dtype,
)
from tests.tiny_models import CONTEXT, VOCAB, save_tiny, tiny_config


@pytest.fixture
def folder(tmp_path):
    """A tiny Llama on disk."""
    return save_tiny(tmp_path / "model")


def whole(folder, dtype="float32"):
    """Load and describe a folder."""
    source = open_folder(folder)
    model = load_model(source, dtype=dtype, device="cpu")
    return describe(source, model, dtype=dtype, device="cpu")


def edit(path, **changes):
    """Change fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def one_line(error, folder):
    """Say whether a message is one line that names the folder."""
    return "\n" not in str(error.value) and str(folder) in str(error.value)


def test_a_whole_folder_loads(folder):
    """Model, limits, end tokens and dtype are as the folder says."""
    edit(folder / "generation_config.json", eos_token_id=[5, 2])
    loaded = whole(folder)

    assert (loaded.context_len, loaded.vocab_size) == (CONTEXT, VOCAB)
    assert loaded.eos_token_ids == (5, 2)
    assert loaded.architecture == "LlamaForCausalLM"
    assert loaded.model.dtype == torch.float32
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())


def test_without_a_generation_config_the_models_end_token_counts(folder):
    """generation_config.json may be missing."""
    (folder / "generation_config.json").unlink()

    assert whole(folder).eos_token_ids == (2,)


def test_shards_are_read_by_their_index(tmp_path):
    """A sharded model loads; a shard that is missing is named."""
    folder = save_tiny(tmp_path)
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, keys in parts.items():
        save_file({key: weights[key] for key in keys}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {k: f for f, keys in parts.items() for k in keys}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()

    assert whole(folder).vocab_size == VOCAB
    (folder / "b.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"b\.safetensors, named in the index, is missing"):
        open_folder(folder)


def test_a_shard_outside_the_folder_is_not_read(folder):
    """An index cannot point at files elsewhere."""
    index = {"weight_map": {"x": "../other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match="missing"):
        open_folder(folder)


def test_no_folder(tmp_path):
    """A path that does not exist is not found, rather than broken."""
    with pytest.raises(ModelNotFoundError, match="no such model folder"):
        open_folder(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", b"{", "Expecting property name"),
        ("config.json", b"[]", "must hold an object"),
        ("model.safetensors", None, "model.safetensors is missing"),
        ("model.safetensors", b"", "corrupted"),
        ("model.safetensors", b"\xff" * 200, "corrupted"),
        ("model.safetensors.index.json", b"{}", "not a weight index"),
        ("model.safetensors.index.json", b'{"weight_map": []}', "not a weight index"),
    ],
)
def test_broken_files_are_named(folder, name, content, message):
    """A file that is missing or broken is one line that names it."""
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(ModelLoadError, match=message) as caught:
        open_folder(folder)

    assert one_line(caught, folder)


def test_a_cut_off_download_is_noticed(folder):
    """Weights that end early are found before anything is loaded."""
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelLoadError, match="corrupted") as caught:
        open_folder(folder)

    assert one_line(caught, folder)


def test_missing_weights_are_an_error(folder):
    """A weight that is not in the file is never replaced by a random one."""
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.up_proj\.weight") as caught:
        whole(folder)

    assert one_line(caught, folder)


def test_misshapen_weights_are_an_error(folder):
    """Weights of another size than the config says are an error."""
    edit(folder / "config.json", intermediate_size=80)
    with pytest.raises(ModelLoadError) as caught:
        whole(folder)

    assert one_line(caught, folder)


def test_an_unknown_architecture_is_refused(folder):
    """A model type that transformers does not know is refused by name; its code is not run."""
    edit(
        folder / "config.json",
        model_type="brand_new",
        auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    )
    (folder / "code.py").write_text("raise SystemExit('the folder\\'s own code was run')")
    with pytest.raises(ModelRefusedError, match="brand_new") as caught:
        open_folder(folder)

    assert one_line(caught, folder)


def test_a_model_that_is_no_language_model_is_refused(folder):
    """A config that has no causal language model is refused."""
    (folder / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(ModelRefusedError) as caught:
        load_model(open_folder(folder), dtype="float32", device="cpu")

    assert one_line(caught, folder)


def test_a_config_without_a_length_is_refused(folder):
    """Without a context length no request could be checked against it."""
    source = open_folder(folder)
    model = load_model(source, dtype="float32", device="cpu")
    source = replace(source, config=AutoConfig.for_model("bloom"))
    with pytest.raises(ModelRefusedError, match="max_position_embeddings"):
        describe(source, model, dtype="float32", device="cpu")


def test_too_little_memory_is_said_before_loading(folder, monkeypatch):
    """Weights that do not fit are one line with both sizes, not a killed process."""
    monkeypatch.setattr(load, "available_bytes", lambda device: 1000)
    with pytest.raises(
        ModelLoadError, match=r"need .* GiB in float32, 0\.0 GiB are free"
    ) as caught:
        load_model(open_folder(folder), dtype="float32", device="cpu")

    assert one_line(caught, folder)


def test_bfloat16_keeps_the_rope_table_exact(folder):
    """Loading in bfloat16 rounds weights, never the rope frequencies."""
    exact, rounded = whole(folder).model, whole(folder, "bfloat16").model

    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded.model.rotary_emb.inv_freq, exact.model.rotary_emb.inv_freq)


def test_devices_and_dtypes_resolve():
    """The word auto becomes what the machine has; what it lacks is refused."""
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    assert resolve_dtype("float16", "cpu") == "float16"
    assert resolve_dtype("auto", "cuda:0") == "bfloat16"
    assert resolve_dtype("auto", "cpu") in ("float32", "bfloat16")
    for device in ("tpu9", "meta"):
        with pytest.raises(InvalidRequestError, match=r"auto \| cpu \| cuda"):
            resolve_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_an_error():
    """Cuda on a machine without one is one clear line."""
    with pytest.raises(ModelLoadError, match="not available here"):
        resolve_device("cuda")


def test_the_key_changes_with_everything_that_changes_kv(folder, tmp_path):
    """Weights, tokenizer, dtype, rope and scheme each make another key (rule 7)."""
    base = whole(folder)
    same = tmp_path / "same"
    shutil.copytree(folder, same)

    assert whole(same).kv_key == base.kv_key
    assert whole(folder, "bfloat16").kv_key != base.kv_key
    (same / "tokenizer.json").write_text("{}")

    assert whole(same).kv_key != base.kv_key
    edited = tmp_path / "edited"
    shutil.copytree(folder, edited)
    weights = load_file(edited / "model.safetensors")
    weights["model.norm.weight"][3] += 1e-3
    save_file(weights, edited / "model.safetensors", metadata={"format": "pt"})

    assert whole(edited).fingerprint != base.fingerprint
    assert whole(edited).kv_key != base.kv_key


def test_key_parts_cannot_run_into_each_other():
    """Parts are tagged and length-prefixed, so no two cases give one key."""
    config = tiny_config("llama")
    keys = {
        kv_key(weights=w, tokenizer=t, config=c, dtype=d, scheme=s)
        for w, t, c, d, s in (
            ("ab", "c", config, "float32", "plain"),
            ("a", "bc", config, "float32", "plain"),
            ("ab", "c", config, "bfloat16", "plain"),
            ("ab", "c", config, "float32", "other"),
            ("ab", "c", tiny_config("llama", rope_theta=5.0), "float32", "plain"),
        )
    }

    assert len(keys) == 5


def test_digests_see_every_byte(tmp_path):
    """One changed byte anywhere, in any chunk, changes the digest; file order does not matter."""
    config, a, b = (tmp_path / name for name in ("config.json", "a.safetensors", "b.safetensors"))
    config.write_text("{}")
    a.write_bytes(bytes(70_000_000))
    b.write_bytes(b"b")
    first = weights_digest(config, [a, b])

    assert weights_digest(config, [b, a]) == first
    with a.open("r+b") as file:
        file.seek(69_999_999)
        file.write(b"\x01")

    assert weights_digest(config, [a, b]) != first
    assert tokenizer_digest(tmp_path) == tokenizer_digest(tmp_path)


def test_memory_is_the_smallest_limit(monkeypatch, tmp_path):
    """A cgroup's limit counts where it is smaller than what the machine has free."""
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    free = memory.available_bytes()

    assert free is None or free > 0
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")

    assert memory.available_bytes() == 600
    (tmp_path / "memory.max").write_text("max\n")

    assert memory.available_bytes() != 600
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("900")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("1000")

    assert memory.available_bytes() == 0


def test_nobody_telling_is_no_error(monkeypatch, tmp_path):
    """Where neither /proc nor a cgroup exists, the memory is unknown, not zero."""
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    monkeypatch.setattr(memory, "_PROC", tmp_path / "nothing")

    assert memory.available_bytes() is None


def test_cores_follow_the_quota(monkeypatch, tmp_path):
    """A cgroup's CPU quota bounds the threads."""
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    cores = memory.usable_cores()

    assert cores >= 1
    (tmp_path / "cpu.max").write_text("50000 100000")

    assert memory.usable_cores() == 1
