"""Tokenizers of each kind: token bytes, round trips, folders."""

import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixcache.errors import InvalidRequestError, ModelLoadError
from radixcache.types import ChatMessage
from radixcache_engine.front.tokenizer import Tokenizer
from tests import tiny_tokenizers

BYTE_LEVEL = Tokenizer(tiny_tokenizers.byte_level())
LLAMA = Tokenizer(tiny_tokenizers.sentencepiece())
GEMMA = Tokenizer(tiny_tokenizers.sentencepiece(bos=False, prefix_space=False))


@given(st.text(max_size=40))
def test_byte_level_text_comes_back(text):
    """Any text: encode, join the bytes, decode."""
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text


@given(st.text(max_size=40))
@pytest.mark.parametrize("tokenizer", [LLAMA, GEMMA], ids=["prefix", "no prefix"])
def test_sentencepiece_text_comes_back(tokenizer, text):
    """Spaces, byte pieces and the space put in front are undone."""
    text = text.replace("\u2581", " ")  # the mark itself is read as a space, as everywhere

    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.lists(st.integers(0, 262), max_size=12))
def test_byte_level_decodes_as_the_library_does(ids):
    """Also for ids no text would give: broken characters become U+FFFD in the same places."""
    fast = tiny_tokenizers.byte_level()

    assert BYTE_LEVEL.decode(ids) == fast.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("ids", [[4 + 0xE3], [4 + 0xE3, 4 + 0x81], [259, 260], [268, 268]])
def test_broken_byte_pieces_are_one_replacement_a_character(ids):
    """Unlike the library, which gives one U+FFFD for each byte of a cut character."""
    text = LLAMA.decode(ids, continues=True)

    assert text == b"".join(LLAMA.token_bytes[i] for i in ids).decode("utf-8", "replace")


def test_special_tokens_have_no_text_and_added_ones_have_theirs():
    """Control tokens are left out; added words keep characters outside the byte alphabet."""
    ids = BYTE_LEVEL.encode("<|start|><think>déjà<|end|>")

    assert [BYTE_LEVEL.token_bytes[i] for i in ids] == [b"", b"<think>", "déjà".encode(), b""]
    assert BYTE_LEVEL.decode(ids) == "<think>déjà"


def test_a_begin_token_is_added_where_the_tokenizer_does():
    """Only when asked to add what belongs to a prompt."""
    assert LLAMA.encode("hi")[0] == 1
    assert LLAMA.encode("hi", add_special=False)[0] != 1
    assert GEMMA.encode("") == []


def test_a_continuation_keeps_its_leading_space():
    """Text that follows other text begins where the other ended."""
    ids = LLAMA.encode("hi", add_special=False)

    assert LLAMA.decode(ids) == "hi"
    assert LLAMA.decode(ids, continues=True) == " hi"


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (tiny_tokenizers.metaspace, "ab c"),
        (tiny_tokenizers.wordpiece, "the playing game ."),
        (tiny_tokenizers.wordlevel, "w3 w1 w4"),
    ],
)
def test_other_kinds_join_into_their_text(build, text):
    """Metaspace, word pieces and whole words: bytes of tokens concatenate to the text."""
    fast = build()
    tokenizer = Tokenizer(fast)
    ids = tokenizer.encode(text)

    assert len(ids) > 1
    assert tokenizer.decode(ids) == fast.decode(ids) == text


def test_ids_without_a_token_have_no_text():
    """A padded embedding has rows the vocabulary does not know."""
    tokenizer = Tokenizer(tiny_tokenizers.wordlevel(), vocab_size=100)

    assert tokenizer.vocab_size == len(tokenizer.token_bytes) == 100
    assert tokenizer.decode([99, 1, 5000, -3]).strip() == "w0"


def test_truncation_and_padding_of_the_file_are_not_applied():
    """A prompt is never cut silently."""
    fast = tiny_tokenizers.wordlevel()
    fast.enable_truncation(2)
    fast.enable_padding(length=8)

    assert Tokenizer(fast).encode("w1 w2 w3") == [2, 3, 4]


def test_half_a_surrogate_pair_is_refused():
    """The library's own error is no answer for a user."""
    with pytest.raises(InvalidRequestError, match="Unicode"):
        BYTE_LEVEL.encode("a\ud800")


