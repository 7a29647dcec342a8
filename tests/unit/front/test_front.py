"""The front: one request in, one stream out. A scripted engine stands behind it."""

import gc
import math
from concurrent.futures import Future

import pytest

from radixcache.errors import (
    DeadlineError,
    EngineStoppedError,
    InvalidRequestError,
    ModelNotFoundError,
    RequestAbortedError,
    TooLongError,
)
from radixcache.types import (
    CacheMode,
    ChatMessage,
    FinishReason,
    MatchResult,
    ModelInfo,
    SamplingParams,
    TokenLogprob,
    TreeNodeView,
    TreeView,
    Usage,
)
from radixcache_engine.core.api import Drained
from radixcache_engine.front.chat_template import ChatTemplate
from radixcache_engine.front.front import Front
from radixcache_engine.front.tokenizer import Tokenizer
from radixcache_engine.types import GenerateRequest, SequenceOutput, Terminal
from tests import tiny_tokenizers

CHAT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


class ScriptedBuffer:
    """Hands out what the test put in."""

    def __init__(self):
        self.outputs, self.terminal, self.num_drains = [], None, 0

    def drain(self):
        self.num_drains += 1
        drained = Drained(self.outputs, self.terminal)
        self.outputs, self.terminal = [], None
        return drained


class ScriptedEngine:
    """Remembers what it was asked; for the shape of messages only."""

    def __init__(self, **model):
        self.model = ModelInfo(
            **{
                "name": "tiny",
                "context_len": 64,
                "vocab_size": 300,
                "block_size": 16,
                "kv_capacity_tokens": 48,
                "eos_token_ids": (262,),
                **model,
            }
        )
        self.requests, self.buffers, self.aborted, self.matched = [], [], [], []
        self.stopped = False
        self.tree_future = Future()

    def submit(self, request, notify):
        if self.stopped:
            raise EngineStoppedError("draining")
        self.requests.append(request)
        self.buffers.append(ScriptedBuffer())
        return self.buffers[-1]

    def abort(self, request_id, *, reason="aborted by its owner"):
        self.aborted.append(request_id)

    def match(self, token_ids, scope):
        self.matched.append((list(token_ids), scope))
        future = Future()
        future.set_result(MatchResult(matched_tokens=1, prompt_tokens=len(token_ids)))
        return future

    def tree(self, max_nodes):
        return self.tree_future


def make_front(tokenizer=None, **model):
    """A front over a scripted engine and a byte-level tokenizer."""
    engine = ScriptedEngine(**model)
    if tokenizer is None:
        fast = tiny_tokenizers.byte_level()
        tokenizer = Tokenizer(fast, vocab_size=300, chat_template=ChatTemplate(CHAT, {}))
    return Front(engine, tokenizer, scope="team", clock=lambda: 100.0), engine


def open_one(front, **fields):
    """Open a request; sampling fields may be given flat."""
    sampling = SamplingParams(**fields.pop("sampling", {}))
    return front.open(GenerateRequest(sampling=sampling, **fields), lambda: None)


def test_a_text_becomes_a_complete_engine_request():
    """Everything the engine must not guess is filled in."""
    front, engine = make_front()
    stream = open_one(front, prompt="hello", timeout_s=5.0, cache_mode=CacheMode.READ)
    (request,) = engine.requests

    assert list(request.token_ids) == front.tokenize("hello") == list(stream.prompt_token_ids)
    assert request.scope == "team"
    assert request.cache_mode is CacheMode.READ
    assert (request.arrival, request.deadline, request.hold) == (100.0, 105.0, False)
    assert request.sampling.max_tokens == 48 - len(request.token_ids) + 1
    assert 0 <= request.sampling.seed < 2**63


def test_seeds_are_drawn_only_where_none_is_given():
    """Two requests without a seed get two; a given one is kept."""
    front, engine = make_front()
    for sampling in ({}, {}, {"seed": -3}):
        open_one(front, prompt="a", sampling=sampling)
    seeds = [request.sampling.seed for request in engine.requests]

    assert seeds[0] != seeds[1]
    assert seeds[2] == -3


def test_ids_and_messages_are_prompts_too():
    """Ids go through unchanged; messages through the model's template."""
    front, engine = make_front()
    open_one(front, token_ids=[5, 6, 7])
    open_one(front, messages=[ChatMessage("user", "hi")])

    assert list(engine.requests[0].token_ids) == [5, 6, 7]
    assert list(engine.requests[1].token_ids) == front.tokenize("[user]hi")


