"""The engine's door: many threads, one step loop, every request answered once."""

import random
import threading

import pytest

from radixcache.errors import (
    DeadlineError,
    EngineStoppedError,
    InvalidRequestError,
    OutOfBlocksError,
    RequestAbortedError,
)
from radixcache.tree.policies import POLICIES
from radixcache.types import SamplingParams
from radixcache_engine.config import EngineConfig
from radixcache_engine.types import EngineRequest
from tests.content_model import content_engine, continuation


class Caller:
    """Submits one request and waits for its end."""

    def __init__(self, engine, request_id, prompt, *, deadline=None, **sampling):
        params = {"temperature": 0.0, "max_tokens": 8, "seed": 0, "ignore_eos": True} | sampling
        self.news = threading.Event()
        self.tokens, self.terminals = [], []
        self.engine = engine
        self.prompt = prompt
        self.request_id = request_id
        self.buffer = engine.submit(
            EngineRequest(
                request_id=request_id,
                token_ids=prompt,
                sampling=SamplingParams(**params),
                scope="s",
                deadline=deadline,
            ),
            self.news.set,
        )

    def wait(self):
        while not self.terminals:
            assert self.news.wait(60), "no answer"
            self.news.clear()
            drained = self.buffer.drain()
            for output in drained.outputs:
                self.tokens += output.token_ids
            if drained.terminal is not None:
                self.terminals.append(drained.terminal)
        return self


def test_many_threads_get_their_own_answers():
    """Concurrent submits are batched; everybody gets the right text."""
    engine = content_engine(kv_tokens=512)
    shared = list(range(1, 60))
    wrong = []

    def work(seed):
        for i in range(5):
            prompt = [*shared, 1 + seed, 1 + i]
            caller = Caller(engine, f"{seed}-{i}", prompt).wait()
            if caller.tokens != continuation(prompt, 8):
                wrong.append(prompt)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert engine.stats().requests_finished == 40
    assert engine.stats().steps < 40 * 9
    engine.close()


def test_stats_are_renewed_before_the_end_is_told():
    """Whoever has its answer finds it counted."""
    engine = content_engine()
    for i in range(20):
        Caller(engine, str(i), [1, 2, 3 + i]).wait()

        assert engine.stats().requests_finished == i + 1
    engine.close()


def test_flush_right_after_the_last_answer_never_fails():
    """118: 200 times answer, then flush at once: everything is free; two at once are fine."""
    engine = content_engine()
    for i in range(200):
        Caller(engine, str(i), list(range(1, 30)), max_tokens=2).wait()
        first, second = engine.flush(), engine.flush()

        assert first.result(10).flushed_tokens == 28
        assert second.result(10).flushed_tokens == 0
    assert engine.stats().blocks_free == engine.stats().blocks_total
    engine.close()


def test_a_full_queue_refuses():
    """max_waiting is a bound: one more is refused with the setting to change."""
    engine = content_engine(max_waiting=3, max_running=1)
    callers = []

    def submit_until_refused():
        for i in range(50):
            callers.append(Caller(engine, str(i), [1, 2], max_tokens=400))

    with pytest.raises(OutOfBlocksError, match="--max-waiting"):
        submit_until_refused()
    for caller in callers:
        engine.abort(caller.request_id)
    assert all(len(c.wait().terminals) == 1 for c in callers)
    engine.close()


