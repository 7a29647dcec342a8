"""The engine: one thread that steps, and a door for every other thread (EngineAPI)."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from radixcache.errors import (
    EngineStoppedError,
    OutOfBlocksError,
    RadixCacheError,
    RequestAbortedError,
)
from radixcache.types import Clock, FlushResult, MatchResult, ModelInfo, Namespace, Stats, TreeView
from radixcache_engine.config import EngineConfig
from radixcache_engine.core.loop import StepLoop
from radixcache_engine.core.output import RequestBuffer
from radixcache_engine.types import EngineRequest

__all__ = ["Engine"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_IDLE_S = 0.25  # the longest pause of the loop, so that its heartbeat stays fresh
_RETRY_S = 0.002  # pause when requests wait but none could be scheduled


class Engine:
    """Runs one model for many callers. See :class:`radixcache_engine.core.api.EngineAPI`.

    Args:
        loop: the body of the step loop; from now on only the engine's thread touches it.
        config: for its limits.
        model: what clients are told of the model.
        kv_key: the namespace part that names everything that changes KV.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        loop: StepLoop,
        config: EngineConfig,
        model: ModelInfo,
        *,
        kv_key: str,
        clock: Clock = time.monotonic,
    ) -> None:
        self._loop = loop
        self._config = config
        self._model = model
        self._kv_key = kv_key
        self._clock = clock
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._idle = threading.Condition()
        # Held while a message is posted, so that none slips in behind the last one.
        self._door = threading.Lock()
        self._draining = False  # no new requests
        self._closed = False  # no new messages of any kind
        self._num_submitted = 0  # written under the door,
        self._num_taken_in = 0  # and this by the step thread
        self._stopping = False
        self._close_lock = threading.Lock()
        self._beat = clock()
        self._thread = threading.Thread(target=self._run, name="radixcache-step", daemon=True)
        self._thread.start()

    @property
    def model(self) -> ModelInfo:
        """The loaded model."""
        return self._model

    def submit(self, request: EngineRequest, notify: Callable[[], None]) -> RequestBuffer:
        """Queue a validated request; see EngineAPI for arguments and errors."""
        buffer = RequestBuffer(notify)
        with self._door:
            if self._draining:
                raise EngineStoppedError("the engine is shutting down and takes no new requests")
            self._refuse_when_full()
            self._num_submitted += 1
            self._post(lambda: self._take_in(request, buffer))
        return buffer

    def abort(self, request_id: str, *, reason: str = "aborted by its owner") -> None:
        """Ask for a request's end. Idempotent, safe in finalizers."""
        # No lock and no wake-up: the garbage collector may call this inside either. While a
        # request is open the loop comes round by itself.
        self._inbox.append(lambda: self._loop.abort(request_id, RequestAbortedError(reason)))

    def match(self, token_ids: Sequence[int], scope: str) -> "Future[MatchResult]":
        """Look a prompt up in the cache; changes nothing."""
        tokens = list(token_ids)

        def look_up() -> MatchResult:
            found = self._loop.cache.match(Namespace(self._kv_key, scope), tokens)
            return MatchResult(matched_tokens=found.num_tokens, prompt_tokens=len(tokens))

        return self._call(look_up)

    def stats(self) -> Stats:
        """Return counters and sizes as of the last step."""
        return replace(self._loop.stats, heartbeat_age_s=self.heartbeat_age_s())

    def flush(self) -> "Future[FlushResult]":
        """Forget every cached prefix; running requests keep theirs until they end."""

        def run() -> FlushResult:
            num_blocks = self._loop.cache.flush()
            self._loop.refresh_stats()
            return FlushResult(flushed_tokens=num_blocks * self._config.block_size)

        return self._call(run)

    def tree(self, max_nodes: int) -> "Future[TreeView]":
        """Return a bounded picture of the tree, the largest subtrees first."""
        return self._call(lambda: self._loop.cache.view(max_nodes))

    def release_hold(self, hold_id: str) -> None:
        """Unlock what a finished request with ``hold`` kept. Idempotent, safe in finalizers."""
        # As in abort; an idle loop comes round within its pause.
        self._inbox.append(lambda: self._loop.release_hold(hold_id))

    def check(self) -> "Future[None]":
        """Verify every invariant of the cache; the future raises CacheCorruptionError."""
        return self._call(self._loop.cache.check)

    def heartbeat_age_s(self) -> float:
        """Seconds since the step loop last came round."""
        return max(self._clock() - self._beat, 0.0)

    def close(self, drain_s: float = 0.0) -> None:
        """Stop admitting, drain for ``drain_s``, end the rest, join the thread. Idempotent."""
        with self._door:
            self._draining = True
        with self._close_lock:
            with self._idle:
                self._idle.wait_for(lambda: self._is_over, timeout=max(drain_s, 0.0))
            with self._door:
                self._closed = True
                self._post(self._stop)
            # A finalizer may run on the step thread itself.
            if threading.current_thread() is not self._thread:
                self._thread.join()

    # ── the step thread ─────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._beat = self._clock()
                self._take_inbox()
                if self._stopping or self._step():
                    continue
                self._pause()
        finally:
            # However the loop ends, nobody waits for an answer that cannot come.
            with self._door:
                self._draining = self._closed = True
            self._take_inbox()
            self._loop.abort_all(lambda: EngineStoppedError("the engine has stopped"))

    def _step(self) -> bool:
        try:
            return self._loop.step()
        except Exception as error:
            # A fault of ours, not of a request: nothing about the step can be trusted, so its
            # requests end; the engine lives on for the next ones.
            _log.exception("the step loop failed; every open request ends with an error")
            message = f"internal error in the step loop: {error}"
            self._loop.abort_all(lambda: RadixCacheError(message))
            return True

    def _take_in(self, request: EngineRequest, buffer: RequestBuffer) -> None:
        self._loop.add(request, buffer)
        self._num_taken_in += 1

    def _take_inbox(self) -> None:
        self._wake.clear()
        while self._inbox:
            message = self._inbox.popleft()
            try:
                message()
            except Exception:
                _log.exception("a message to the step loop failed")

    def _pause(self) -> None:
        if self._inbox:
            return
        if not self._loop.scheduler.has_work:
            with self._idle:
                self._idle.notify_all()
            self._wake.wait(_IDLE_S)
            return
        self._wake.wait(_RETRY_S)

    @property
    def _is_over(self) -> bool:
        all_taken_in = self._num_taken_in == self._num_submitted
        is_idle = all_taken_in and not self._loop.scheduler.has_work
        return is_idle or not self._thread.is_alive()

    def _stop(self) -> None:
        self._stopping = True
        self._loop.abort_all(lambda: EngineStoppedError("the engine shut down"))

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def _post(self, message: Callable[[], None]) -> None:
        self._inbox.append(message)
        self._wake.set()

    def _call(self, run: Callable[[], _T]) -> "Future[_T]":
        future: Future[_T] = Future()

        def answer() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(run())
            except Exception as error:  # handed to whoever asked
                future.set_exception(error)

        with self._door:
            if self._closed:
                future.set_exception(EngineStoppedError("the engine has stopped"))
            else:
                self._post(answer)
        return future

    def _refuse_when_full(self) -> None:
        on_the_way = self._num_submitted - self._num_taken_in
        queued = self._loop.scheduler.num_unadmitted + on_the_way
        if queued >= self._config.max_waiting:
            raise OutOfBlocksError(
                f"the queue is full: {queued:,} requests wait, allowed: "
                f"{self._config.max_waiting:,} (--max-waiting); try again later"
            )
