"""The scheduler on the content model: right text, exact accounting, work shared and bounded."""

import random

import pytest

from radixcache.errors import DeadlineError, OutOfBlocksError, RadixCacheError, RequestAbortedError
from radixcache.types import FinishReason
from radixcache_engine.scheduler.pressure import choose_victim
from radixcache_engine.scheduler.sequence import Request, Sequence
from radixcache_engine.types import EngineRequest
from tests.content_model import ContentLoop, continuation


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Return a random prompt without the end token."""
    return [random.Random(seed * 7919 + i).randrange(1, 256) for i in range(length)]


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_greedy_text_is_right_cold_and_warm(block_size):
    """S1: the second run reports floor((len-1)/p)*p cached tokens and the same text."""
    loop = ContentLoop(block_size=block_size)
    prompt = prompt_of(37)
    for expected in (0, 36 // block_size * block_size):
        answered = loop.add(prompt)
        loop.run()

        assert answered.tokens == continuation(prompt, 8)
        assert answered.terminal.usage.cached_tokens == expected
        assert answered.terminal.usage.completion_tokens == 8
        assert answered.finish == {0: FinishReason.LENGTH}
    loop.assert_nothing_leaked()


def test_prompt_of_whole_blocks_keeps_one_fresh_token():
    """43: a prompt fully in the cache still runs its last token."""
    loop = ContentLoop(block_size=4)
    for num_blocks in (1, 2, 3):
        prompt = prompt_of(4 * num_blocks, seed=num_blocks)
        first, second = loop.add(prompt), None
        loop.run()
        second = loop.add(prompt)
        loop.run()

        assert second.tokens == first.tokens == continuation(prompt, 8)
        assert second.terminal.usage.cached_tokens == 4 * (num_blocks - 1)
        whole = loop.add(prompt + first.tokens)
        loop.run()

        assert whole.tokens == continuation(prompt + first.tokens, 8)
        assert whole.terminal.usage.cached_tokens <= len(prompt) + 7


@pytest.mark.parametrize("budget", [64, 8192])
def test_a_wave_computes_its_common_prefix_once(budget):
    """S7, rule 11: 32 requests over one uncached prefix compute it once, not 32 times."""
    loop = ContentLoop(kv_tokens=8192, block_size=4, max_batch_tokens=budget)
    shared = prompt_of(150)
    wave = [loop.add(shared + prompt_of(10, seed=i + 1)) for i in range(32)]
    loop.run()

    computed = loop.loop.stats.computed_tokens
    assert computed <= 150 + 32 * 10 + 31 * 3
    assert all(a.tokens == continuation(a.request.token_ids, 8) for a in wave)
    loop.assert_nothing_leaked()


@pytest.mark.parametrize("budget", [96, 16384])
def test_followers_wait_for_the_whole_common_prefix_at_every_level(budget):
    """Rule 11: a tree of prompts (system, document, question) computes each edge once."""
    loop = ContentLoop(kv_tokens=16384, block_size=4, max_batch_tokens=budget)
    prompts = [
        prompt_of(40, seed=s) + prompt_of(60, seed=10 + s * 4 + d) + prompt_of(6, seed=100 + q)
        for s in range(3)
        for d in range(3)
        for q in range(3)
    ]
    random.Random(5).shuffle(prompts)
    wave = [loop.add(p, max_tokens=4) for p in prompts]
    loop.run()

    minimum = 3 * 40 + 9 * 60 + 27 * 6
    assert loop.loop.stats.computed_tokens <= minimum + 27 * 3
    assert all(a.tokens == continuation(a.request.token_ids, 4) for a in wave)


@pytest.mark.parametrize("end", ["abort", "deadline"])
def test_next_follower_leads_when_the_leader_ends(end):
    """Rule 11, 136: what an ended leader computed stays, and the next one computes the rest."""
    loop = ContentLoop(kv_tokens=4096, block_size=4, max_batch_tokens=16)
    shared = prompt_of(100)
    leader = loop.add([*shared, 1], deadline=5.0 if end == "deadline" else None)
    followers = [loop.add([*shared, i]) for i in range(2, 6)]
    loop.loop.step()
    loop.loop.step()
    if end == "abort":
        loop.abort(leader)
    loop.clock.now = 6.0 if end == "deadline" else 0.0
    loop.run()

    expected = RequestAbortedError if end == "abort" else DeadlineError
    assert isinstance(leader.terminal.error, expected)
    assert all(f.tokens == continuation(f.request.token_ids, 8) for f in followers)
    assert sum(sum(batch) for batch in loop.worker.batches) <= 100 + 5 * (1 + 3 + 8)
    loop.assert_nothing_leaked()


def test_a_wave_shares_even_when_it_is_overdue():
    """Rule 11: whoever waits too long goes first, but computes nothing that another computes."""
    loop = ContentLoop(kv_tokens=8192, block_size=4, max_batch_tokens=8192, max_wait_s=0.0)
    shared = prompt_of(150)
    wave = [loop.add(shared + prompt_of(10, seed=i + 1)) for i in range(32)]
    loop.clock.now = 100.0
    loop.run(dt=1.0)

    assert loop.loop.stats.computed_tokens <= 150 + 32 * 10 + 31 * 3
    assert all(a.tokens == continuation(a.request.token_ids, 8) for a in wave)


def test_next_follower_leads_when_the_leader_fails():
    """Rule 11: followers blocked on a leader that breaks the model are not lost with it."""
    loop = ContentLoop(kv_tokens=4096, block_size=4, max_batch_tokens=512)

    def explode(batch):
        if any(row.token_ids[-1] == 250 for row in batch.rows):
            raise ValueError("the leader")

    loop.worker.before_step = explode
    shared = prompt_of(100)
    leader = loop.add([*shared, 250])
    followers = [loop.add([*shared, i]) for i in range(2, 6)]
    loop.loop.step()

    assert isinstance(leader.terminal.error, RadixCacheError)
    assert loop.scheduler.sharing.num_blocked == 0
    assert len(loop.scheduler.waiting) == 4
    loop.run()

    assert all(f.tokens == continuation(f.request.token_ids, 8) for f in followers)
    loop.assert_nothing_leaked()


def test_chunks_of_any_size_give_the_same_text():
    """Chunked prefill changes nothing."""
    prompt = prompt_of(90)
    for chunk in (1, 7, 64, 512):
        loop = ContentLoop(max_batch_tokens=chunk)
        answered = loop.add(prompt)
        loop.run()

        assert answered.tokens == continuation(prompt, 8)
        assert max(sum(batch) for batch in loop.worker.batches) <= chunk


def test_n_samples_share_the_prompt_and_count_it_once():
    """121: n = 3 states the prompt once; each sample is its own sequence from one logits row."""
    loop = ContentLoop(block_size=4)
    prompt = prompt_of(30)
    answered = loop.add(prompt, n=3)
    loop.run()

    assert answered.read().outputs == {i: continuation(prompt, 8) for i in range(3)}
    usage = answered.terminal.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (30, 0, 24)
    assert sum(sum(batch) for batch in loop.worker.batches) == 30 + 3 * 7
    loop.assert_nothing_leaked()


def test_n_samples_draw_differently():
    """Samples of one request have random streams of their own, the same in every run."""
    texts = []
    for _ in range(2):
        loop = ContentLoop()
        answered = loop.add(prompt_of(9), n=4, temperature=100.0, seed=3, max_tokens=12)
        loop.run()
        texts.append(answered.read().outputs)

    assert texts[0] == texts[1]
    assert len({tuple(t) for t in texts[0].values()}) == 4


def test_n_samples_in_a_pool_too_small_for_all_at_once():
    """Samples that find no blocks wait with their first token and run later."""
    loop = ContentLoop(kv_tokens=64, block_size=4)
    prompt = prompt_of(30)
    answered = loop.add(prompt, n=8, max_tokens=20)
    loop.run()

    assert answered.read().outputs == {i: continuation(prompt, 20) for i in range(8)}
    loop.assert_nothing_leaked()


def test_pool_of_exactly_the_need_serves_the_request():
    """66, 69: KV is needed for prompt + output - 1 tokens, and that many suffice."""
    loop = ContentLoop(kv_tokens=40, block_size=4)
    prompt = prompt_of(33)
    answered = loop.add(prompt, max_tokens=8)
    loop.run()

    assert answered.tokens == continuation(prompt, 8)
    behind = loop.add(prompt_of(5, seed=2))
    loop.run()

    assert behind.tokens == continuation(behind.request.token_ids, 8)
    loop.assert_nothing_leaked()


def test_growing_decodes_preempt_and_resume():
    """77: sequences that outgrow the pool are preempted, resume, and keep their text."""
    loop = ContentLoop(kv_tokens=160, block_size=16, max_wait_s=1e9)
    wave = [loop.add(prompt_of(37, seed=i), max_tokens=60) for i in range(6)]
    loop.run()

    assert loop.loop.stats.preemptions > 0
    assert all(a.tokens == continuation(a.request.token_ids, 60) for a in wave)
    assert loop.loop.stats.prompt_tokens == 6 * 37
    recomputed = sum(a.terminal.usage.recomputed_tokens for a in wave)
    assert recomputed == loop.loop.stats.recomputed_tokens
    loop.assert_nothing_leaked()


def test_throughput_recovers_after_preemption():
    """138: under memory pressure admission backs off instead of preempting again and again."""
    loop = ContentLoop(kv_tokens=1024, block_size=16, max_wait_s=1e9)
    wave = [loop.add(prompt_of(30, seed=i), max_tokens=100) for i in range(60)]
    loop.run()

    stats = loop.loop.stats
    assert all(a.tokens == continuation(a.request.token_ids, 100) for a in wave)
    assert stats.preemptions < 60
    work = stats.computed_tokens + stats.recomputed_tokens + stats.generated_tokens
    useful = stats.computed_tokens + stats.generated_tokens
    assert useful / work > 0.7


def test_victim_is_the_one_that_loses_least_work():
    """139: of 4000, 3000, 50 and 20 computed tokens the 20 go; the oldest is never taken."""

    def running(uid: int, num_computed: int) -> Sequence:
        request = EngineRequest(
            request_id=str(uid),
            token_ids=[1],
            sampling=ContentLoop().add([1]).request.sampling,
            scope="",
            arrival=float(uid),
        )
        sequence = Sequence(Request(request), 0, uid, None)  # type: ignore[arg-type]
        sequence.num_computed = num_computed
        sequence.lease = type("Found", (), {"num_cached_tokens": 0})()
        return sequence

    everybody = [running(1, 4000), running(2, 3000), running(3, 50), running(4, 20)]

    assert choose_victim(everybody[1], everybody, lambda s: False) is everybody[3]
    assert choose_victim(everybody[1], everybody, lambda s: s.uid in {3, 4}) is everybody[1]
    youngest_oldest = [running(1, 5), running(2, 3000)]

    assert choose_victim(youngest_oldest[1], youngest_oldest, lambda s: False) is youngest_oldest[1]


def test_a_cold_request_is_not_starved_by_a_hot_stream():
    """100: while hot requests keep arriving, a cold one starts within max_wait_s."""
    loop = ContentLoop(kv_tokens=400, block_size=4, max_batch_tokens=64, max_wait_s=5.0)
    hot = prompt_of(200)
    loop.add(hot)
    loop.run()
    for i in range(6):
        loop.add([*hot, i + 1], max_tokens=40)
    cold = loop.add(prompt_of(150, seed=9), max_tokens=2)
    for i in range(400):
        loop.clock.now += 0.1
        if i % 6 == 0:
            loop.add([*hot, i % 250 + 1], max_tokens=40)
        loop.loop.step()
        if cold.read().terminals:
            break

    # One running hot request may still have to finish (40 steps of 0.1 s) after the bound.
    assert cold.terminal.usage.queue_s <= 5.0 + 4.5
    loop.run()
    loop.assert_nothing_leaked()


def test_waiting_requests_group_by_prefix():
    """137: two interleaved groups in a pool of one group's prefix compute each prefix once."""
    loop = ContentLoop(kv_tokens=280, block_size=4, max_batch_tokens=512, max_wait_s=1e9)
    groups = [prompt_of(200, seed=1), prompt_of(200, seed=2)]
    for i in range(40):
        loop.add(groups[i % 2] + prompt_of(4, seed=50 + i), max_tokens=4)
        loop.clock.now += 0.002
    loop.run()

    perfect = 2 * 200 + 40 * 4
    assert loop.loop.stats.computed_tokens <= 1.1 * perfect + 40 * 3