def test_deadline_ends_an_idle_wait_too():
    """A deadline passes although nothing else happens."""
    engine = content_engine(max_running=1)
    running = Caller(engine, "a", [1, 2], max_tokens=100_000 // 100)
    late = Caller(engine, "b", [3, 4], deadline=0.0)

    assert isinstance(late.wait().terminals[0].error, DeadlineError)
    engine.abort("a")
    running.wait()
    engine.close()


def test_close_drains_then_ends_the_rest():
    """close(drain) lets requests finish; close() ends them with UNAVAILABLE; both are final."""
    engine = content_engine()
    finishing = Caller(engine, "a", [1, 2], max_tokens=50)
    engine.close(drain_s=30)

    assert finishing.wait().terminals[0].error is None
    assert finishing.tokens == continuation([1, 2], 50)

    engine = content_engine()
    cut = Caller(engine, "a", [1, 2], max_tokens=1000)
    engine.close()

    assert isinstance(cut.wait().terminals[0].error, EngineStoppedError)
    with pytest.raises(EngineStoppedError):
        Caller(engine, "b", [1])
    with pytest.raises(EngineStoppedError):
        engine.flush().result(10)
    engine.close()


def test_aborts_race_with_ends():
    """65, 116: aborts at random moments: one terminal each, nothing after it, all blocks back."""
    engine = content_engine(kv_tokens=256)
    rng = random.Random(1)
    for i in range(100):
        caller = Caller(engine, str(i), [1 + i % 50] * rng.randint(1, 20), max_tokens=6)
        for _ in range(rng.randint(0, 3)):
            engine.abort(str(i))
        caller.wait()
        error = caller.terminals[0].error

        assert error is None or isinstance(error, RequestAbortedError)
        full = continuation(caller.prompt, 6)
        assert caller.tokens == full[: len(caller.tokens)]
        assert caller.buffer.drain().terminal is None
    engine.flush().result(10)
    assert engine.stats().blocks_free == engine.stats().blocks_total
    engine.close()


def test_match_is_pure_and_scoped():
    """Match reports the cached prefix of its scope and touches nothing."""
    engine = content_engine()
    Caller(engine, "a", list(range(1, 22))).wait()
    before = engine.stats()

    assert engine.match(list(range(1, 22)), "s").result(10).matched_tokens == 20
    assert engine.match(list(range(1, 22)), "other").result(10).matched_tokens == 0
    after = engine.stats()
    assert (before.cached_tokens, before.prompt_tokens) == (
        after.cached_tokens,
        after.prompt_tokens,
    )
    engine.close()


def test_heartbeat_stops_with_the_loop():
    """117: the heartbeat is fresh while idle and ages when the step thread hangs."""
    engine = content_engine()

    assert engine.heartbeat_age_s() < 10
    release = threading.Event()
    blocked = threading.Event()

    def hang():
        blocked.set()
        release.wait(60)

    engine._inbox.append(hang)
    assert blocked.wait(10)
    first = engine.heartbeat_age_s()
    threading.Event().wait(0.05)

    assert engine.heartbeat_age_s() > first
    release.set()
    engine.close()


def test_a_fault_of_ours_answers_everybody():
    """Whatever breaks in the loop, and however badly: every caller hears of it, none hangs."""
    engine = content_engine()
    first = Caller(engine, "a", [1, 2], max_tokens=1000)

    def break_it():
        for request in engine._loop.scheduler.requests.values():
            request.sequences[0].lease.release()  # so that every later use of it raises

    while not engine.stats().requests_running:
        threading.Event().wait(0.001)
    engine._inbox.append(break_it)

    assert first.wait().terminals[0].error is not None
    second = Caller(engine, "b", [3, 4])

    assert second.wait().terminals[0].error is None
    assert second.tokens == continuation([3, 4], 8)
    engine.close()


def test_a_loop_that_dies_refuses_instead_of_hanging():
    """If the step thread itself ends, open requests are told and new ones refused."""
    engine = content_engine()
    caller = Caller(engine, "a", [1, 2], max_tokens=1000)

    class FatalError(BaseException):
        """Not an Exception: nothing in the loop expects it."""

    def die():
        raise FatalError

    hook, threading.excepthook = threading.excepthook, lambda args: None
    try:
        engine._inbox.append(die)

        assert isinstance(caller.wait().terminals[0].error, EngineStoppedError)
        engine._thread.join()
        with pytest.raises(EngineStoppedError):
            Caller(engine, "b", [3, 4], max_tokens=1)
    finally:
        threading.excepthook = hook
    engine.close()


def test_an_abort_takes_effect_with_the_step_in_flight():
    """115: after an abort only the step under way still runs the request; then it is free."""
    engine = content_engine()
    worker = engine._loop._worker
    reached, go = threading.Event(), threading.Event()

    def pause(batch):
        reached.set()
        go.wait(60)

    worker.before_step = pause
    caller = Caller(engine, "a", [1, 2, 3], max_tokens=1000)

    assert reached.wait(60)
    engine.abort("a")
    steps_before = len(worker.batches)
    go.set()
    caller.wait()

    assert isinstance(caller.terminals[0].error, RequestAbortedError)
    assert len(worker.batches) - steps_before == 1
    assert engine.stats().blocks_leased == 0
    engine.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_every_eviction_policy_runs_an_engine(policy):
    """The setting takes each policy's name; a pool too small for all prompts stays exact."""
    engine = content_engine(kv_tokens=128, eviction_policy=policy)
    prompts = [[1 + i % 7, *range(10, 30), 40 + i] for i in range(24)]
    callers = [Caller(engine, f"{i}", p, max_tokens=6) for i, p in enumerate(prompts)]
    for caller, prompt in zip(callers, prompts, strict=True):
        assert caller.wait().tokens == continuation(prompt, 6)

    assert engine.stats().evicted_blocks > 0
    engine.close()


def test_an_unknown_eviction_policy_is_refused_by_name():
    """The error lists the known ones, which are the tree's."""
    with pytest.raises(InvalidRequestError, match="eviction_policy: got 'mru'") as caught:
        EngineConfig(eviction_policy="mru")
    assert all(name in str(caught.value) for name in POLICIES)
