"""``radixcache version``: what is installed, for a bug report."""

import platform
from argparse import Namespace
from importlib.metadata import PackageNotFoundError, version

from radixcache import __version__
from radixcache_engine.cli.records import print_json

__all__ = ["run"]

_PARTS = ("torch", "transformers", "tokenizers", "grpcio", "protobuf", "numpy")


def run(arguments: Namespace) -> int:
    """Print the versions; a part that is not installed is null, or "not installed"."""
    versions = {"radixcache": __version__, "python": platform.python_version()}
    record: dict[str, str | None] = {**versions, **{part: _installed(part) for part in _PARTS}}
    if arguments.json:
        print_json(record)
        return 0
    for name, found in record.items():
        print(f"{name:13}{found or 'not installed'}")
    return 0


def _installed(part: str) -> str | None:
    """Read a version from the package's metadata, without importing the package."""
    try:
        return version(part)
    except PackageNotFoundError:
        return None