def test_abort_is_idempotent_and_single():
    """65: aborting unknown, finished and aborted requests, twice, gives one terminal each."""
    loop = ContentLoop()
    done = loop.add(prompt_of(5))
    loop.run()
    loop.abort(done)
    running = loop.add(prompt_of(6))
    loop.loop.step()
    loop.abort(running)
    loop.abort(running)
    waiting = loop.add(prompt_of(7))
    loop.abort(waiting)
    loop.loop.abort("never seen", RequestAbortedError("x"))

    assert done.terminal.error is None
    assert isinstance(running.terminal.error, RequestAbortedError)
    assert isinstance(waiting.terminal.error, RequestAbortedError)
    assert waiting.tokens == []
    loop.assert_nothing_leaked()


def test_an_aborted_prompt_stays_cached():
    """136: cancelling in decode keeps the computed blocks; the changed prompt finds them."""
    loop = ContentLoop(kv_tokens=4096, block_size=16)
    prompt = prompt_of(2000)
    cancelled = loop.add(prompt, max_tokens=100)
    for _ in range(4):
        loop.loop.step()
    loop.abort(cancelled)
    changed = loop.add([*prompt[:1990], 7, 7, 7])
    loop.run()

    assert changed.terminal.usage.cached_tokens == 1984
    assert cancelled.terminal.usage.completion_tokens == len(cancelled.tokens) > 0


