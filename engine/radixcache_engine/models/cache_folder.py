"""The user's cache folder: where it is, locks across processes, digests of files in it."""

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from radixcache.errors import ModelLoadError
from radixcache_engine.models.progress import Progress

__all__ = ["cache_folder", "fail_clearly", "file_sha256", "locked", "write_atomically"]

_CHUNK_BYTES = 1 << 22


def cache_folder() -> Path:
    """Return the user's cache folder; it need not exist yet.

    ``RADIXCACHE_CACHE`` if set, else ``radixcache`` in ``XDG_CACHE_HOME``, else in ``~/.cache``.
    """
    own = os.environ.get("RADIXCACHE_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "radixcache"


@contextmanager
def fail_clearly(what: str) -> Iterator[None]:
    """Turn a disk error inside the block into one line.

    Raises:
        ModelLoadError: in place of an ``OSError`` (full disk, no permission).
    """
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise ModelLoadError(f"{what}: {error.strerror or error}{where}") from error


@contextmanager
def locked(cache: Path, name: str, progress: Progress) -> Iterator[None]:
    """Hold a lock that one process of this machine holds at a time.

    The kernel drops it when its holder dies, so a crash never blocks the next start.
    """
    folder = cache / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.task("waiting for another process that prepares the model", None):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that no reader ever sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, staged = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    Path(staged).replace(path)


def file_sha256(path: Path, cache: Path, progress: Progress) -> str:
    """Return the sha256 of a file, read again only when its size, time or inode changed."""
    state = path.stat()
    seen = [state.st_size, state.st_mtime_ns, state.st_ino]
    key = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()
    note = cache / "digests" / f"{key}.json"
    known = _read_json(note)
    if known.get("seen") == seen and isinstance(known.get("sha256"), str):
        return str(known["sha256"])
    digest = hashlib.sha256()
    with (
        path.open("rb") as file,
        progress.task(f"checking {path.name}", state.st_size) as task,
    ):
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            task.advance(len(chunk))
    write_atomically(note, json.dumps({"seen": seen, "sha256": digest.hexdigest()}))
    return digest.hexdigest()


def _read_json(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}  # an unreadable note only costs reading the file again
    return found if isinstance(found, dict) else {}
