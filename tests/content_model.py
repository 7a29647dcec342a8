"""A model of four lines, for tests of everything around a model.

Its KV of a token is the token itself, its next token a hash of every token read back *through the
block table*. So an answer is right exactly if every block a sequence reads still holds that
sequence's own tokens: a block freed too early, shared wrongly or written twice changes the text.
Freed blocks are poisoned, and reading poison raises.
"""

import itertools
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from radixcache.cache import PrefixCache
from radixcache.errors import RequestAbortedError
from radixcache.types import CacheMode, FinishReason, ModelInfo, SamplingParams
from radixcache_engine.config import EngineConfig
from radixcache_engine.core.build import engine_around, loop_around
from radixcache_engine.core.engine import Engine
from radixcache_engine.core.output import RequestBuffer
from radixcache_engine.scheduler.scheduler import Scheduler
from radixcache_engine.types import Batch, EngineRequest, Terminal

VOCAB = 256
EOS = 0
POISON = -1
TOKEN_BYTES = [b""] + [bytes([97 + i % 26]) for i in range(1, VOCAB)]


def next_token(tokens: Sequence[int]) -> int:
    """The content model's greedy choice after ``tokens``; never EOS (0)."""
    digest = zlib.crc32(array("i", tokens).tobytes())
    return 1 + digest % (VOCAB - 1)