@pytest.mark.parametrize("num_chunks", [1, 2, 30])
def test_requests_outside_the_cache_work_and_leave_nothing(num_chunks):
    """72: cache=off with chunked prefill neither reads nor leaves anything."""
    loop = ContentLoop(block_size=4, max_batch_tokens=20)
    prompt = prompt_of(20 * num_chunks - 3)
    for _ in range(2):
        answered = loop.add(prompt, cache="off", n=2)
        loop.run()

        assert answered.read().outputs == {i: continuation(prompt, 8) for i in range(2)}
        assert answered.terminal.usage.cached_tokens == 0
    assert loop.cache.num_free_blocks == loop.cache.num_blocks - 1


def test_reading_requests_publish_nothing():
    """cache=read finds what others published and adds nothing."""
    loop = ContentLoop(block_size=4)
    prompt = prompt_of(41)
    loop.add(prompt)
    loop.run()
    nodes = loop.loop.stats.blocks_evictable
    reader = loop.add([*prompt, 5, 6, 7, 8, 9], cache="read")
    loop.run()

    assert reader.terminal.usage.cached_tokens == 40
    assert loop.loop.stats.blocks_evictable == nodes


def test_scopes_never_share():
    """15, 34: one scope's prefix is invisible to another, in look-ups and in batch sharing."""
    loop = ContentLoop(block_size=4)
    prompt = prompt_of(41)
    first = loop.add(prompt, scope="a")
    second = loop.add(prompt, scope="b")
    loop.run()
    third = loop.add(prompt, scope="a")
    loop.run()

    assert second.terminal.usage.cached_tokens == 0
    assert third.terminal.usage.cached_tokens == 40
    assert first.tokens == second.tokens == continuation(prompt, 8)


