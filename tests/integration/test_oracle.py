"""The one oracle: greedy answers equal transformers.generate, however they were computed.

Base: block size 16, 2,048 batch tokens, batches of 32, n = 1. Each test varies one factor.
"""

import pytest

from radixcache_engine.llm import LLM
from tests.real_model import NUM_NEW, Expected, Reference, assert_equal, real_prompts, run_all

pytestmark = pytest.mark.model

BASE = {
    "model": "smollm2",
    "dtype": "float32",
    "kv_tokens": 65_536,
    "poison_freed": True,
    "check_every_step": True,
    "probe": False,  # measured elsewhere; here it would only load the model's time
}


@pytest.fixture(scope="module")
def expected() -> list[Expected]:
    """What transformers answers to 64 real-text prompts of 1 to 3,000 tokens."""
    with LLM(**BASE) as llm:
        prompts = real_prompts(llm)
    reference = Reference()
    return [reference.greedy(prompt) for prompt in prompts]


@pytest.fixture(scope="module")
def base_llm():
    """An engine with the base settings."""
    with LLM(**BASE) as llm:
        yield llm


def check(llm: LLM, expected: list[Expected], **options):
    """Run all prompts and compare every choice of every answer."""
    answers = run_all(llm, [list(e.prompt) for e in expected], **options)
    for answer, want in zip(answers, expected, strict=True):
        for choice in answer.choices:
            assert_equal(choice.token_ids, choice.logprobs, want)
    llm.check()
    return answers


def shorter(expected: list[Expected], longest: int) -> list[Expected]:
    """Return the prompts of at most ``longest`` tokens."""
    return [e for e in expected if len(e.prompt) <= longest]


def test_cold_and_warm(base_llm, expected):
    """Cold, then warm: equal text; the warm run finds all but the last block of each prompt."""
    check(base_llm, expected, cache="off")
    check(base_llm, expected)
    warm = check(base_llm, expected)

    for answer in warm:
        usage = answer.usage
        assert usage.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16


@pytest.mark.parametrize("concurrency", [1, 8])
def test_batches_of_other_sizes(base_llm, expected, concurrency):
    """Batches of 1 and 8 in place of 32."""
    base_llm.flush()
    check(base_llm, shorter(expected, 1000), concurrency=concurrency)


def test_four_samples(base_llm, expected):
    """Every one of n = 4 greedy samples is the same right text."""
    base_llm.flush()
    answers = check(base_llm, expected[::2], n=4, concurrency=8)

    assert all(len(answer.choices) == 4 for answer in answers)


@pytest.mark.parametrize("chunk", [7, 64, 512])
def test_chunked(expected, chunk):
    """Prefill in chunks of 7, 64 and 512 tokens."""
    longest = {7: 300, 64: 1500, 512: 3000}[chunk]
    with LLM(**BASE, max_batch_tokens=chunk) as llm:
        check(llm, shorter(expected, longest), cache="read")


@pytest.mark.slow
def test_chunked_by_seven_all(expected):
    """Prefill of every prompt in chunks of 7 tokens."""
    with LLM(**BASE, max_batch_tokens=7) as llm:
        check(llm, expected)


@pytest.mark.parametrize("block_size", [1, 64])
def test_other_block_sizes(expected, block_size):
    """Block sizes 1 and 64 in place of 16."""
    with LLM(**BASE, block_size=block_size) as llm:
        check(llm, expected)
        check(llm, expected[::4])


def test_after_eviction(expected):
    """A pool smaller than the working set: prompts are evicted and computed again."""
    with LLM(**BASE | {"kv_tokens": 3200}) as llm:
        check(llm, expected, concurrency=4)
        check(llm, expected[-12:], concurrency=4)

        assert llm.stats().evicted_blocks > 0


def test_after_preemption(expected):
    """Sequences that outgrow the pool are preempted and resume with the same text."""
    short = [e for e in expected if 8 <= len(e.prompt) <= 40] * 3
    with LLM(**BASE | {"kv_tokens": 32 * 16, "max_wait_s": 60.0}) as llm:
        check(llm, short, concurrency=32)

        assert llm.stats().preemptions > 0


def test_new_tokens_are_what_was_asked(base_llm, expected):
    """The comparison compares something: most answers have all their tokens."""
    assert sum(len(e.token_ids) == NUM_NEW for e in expected) > 32
