"""The embedded model's real tokenizer and folder."""

import random
import subprocess
import sys
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer

from radixcache.types import ChatMessage, FinishReason
from radixcache_engine.front.detokenizer import Detokenizer
from radixcache_engine.front.tokenizer import Tokenizer
from radixcache_engine.models.registry import resolve
from radixcache_engine.sampling.stop import StopMatcher, StopSet
from radixcache_engine.types import SequenceOutput

pytestmark = pytest.mark.model

VOCAB = 49_152
TEXTS = [
    "The capital of France is Paris.",
    "family \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 and \U0001f1e8\U0001f1ff",
    "日本語のテキスト、混ざった English",
    "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "नमस्ते दुनिया, यह एक परीक्षण है",
    "1. one\n\n2. two\n\n\t3.  three   42",
    "def f(x):\n    return x  # 'quoted' \"text\" \\n",
]
STOPS = ["e", " a", "\n\n", "日", "the", "ä", "\U0001f469"]
TEXT = st.text(max_size=60) | st.sampled_from(TEXTS)


@cache
def folder():
    """The converted model, fetched if this machine does not have it."""
    return resolve("smollm2").path


@cache
def tokenizer():
    """Ours."""
    return Tokenizer.load(folder())


@cache
def library():
    """The tokenizers library's own."""
    return FastTokenizer.from_file(str(folder() / "tokenizer.json"))


@cache
def known_bytes():
    """Bytes that have a token of their own."""
    return {piece[0] for piece in tokenizer().token_bytes if len(piece) == 1}


def test_random_ids_decode_as_in_the_library():
    """Thousands of sequences, special tokens and broken characters among them."""
    rng = random.Random(0)
    for _ in range(4000):
        ids = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 12))]
        if rng.random() < 0.2:
            ids.insert(rng.randrange(len(ids)), rng.randrange(17))

        assert tokenizer().decode(ids) == library().decode(ids, skip_special_tokens=True)


@settings(max_examples=300)
@given(TEXT)
def test_text_comes_back(text):
    """Encoding and joining the bytes of the tokens is the text."""
    # The vocabulary lacks a few bytes that only unassigned planes use; their text is lost.
    assume(set(text.encode()) <= known_bytes())
    ids = tokenizer().encode(text)

    assert b"".join(tokenizer().token_bytes[i] for i in ids) == text.encode()
    assert tokenizer().decode(ids) == library().decode(ids, skip_special_tokens=True) == text


def test_digits_stand_alone_as_in_training():
    """The split the GGUF file names is applied, not GPT-2's."""
    pieces = [tokenizer().token_bytes[i] for i in tokenizer().encode("a\n\n12  3")]

    assert pieces == [b"a", b"\n\n", b"1", b"2", b"  ", b"3"]


def test_the_chat_template_is_chatml_with_real_control_tokens():
    """Ids 1 and 2 begin and end each turn, the default system prompt comes first."""
    ids = tokenizer().apply_chat_template([ChatMessage("user", "Hi")])
    text = library().decode(ids, skip_special_tokens=False)

    assert tokenizer().eos_token_ids == (2,)
    assert tokenizer().vocab_size == VOCAB
    assert ids.count(1) == 3
    assert ids.count(2) == 2
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_the_chat_template_is_rendered_as_transformers_does():
    """Same ids for several turns with a system prompt."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - slow, and only this test needs it

    turns = [("system", "Be brief."), ("user", "1 + 1?"), ("assistant", "2"), ("user", "Sure? é")]
    messages = [ChatMessage(role, content) for role, content in turns]
    theirs = AutoTokenizer.from_pretrained(folder()).apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages],
        add_generation_prompt=True,
        return_dict=True,
    )["input_ids"]

    assert tokenizer().apply_chat_template(messages) == theirs


def streamed(ids, stops, sizes):
    """Text of a stream that hands out ids in groups of these sizes; stops as the engine does."""
    table, stop_set = tokenizer().token_bytes, StopSet(stops)
    matcher, cut, used = StopMatcher(stop_set, table), None, []
    for token_id in ids:
        used.append(token_id)
        hit = matcher.feed(token_id)
        if hit is not None:
            cut = hit.num_text_bytes
            break
    detokenizer, deltas, start = Detokenizer(table, stop_set), [], 0
    while start < len(used):
        size = sizes[len(deltas) % len(sizes)]
        output = SequenceOutput(0, used[start : start + size], [])
        start += size
        if start >= len(used):
            output.finish_reason = FinishReason.LENGTH if cut is None else FinishReason.STOP
            output.num_text_bytes = cut
        deltas.append(detokenizer.feed(output))
    whole = b"".join(table[i] for i in used)
    return deltas, (whole if cut is None else whole[:cut]).decode("utf-8", "replace")


@settings(max_examples=200)
@given(
    ids=st.lists(st.integers(0, VOCAB - 1), max_size=30)
    | TEXT.map(lambda t: tokenizer().encode(t)),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    stops=st.lists(
        st.sampled_from(["e", " a", "\n\n", "日", "the", "ä", "\U0001f469"]), max_size=3
    ),
)
def test_deltas_join_to_the_full_text(ids, sizes, stops):
    """Case 124: whatever the tokens and the grouping, with stops or without."""
    deltas, expected = streamed(ids, stops, sizes)

    assert "".join(deltas) == expected


@pytest.mark.parametrize("text", TEXTS)
def test_real_text_is_never_broken_in_a_stream(text):
    """Case 124: no U+FFFD, not even for a moment; cut anywhere there is at most one, at the end."""
    ids = tokenizer().encode(text)
    deltas, _ = streamed(ids, [], [1])

    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)
    for count in range(1, len(ids)):
        cut, _ = streamed(ids[:count], [], [1])
        joined = "".join(cut)

        assert joined.count("\ufffd") <= 1
        assert text.startswith(joined.removesuffix("\ufffd"))


def test_ids_do_not_survive_a_round_trip_through_text():
    """Case 131: some id lists re-encode to others, which is why answers carry their ids."""
    rng = random.Random(1)
    lists = [[rng.randrange(17, VOCAB) for _ in range(3)] for _ in range(2000)]
    changed = sum(tokenizer().encode(tokenizer().decode(ids)) != ids for ids in lists)

    assert 0 < changed < 400


def test_loading_the_tokenizer_does_not_import_transformers():
    """Two seconds of import are not spent on a warm start."""
    script = (
        "import sys, pathlib\n"
        "from radixcache_engine.front.tokenizer import Tokenizer\n"
        f"Tokenizer.load(pathlib.Path({str(folder())!r}))\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "[]"


def test_greedy_text_is_sane():
    """The converted weights know their capitals."""
    import torch  # noqa: PLC0415 - slow, and only this test needs it
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - as above

    model = AutoModelForCausalLM.from_pretrained(folder(), dtype=torch.float32)
    prompt = torch.tensor([tokenizer().encode("The capital of France is")])
    out = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False
    )

    assert tokenizer().decode(out[0, prompt.shape[1] :].tolist()).startswith(" Paris.")