def test_a_reply_sent_back_as_ids_extends_its_prompt():
    """Case 131 (b): prompt, answer and next turn in ids share all that was computed."""
    front, engine = make_front()
    stream = open_one(front, prompt="hi")
    reply = front.tokenize("l") * 2
    engine.buffers[0].outputs = [SequenceOutput(0, reply, [], LENGTH)]
    engine.buffers[0].terminal = Terminal(usage=Usage())
    answer = stream.poll().answer
    history = [*stream.prompt_token_ids, *answer.token_ids]
    open_one(front, token_ids=[*history, *front.tokenize(" more")])

    assert answer.token_ids == tuple(reply)
    assert list(engine.requests[1].token_ids)[: len(history)] == history
    assert front.tokenize(answer.text) != reply  # text would not have come back to the same ids


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": "a", "token_ids": [1]},
        {"prompt": "a", "messages": [ChatMessage("user", "a")]},
        {"prompt": "", "token_ids": []},
    ],
)
def test_exactly_one_prompt_is_given(fields):
    """None or two are refused."""
    with pytest.raises(InvalidRequestError, match="exactly one of"):
        open_one(make_front()[0], **fields)


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize(
    "fields", [{"prompt": ""}, {"token_ids": []}, {"messages": []}], ids=lambda f: next(iter(f))
)
def test_empty_prompts_are_refused(fields, bos):
    """Case 62: whether the tokenizer has a begin token or not; the next request is served."""
    tokenizer = Tokenizer(
        tiny_tokenizers.sentencepiece(bos=bos, prefix_space=False),
        vocab_size=300,
        chat_template=ChatTemplate(CHAT, {}),
    )
    front, engine = make_front(tokenizer)
    with pytest.raises(InvalidRequestError):
        open_one(front, **fields)
    open_one(front, token_ids=[1])

    assert [list(request.token_ids) for request in engine.requests] == [[1]]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"prompt": "a", "model": "other"}, ModelNotFoundError),
        ({"token_ids": [300]}, InvalidRequestError),
        ({"token_ids": [-1]}, InvalidRequestError),
        ({"prompt": "\udc00"}, InvalidRequestError),
        ({"prompt": 5}, InvalidRequestError),
        ({"token_ids": [1] * 49}, TooLongError),
        ({"token_ids": [1] * 47, "sampling": {"max_tokens": 3}}, TooLongError),
        ({"token_ids": [1] * 40, "sampling": {"min_tokens": 20}}, InvalidRequestError),
        ({"prompt": "a", "sampling": {"temperature": math.nan}}, InvalidRequestError),
        ({"prompt": "a", "sampling": {"logit_bias": {300: 1.0}}}, InvalidRequestError),
        ({"prompt": "a", "cache_mode": "off"}, InvalidRequestError),
        ({"prompt": "a", "timeout_s": 0.0}, DeadlineError),
        ({"messages": [ChatMessage("robot", "x")]}, InvalidRequestError),
    ],
)
def test_a_bad_request_never_reaches_the_engine(fields, error):
    """Rule 12: validated before the step loop, and harmless to the next request."""
    front, engine = make_front()
    with pytest.raises(error):
        open_one(front, **fields)

    assert engine.requests == []
    assert open_one(front, prompt="a", model="tiny").prompt_token_ids


def test_internal_ids_are_unique_and_client_ids_are_echoed():
    """Two requests of one client id stay apart inside."""
    front, engine = make_front()
    streams = [open_one(front, prompt="a", request_id="mine") for _ in range(3)]
    nameless = open_one(front, prompt="a")

    assert len({request.request_id for request in engine.requests}) == 4
    assert [stream.request_id for stream in streams] == ["mine"] * 3
    assert nameless.request_id == nameless.internal_id


def test_abort_by_client_id_reaches_every_open_stream_of_it():
    """Finished ones and others are left alone; doing it again is no error."""
    front, engine = make_front()
    first, second, other = (
        open_one(front, prompt="a", request_id=name) for name in ("x", "x", "y")
    )
    engine.buffers[0].terminal = Terminal(usage=Usage())
    first.poll()

    assert front.abort("x") == 1
    assert front.abort("nobody") == 0
    assert engine.aborted == [second.internal_id]
    assert other.poll().answer is None


