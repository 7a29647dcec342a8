"""``radixcache fetch``: get a model's files ready without serving it."""

from argparse import Namespace

from radixcache_engine.cli.progress import show_progress
from radixcache_engine.cli.records import print_json
from radixcache_engine.models.registry import resolve

__all__ = ["run"]


def run(arguments: Namespace) -> int:
    """Download and convert ``arguments.name`` where needed, and print where it lies."""
    with show_progress() as progress:
        folder = resolve(arguments.name, progress)
    if arguments.json:
        print_json({"name": folder.name, "path": str(folder.path)})
    else:
        print(folder.path)
    return 0
