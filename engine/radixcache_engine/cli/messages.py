"""Lines for people on stderr, so that stdout stays clean for pipes."""

import sys

from radixcache.errors import RadixCacheError

__all__ = ["note", "print_error"]


def note(line: str) -> None:
    """Write one line to stderr."""
    print(line, file=sys.stderr, flush=True)


def print_error(error: BaseException) -> None:
    """Write the one line a failed command leaves."""
    note(f"error: {_explain(error)}")


def _explain(error: BaseException) -> str:
    """Put an error into one line that says what to do where that is known."""
    if isinstance(error, MemoryError):
        return "out of memory; a smaller --kv-tokens needs less"
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed: pip install 'radixcache[engine]'"
    if isinstance(error, OSError) and not isinstance(error, RadixCacheError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__
