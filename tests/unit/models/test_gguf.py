"""GGUF files: converted once, whole or not at all; broken ones refused in one line."""

import json
import shutil
import struct
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from radixcache.errors import ModelLoadError
from radixcache_engine.front.tokenizer import Tokenizer
from radixcache_engine.models.cache_folder import file_sha256
from radixcache_engine.models.gguf import convert_gguf, find_converted
from radixcache_engine.models.gguf_header import read_header
from radixcache_engine.models.progress import SILENT
from tests import tiny_gguf
from tests.recorded_progress import RecordedProgress


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A small GGUF file."""
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def cache(tmp_path_factory, source):
    """A cache folder with its conversion."""
    folder = tmp_path_factory.mktemp("cache")
    convert_gguf(source, folder)
    return folder


@pytest.fixture
def converted(tmp_path, cache, source):
    """A copy of that cache that a test may break, and the conversion in it."""
    shutil.copytree(cache, tmp_path / "cache")
    return tmp_path / "cache", convert_gguf(source, tmp_path / "cache")


def test_the_folder_is_a_model_in_float32(cache, source):
    """Transformers loads it, runs it, and the weights are those of the file."""
    folder = convert_gguf(source, cache)
    weights = load_file(folder / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(folder)
    expected = tiny_gguf._tensors(model.config.vocab_size, 0)

    assert {value.dtype for value in weights.values()} == {torch.float32}
    for ours, theirs in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
        ("model.norm.weight", "output_norm.weight"),
    ):
        assert np.array_equal(weights[ours].numpy(), expected[theirs])
    assert model.config.num_key_value_heads == tiny_gguf.KV_HEADS
    assert model.config.max_position_embeddings == tiny_gguf.CONTEXT
    assert model(torch.tensor([[5, 6, 7]])).logits.isfinite().all()


def test_the_tokenizer_comes_along(cache, source):
    """Vocabulary, control tokens, end token and chat template."""
    tokenizer = Tokenizer.load(convert_gguf(source, cache))

    assert tokenizer.decode(tokenizer.encode("hi Žluť\n\n1")) == "hi Žluť\n\n1"
    assert tokenizer.encode("<|a|>") == [0]
    assert tokenizer.eos_token_ids == (1,)


def test_single_digit_vocabularies_split_digits(cache, source, tmp_path):
    """The file names its split; ignoring it gives other tokens than the model was trained on."""
    ours = Tokenizer.load(convert_gguf(source, cache))
    other = Tokenizer.load(
        convert_gguf(tiny_gguf.write(tmp_path / "o.gguf", pre="gpt-2"), tmp_path)
    )

    assert [ours.token_bytes[i] for i in ours.encode("\n\n12")] == [b"\n\n", b"1", b"2"]
    assert [other.token_bytes[i] for i in other.encode("\n\n12")] == [b"\n", b"\n", b"1", b"2"]


def test_a_second_call_converts_nothing(converted, source):
    """Nor does it read the file again: size, time and inode are remembered."""
    cache, folder = converted
    progress = RecordedProgress()

    assert convert_gguf(source, cache, progress) == folder
    assert progress.named("converting") == []
    assert len(progress.named("checking")) == 0


def test_the_progress_reaches_its_total(tmp_path, source):
    """Every tensor counts, and nothing is left over."""
    progress = RecordedProgress()
    convert_gguf(source, tmp_path, progress)
    (task,) = progress.named("converting")

    assert task.done == task.total > 20


def damage_weights(folder):
    """Cut the weights as a full disk or a power cut would."""
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(100)


def damage_marker(folder):
    """Cut the marker."""
    (folder / "radixcache.json").write_text('{"version": 1, "fi')


def forget_file(folder):
    """Lose a file."""
    (folder / "tokenizer.json").unlink()


def old_version(folder):
    """Be of a version this code does not write."""
    marker = json.loads((folder / "radixcache.json").read_text())
    (folder / "radixcache.json").write_text(json.dumps({**marker, "version": 0}))


def lose_marker(folder):
    """Never have been finished."""
    (folder / "radixcache.json").unlink()


@pytest.mark.parametrize(
    "damage", [damage_weights, damage_marker, forget_file, old_version, lose_marker]
)
def test_a_damaged_conversion_is_built_again(converted, source, damage):
    """It is never taken for whole, and never in the way."""
    cache, folder = converted
    digest = file_sha256(source, cache, SILENT)
    damage(folder)

    assert find_converted(cache, digest) is None
    assert convert_gguf(source, cache) == folder
    assert find_converted(cache, digest) == folder


def test_a_changed_file_is_another_model(converted, tmp_path):
    """The digest is the key, not the name."""
    cache, folder = converted
    changed = tiny_gguf.write(tmp_path / "tiny.gguf", seed=1)

    assert convert_gguf(changed, cache) != folder


def test_two_at_once_convert_once(tmp_path, source):
    """The second waits for the first and takes its result."""
    progress, folders = RecordedProgress(), []

    def work():
        folders.append(convert_gguf(source, tmp_path, progress))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(folders) == 2
    assert folders[0] == folders[1]
    assert len(progress.named("converting")) == 1
    assert [p.name for p in (tmp_path / "models").iterdir()] == [folders[0].name]


def test_leftovers_of_a_dead_process_are_removed(tmp_path, source):
    """A conversion that was killed leaves a folder that the next one sweeps away."""
    digest = file_sha256(source, tmp_path, SILENT)
    leftover = tmp_path / "models" / f".converting-{digest[:16]}-dead"
    leftover.mkdir(parents=True)
    convert_gguf(source, tmp_path)

    assert not leftover.exists()


def broken(tmp_path, source, change):
    """A changed copy of the file."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(change(source.read_bytes()))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: b"", "empty"),
        (lambda data: b"PK\x03\x04" + data[4:], "not a GGUF file"),
        (lambda data: data[:3], "not a GGUF file"),
        (lambda data: data[:4] + struct.pack("<I", 99) + data[8:], "GGUF version 99"),
        (lambda data: data[:20], "damaged or cut off"),
        (lambda data: data[:1000], "damaged or cut off"),
        (lambda data: data[:-40], "cut off"),
        (lambda data: data[: len(data) // 2], "cut off"),
        (lambda data: data[:8] + b"\xff" * 16 + data[24:], "damaged or cut off"),
        (lambda data: data[:24] + b"\xff" * 8 + data[32:], "damaged or cut off"),
        (lambda data: data.replace(b"general.architecture", b"general.architectura"), "damaged"),
    ],
)
def test_a_broken_file_is_one_clear_line(tmp_path, source, change, words):
    """Wrong magic, unknown version, cut anywhere, sizes that are no sizes."""
    path = broken(tmp_path, source, change)
    with pytest.raises(ModelLoadError, match=words) as caught:
        convert_gguf(path, tmp_path / "cache")

    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "cache" / "models").exists()