def test_flush_under_a_running_request():
    """54: flush mid-generation: the request ends well, later ones miss, nothing leaks."""
    loop = ContentLoop(block_size=4)
    prompt = prompt_of(100)
    running = loop.add(prompt, max_tokens=20)
    for _ in range(5):
        loop.loop.step()
    loop.cache.flush()
    again = loop.add(prompt)
    loop.run()

    assert running.tokens == continuation(prompt, 20)
    assert again.tokens == continuation(prompt, 8)
    assert again.terminal.usage.cached_tokens == 0
    loop.assert_nothing_leaked()


def test_a_row_that_breaks_the_model_breaks_only_itself():
    """Rule 12: the model raises on one row; the others of its step get their right text."""
    loop = ContentLoop()

    def explode(batch):
        if any(13 in row.token_ids for row in batch.rows):
            raise ValueError("thirteen")

    loop.worker.before_step = explode
    prompts = [[2, 3, 4], [5, 13, 6], [7, 8, 9]]
    wave = [loop.add(p, max_tokens=1) for p in prompts]
    loop.run()

    assert isinstance(wave[1].terminal.error, RadixCacheError)
    assert "thirteen" in str(wave[1].terminal.error)
    assert [w.tokens for w in (wave[0], wave[2])] == [
        continuation(prompts[0], 1),
        continuation(prompts[2], 1),
    ]
    loop.assert_nothing_leaked()


