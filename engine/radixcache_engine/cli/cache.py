"""``radixcache stats``, ``tree``, ``match`` and ``flush``: look into a server's cache."""

from argparse import Namespace
from dataclasses import asdict

from rich.console import Console

from radixcache.client import Client
from radixcache_engine.cli.prompts import read_prompt
from radixcache_engine.cli.records import print_json, stats_record
from radixcache_engine.cli.tables import stats_table, tree_picture

__all__ = ["run_flush", "run_match", "run_stats", "run_tree"]


def run_stats(arguments: Namespace) -> int:
    """Print counters since start and sizes now."""
    with Client(arguments.address) as client:
        stats = client.stats()
    if arguments.json:
        print_json(stats_record(stats))
    else:
        Console().print(stats_table(stats))
    return 0


def run_tree(arguments: Namespace) -> int:
    """Print the cached prefixes, at most ``arguments.max_nodes`` of them."""
    with Client(arguments.address) as client:
        tree = client.tree(max_nodes=arguments.max_nodes)
    if arguments.json:
        print_json(asdict(tree))
    else:
        Console().print(tree_picture(tree))
    return 0


def run_match(arguments: Namespace) -> int:
    """Print how many tokens of a prompt are cached."""
    prompt = read_prompt(arguments.prompt)
    with Client(arguments.address) as client:
        match = client.match(prompt)
    if arguments.json:
        print_json(asdict(match))
    else:
        print(f"{match.matched_tokens:,} of {match.prompt_tokens:,} prompt tokens are cached")
    return 0


def run_flush(arguments: Namespace) -> int:
    """Empty the cache and print what that dropped."""
    with Client(arguments.address) as client:
        flushed = client.flush()
    if arguments.json:
        print_json(asdict(flushed))
    else:
        print(f"flushed {flushed.flushed_tokens:,} tokens")
    return 0