def test_a_dropped_stream_is_forgotten():
    """A caller that goes away without polling leaks nothing in the front."""
    front, _ = make_front()
    stream = open_one(front, prompt="a", request_id="x")
    del stream
    gc.collect()

    assert front.abort("x") == 0


def test_an_abort_before_the_engine_knows_the_request_is_not_lost():
    """Another thread may abort between the id's birth and its submission."""
    front, engine = make_front()
    submit = engine.submit

    def slow_submit(request, notify):
        assert front.abort("x") == 1
        engine.aborted.clear()
        return submit(request, notify)

    engine.submit = slow_submit
    stream = open_one(front, prompt="a", request_id="x")

    assert engine.aborted == [stream.internal_id]


def test_a_refused_submission_leaves_nothing_open():
    """The engine's error comes through as it is."""
    front, engine = make_front()
    engine.stopped = True
    with pytest.raises(EngineStoppedError):
        open_one(front, prompt="a", request_id="x")
    gc.collect()

    assert front.abort("x") == 0


def test_polls_give_deltas_and_then_one_answer():
    """Deltas concatenate to the answer; after the end there is nothing more."""
    front, engine = make_front()
    stream = open_one(front, prompt="a", request_id="mine")
    buffer = engine.buffers[0]
    h, i = front.tokenize("h")[0], front.tokenize("i")[0]
    logprob = TokenLogprob(h, -0.5)

    assert stream.poll().deltas == []
    buffer.outputs = [SequenceOutput(0, [h], [logprob])]
    first = stream.poll()
    usage = Usage(prompt_tokens=1, completion_tokens=2)
    buffer.outputs = [SequenceOutput(0, [i, 262], [], STOP)]
    buffer.terminal = Terminal(usage=usage, hold_id=9)
    last = stream.poll()

    assert [(d.text, d.token_ids, d.logprobs) for d in first.deltas] == [("h", (h,), (logprob,))]
    assert (first.is_last, last.is_last) == (False, True)
    assert last.deltas[0].finish_reason == "stop"
    assert last.answer.text == "hi"
    assert last.answer.token_ids == (h, i, 262)
    assert last.answer.logprobs == (logprob,)
    assert (last.answer.request_id, last.answer.model) == ("mine", "tiny")
    assert last.usage == last.answer.usage == usage
    assert stream.hold_id == 9
    assert stream.ended
    drains = buffer.num_drains
    assert stream.poll().usage is None
    assert buffer.num_drains == drains


def test_samples_have_their_own_text():
    """N sequences, each with its own half-read character and its own end."""
    front, engine = make_front()
    stream = open_one(front, prompt="a", sampling={"n": 2, "stop": ["b"]})
    a, b = front.tokenize("a")[0], front.tokenize("b")[0]
    first, second = front.tokenize("é")
    buffer = engine.buffers[0]
    buffer.outputs = [SequenceOutput(0, [first], []), SequenceOutput(1, [a], [])]
    texts = [delta.text for delta in stream.poll().deltas]
    buffer.outputs = [
        SequenceOutput(1, [b], [], STOP, "b", 1),
        SequenceOutput(0, [second], [], LENGTH),
    ]
    buffer.terminal = Terminal(usage=Usage())
    choices = stream.poll().answer.choices

    assert texts == ["", "a"]
    assert [(c.index, c.text, c.finish_reason) for c in choices] == [
        (0, "é", "length"),
        (1, "a", "stop"),
    ]
    assert (choices[0].stop_reason, choices[1].stop_reason) == (None, "b")


def test_a_failed_request_reports_its_error_and_usage():
    """Rule 14: aborted requests report what they cost."""
    front, engine = make_front()
    stream = open_one(front, prompt="a")
    error, usage = RequestAbortedError("aborted"), Usage(prompt_tokens=1)
    engine.buffers[0].terminal = Terminal(usage=usage, error=error)
    update = stream.poll()
    stream.abort()

    assert (update.answer, update.error, update.usage) == (None, error, usage)
    assert engine.aborted == []