def test_a_held_state_survives_pressure_and_yields_only_at_need():
    """A hold keeps its prefix locked; it yields when a request could never run otherwise."""
    loop = ContentLoop(kv_tokens=120, block_size=4)
    held = loop.add(prompt_of(60), hold=True)
    loop.run()
    for i in range(5):
        loop.add(prompt_of(40, seed=i + 2), max_tokens=4)
        loop.run()
    again = loop.add(prompt_of(60))
    loop.run()

    assert held.terminal.hold_id is not None
    assert again.terminal.usage.cached_tokens == 56
    big = loop.add(prompt_of(110, seed=77), max_tokens=4)
    loop.run()

    assert big.tokens == continuation(big.request.token_ids, 4)
    loop.loop.release_hold(held.terminal.hold_id)
    loop.assert_nothing_leaked()


def test_released_hold_can_be_evicted():
    """Letting a state go gives its blocks back; letting go twice is no error."""
    loop = ContentLoop(block_size=4)
    held = loop.add(prompt_of(60), hold=True)
    loop.run()

    assert loop.loop.stats.blocks_locked > 0
    loop.loop.release_hold(held.terminal.hold_id)
    loop.loop.release_hold(held.terminal.hold_id)

    assert loop.loop.stats.blocks_locked == 0
    loop.assert_nothing_leaked()


def test_lost_blocks_are_an_error_and_not_a_wait():
    """A request that finds no blocks although nothing runs is told so at once."""
    loop = ContentLoop(kv_tokens=64, block_size=4)
    stolen = loop.cache.acquire("elsewhere", [1])
    stolen.extend(40)
    answered = loop.add(prompt_of(40))
    loop.loop.step()

    assert isinstance(answered.terminal.error, OutOfBlocksError)
    assert not loop.scheduler.has_work


@pytest.mark.parametrize("seed", range(6))
def test_mixed_requests_on_a_tiny_pool(seed):
    """73 and the tiny-pool proof: requests, aborts and deadlines at random; all end, all right."""
    rng = random.Random(seed)
    loop = ContentLoop(
        kv_tokens=rng.choice([96, 160, 256]),
        block_size=rng.choice([1, 4, 16]),
        max_batch_tokens=rng.choice([5, 32, 512]),
        max_running=rng.choice([2, 5, 64]),
        max_wait_s=rng.choice([0.0, 1.0, 30.0]),
    )
    prefixes = [prompt_of(n, seed=n) for n in (0, 8, 33, 48)]
    open_, everybody = [], []
    for _ in range(120):
        prompt = rng.choice(prefixes) + prompt_of(rng.randint(1, 12), seed=rng.randrange(40))
        deadline = loop.clock() + rng.uniform(0.0, 2.0) if rng.random() < 0.15 else None
        n = rng.choice([1, 1, 1, 3])
        answered = loop.add(prompt, max_tokens=rng.randint(1, 24), n=n, deadline=deadline)
        everybody.append(answered)
        open_.append(answered)
        for _ in range(rng.randint(0, 6)):
            loop.loop.step()
            loop.clock.now += 0.05
        if rng.random() < 0.1:
            loop.abort(rng.choice(open_))
        if rng.random() < 0.03:
            loop.cache.flush()
    loop.run(dt=0.01)

    for answered in everybody:
        full = continuation(answered.request.token_ids, answered.request.sampling.max_tokens)
        for tokens in answered.read().outputs.values():
            assert tokens == full[: len(tokens)]
        if answered.terminal.error is None:
            assert all(len(t) == len(full) for t in answered.outputs.values())
            assert len(answered.outputs) == answered.request.sampling.n
    stats = loop.loop.stats
    assert stats.prompt_tokens == stats.cached_tokens + stats.computed_tokens
    ended = stats.requests_finished + stats.requests_aborted + stats.requests_failed
    assert (ended, stats.requests_failed) == (len(everybody), 0)
    loop.assert_nothing_leaked()
