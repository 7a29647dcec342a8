"""Benchmark workloads W1–W3 through the gRPC server: nothing computed twice, nothing wrong."""

import asyncio

import pytest

from radixcache import AsyncClient, Client
from tests.serving import serving
from tests.workloads import workload

pytestmark = pytest.mark.model

BLOCK = 16
TIE = 1e-3


@pytest.fixture(scope="module")
def fp32_server():
    """SmolLM2 in fp32 behind gRPC."""
    with serving(dtype="float32", kv_tokens=131_072, probe=False) as it:
        yield it


def options(request):
    """Return a workload request's sampling, with the top two of every step."""
    return {"max_tokens": request["max_new"], "temperature": 0.0, "ignore_eos": True, "logprobs": 2}


def run_batch(address, requests):
    """Submit all requests at once; answers in order."""

    async def run():
        async with AsyncClient(address) as client:
            return await asyncio.gather(
                *(client.generate(token_ids=r["prompt"], **options(r)) for r in requests)
            )

    return asyncio.run(run())


def computed(answers):
    """Return the prompt tokens that were not cached."""
    return sum(a.usage.prompt_tokens - a.usage.cached_tokens for a in answers)


def assert_same(answer, solo):
    """Equal ids up to the first step where the solo run's top two are as good as equal."""
    for step, (ours, theirs) in enumerate(zip(answer.token_ids, solo.token_ids, strict=True)):
        (_, p1), (_, p2) = solo.logprobs[step].top
        if p1 - p2 < TIE:
            return
        assert ours == theirs, f"step {step}"


@pytest.fixture(scope="module")
def w1(fp32_server):
    """W1's requests and their answers, all at once on an empty cache."""
    requests = workload("W1")["requests"]
    Client(fp32_server.address).flush()
    return requests, run_batch(fp32_server.address, requests)


def test_w1_computes_the_shared_prefix_once(w1, fp32_server):
    """32 requests over 1,500 shared tokens compute at most 2,780 + 32 x (block_size - 1)."""
    _, answers = w1

    assert all(len(a.token_ids) == 32 for a in answers)
    assert computed(answers) <= 2_780 + 32 * (BLOCK - 1)
    stats = Client(fp32_server.address).stats()
    assert stats.prompt_tokens == stats.cached_tokens + stats.computed_tokens


def test_w1_answers_equal_their_solo_runs(w1, fp32_server):
    """Answers equal their runs alone, cold for half of them; all 32 in the long tier."""
    requests, answers = w1
    with Client(fp32_server.address) as client:
        for i in range(0, 32, 5):
            cold = {"cache": "off"} if i % 2 == 0 else {}
            solo = client.generate(token_ids=requests[i]["prompt"], **options(requests[i]), **cold)

            assert_same(answers[i], solo)


@pytest.mark.slow
def test_w1_answers_equal_their_cold_solo_runs(w1, fp32_server):
    """Each of the 32 answers equals its run alone with the cache off."""
    requests, answers = w1
    with Client(fp32_server.address) as client:
        for request, answer in zip(requests, answers, strict=True):
            solo = client.generate(token_ids=request["prompt"], **options(request), cache="off")

            assert_same(answer, solo)


def test_w2_computes_each_edge_of_the_tree_once(fp32_server):
    """Four systems x four documents x four questions, shuffled: the minimum, within blocks."""
    w2 = workload("W2")
    Client(fp32_server.address).flush()
    answers = run_batch(fp32_server.address, w2["requests"])

    assert computed(answers) <= w2["min_prefill_tokens"] + len(answers) * (BLOCK - 1)
    with Client(fp32_server.address) as client:
        for request, answer in list(zip(w2["requests"], answers, strict=True))[::8]:
            assert_same(answer, client.generate(token_ids=request["prompt"], **options(request)))


def test_w3_conversations_compute_only_what_is_new(fp32_server):
    """Eight conversations of six turns: each turn computes its own tokens, within blocks."""
    w3 = workload("W3")
    Client(fp32_server.address).flush()
    history = {c["id"]: [] for c in w3["conversations"]}
    answers = []
    for turn in range(6):
        requests = []
        for c in w3["conversations"]:
            history[c["id"]] += c["turns"][turn]
            requests.append({"prompt": list(history[c["id"]]), "max_new": c["max_new"]})
        now = run_batch(fp32_server.address, requests)
        for c, answer in zip(w3["conversations"], now, strict=True):
            history[c["id"]] += answer.token_ids
        answers += now

    assert computed(answers) <= w3["min_prefill_tokens"] + len(answers) * (BLOCK - 1)
    with Client(fp32_server.address) as client:
        last = requests[3]
        solo = client.generate(token_ids=last["prompt"], **options(last), cache="off")
    assert_same(now[3], solo)
