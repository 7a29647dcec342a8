"""Made-up traffic in the record format of the conversation trace, the same for the same seed.

Four kinds, each several thousand requests:

- ``loop``: a batch job asks every document of a fixed corpus, in the same order, again and again,
  each time with a question of its own;
- ``scan``: popular prompts (Zipf) all day, and now and then a long run of documents read once;
- ``chat``: conversations of many people: shared system prompts, a heavy-tailed number of turns,
  think times from seconds to half an hour;
- ``agent``: few long system prompts with tools, tasks of many quick steps, bursts of short-lived
  sub-agents which reuse the prefix of the agent that called them.

A record: ``timestamp`` (ms), ``input_length`` and ``output_length`` (tokens), ``hash_ids`` (one id
for each block of 512 prompt tokens, the last one perhaps partial; equal ids mean equal prefixes).

    python -m benchmarks.trace.workloads chat --seed 101 > chat.jsonl
"""

import argparse
import heapq
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias, TypedDict

__all__ = ["BLOCK_TOKENS", "WORKLOADS", "Record", "generate"]

BLOCK_TOKENS: Final = 512


class Record(TypedDict):
    """One request."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]


class _Text:
    """A growing text: the ids of its whole blocks, and the tokens after them."""

    def __init__(self, source: "_Source", ids: list[int] | None = None, tail: int = 0) -> None:
        self._source = source
        self.ids = ids or []
        self.tail = tail

    @property
    def num_tokens(self) -> int:
        return len(self.ids) * BLOCK_TOKENS + self.tail

    def fork(self) -> "_Text":
        """Return a copy that grows on its own."""
        return _Text(self._source, list(self.ids), self.tail)

    def grow(self, num_tokens: int) -> "_Text":
        """Append tokens that no other text has."""
        self.tail += num_tokens
        while self.tail >= BLOCK_TOKENS:
            self.ids.append(self._source.new_id())
            self.tail -= BLOCK_TOKENS
        return self

    def ask(self, seconds: float, output_tokens: int) -> tuple[float, int, Record]:
        """Return the request made of the text as it stands; a partial last block has its own id."""
        partial = [self._source.new_id()] if self.tail else []
        record = Record(
            timestamp=int(seconds * 1000),
            input_length=self.num_tokens,
            output_length=output_tokens,
            hash_ids=self.ids + partial,
        )
        return seconds, self._source.new_request(), record


_Requests: TypeAlias = list[tuple[float, int, Record]]


class _Source:
    """Random numbers and fresh ids of one workload."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._last_id = -1
        self._last_request = -1

    def new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def new_request(self) -> int:
        self._last_request += 1
        return self._last_request

    def text(self, num_tokens: int = 0) -> _Text:
        return _Text(self).grow(num_tokens)

    def about(self, median: float, sigma: float, most: float) -> int:
        """Return a lognormal number, at least 1 and at most ``most``."""
        return max(1, int(min(most, median * math.exp(self.random.gauss(0.0, sigma)))))

    def zipf(self, num: int, exponent: float) -> Callable[[], int]:
        """Return a function that draws ranks 0 to ``num - 1``."""
        weights = [1.0 / (rank + 1) ** exponent for rank in range(num)]
        ranks = range(num)
        return lambda: self.random.choices(ranks, weights)[0]


