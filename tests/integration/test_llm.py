"""The in-process LLM on the real model: its life, its lists, its streams."""

import gc
import os
import subprocess
import sys
import threading
import time

import pytest

from radixcache import EngineStoppedError, InvalidRequestError, RequestAbortedError
from radixcache_engine.llm import LLM

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def llm():
    """SmolLM2 with a short queue."""
    with LLM("smollm2", kv_tokens=4096, probe=False, max_waiting=8) as it:
        yield it


def wait_idle(llm):
    """Wait until nothing runs or waits."""
    for _ in range(3000):
        stats = llm.stats()
        if not stats.requests_running + stats.requests_waiting + stats.blocks_leased:
            return
        time.sleep(0.01)
    raise AssertionError(f"never idle: {llm.stats()}")


def test_a_list_with_a_bad_prompt_leaves_nothing_running(llm):
    """The prompts opened before the bad one end with the error."""
    before = llm.stats().generated_tokens
    with pytest.raises(InvalidRequestError, match="prompt"):
        llm.generate(["The capital of France is", "Once", ""], max_tokens=500, ignore_eos=True)
    wait_idle(llm)

    assert llm.stats().generated_tokens - before < 500
    llm.check()


def test_a_list_longer_than_the_queue(llm):
    """A list is worked off in a window: the queue never refuses its end."""
    answers = llm.generate([f"Number {i} is" for i in range(40)], max_tokens=3, ignore_eos=True)

    assert [len(a.token_ids) for a in answers] == [3] * 40
    assert llm.generate("And more", max_tokens=2, ignore_eos=True).usage.completion_tokens == 2


@pytest.mark.parametrize("leave", ["close", "drop", "break"])
def test_a_stream_that_is_left_ends_its_request(llm, leave):
    """Closing, dropping and leaving a stream end the request, begun or not."""
    before = llm.stats().requests_aborted
    stream = llm.stream("Once upon a time", max_tokens=1000, ignore_eos=True)
    if leave == "break":
        for _ in stream:
            break
    if leave == "close":
        stream.close()
        with pytest.raises(RequestAbortedError):
            stream.answer()
    del stream
    gc.collect()
    wait_idle(llm)

    assert llm.stats().requests_aborted == before + 1


def test_threads_share_one_llm(llm):
    """Concurrent calls are batched and share their prefix; each gets its own answer."""
    shared = "You are a careful assistant who answers briefly. " * 6
    llm.flush()
    answers = {}

    def ask(i):
        answers[i] = llm.generate(f"{shared}What is {i}?", max_tokens=4, ignore_eos=True)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(answers) == list(range(8))
    assert sum(a.usage.cached_tokens == 0 for a in answers.values()) == 1


def test_messages_and_ids_and_options(llm):
    """The same options as the client's; an unknown one is an error that names it."""
    chat = llm.chat([{"role": "user", "content": "Say hi."}], max_tokens=4)
    ids = llm.generate(token_ids=llm.tokenize("Hello there"), max_tokens=4, n=2, logprobs=1)

    assert chat.usage.completion_tokens <= 4
    assert len(ids.choices) == 2
    assert all(len(t.top) == 1 for t in ids.logprobs)
    with pytest.raises(TypeError, match="temprature"):
        llm.generate("x", temprature=1.0)
    with pytest.raises(InvalidRequestError, match="block_sise"):
        LLM("smollm2", block_sise=4)


def test_the_last_reference_ends_the_engine():
    """An LLM that nobody refers to gives its thread back; a stream keeps its LLM alive."""
    llm = LLM("smollm2", kv_tokens=512, probe=False)
    thread = llm._engine._thread
    stream = llm.stream("Once upon a time", max_tokens=3, ignore_eos=True)
    del llm
    gc.collect()

    assert len(stream.answer().token_ids) == 3
    del stream
    gc.collect()
    assert not thread.is_alive()


def test_a_closed_llm_says_so():
    """After close every call is refused, and closing again is no error."""
    llm = LLM("smollm2", kv_tokens=512, probe=False)
    llm.close()
    llm.close()

    with pytest.raises(EngineStoppedError):
        llm.generate("x")


def test_a_script_may_end_while_a_request_runs():
    """Python ends with 0 although an answer was under way."""
    script = (
        "from radixcache import LLM\n"
        "llm = LLM('smollm2', kv_tokens=2048, probe=False)\n"
        "stream = llm.stream('Hi', max_tokens=900, ignore_eos=True)\n"
        "next(stream)\n"
    )
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