def test_with_ignore_eos_an_end_token_is_text():
    """Without it the token that ends the sequence is left out."""
    tokenizer = Tokenizer(tiny_tokenizers.byte_level(), vocab_size=300)
    h = tokenizer.encode("h")[0]
    for ignore_eos, text in ((False, ""), (True, "h")):
        front, engine = make_front(tokenizer, eos_token_ids=(h,))
        stream = open_one(front, prompt="a", sampling={"ignore_eos": ignore_eos})
        engine.buffers[0].outputs = [SequenceOutput(0, [h], [], STOP)]
        engine.buffers[0].terminal = Terminal(usage=Usage())

        assert stream.poll().answer.text == text


def test_match_asks_for_the_prompt_in_the_same_scope():
    """All three kinds of prompt; the answer is the engine's."""
    front, engine = make_front()
    result = front.match(GenerateRequest(prompt="hi")).result()
    front.match(GenerateRequest(token_ids=[4]))

    assert engine.matched == [(front.tokenize("hi"), "team"), ([4], "team")]
    assert result == MatchResult(matched_tokens=1, prompt_tokens=2)
    with pytest.raises(ModelNotFoundError):
        front.match(GenerateRequest(prompt="hi", model="other"))


def test_tokenize_and_detokenize_are_each_other():
    """Text to ids and back, with the same refusals as a request."""
    front, _ = make_front()

    assert front.detokenize(front.tokenize("hello world")) == "hello world"
    assert front.tokenize("") == []
    for ids in ([], [300], [-1]):
        with pytest.raises(InvalidRequestError, match="token_ids"):
            front.detokenize(ids)
    with pytest.raises(InvalidRequestError, match="text"):
        front.tokenize(None)


def test_the_tree_is_shown_with_its_text():
    """Nodes come back decoded, everything else as it was; an error stays an error."""
    front, engine = make_front()
    future = front.tree(10)
    ids = tuple(front.tokenize("hello"))
    engine.tree_future.set_result(
        TreeView(nodes=(TreeNodeView(node_id=1, num_tokens=9, token_ids=ids),), total_nodes=4)
    )
    view = future.result(timeout=1)
    engine.tree_future = Future()
    failed = front.tree(10)
    engine.tree_future.set_exception(EngineStoppedError("gone"))

    assert (view.nodes[0].text, view.nodes[0].num_tokens, view.total_nodes) == ("hello", 9, 4)
    assert isinstance(failed.exception(timeout=1), EngineStoppedError)


class UnreadableList(list):
    """Has a length, and fails whoever looks at an entry."""

    def __iter__(self):
        raise AssertionError("an entry was read")


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ({"token_ids": UnreadableList([1] * 50)}, "50 tokens.*at most 48 tokens.*--kv-tokens"),
        ({"messages": UnreadableList([None] * 50)}, "50 messages.*at most 49 messages"),
        ({"prompt": "a" * 442}, "442 bytes.*at most 441 bytes, 9 for each token"),
        ({"prompt": "č" * 221}, "442 bytes.*at most 441"),
        ({"messages": [ChatMessage("user", "a" * 221)] * 2}, "messages: .*442 bytes"),
    ],
)
def test_what_can_never_fit_is_refused_unread(prompt, said, monkeypatch):
    """By its size alone, before any validation or tokenising; also when it is only looked up."""
    front, engine = make_front()

    def fail(*args, **kwargs):
        raise AssertionError("it was tokenised")

    monkeypatch.setattr(Tokenizer, "encode", fail)
    for ask in (lambda: open_one(front, **prompt), lambda: front.match(GenerateRequest(**prompt))):
        with pytest.raises(TooLongError, match=said):
            ask()

    assert engine.requests == engine.matched == []


def test_text_at_the_bound_is_tokenised():
    """It may fit: 49 tokens of 9 bytes are looked up, and only too long to generate from."""
    front, _ = make_front()
    text = "<|start|>" * 49

    assert front.match(GenerateRequest(prompt=text)).result()
    with pytest.raises(TooLongError, match="49 tokens"):
        open_one(front, prompt=text)


@pytest.mark.parametrize("wrong", [5, "a" * 100, b"a" * 100, {i: i for i in range(100)}])
@pytest.mark.parametrize("field", ["token_ids", "messages"])
def test_what_is_no_list_is_not_called_too_long(field, wrong):
    """The error says what is wrong with it."""
    with pytest.raises(InvalidRequestError, match=r"a list of") as caught:
        open_one(make_front()[0], **{field: wrong})

    assert not isinstance(caught.value, TooLongError)