def _loop(source: _Source, num_requests: int) -> _Requests:
    """A corpus in the same order again and again; now and then a document out of turn."""
    corpus = [source.text(source.about(9_000, 0.6, 60_000)) for _ in range(num_requests // 12)]
    requests: _Requests = []
    seconds = 0.0
    for turn in range(num_requests):
        seconds += source.random.expovariate(2.0)
        place = turn % len(corpus)
        if source.random.random() < 0.05:
            place = source.random.randrange(len(corpus))
        text = corpus[place].fork().grow(source.about(120, 0.7, 2_000))
        requests.append(text.ask(seconds, source.about(200, 0.8, 2_000)))
    return requests


def _scan(source: _Source, num_requests: int) -> _Requests:
    """Popular prompts, and one-time documents: few at most times, most of it during a scan."""
    prompts = [source.text(source.about(4_000, 0.8, 40_000)) for _ in range(num_requests // 15)]
    popular = source.zipf(len(prompts), 0.8)
    requests: _Requests = []
    seconds, scan_left = 0.0, 0
    for _ in range(num_requests):
        seconds += source.random.expovariate(3.0)
        if not scan_left and source.random.random() < 0.004:
            scan_left = source.about(150, 0.7, 800)
        scanning = source.random.random() < (0.7 if scan_left else 0.05)
        if scanning:
            scan_left = max(0, scan_left - 1)
            text = source.text(source.about(12_000, 0.7, 100_000))
        else:
            text = prompts[popular()].fork().grow(source.about(150, 0.8, 3_000))
        requests.append(text.ask(seconds, source.about(250, 0.8, 3_000)))
    return requests


def _chat(source: _Source, num_requests: int) -> _Requests:
    """Conversations: each turn asks all that was said before, and something new."""
    systems = [source.text(source.about(900, 0.8, 6_000)) for _ in range(8)]
    popular = source.zipf(len(systems), 1.2)
    draw = source.random
    requests: _Requests = []
    start = 0.0
    while len(requests) < num_requests:
        start += draw.expovariate(0.4)
        text = systems[popular()].fork()
        if draw.random() < 0.25:  # a document to talk about
            text.grow(source.about(5_000, 0.9, 60_000))
        turns = min(60, int(draw.paretovariate(1.1)))
        seconds = start
        for _ in range(turns):
            text.grow(source.about(90, 1.2, 8_000))
            answer = source.about(320, 0.8, 3_000)
            requests.append(text.ask(seconds, answer))
            text.grow(answer)
            seconds += answer / 50 + source.about(45, 1.3, 1_800)
    return requests


def _steps(
    source: _Source, text: _Text, seconds: float, num: int, fan_out: float
) -> Iterator[tuple[float, int, Record]]:
    """Yield the requests of an agent; each step may send out a burst of sub-agents."""
    draw = source.random
    for _ in range(num):
        answer = source.about(180, 0.7, 2_000)
        yield text.ask(seconds, answer)
        seconds += answer / 60 + source.about(4, 1.0, 120)
        text.grow(answer)
        if draw.random() < fan_out:
            end = seconds
            for _ in range(draw.randint(2, 8)):
                child = text.fork().grow(source.about(200, 0.6, 2_000))
                begin = seconds + draw.uniform(0.0, 3.0)
                for request in _steps(source, child, begin, draw.randint(1, 4), 0.0):
                    end = max(end, request[0])
                    yield request
            seconds = end + 5.0
        text.grow(source.about(500, 1.1, 12_000))  # what the tool returned


def _agent(source: _Source, num_requests: int) -> _Requests:
    """Tasks that come in at random, each an agent with its own system prompt and tools."""
    systems = [source.text(source.about(9_000, 0.5, 30_000)) for _ in range(6)]
    popular = source.zipf(len(systems), 1.0)
    requests: _Requests = []
    start = 0.0
    while len(requests) < num_requests:
        start += source.random.expovariate(0.15)
        text = systems[popular()].fork().grow(source.about(400, 0.9, 6_000))
        requests += _steps(source, text, start, source.about(7, 0.8, 60), 0.12)
    return requests


WORKLOADS: Final[Mapping[str, Callable[[_Source, int], _Requests]]] = MappingProxyType(
    {"loop": _loop, "scan": _scan, "chat": _chat, "agent": _agent}
)
"""Every workload by name."""


def generate(name: str, seed: int, num_requests: int = 6000) -> list[Record]:
    """Return the first ``num_requests`` requests of a workload, in order of time.

    Raises:
        KeyError: no workload has that name.
    """
    requests = WORKLOADS[name](_Source(seed), num_requests)
    return [record for _, _, record in heapq.nsmallest(num_requests, requests)]


def main() -> None:
    """Write one workload to standard output."""
    parser = argparse.ArgumentParser(description="Write a made-up trace, one record a line.")
    parser.add_argument("name", choices=list(WORKLOADS))
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--requests", type=int, default=6000)
    options = parser.parse_args()
    for record in generate(options.name, options.seed, options.requests):
        sys.stdout.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
