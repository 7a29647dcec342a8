"""``radixcache serve``: load a model, listen, drain on a signal."""

import gc
import math
import os
import shlex
import shutil
import socket
import sys
import time
from argparse import Namespace
from dataclasses import asdict, fields
from pathlib import Path

from radixcache import __version__
from radixcache.errors import InvalidRequestError
from radixcache.types import ModelInfo
from radixcache_engine.cli.messages import note
from radixcache_engine.cli.progress import show_progress
from radixcache_engine.cli.records import print_json
from radixcache_engine.cli.signals import StopSignals
from radixcache_engine.config import EngineConfig
from radixcache_engine.models.registry import resolve
from radixcache_engine.server.address import check_host, join, listen_error

__all__ = ["run"]


def run(arguments: Namespace) -> int:
    """Serve until SIGINT or SIGTERM, then drain.

    What can be refused at once is refused before the slow part begins.
    """
    started = time.monotonic()
    config = _checked_config(arguments)
    check_host(arguments.host, allow_remote=arguments.allow_remote)
    _check_address(arguments.host, arguments.grpc_port)
    with show_progress() as progress:
        folder = resolve(config.model, progress)
        with progress.task("loading libraries"):
            from radixcache_engine.cli.assembly import assemble  # noqa: PLC0415  loads torch: 3 s
        service = assemble(config, folder, progress)
    try:
        with StopSignals() as signals:
            server, port = service.listen(
                arguments.host, arguments.grpc_port, allow_remote=arguments.allow_remote
            )
            address = _reachable(arguments.host, port)
            _announce(arguments, address, service.engine.model, time.monotonic() - started)
            signals.wait()
            note(
                f"stopping: running requests have {arguments.drain_s:g} s to finish; "
                "Ctrl-C again ends at once"
            )
            server.stop(arguments.drain_s)
    finally:
        service.engine.close()
    _say_stopped(arguments)
    # At its end the interpreter would look for garbage among all that torch has brought along,
    # for a second; the process's memory goes back at once either way.
    gc.freeze()
    return 0


def _checked_config(arguments: Namespace) -> EngineConfig:
    """Build the configuration from the flags.

    Raises:
        InvalidRequestError: a flag is out of range, or names what is not built yet.
    """
    if arguments.http_port is not None:
        raise InvalidRequestError(
            "http_port", arguments.http_port, "nothing yet: the HTTP door is not built"
        )
    if not 0 <= arguments.grpc_port <= 65_535:
        raise InvalidRequestError(
            "grpc_port", arguments.grpc_port, "a whole number from 0 to 65,535"
        )
    if not (math.isfinite(arguments.drain_s) and arguments.drain_s >= 0):
        raise InvalidRequestError("drain_s", arguments.drain_s, "0 or more seconds")
    given = vars(arguments)
    return EngineConfig(**{field.name: given[field.name] for field in fields(EngineConfig)})


def _check_address(host: str, port: int) -> None:
    """Find out before the model loads whether the address can be had.

    Raises:
        AddressError: it is taken, or not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError:
        raise listen_error(host, port) from None


def _reachable(host: str, port: int) -> str:
    """Return the address that a client on this machine uses."""
    if host in ("", "0.0.0.0", "::"):  # noqa: S104  compared with, not listened on
        host = "127.0.0.1"
    return join(host, port)


def _announce(arguments: Namespace, address: str, model: ModelInfo, load_s: float) -> None:
    """Say that requests may come: where to, to which model, with how much room."""
    if arguments.json:
        record = {"event": "ready", "address": address, "load_s": round(load_s, 3)}
        print_json({**record, "model": asdict(model)})
        return
    lines = (
        f"radixcache {__version__} is ready after {load_s:.1f} s",
        f"  address    {address} (gRPC)",
        f"  model      {model.name} ({model.architecture}, context {model.context_len:,} tokens)",
        f"  KV cache   {model.kv_capacity_tokens:,} tokens in blocks of {model.block_size}",
        f"  computing  {model.dtype} on {model.device}, {model.attention_backend} attention",
        f'  try        {_own_path()} generate "The capital of France is" --address {address}',
    )
    print("\n".join(lines), flush=True)
    if arguments.allow_remote:
        note("warning: whoever reaches this address may use the server; nothing asks who calls")


def _say_stopped(arguments: Namespace) -> None:
    if arguments.json:
        print_json({"event": "stopped"})
    else:
        print("stopped", flush=True)


def _own_path() -> str:
    """Return how the user can call this program again from where they stand."""
    program = Path(sys.argv[0])
    if program.suffix == ".py":  # started as a module
        return f"{shlex.quote(sys.executable)} -m radixcache_engine.cli.main"
    found = shutil.which("radixcache")
    if found is not None and Path(found).resolve() == program.resolve():
        return "radixcache"
    short = os.path.relpath(program)
    return shlex.quote(str(program.absolute()) if short.startswith("..") else short)
