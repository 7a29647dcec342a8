"""A front and an engine that follow a script: for what depends on time, not on a model.

Cancelling, deadlines, slow readers and silence need an engine that does what a test says when the
test says it. Everything about tokens and caches is tested on the real engine.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from radixcache.errors import EngineStoppedError, RadixCacheError, RequestAbortedError
from radixcache.types import (
    Answer,
    Choice,
    Delta,
    FlushResult,
    MatchResult,
    ModelInfo,
    Stats,
    TreeNodeView,
    TreeView,
    Usage,
)
from radixcache_engine.types import GenerateRequest

TICK_S = 0.002


@dataclass
class Script:
    """What a request does. The default: eight tokens, one a tick, then a normal end."""

    num_tokens: int | None = None  # None: the request's max_tokens, else 8
    tokens_per_tick: int = 1
    text: str = ""  # of each token; empty: the token's number and a blank
    silent_s: float = 0.0  # before the first token
    refusal: Exception | None = None  # raised by open
    open_s: float = 0.0  # how long open takes
    failure: RadixCacheError | None = None  # instead of the normal end
    gate: threading.Event | None = None  # no token before it is set
    last: Delta | None = None  # an extra delta before the end


@dataclass
class Update:
    """What a poll returns."""

    deltas: list[Delta] = field(default_factory=list)
    answer: Answer | None = None
    error: RadixCacheError | None = None
    usage: Usage | None = None


class ScriptedStream:
    """One open request of the double."""

    def __init__(self, request, script, notify, model):
        self.request = request
        self.request_id = request.request_id or "made-up"
        self.opened_at = time.monotonic()
        self.aborted = threading.Event()  # abort() was called before the end
        self.ended = threading.Event()
        self.num_polls = 0
        self._script = script
        self._notify = notify
        self._model = model
        self._lock = threading.Lock()
        self._update = Update()
        self._num_made = 0
        self._token_ids = []
        self._text = []

    @property
    def num_made(self):
        return self._num_made

    @property
    def num_buffered(self):
        """Deltas that wait to be polled."""
        with self._lock:
            return len(self._update.deltas)

    def poll(self):
        self.num_polls += 1
        with self._lock:
            update, self._update = self._update, Update()
        return update

    def abort(self):
        if not self.ended.is_set():
            self.aborted.set()
            self.end(RequestAbortedError("aborted by its owner"))

    def end(self, error=None):
        if self.ended.is_set():
            return
        self.ended.set()
        usage = Usage(
            prompt_tokens=5, cached_tokens=3, completion_tokens=self._num_made, queue_s=0.5
        )
        with self._lock:
            self._update.usage, self._update.error = usage, error
            if error is None:
                self._update.answer = Answer(
                    request_id=self.request_id,
                    model=self._model,
                    choices=(self._choice(),),
                    usage=usage,
                )
        self._notify()

    def step(self, now):
        """Make this tick's tokens."""
        script = self._script
        waiting = script.gate is not None and not script.gate.is_set()
        if self.ended.is_set() or waiting or now < self.opened_at + script.silent_s:
            return
        total = self._total()
        count = min(script.tokens_per_tick, total - self._num_made)
        if count:
            self._put(self._make(count))
        if self._num_made >= total:
            if script.last is not None:
                self._put(script.last)
            self.end(script.failure)

    def _total(self):
        if self._script.num_tokens is not None:
            return self._script.num_tokens
        return self.request.sampling.max_tokens or 8

    def _make(self, count):
        ids = tuple(range(self._num_made, self._num_made + count))
        self._num_made += count
        text = "".join(self._script.text or f"{i} " for i in ids)
        self._token_ids.extend(ids)
        self._text.append(text)
        done = self._num_made >= self._total() and self._script.failure is None
        return Delta(text=text, token_ids=ids, finish_reason="length" if done else None)

    def _put(self, delta):
        with self._lock:
            was_empty = not self._update.deltas
            if was_empty or self._script.last is delta:
                self._update.deltas.append(delta)
            else:
                # As the engine's buffer does: what a slow reader has not taken becomes one delta.
                old = self._update.deltas.pop()
                self._update.deltas.append(
                    Delta(
                        text=old.text + delta.text,
                        token_ids=old.token_ids + delta.token_ids,
                        finish_reason=delta.finish_reason,
                    )
                )
        if was_empty:
            self._notify()

    def _choice(self):
        return Choice(
            text="".join(self._text), token_ids=tuple(self._token_ids), finish_reason="length"
        )


