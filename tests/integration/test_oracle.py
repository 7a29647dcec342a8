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


def some(expected: list[Expected], every: int, longest: int = 3000) -> list[Expected]:
    """Return every so manieth prompt of at most ``longest`` tokens, the longest first."""
    return [e for e in expected[::-every] if len(e.prompt) <= longest]


# The quick tier varies each factor over every fourth prompt, --all over all 64.
EVERY = pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])


def test_cold_and_warm(base_llm, expected):
    """Cold, then warm: equal text; the warm run finds all but the last block of each prompt."""
    check(base_llm, expected, cache="off")
    check(base_llm, expected)
    warm = check(base_llm, expected)

    for answer in warm:
        usage = answer.usage
        assert usage.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16


@EVERY
@pytest.mark.parametrize("concurrency", [1, 8])
def test_batches_of_other_sizes(base_llm, expected, concurrency, every):
    """Batches of 1 and 8 in place of 32."""
    base_llm.flush()
    check(base_llm, some(expected, every), concurrency=concurrency)


@EVERY
def test_four_samples(base_llm, expected, every):
    """Every one of n = 4 greedy samples is the same right text."""
    base_llm.flush()
    answers = check(base_llm, some(expected, every), n=4, concurrency=8)

    assert all(len(answer.choices) == 4 for answer in answers)


@EVERY
@pytest.mark.parametrize("chunk", [7, 64, 512])
def test_chunked(expected, chunk, every):
    """Prefill in chunks of 7, 64 and 512 tokens."""
    longest = 250 if chunk == 7 and every > 1 else 3000
    with LLM(**BASE, max_batch_tokens=chunk) as llm:
        check(llm, some(expected, every, longest))


@EVERY
@pytest.mark.parametrize("block_size", [1, 64])
def test_other_block_sizes(expected, block_size, every):
    """Block sizes 1 and 64 in place of 16, cold and warm."""
    with LLM(**BASE, block_size=block_size) as llm:
        check(llm, some(expected, every))
        check(llm, some(expected, every))


@EVERY
def test_after_eviction(expected, every):
    """A pool smaller than the working set: prompts are evicted and computed again."""
    with LLM(**BASE | {"kv_tokens": 3200}) as llm:
        check(llm, some(expected, every), concurrency=4)
        check(llm, some(expected, every)[:6], concurrency=4)

        assert llm.stats().evicted_blocks > 0


def test_after_preemption(expected):
    """Sequences that outgrow the pool are preempted and resume with the same text."""
    short = [e for e in expected if 8 <= len(e.prompt) <= 40] * 3
    with LLM(**BASE | {"kv_tokens": 32 * 16, "max_wait_s": 60.0}) as llm:
        check(llm, short, concurrency=32)

        assert llm.stats().preemptions > 0


@pytest.mark.slow
def test_every_prompt_after_preemption(expected):
    """Long and short prompts together in a pool of the longest: preemption, eviction, all equal."""
    with LLM(**BASE | {"kv_tokens": 3200, "max_wait_s": 60.0}) as llm:
        check(llm, expected * 2, concurrency=32)


def test_new_tokens_are_what_was_asked(base_llm, expected):
    """The comparison compares something: most answers have all their tokens."""
    assert sum(len(e.token_ids) == NUM_NEW for e in expected) > 32
