"""``radixcache chat``: a conversation; each turn's history is read from the cache."""

import contextlib
import re
import sys
from argparse import Namespace
from dataclasses import asdict
from typing import Any

from radixcache.client import Client
from radixcache.errors import InvalidRequestError
from radixcache.types import ChatMessage, Usage
from radixcache_engine.cli.messages import note, print_error
from radixcache_engine.cli.prompts import sampling_keywords
from radixcache_engine.cli.records import describe_usage, print_json

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  importing it gives input() line editing and a history

__all__ = ["run"]

_HELP = "/reset forgets the conversation, /quit or Ctrl-D ends; Ctrl-C cuts an answer short"
# One word after a slash; a path, which has another slash, is something to say.
_COMMAND = re.compile(r"/\w*(\s|$)")


def run(arguments: Namespace) -> int:
    """Talk until stdin ends or ``/quit``."""
    with Client(arguments.address) as client:
        model = client.models()[0]
        conversation = _Conversation(client, arguments)
        if conversation.for_people:
            note(f"{model.name} at {arguments.address}. {_HELP}")
        while (line := conversation.next_line()) is not None:
            if line == "/quit":
                break
            if line == "/reset":
                conversation.reset()
            elif _COMMAND.match(line):
                note(f"{line.split()[0]} is no command; {_HELP}")
            elif line:
                conversation.turn(line)
    return 0


class _Conversation:
    """The messages so far, and how the next turn is read, asked and shown."""

    def __init__(self, client: Client, arguments: Namespace) -> None:
        self._client = client
        self._json: bool = arguments.json
        self._system: str | None = arguments.system
        self._sampling: dict[str, Any] = sampling_keywords(arguments)
        self._messages: list[ChatMessage] = []
        self.for_people = not self._json and sys.stdin.isatty() and sys.stdout.isatty()
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system prompt."""
        self._messages = [] if self._system is None else [ChatMessage("system", self._system)]

    def next_line(self) -> str | None:
        """Read what the user says next; None at the end of input."""
        if not self.for_people:
            line = sys.stdin.readline()
            return line.strip() if line else None
        try:
            return input("you> ").strip()
        except EOFError:
            print()
            return None

    def turn(self, text: str) -> None:
        """Ask and show one answer.

        A request the server refuses is told to a person, who may say something shorter; without
        one it ends the command, like any other error.
        """
        asked = [*self._messages, ChatMessage("user", text)]
        try:
            answer, usage = self._answer(asked)
        except InvalidRequestError as error:
            if not self.for_people:
                raise
            print_error(error)
            return
        self._messages = [*asked, ChatMessage("assistant", answer)]
        if usage is None:
            return
        if self._json:
            print_json({"text": answer, "usage": asdict(usage)})
        else:
            note(f"({describe_usage(usage)})")

    def _answer(self, messages: list[ChatMessage]) -> tuple[str, Usage | None]:
        """Stream one answer; usage is None when the user cut it short."""
        pieces: list[str] = []
        with self._client.stream(messages=messages, **self._sampling) as stream:
            try:
                for delta in stream:
                    pieces.append(delta.text)
                    if not self._json:
                        print(delta.text, end="", flush=True)
            except KeyboardInterrupt:
                if not self.for_people:
                    raise
                print(" [cut]")
                return "".join(pieces), None
            if not self._json:
                print(flush=True)
            return "".join(pieces), stream.answer().usage
