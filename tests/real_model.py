"""The real SmolLM2 and what transformers says about it."""

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from radixcache.types import Answer
from radixcache_engine.llm import LLM
from radixcache_engine.models.registry import resolve

ROOT = Path(__file__).parent.parent
NUM_NEW = 12
TIE = 1e-3  # design.md §5: below this the reference's own top two are as good as equal
CLOSE = 1e-4


@functools.cache
def model_folder() -> Path:
    """Folder of the converted default model; scripts/test has fetched it."""
    return resolve("smollm2").path


@dataclass(frozen=True)
class Expected:
    """transformers' greedy answer to one prompt.

    ``top`` holds for each step the two likeliest ids with their log-probabilities.
    """

    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    top: tuple[tuple[tuple[int, float], tuple[int, float]], ...]


def real_prompts(llm: LLM, count: int = 64, longest: int = 3000) -> list[list[int]]:
    """Real text of 1 to ``longest`` tokens: prefixes and pieces of this project's documents."""
    text = "\n".join(
        (ROOT / name).read_text() for name in ("LICENSE", "README.md", "CONTRIBUTING.md")
    )
    ids = llm.tokenize(text)
    prompts = []
    for i in range(count):
        length = max(1, round(longest ** (i / (count - 1))))
        # Every other prompt begins where the documents begin, so that prefixes are shared.
        start = 0 if i % 2 else (i * 37) % max(1, len(ids) - length)
        prompts.append(ids[start : start + length])
    return prompts


class Reference:
    """transformers in fp32 on the same folder."""

    def __init__(self) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            model_folder(), dtype=torch.float32, local_files_only=True
        ).eval()

    @torch.inference_mode()
    def greedy(self, prompt: list[int], num_new: int = NUM_NEW) -> Expected:
        """Greedy ``generate`` of one prompt, with the top two of every step."""
        ids = torch.tensor([prompt])
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_new,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        top = []
        for logits in out.logits:
            values, indices = logits[0].float().log_softmax(-1).topk(2)
            pairs = zip(indices.tolist(), values.tolist(), strict=True)
            top.append(tuple(pairs))
        return Expected(tuple(prompt), tuple(out.sequences[0, len(prompt) :].tolist()), tuple(top))


def run_all(
    llm: LLM, prompts: list[list[int]], *, concurrency: int = 32, **options
) -> list[Answer]:
    """Greedy answers of token-id prompts, ``concurrency`` of them open at a time."""
    options = {"temperature": 0.0, "max_tokens": NUM_NEW, "logprobs": 2} | options

    def run(prompt: list[int]) -> Answer:
        return llm.generate(token_ids=prompt, **options)

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(run, prompts))


def assert_equal(answer_ids, answer_logprobs, expected: Expected) -> None:
    """Equality as design.md §5 defines it: ids, up to the first tie of the reference."""
    for step, (ours, theirs) in enumerate(zip(answer_ids, expected.token_ids, strict=False)):
        (first, p1), (second, p2) = expected.top[step]
        if p1 - p2 < TIE:
            ours_top = dict(answer_logprobs[step].top)
            assert {first, second} <= set(ours_top), (step, expected.top[step], ours_top)
            assert abs(ours_top[first] - p1) < CLOSE
            assert abs(ours_top[second] - p2) < CLOSE
            return
        assert ours == theirs, (
            f"step {step} of a {len(expected.prompt)}-token prompt: got {ours}, expected {theirs}"
        )
        assert abs(answer_logprobs[step].logprob - p1) < CLOSE * 10
    assert len(answer_ids) == len(expected.token_ids)