def test_an_unsupported_architecture_is_named(tmp_path):
    """The reason is transformers', the line is ours, and nothing is left behind."""
    path = tiny_gguf.write(tmp_path / "odd.gguf", architecture="sparrow")
    with pytest.raises(ModelLoadError, match=r"'sparrow'.*cannot be converted") as caught:
        convert_gguf(path, tmp_path / "cache")

    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_missing_tensor_is_an_error(tmp_path, source):
    """A file without some weights must not become a model with random ones."""
    data = source.read_bytes().replace(b"blk.1.ffn_down.weight", b"blk.1.ffn_dawn.weight")
    path = tmp_path / "partial.gguf"
    path.write_bytes(data)

    with pytest.raises(ModelLoadError, match=r"1 of its weights.*down_proj"):
        convert_gguf(path, tmp_path / "cache")


def test_the_head_tells_the_architecture(source):
    """Scalars and strings by key, arrays by length."""
    header = read_header(source)

    assert header.architecture == "llama"
    assert header.num_tensors == 20
    assert header.metadata["llama.block_count"] == tiny_gguf.LAYERS
    assert header.metadata["tokenizer.ggml.tokens"] == 260


def test_an_unwritable_cache_is_one_line(tmp_path, source):
    """A file where the folder should be stands for no permission and a full disk."""
    (tmp_path / "cache").write_text("in the way")

    with pytest.raises(ModelLoadError, match="cannot be converted"):
        convert_gguf(source, tmp_path / "cache")
