"""Where prompts of the command line come from."""

import sys
from argparse import Namespace
from typing import Any

from radixcache_engine.cli.arguments import SAMPLING_FLAGS

__all__ = ["read_prompt", "sampling_keywords"]


def read_prompt(argument: str) -> str:
    """Return the prompt argument, or all of stdin where the argument is ``-``."""
    return sys.stdin.read() if argument == "-" else argument


def sampling_keywords(arguments: Namespace) -> dict[str, Any]:
    """Return the sampling flags that were given, as keywords of ``Client.generate``."""
    given = vars(arguments)
    return {name: given[name] for name in SAMPLING_FLAGS if name in given}
