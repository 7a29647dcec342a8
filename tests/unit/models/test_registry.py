"""From a model's name or path to its folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from radixcache.errors import ModelLoadError, ModelNotFoundError
from radixcache_engine.models import registry
from radixcache_engine.models.cache_folder import cache_folder
from radixcache_engine.models.registry import KNOWN_MODELS, resolve
from tests import tiny_gguf


def test_an_unknown_name_lists_the_known_ones(tmp_path):
    """And says what else is accepted."""
    with pytest.raises(ModelNotFoundError, match=r"'nonesuch'.*smollm2.*path") as caught:
        resolve("nonesuch", cache=tmp_path)

    assert "\n" not in str(caught.value)


def test_a_folder_is_taken_as_it_is(tmp_path):
    """Config and weights are there; its name is the folder's."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    found = resolve(str(tmp_path))

    assert (found.name, found.path) == (tmp_path.name, tmp_path.resolve())


def test_a_folder_without_config_is_no_model(tmp_path):
    """The message says what is missing."""
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        resolve(str(tmp_path))


def test_a_folder_without_weights_cannot_be_loaded(tmp_path):
    """Only safetensors are read."""
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(ModelLoadError, match=r"no \*\.safetensors"):
        resolve(str(tmp_path))


def test_a_gguf_file_becomes_a_folder(tmp_path):
    """Named after the file."""
    path = tiny_gguf.write(tmp_path / "my-model.gguf")
    found = resolve(str(path), cache=tmp_path / "cache")

    assert found.name == "my-model"
    assert (found.path / "config.json").is_file()


def test_any_other_file_is_refused(tmp_path):
    """Whatever its name says."""
    path = tmp_path / "notes.gguf"
    path.write_text("# not a model")

    with pytest.raises(ModelLoadError, match="not a GGUF file"):
        resolve(str(path), cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"RADIXCACHE_CACHE": "/a/own", "XDG_CACHE_HOME": "/b"}, Path("/a/own")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/radixcache")),
        ({"HOME": "/home/someone"}, Path("/home/someone/.cache/radixcache")),
    ],
)
def test_the_cache_folder_follows_the_environment(monkeypatch, settings, expected):
    """Its own variable first, then the desktop's, then the home folder."""
    for name in ("RADIXCACHE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    assert cache_folder() == expected


def seal_empty_conversion(cache):
    """What a finished conversion of the default model looks like to a warm start."""
    folder = cache / "models" / f"{KNOWN_MODELS['smollm2'].sha256}-v1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "radixcache.json").write_text('{"version": 1, "files": {"config.json": 2}}')
    return folder


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2", "smollm2-135m-instruct"])
def test_a_warm_start_fetches_and_converts_nothing(tmp_path, monkeypatch, name):
    """Known by all its names, in any case; neither the network nor the GGUF file is needed."""
    folder = seal_empty_conversion(tmp_path)
    monkeypatch.setattr(registry, "fetch", None)
    monkeypatch.setattr(registry, "convert_gguf", None)
    found = resolve(name, cache=tmp_path)

    assert (found.name, found.path) == ("smollm2", folder)


def test_a_warm_start_imports_nothing_heavy(tmp_path):
    """Neither torch nor transformers nor numpy, and no tokenizer."""
    seal_empty_conversion(tmp_path)
    script = (
        "import sys\n"
        "from radixcache_engine.models.registry import resolve\n"
        "resolve('smollm2')\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'tokenizers') if m in sys.modules])"
    )
    environment = {**os.environ, "RADIXCACHE_CACHE": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )

    assert ran.stdout.strip() == "[]"
