"""The command line as data: every command, its flags and where its code lives.

Nothing here may import more than the standard library and the engine's configuration:
``radixcache --help`` pays for all of it.
"""

import argparse
import os
from dataclasses import fields
from typing import Any, NoReturn

from radixcache import __version__
from radixcache_engine.config import EngineConfig

__all__ = ["DEFAULT_PORT", "SAMPLING_FLAGS", "build_parser"]

DEFAULT_PORT = 50051
_DEFAULTS = EngineConfig()
_HERE = "radixcache_engine.cli"

SAMPLING_FLAGS = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logprobs",
    "n",
)
"""Names of the sampling flags, as the client's keywords; one that was not given is absent."""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see: {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command.

    A parsed namespace carries ``command_at``, the ``module:function`` that runs the command.
    """
    parser = _Parser(
        prog="radixcache",
        description="Serve a language model that computes shared prefixes once, and ask it.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"radixcache {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    _add_serve(commands)
    _add_generate(commands)
    _add_chat(commands)
    _add_stats(commands)
    _add_tree(commands)
    _add_match(commands)
    _add_flush(commands)
    _add_fetch(commands)
    _add_version(commands)
    return parser


_Commands = Any  # argparse keeps the type of its sub-parser collection private


def _command(commands: _Commands, name: str, at: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
    )
    parser.set_defaults(command_at=f"{_HERE}.{at}")
    parser.add_argument("--json", action="store_true", help="write JSON and nothing else to stdout")
    return parser


def _client_command(commands: _Commands, name: str, at: str, text: str) -> argparse.ArgumentParser:
    parser = _command(commands, name, at, text)
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        default=os.environ.get("RADIXCACHE_ADDRESS", f"127.0.0.1:{DEFAULT_PORT}"),
        help="the server to ask (default: RADIXCACHE_ADDRESS, else 127.0.0.1:50051)",
    )
    return parser


def _add_serve(commands: _Commands) -> None:
    parser = _command(commands, "serve", "serve:run", "load a model and serve it over gRPC")
    door = parser.add_argument_group("where it listens")
    door.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)"
    )
    door.add_argument(
        "--allow-remote",
        action="store_true",
        help="permit a --host that other machines reach; there is no authentication yet",
    )
    door.add_argument(
        "--grpc-port",
        type=int,
        metavar="PORT",
        default=DEFAULT_PORT,
        help=f"0 takes any free port (default {DEFAULT_PORT})",
    )
    door.add_argument("--http-port", type=int, metavar="PORT", help="not built yet: refused")
    door.add_argument(
        "--drain-s",
        type=float,
        metavar="S",
        default=10.0,
        help="seconds running requests get to finish after Ctrl-C or SIGTERM (default 10)",
    )
    _add_engine_flags(parser)


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Mirror EngineConfig; its own checks name the range of a value that is out of it."""
    known = {field.name for field in fields(EngineConfig)}
    model = parser.add_argument_group("model and cache")
    scheduling = parser.add_argument_group("scheduling")
    debugging = parser.add_argument_group("checks")

    def add(group: Any, name: str, kind: Any, text: str) -> None:
        known.remove(name)
        default = getattr(_DEFAULTS, name)
        group.add_argument(
            "--" + name.replace("_", "-"),
            type=kind,
            metavar={int: "N", float: "S"}.get(kind, "NAME"),
            default=default,
            help=text if default is None else f"{text} (default {default})",
        )

    add(model, "model", str, "a known name, a Hugging Face folder or a GGUF file")
    add(model, "dtype", str, "auto, float32, bfloat16 or float16")
    add(model, "device", str, "auto, cpu or cuda")
    add(model, "attention_backend", str, "auto, cpu or reference")
    add(model, "block_size", int, "tokens a KV block, 1 to 256")
    add(model, "eviction_policy", str, "which cached prefix goes first: lru, adaptive, ...")
    add(model, "kv_tokens", int, "size of the KV pool in tokens (default: from free memory)")
    add(model, "max_context_len", int, "longest sequence in tokens (default: the model's own)")
    add(model, "threads", int, "torch threads (default: the cores this process may use)")
    add(scheduling, "max_batch_tokens", int, "most tokens computed in one step")
    add(scheduling, "max_running", int, "most sequences in one step")
    add(scheduling, "max_waiting", int, "most requests in the queue; one more is refused")
    add(scheduling, "max_wait_s", float, "after this a waiting request goes before better matches")
    for name, text in (
        ("poison_freed", "fill freed KV blocks with NaN (slow)"),
        ("check_every_step", "check every invariant of the cache after each step (slow)"),
    ):
        known.remove(name)
        debugging.add_argument("--" + name.replace("_", "-"), action="store_true", help=text)
    known.remove("probe")
    debugging.add_argument(
        "--no-probe",
        dest="probe",
        action="store_false",
        help="skip the comparison with the model's own forward at load",
    )
    if known:
        raise TypeError(f"settings without a flag: {sorted(known)}")


def _add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add the sampling flags; what is not given is not sent, so the server's defaults hold."""
    group = parser.add_argument_group("sampling (defaults are the server's)")

    def add(name: str, kind: Any, text: str, **more: Any) -> None:
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, dest=name, type=kind, default=argparse.SUPPRESS, help=text, **more)

    add("max_tokens", int, "most tokens to generate", metavar="N")
    add("min_tokens", int, "no end before this many", metavar="N")
    add("temperature", float, "0: greedy", metavar="T")
    add("top_k", int, "draw from the K likeliest tokens only", metavar="K")
    add("top_p", float, "draw from the likeliest tokens that hold this probability", metavar="P")
    add("min_p", float, "drop tokens below this share of the likeliest one's", metavar="P")
    add("seed", int, "same seed, same text", metavar="N")
    add("repetition_penalty", float, "over prompt and output; 1: off", metavar="X")
    add("presence_penalty", float, "over output; 0: off", metavar="X")
    add("frequency_penalty", float, "over output; 0: off", metavar="X")
    add("stop", str, "end before this text; may be repeated", action="append", metavar="TEXT")
    group.add_argument(
        "--stop-token-id",
        dest="stop_token_ids",
        type=int,
        action="append",
        metavar="ID",
        default=argparse.SUPPRESS,
        help="end at this token; may be repeated",
    )
    group.add_argument(
        "--ignore-eos",
        action="store_true",
        default=argparse.SUPPRESS,
        help="go on after the model's end token",
    )