class ScriptedEngine:
    """The engine's surface, with a heartbeat that a test can stop."""

    def __init__(self):
        self.model = ModelInfo(
            name="scripted",
            context_len=300_000,
            kv_capacity_tokens=300_000,
            vocab_size=1_000_000,
            eos_token_ids=(0, 2),
        )
        self.hung = threading.Event()
        self.counters = Stats(prompt_tokens=10, cached_tokens=4, step_s=0.25)
        self.flush_future: Future | None = None
        self._hung_at = 0.0

    def hang(self):
        self._hung_at = time.monotonic()
        self.hung.set()

    def heartbeat_age_s(self):
        return time.monotonic() - self._hung_at if self.hung.is_set() else 0.0

    def stats(self):
        return self.counters

    def flush(self):
        return self.flush_future or _done(FlushResult(flushed_tokens=7))

    def tree(self, max_nodes):
        return _done(TreeView())

    def close(self, drain_s=0.0):
        raise AssertionError("a server never closes the engine")


class ScriptedFront:
    """The front's surface over a ticking thread.

    Attributes:
        script: what the next requests do; a function of the request, or one script for all.
        streams: every request opened so far.
    """

    def __init__(self):
        self.engine = ScriptedEngine()
        self.script: Script | Callable[[GenerateRequest], Script] = Script()
        self.streams: list[ScriptedStream] = []
        self.seen: list[GenerateRequest] = []
        self.match_future: Future | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="scripted-steps", daemon=True)
        self._thread.start()

    def open(self, request, notify, *, hold=False):
        script = self.script(request) if callable(self.script) else self.script
        self.seen.append(request)
        if script.open_s:
            time.sleep(script.open_s)
        if script.refusal is not None:
            raise script.refusal
        if self._stopped.is_set():
            raise EngineStoppedError("the engine has stopped")
        stream = ScriptedStream(request, script, notify, self.engine.model.name)
        self.streams.append(stream)
        return stream

    def abort(self, request_id):
        found = [s for s in self.streams if s.request_id == request_id and not s.ended.is_set()]
        for stream in found:
            stream.abort()
        return len(found)

    def tokenize(self, text, *, add_special=True):
        return ([1] if add_special else []) + list(text.encode())

    def chat_ids(self, messages):
        return list("".join(f"<{m.role}>{m.content}" for m in messages).encode())

    def detokenize(self, token_ids):
        return bytes(token_ids).decode()

    def match(self, request):
        self.seen.append(request)
        return self.match_future or _done(MatchResult(matched_tokens=16, prompt_tokens=20))

    def tree(self, max_nodes):
        node = TreeNodeView(node_id=1, num_tokens=max_nodes, text="root", token_ids=(1, 2))
        return _done(TreeView(nodes=(node,), total_nodes=1, total_tokens=max_nodes))

    def wait_opened(self, count=1, timeout_s=10.0):
        """Return the last stream, once ``count`` have been opened."""
        wait_until(lambda: len(self.streams) >= count, timeout_s)
        return self.streams[count - 1]

    def stop(self):
        self._stopped.set()
        self._thread.join()

    def _tick(self):
        while not self._stopped.wait(TICK_S):
            now = time.monotonic()
            for stream in tuple(self.streams):
                stream.step(now)


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for a condition; fail when it does not come true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.005)


def _done(value):
    future: Future = Future()
    future.set_result(value)
    return future
