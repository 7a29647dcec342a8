"""Entry of the ``radixcache`` command: parse, run one command, turn errors into one line.

Exit codes: 0 done, 2 the command line or a request field is wrong, 130 ended by Ctrl-C, 1 any
other error. Modules of commands load only when their command runs, so that ``--help`` costs next
to nothing.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TextIO, cast

from radixcache.errors import InvalidRequestError, RadixCacheError
from radixcache_engine.cli.arguments import build_parser
from radixcache_engine.cli.messages import print_error

__all__ = ["main"]

FAILED = 1
USAGE = 2
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments after the program's name; None: those of the process.

    Returns:
        The exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        _replace_unprintable(stream)
    arguments = build_parser().parse_args(argv)
    try:
        return _command(arguments.command_at)(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_gone()
    except InvalidRequestError as error:
        print_error(error)
        return USAGE
    except (RadixCacheError, MemoryError, OSError, ModuleNotFoundError) as error:
        print_error(error)
        return FAILED


def _command(where: str) -> Callable[[Any], int]:
    """Load ``module:function``, the function that runs a command."""
    module, _, function = where.partition(":")
    return cast("Callable[[Any], int]", getattr(import_module(module), function))


def _replace_unprintable(stream: TextIO) -> None:
    """Let a terminal without UTF-8 show ``?`` where a model writes what it cannot show."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def _reader_gone() -> int:
    """End quietly when the reader of a pipe has left, as ``radixcache tree | head`` does."""
    # Python flushes stdout at exit; without this it would complain about the pipe then.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