def _add_generate(commands: _Commands) -> None:
    parser = _client_command(commands, "generate", "generate:run", "complete one prompt")
    parser.add_argument("prompt", help="the prompt; - reads it from stdin")
    parser.add_argument(
        "--chat", action="store_true", help="send it as a user's message, in the chat template"
    )
    parser.add_argument(
        "--stream", action="store_true", help="with --json: one line a delta, then the usage"
    )
    _add_sampling_flags(parser)
    parser.add_argument("--n", type=int, metavar="N", default=argparse.SUPPRESS, help="samples")
    parser.add_argument(
        "--logprobs",
        type=int,
        metavar="K",
        default=argparse.SUPPRESS,
        help="with --json: log-probabilities of the drawn and the K likeliest tokens",
    )


def _add_chat(commands: _Commands) -> None:
    parser = _client_command(commands, "chat", "chat:run", "talk with the model, turn by turn")
    parser.add_argument("--system", metavar="TEXT", default=None, help="the system prompt")
    _add_sampling_flags(parser)


def _add_stats(commands: _Commands) -> None:
    _client_command(commands, "stats", "cache:run_stats", "show the server's counters and sizes")


def _add_tree(commands: _Commands) -> None:
    text = "show the cached prefixes as a tree"
    parser = _client_command(commands, "tree", "cache:run_tree", text)
    parser.add_argument(
        "--max-nodes", type=int, default=100, metavar="N", help="most nodes shown (default 100)"
    )


def _add_match(commands: _Commands) -> None:
    text = "say how much of a prompt is cached, changing nothing"
    parser = _client_command(commands, "match", "cache:run_match", text)
    parser.add_argument("prompt", help="the prompt; - reads it from stdin")


def _add_flush(commands: _Commands) -> None:
    _client_command(commands, "flush", "cache:run_flush", "forget every cached prefix")


def _add_fetch(commands: _Commands) -> None:
    text = "download and convert a model, so that serve starts at once"
    parser = _command(commands, "fetch", "fetch:run", text)
    parser.add_argument(
        "name", nargs="?", default=_DEFAULTS.model, help="a known name, or a path (default smollm2)"
    )


def _add_version(commands: _Commands) -> None:
    _command(commands, "version", "version:run", "show the versions of radixcache and its parts")
