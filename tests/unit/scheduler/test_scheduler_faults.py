"""Faults that were found by attack, on the content model: each leaves nothing behind."""

import torch

from radixcache.errors import RadixCacheError, RequestAbortedError
from tests.content_model import VOCAB, ContentLoop, continuation

PROMPT = list(range(1, 18))


class Ticket:
    """A step's logits, made up by the test."""

    def __init__(self, logits):
        self.logits = logits

    def result(self):
        """Return them."""
        return self.logits


def test_finished_requests_do_not_wait_for_their_deadline():
    """A far deadline keeps nothing of a request that has ended."""
    loop = ContentLoop(kv_tokens=4096, block_size=16)
    for i in range(300):
        loop.add([1 + i % 200] * 40, deadline=1e6, max_tokens=1)
        loop.run()

    assert len(loop.scheduler._deadlines) < 100
    assert loop.scheduler.requests == {}


def test_a_failed_request_leaves_no_hold():
    """The hold of a finished sample goes when its request ends with an error."""
    loop = ContentLoop(kv_tokens=64, block_size=4, max_running=1)
    answered = loop.add(list(range(1, 17)), hold=True, n=2, max_tokens=4)
    while not len(loop.scheduler.holds):
        loop.loop.step()
    loop.abort(answered)

    assert isinstance(answered.terminal.error, RequestAbortedError)
    assert answered.terminal.hold_id is None
    loop.assert_nothing_leaked()


def test_an_abort_after_the_end_releases_what_was_held():
    """A caller that is interrupted before it reads its answer leaves no lock."""
    loop = ContentLoop(block_size=4)
    answered = loop.add(PROMPT, hold=True)
    loop.run()

    assert loop.cache.num_locked_blocks > 0
    loop.abort(answered)

    loop.assert_nothing_leaked()


def test_kv_of_a_row_without_numbers_is_not_published():
    """A row whose logits are NaN may have written garbage: the next request must not read it."""
    loop = ContentLoop(kv_tokens=256, block_size=4)

    def broken_launch(batch):
        loop.worker.launch(batch)
        for row in batch.rows:
            loop.worker.slots[list(row.block_table)] = 77
        loop.loop._worker = loop.worker
        return Ticket(torch.full((1, VOCAB), float("nan")))

    loop.loop._worker = type("Broken", (), {"launch": staticmethod(broken_launch)})()
    first = loop.add(PROMPT)
    loop.run()
    second = loop.add(PROMPT)
    loop.run()

    assert isinstance(first.terminal.error, RadixCacheError)
    assert second.terminal.usage.cached_tokens == 0
    assert second.tokens == continuation(PROMPT, 8)
    loop.assert_nothing_leaked()


def test_recomputed_tokens_are_those_really_computed_again():
    """Whoever is preempted twice before it has caught up counts each token once a run."""
    loop = ContentLoop(kv_tokens=160, block_size=16, max_wait_s=1e9)
    wave = [loop.add([1 + i] * 37, max_tokens=60) for i in range(6)]
    loop.run()

    run = sum(sum(batch) for batch in loop.worker.batches)
    stats = loop.loop.stats
    decoded = sum(a.terminal.usage.completion_tokens - 1 for a in wave)
    assert stats.preemptions > 0
    assert run == stats.computed_tokens + stats.recomputed_tokens + decoded


def test_one_request_waits_once_whatever_its_samples():
    """The waiting count is of requests: 19 samples without room are one request."""
    loop = ContentLoop(kv_tokens=512, block_size=4, max_running=1)
    loop.add(PROMPT, n=20, max_tokens=4)
    loop.loop.step()
    loop.loop.step()

    assert len(loop.scheduler.waiting) == 19
    assert loop.loop.stats.requests_waiting == 1
    assert loop.scheduler.num_unadmitted == 0
    loop.run()
    loop.assert_nothing_leaked()
