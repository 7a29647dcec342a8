"""``radixcache generate``: complete one prompt, streamed as it comes."""

from argparse import Namespace
from dataclasses import asdict
from typing import Any

from radixcache.client import Client
from radixcache.types import ChatMessage
from radixcache_engine.cli.messages import note
from radixcache_engine.cli.prompts import read_prompt, sampling_keywords
from radixcache_engine.cli.records import (
    answer_record,
    delta_record,
    describe_usage,
    print_json,
)

__all__ = ["run"]


def run(arguments: Namespace) -> int:
    """Print the completion of one prompt; what it cost goes to stderr, or into the JSON."""
    request = _request(arguments)
    with Client(arguments.address) as client:
        if arguments.json and arguments.stream:
            _stream_json(client, request)
        elif arguments.json:
            print_json(answer_record(client.stream(**request).answer()))
        elif request.get("n", 1) == 1:
            _stream_text(client, request)
        else:
            _print_samples(client, request)
    return 0


def _request(arguments: Namespace) -> dict[str, Any]:
    """Return the keywords of ``Client.generate``."""
    prompt = read_prompt(arguments.prompt)
    sampling = sampling_keywords(arguments)
    if arguments.chat:
        return {"messages": [ChatMessage("user", prompt)], **sampling}
    return {"prompt": prompt, **sampling}


def _stream_json(client: Client, request: dict[str, Any]) -> None:
    with client.stream(**request) as stream:
        for delta in stream:
            print_json({"delta": delta_record(delta)})
        print_json({"usage": asdict(stream.answer().usage)})


def _stream_text(client: Client, request: dict[str, Any]) -> None:
    started = False
    with client.stream(**request) as stream:
        try:
            for delta in stream:
                started = True
                print(delta.text, end="", flush=True)
        finally:
            if started:  # the line of an error must not continue the text
                print(flush=True)
        note(describe_usage(stream.answer().usage))


def _print_samples(client: Client, request: dict[str, Any]) -> None:
    answer = client.stream(**request).answer()
    for choice in answer.choices:
        print(f"[{choice.index}] {choice.text}", flush=True)
    note(describe_usage(answer.usage))
