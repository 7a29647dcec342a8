"""32 agent calls at once: one system prompt with tool descriptions, 32 questions.

Every call sends the whole prompt; the table shows how much of it the server found in its cache.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from demo_prompts import QUESTIONS, SYSTEM_PROMPT
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from radixcache import AsyncClient, Client, RadixCacheError
from radixcache.client import DEFAULT_ADDRESS
from radixcache.types import ChatMessage, Stats, Usage


@dataclass
class Call:
    """One agent's question and what is known of its answer."""

    question: str
    state: str = "waiting"
    text: str = ""
    usage: Usage | None = None


def main() -> int:
    """Run the demo; see ``--help``."""
    arguments = _parse()
    calls = [Call(question) for question in QUESTIONS[: arguments.calls]]
    try:
        with _server(arguments.address) as address:
            asyncio.run(_run(address, calls, arguments.max_tokens))
    except KeyboardInterrupt:
        return 130
    except (RadixCacheError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0 if all(call.state == "done" for call in calls) else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="a running server (default: the one that answers at the usual address, else one that "
        "is started and stopped again)",
    )
    parser.add_argument(
        "--calls", type=int, default=len(QUESTIONS), choices=range(1, 33), metavar="N"
    )
    parser.add_argument("--max-tokens", type=int, default=48, metavar="N", help="for each answer")
    return parser.parse_args()


@contextmanager
def _server(address: str | None) -> Iterator[str]:
    """Yield the address of a server: the one given, one that runs already, or one of our own."""
    address = address or _running_server()
    if address is not None:
        yield address
        return
    command = [
        sys.executable,
        "-m",
        "radixcache_engine.cli.main",
        "serve",
        "--grpc-port=0",
        "--json",
    ]
    # In a session of its own, so that Ctrl-C reaches the demo alone, which then stops the server.
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield _ready_address(process)
        finally:
            process.terminate()


def _running_server() -> str | None:
    """Return the usual address if a server answers there."""
    address = os.environ.get("RADIXCACHE_ADDRESS", DEFAULT_ADDRESS)
    try:
        with Client(address, timeout=5) as client:
            client.models()
    except RadixCacheError:
        return None
    print(f"using the server at {address}")
    return address


def _ready_address(process: "subprocess.Popen[bytes]") -> str:
    line = process.stdout.readline() if process.stdout else b""
    if not line:
        raise OSError("the server did not start; its message stands above")
    return str(json.loads(line)["address"])


async def _run(address: str, calls: list[Call], max_tokens: int) -> None:
    console = Console()
    started = time.monotonic()
    async with AsyncClient(address) as client:
        before = await client.stats()
        work = [asyncio.create_task(_ask(client, call, max_tokens)) for call in calls]
        await _watch(console, calls, work)
        after = await client.stats()
    if not console.is_terminal:
        console.print(_table(calls, console.width))
    _print_answers(console, calls)
    console.print(_summary(before, after, time.monotonic() - started), soft_wrap=True)


async def _ask(client: AsyncClient, call: Call, max_tokens: int) -> None:
    messages = [ChatMessage("system", SYSTEM_PROMPT), ChatMessage("user", call.question)]
    try:
        async with client.stream(
            messages=messages, max_tokens=max_tokens, temperature=0.0
        ) as stream:
            async for delta in stream:
                call.state = "answering"
                call.text += delta.text
            call.usage = stream.usage
        call.state = "done"
    except RadixCacheError as error:
        call.state, call.text = "failed", str(error)


async def _watch(console: Console, calls: list[Call], work: "list[asyncio.Task[None]]") -> None:
    """Redraw the table until all calls have ended; without a terminal only wait."""
    live = Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext()
    with live as screen:
        pending = set(work)
        while pending:
            _, pending = await asyncio.wait(pending, timeout=0.2)
            if screen is not None:
                screen.update(Group(_totals(calls), _table(calls, console.width)), refresh=True)
    for task in work:
        task.result()


def _table(calls: list[Call], width: int) -> Table:
    # Cut by hand: rich would rather shrink the columns of numbers to nothing than cut long texts.
    question_len = 32
    answer_len = max(8, width - question_len - 38)
    table = Table(box=None, pad_edge=False)
    for name in ("", "question", "state", "prompt", "cached", "answer"):
        right = name in {"", "prompt", "cached"}
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for number, call in enumerate(calls, 1):
        usage = call.usage
        counts = (f"{usage.prompt_tokens:,}", f"{usage.cached_tokens:,}") if usage else ("", "")
        question, answer = _cut(call.question, question_len), _cut(call.text, answer_len)
        table.add_row(str(number), question, f"{call.state:9}", *counts, answer)
    return table


def _cut(text: str, length: int) -> Text:
    """One line of at most ``length`` characters."""
    line = Text(" ".join(text.split()))
    line.truncate(length, overflow="ellipsis")
    return line


def _totals(calls: list[Call]) -> RenderableType:
    usages = [call.usage for call in calls if call.usage]
    prompt = sum(usage.prompt_tokens for usage in usages)
    cached = sum(usage.cached_tokens for usage in usages)
    rate = f"{100 * cached / prompt:.1f} %" if prompt else "–"
    return Text(
        f"{len(usages)} of {len(calls)} done · hit rate {rate} · {cached:,} tokens saved",
        style="bold",
    )


def _print_answers(console: Console, calls: list[Call]) -> None:
    for call in calls:
        console.print()
        console.print(Text(call.question, style="bold"))
        console.print(Text(call.text.strip()), soft_wrap=not console.is_terminal)


def _summary(before: Stats, after: Stats, wall_s: float) -> Text:
    prompt = after.prompt_tokens - before.prompt_tokens
    cached = after.cached_tokens - before.cached_tokens
    computed = after.computed_tokens - before.computed_tokens
    rate = f"{100 * cached / prompt:.1f} %" if prompt else "–"
    return Text(
        f"\n{prompt:,} prompt tokens: {cached:,} read from the cache (hit rate {rate}), "
        f"{computed:,} computed; {after.generated_tokens - before.generated_tokens:,} generated "
        f"in {wall_s:.1f} s",
        style="bold",
    )


if __name__ == "__main__":
    sys.exit(main())