def folder_with(path, *, config=None, generation=None, settings=None, template=None):
    """A HF folder with a word-level tokenizer."""
    tiny_tokenizers.wordlevel().save(str(path / "tokenizer.json"))
    for name, content in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", settings),
    ):
        if content is not None:
            (path / name).write_text(json.dumps(content))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return path


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"config": {"eos_token_id": 3}}, (3,)),
        ({"config": {"eos_token_id": [3, 4]}}, (3, 4)),
        ({"config": {"text_config": {"eos_token_id": 5}}}, (5,)),
        ({"config": {"eos_token_id": 3}, "generation": {"eos_token_id": [4, 9]}}, (4, 9)),
        ({"config": {"eos_token_id": 3}, "settings": {"eos_token": "end"}}, (3, 51)),
        ({"settings": {"eos_token": {"content": "end"}}}, (51,)),
        ({}, ()),
    ],
)
def test_end_tokens_come_from_the_model_and_its_tokenizer(tmp_path, files, expected):
    """The generation config goes before the config; the tokenizer's own token always counts."""
    assert Tokenizer.load(folder_with(tmp_path, **files)).eos_token_ids == expected


@pytest.mark.parametrize(
    "source",
    [
        {"template": "{% for m in messages %}w{{ m.content }} {% endfor %}"},
        {"settings": {"chat_template": "{% for m in messages %}w{{ m.content }} {% endfor %}"}},
        {
            "settings": {
                "chat_template": [
                    {"name": "tool_use", "template": "w9"},
                    {
                        "name": "default",
                        "template": "{% for m in messages %}w{{ m.content }} {% endfor %}",
                    },
                ]
            }
        },
    ],
)
def test_the_chat_template_is_found_where_models_keep_it(tmp_path, source):
    """In a file of its own, in the tokenizer's settings, or as the default of several."""
    tokenizer = Tokenizer.load(folder_with(tmp_path, **source))
    messages = [ChatMessage("user", "3"), ChatMessage("assistant", "4")]

    assert tokenizer.apply_chat_template(messages) == [4, 5]


def test_a_model_without_a_chat_template_says_so(tmp_path):
    """Messages are refused, prompts work."""
    tokenizer = Tokenizer.load(folder_with(tmp_path))

    with pytest.raises(InvalidRequestError, match="no chat template"):
        tokenizer.apply_chat_template([ChatMessage("user", "3")])


@pytest.mark.parametrize("content", ["{", "[]", '{"model": 5}'])
def test_a_broken_tokenizer_is_one_line(tmp_path, content):
    """Which folder, and that it is the tokenizer."""
    (tmp_path / "tokenizer.json").write_text(content)

    with pytest.raises(ModelLoadError, match="the tokenizer cannot be loaded") as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_config_is_named(tmp_path, content):
    """The file's own name is in the message."""
    folder_with(tmp_path, config={})
    (tmp_path / "generation_config.json").write_text(content)

    with pytest.raises(ModelLoadError, match="generation_config"):
        Tokenizer.load(tmp_path)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    """No tokenizer file of any kind."""
    with pytest.raises(ModelLoadError, match="the tokenizer cannot be loaded"):
        Tokenizer.load(tmp_path)


def test_a_folder_with_an_older_kind_of_tokenizer_is_read(tmp_path):
    """Without tokenizer.json transformers builds the same from vocab.json and merges.txt."""
    model = json.loads(tiny_tokenizers.byte_level().to_str())["model"]
    vocab = {**model["vocab"], "<|endoftext|>": len(model["vocab"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    merges = [" ".join(merge) for merge in model["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    tokenizer = Tokenizer.load(tmp_path)

    assert tokenizer.encode("hello wé") == BYTE_LEVEL.encode("hello wé")
    assert tokenizer.decode(tokenizer.encode("hello wé")) == "hello wé"


def test_a_long_text_is_encoded_like_a_short_one():
    """Long ones take another way, on which other threads may run meanwhile."""
    tokenizer = Tokenizer(tiny_tokenizers.sentencepiece())
    for add_special in (True, False):
        ids = [tokenizer.encode(text, add_special=add_special) for text in ("hi yo", "hi yo" * 999)]

        assert ids[1][: len(ids[0])] == ids[0]
        assert tokenizer.decode(ids[1]) == "hi yo" * 999
    with pytest.raises(InvalidRequestError):
        tokenizer.encode("a" * 5_000 + "\udc00")


def test_other_threads_run_while_a_long_text_is_encoded():
    """The encoding releases the interpreter's lock: without that, nobody counts meanwhile."""
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    done, counted = threading.Event(), []

    def encode():
        tokenizer.encode("hello world " * 100_000)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    while not done.is_set():
        counted.append(time.monotonic())
        time.sleep(0.001)
    thread.join()

    assert len(counted) > 20