def continuation(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The right greedy answer, computed without any cache."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@dataclass
class _Done:
    logits: torch.Tensor

    def result(self) -> torch.Tensor:
        return self.logits


class ContentWorker:
    """Worker and block store in one: ``slots[block, offset]`` is the token stored there."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots = np.full((num_blocks, block_size), POISON, np.int64)
        self.batches: list[list[int]] = []  # query tokens of each row of each step
        self.before_step: Callable[[Batch], None] = lambda batch: None

    def copy_block(self, src: int, dst: int, num_tokens: int) -> None:
        """Copy the first ``num_tokens`` slots of a block."""
        self.slots[dst, :num_tokens] = self.slots[src, :num_tokens]

    def on_free(self, block_ids: Sequence[int]) -> None:
        """Poison freed blocks."""
        self.slots[list(block_ids)] = POISON

    def launch(self, batch: Batch) -> _Done:
        """Write the new tokens' KV, then read every row's whole prefix back."""
        self.before_step(batch)
        self.batches.append([len(row.token_ids) for row in batch.rows])
        for row in batch.rows:
            for position, token in enumerate(row.token_ids, start=row.start):
                block = row.block_table[position // self.block_size]
                assert block != 0, "block 0 is reserved"
                self.slots[block, position % self.block_size] = token
        logits = [self._read(row) for row in batch.rows]
        wanted = [x for x, row in zip(logits, batch.rows, strict=True) if row.wants_logits]
        return _Done(torch.stack(wanted) if wanted else torch.empty(0, VOCAB))

    def _read(self, row) -> torch.Tensor:
        length = row.start + len(row.token_ids)
        num_blocks = -(-length // self.block_size)
        tokens = self.slots[list(row.block_table[:num_blocks])].reshape(-1)[:length].tolist()
        assert POISON not in tokens, f"read freed KV: {tokens}"
        logits = torch.zeros(VOCAB)
        logits[next_token(tokens)] = 10.0
        return logits


class ManualClock:
    """A clock that only tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Answered:
    """What one request got: its buffer, read as it goes."""

    request: EngineRequest
    buffer: RequestBuffer
    outputs: dict[int, list[int]]
    finish: dict[int, FinishReason]
    terminals: list[Terminal]

    def read(self) -> "Answered":
        drained = self.buffer.drain()
        for output in drained.outputs:
            self.outputs.setdefault(output.index, []).extend(output.token_ids)
            if output.finish_reason is not None:
                self.finish[output.index] = output.finish_reason
        if drained.terminal is not None:
            self.terminals.append(drained.terminal)
        return self

    @property
    def terminal(self) -> Terminal:
        """The one terminal message."""
        assert len(self.read().terminals) == 1, self.terminals
        return self.terminals[0]

    @property
    def tokens(self) -> list[int]:
        """Output of sequence 0."""
        return self.read().outputs.get(0, [])


class ContentLoop:
    """The step loop on the content model, stepped by hand with ``check()`` after every step."""

    def __init__(self, *, kv_tokens: int = 1024, block_size: int = 4, **settings) -> None:
        self.config = EngineConfig(
            kv_tokens=kv_tokens, block_size=block_size, check_every_step=True, **settings
        )
        num_blocks = kv_tokens // block_size + 1
        self.clock = ManualClock()
        self.worker = ContentWorker(num_blocks, block_size)
        self.cache = PrefixCache(
            num_blocks, block_size=block_size, store=self.worker, clock=self.clock
        )
        self.loop = loop_around(
            self.config,
            self.worker,
            self.cache,
            content_info(kv_tokens, block_size),
            TOKEN_BYTES,
            kv_key="content",
            clock=self.clock,
        )
        self._ids = itertools.count()

    @property
    def scheduler(self) -> Scheduler:
        return self.loop.scheduler

    def add(self, prompt, *, scope="s", deadline=None, hold=False, cache="write", **sampling):
        """Queue a request; sampling defaults to greedy, 8 tokens, no end token."""
        params = {"temperature": 0.0, "max_tokens": 8, "seed": 0, "ignore_eos": True} | sampling
        request = EngineRequest(
            request_id=f"r{next(self._ids)}",
            token_ids=list(prompt),
            sampling=SamplingParams(**params),
            scope=scope,
            cache_mode=CacheMode(cache),
            deadline=deadline,
            hold=hold,
            arrival=self.clock(),
        )
        buffer = RequestBuffer(lambda: None)
        self.loop.add(request, buffer)
        return Answered(request, buffer, {}, {}, [])

    def abort(self, answered: Answered) -> None:
        """Abort a request."""
        self.loop.abort(answered.request.request_id, RequestAbortedError("aborted in a test"))

    def run(self, max_steps: int = 10_000, *, dt: float = 0.0) -> int:
        """Step until no request is open; return the number of steps."""
        for number in range(max_steps):
            if not self.scheduler.has_work:
                return number
            self.loop.step()
            self.clock.now += dt
        raise AssertionError(f"requests still open after {max_steps} steps")

    def assert_nothing_leaked(self) -> None:
        """Nothing is leased or locked, and every block can be had."""
        self.cache.check()
        assert self.cache.num_leased_blocks == 0
        assert self.cache.num_locked_blocks == 0
        total = self.cache.num_blocks - 1
        assert self.cache.num_free_blocks + self.cache.num_evictable_blocks == total


def content_info(kv_tokens: int, block_size: int) -> ModelInfo:
    """What the content model says of itself."""
    return ModelInfo(
        name="content",
        architecture="content",
        context_len=1 << 20,
        vocab_size=VOCAB,
        block_size=block_size,
        kv_capacity_tokens=kv_tokens,
        dtype="float32",
        device="cpu",
        attention_backend="none",
        eos_token_ids=(EOS,),
    )


def content_engine(*, kv_tokens: int = 1024, block_size: int = 4, **settings) -> Engine:
    """Start a threaded engine on the content model, with ``check()`` after every step."""
    config = EngineConfig(
        kv_tokens=kv_tokens, block_size=block_size, check_every_step=True, **settings
    )
    num_blocks = kv_tokens // block_size + 1
    worker = ContentWorker(num_blocks, block_size)
    cache = PrefixCache(
        num_blocks, block_size=block_size, store=worker, policy=config.eviction_policy
    )
    model = content_info(kv_tokens, block_size)
    return engine_around(config, worker, cache, model, TOKEN_BYTES, kv_key="content")
