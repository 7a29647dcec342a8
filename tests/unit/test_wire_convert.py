"""What is said on one side of the wire is what is heard on the other."""

import math
from dataclasses import fields

import pytest

from radixcache.client import _base, _responses
from radixcache.errors import InvalidRequestError
from radixcache.types import (
    Answer,
    CacheMode,
    ChatMessage,
    Choice,
    Delta,
    FinishReason,
    FlushResult,
    MatchResult,
    ModelInfo,
    SamplingParams,
    Stats,
    TokenLogprob,
    TreeNodeView,
    TreeView,
    Usage,
)
from radixcache.v1 import cache_service_pb2, engine_service_pb2, output_pb2, sampling_pb2
from radixcache_engine.server import convert

SAMPLING = {
    "max_tokens": 7,
    "min_tokens": 2,
    "temperature": 0.1,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.05,
    "seed": -(2**63),
    "repetition_penalty": 1.1,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.25,
    "logit_bias": {3: -1.5, 0: 100.0},
    "stop": ("\n", "ÚŽ", "a b"),
    "stop_token_ids": (5, 49_151),
    "ignore_eos": True,
    "logprobs": 0,
    "n": 3,
}


def heard(prompt=None, *, timeout_s=None, **options):
    """The request as the front sees it, after a trip over the wire."""
    sent = _base.generate_request(prompt, options).SerializeToString()
    message = engine_service_pb2.GenerateRequest.FromString(sent)
    return convert.to_generate_request(message, timeout_s=timeout_s)


def read_back(*responses):
    """Deltas and assembly of a stream's messages, after a trip over the wire."""
    assembly = _responses.Assembly()
    deltas = []
    for response in responses:
        sent = response.SerializeToString()
        deltas += assembly.add(engine_service_pb2.GenerateResponse.FromString(sent))
    return deltas, assembly


def test_every_sampling_parameter_is_in_this_test():
    """A parameter added to the contract and forgotten on the wire fails here."""
    names = {f.name for f in fields(SamplingParams)}

    assert names == set(SAMPLING)
    assert names == {f.name for f in sampling_pb2.SamplingParams.DESCRIPTOR.fields}


def test_sampling_parameters_arrive_as_sent():
    """All of them at once, each with a value that is not the default."""
    assert heard("x", **SAMPLING).sampling == SamplingParams(**SAMPLING)


@pytest.mark.parametrize("name", SAMPLING)
def test_a_sampling_parameter_arrives_alone(name):
    """Setting one leaves the others at their defaults."""
    value = SAMPLING[name]

    assert heard("x", **{name: value}).sampling == SamplingParams(**{name: value})


@pytest.mark.parametrize("name", SAMPLING)
def test_none_means_not_said(name):
    """None is the same as leaving the keyword out."""
    assert heard("x", **{name: None}).sampling == SamplingParams()


@pytest.mark.parametrize("name", ["temperature", "top_p", "seed", "top_k", "min_tokens", "n"])
def test_zero_is_said(name):
    """Zero is a value, not the absence of one."""
    assert getattr(heard("x", **{name: 0}).sampling, name) == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_odd_floats_reach_the_front(value):
    """NaN and infinity are refused by the front, by name, and so must get there."""
    got = heard("x", temperature=value, logit_bias={1: value}).sampling

    assert repr(got.temperature) == repr(value)
    assert repr(got.logit_bias[1]) == repr(value)


def test_negative_ids_reach_the_front():
    """A wrong id is refused with its position, so the wire must carry it."""
    got = heard(token_ids=[5, -1], stop_token_ids=[-7], logit_bias={-1: 1.0})

    assert got.token_ids == [5, -1]
    assert got.sampling.stop_token_ids == (-7,)
    assert got.sampling.logit_bias == {-1: 1.0}


def test_the_three_forms_of_a_prompt_arrive():
    """Text, token ids and messages, each as itself."""
    chat = [{"role": "user", "content": "ahoj"}, ChatMessage("assistant", "")]

    assert heard("ahoj 🚀").prompt == "ahoj 🚀"
    assert heard(token_ids=range(3)).token_ids == [0, 1, 2]
    assert heard(messages=chat).messages == [
        ChatMessage("user", "ahoj"),
        ChatMessage("assistant", ""),
    ]


def test_empty_prompts_keep_their_form():
    """An empty prompt is refused by the front, which must see which kind it was."""
    assert heard("").prompt == ""
    assert heard(token_ids=[]).token_ids == []
    assert heard(messages=[]).messages == []


@pytest.mark.parametrize("mode", CacheMode)
def test_cache_modes_arrive(mode):
    """By name or as the enum."""
    assert heard("x", cache=mode).cache_mode is mode
    assert heard("x", cache=mode.value).cache_mode is mode


def test_the_rest_of_a_request_arrives():
    """Model, id, the default cache mode and the deadline."""
    got = heard("x", model="m", request_id="r-1", timeout_s=2.5)

    assert (got.model, got.request_id, got.timeout_s) == ("m", "r-1", 2.5)
    assert got.cache_mode is CacheMode.WRITE
    assert heard("x").timeout_s is None


def test_no_prompt_is_refused():
    """With the three forms it could have had."""
    with pytest.raises(InvalidRequestError, match="text, token_ids, messages") as caught:
        convert.to_generate_request(engine_service_pb2.GenerateRequest(), timeout_s=None)

    assert caught.value.field == "prompt"


def test_an_unknown_cache_mode_is_refused():
    """A mode of a newer client is not taken for the default."""
    message = _base.generate_request("x", {})
    message.cache_mode = 9

    with pytest.raises(InvalidRequestError, match="cache_mode: got 9, allowed: off"):
        convert.to_generate_request(message, timeout_s=None)


@pytest.mark.parametrize("part", ["request", "sampling", "prompt", "messages"])
def test_a_field_this_server_does_not_know_is_refused(part):
    """A newer client's wish (a JSON schema, say) is never silently dropped."""
    message = _base.generate_request(None, {"messages": [{"role": "user", "content": "x"}]})
    inner = {
        "request": message,
        "sampling": message.sampling,
        "prompt": message.prompt,
        "messages": message.prompt.messages.messages[0],
    }[part]
    inner.MergeFromString(b"\xba\x3e\x02{}")  # field 999, two bytes

    with pytest.raises(InvalidRequestError, match="field number 999") as caught:
        convert.to_generate_request(message, timeout_s=None)

    assert caught.value.field == part


def test_match_request_arrives():
    """Model and prompt, and nothing else."""
    message = _base.match_request(None, {"token_ids": [4], "model": "m"})
    got = convert.to_match_request(message)

    assert (got.model, got.token_ids) == ("m", [4])


@pytest.mark.parametrize("got", [0, -1, 100_001])
def test_max_nodes_has_a_range(got):
    """And says so."""
    with pytest.raises(InvalidRequestError, match=r"max_nodes.*1 to 100,000"):
        convert.to_max_nodes(cache_service_pb2.GetTreeRequest(max_nodes=got))


def test_max_nodes_has_a_default():
    """Which the proto's comment states."""
    assert convert.to_max_nodes(cache_service_pb2.GetTreeRequest()) == 1_000
    assert convert.to_max_nodes(cache_service_pb2.GetTreeRequest(max_nodes=5)) == 5


def test_a_full_delta_arrives():
    """Every field of a delta, with log-probabilities and their tops."""
    delta = Delta(
        index=2,
        text="čau",
        token_ids=(1, 49_151),
        logprobs=(
            TokenLogprob(1, -0.1234567890123, ((1, -0.1), (7, -2.5))),
            TokenLogprob(49_151, -3.0),
        ),
        finish_reason="stop",
        stop_reason="\n",
    )

    assert read_back(*convert.from_deltas([delta]))[0] == [delta]


@pytest.mark.parametrize("reason", ["", "stop", 0, 17, None])
def test_stop_reasons_arrive(reason):
    """A string, an id (0 too), or none."""
    delta = Delta(finish_reason="stop", stop_reason=reason)

    assert read_back(*convert.from_deltas([delta]))[0] == [delta]


@pytest.mark.parametrize("reason", FinishReason)
def test_finish_reasons_arrive(reason):
    """Each of the contract's reasons has its value on the wire."""
    delta = Delta(finish_reason=reason.value)

    assert read_back(*convert.from_deltas([delta]))[0] == [delta]


def test_an_answer_is_put_together():
    """Interleaved sequences, usage, model and id."""
    usage = Usage(
        prompt_tokens=1,
        cached_tokens=2,
        completion_tokens=3,
        recomputed_tokens=4,
        queue_s=0.5,
        ttft_s=0.25,
    )
    deltas = [
        Delta(index=1, text="b", token_ids=(2,)),
        Delta(index=0, text="a", token_ids=(1,), logprobs=(TokenLogprob(1, -1.0),)),
        Delta(index=1, text="B", token_ids=(4,), finish_reason="length"),
        Delta(index=0, text="A", token_ids=(3,), finish_reason="stop", stop_reason=3),
    ]
    end = convert.from_end(Answer(request_id="r", model="m", usage=usage))
    _, assembly = read_back(*convert.from_deltas(deltas), end)

    assert assembly.answer() == Answer(
        request_id="r",
        model="m",
        usage=usage,
        choices=(
            Choice(
                index=0,
                text="aA",
                token_ids=(1, 3),
                logprobs=(TokenLogprob(1, -1.0),),
                finish_reason="stop",
                stop_reason=3,
            ),
            Choice(index=1, text="bB", token_ids=(2, 4), finish_reason="length"),
        ),
    )


def test_many_deltas_share_a_message():
    """One message a step, not one a sequence."""
    responses = list(convert.from_deltas([Delta(index=i, token_ids=(i,)) for i in range(128)]))

    assert len(responses) == 1
    assert len(responses[0].deltas) == 128


def test_no_deltas_make_no_message():
    """An empty poll writes nothing."""
    assert list(convert.from_deltas([])) == []


@pytest.mark.parametrize("text", ["x", "č", "好", "🚀"])
def test_a_large_delta_is_cut(text):
    """Case 114: no part reaches 1 MiB, whatever the characters; joined they are the whole."""
    logprobs = tuple(
        TokenLogprob(i, -float(i), tuple((k, -1.5) for k in range(20))) for i in range(4_000)
    )
    delta = Delta(
        text=text * 400_001,
        token_ids=tuple(range(4_000)),
        logprobs=logprobs,
        finish_reason="stop",
        stop_reason="end",
    )
    responses = list(convert.from_deltas([Delta(index=1, text="before"), delta]))
    deltas, _ = read_back(*responses)
    pieces = deltas[1:]

    assert max(response.ByteSize() for response in responses) < convert.MAX_RESPONSE_BYTES
    assert len(responses) > 5
    assert "".join(piece.text for piece in pieces) == delta.text
    assert sum((piece.token_ids for piece in pieces), ()) == delta.token_ids
    assert sum((piece.logprobs for piece in pieces), ()) == delta.logprobs
    assert all(len(piece.logprobs) == len(piece.token_ids) for piece in pieces)
    assert [piece.finish_reason for piece in pieces][-2:] == [None, "stop"]
    assert [piece.stop_reason for piece in pieces][-2:] == [None, "end"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Usage, output_pb2.Usage),
        (Stats, cache_service_pb2.Stats),
        (ModelInfo, engine_service_pb2.ModelInfo),
        (TreeNodeView, cache_service_pb2.TreeNode),
        (TreeView, cache_service_pb2.GetTreeResponse),
        (MatchResult, cache_service_pb2.MatchResponse),
        (FlushResult, cache_service_pb2.FlushResponse),
    ],
)
def test_fields_are_the_same(value, message):
    """A field added on one side and forgotten on the other fails here."""
    assert [f.name for f in fields(value)] == [f.name for f in message.DESCRIPTOR.fields]


def filled(kind):
    """A value with another number in each numeric field."""
    values = {}
    for i, field in enumerate(fields(kind), start=1):
        samples = {int: i, float: i + 0.5, str: f"s{i}"}
        values[field.name] = samples.get(field.type, (i, i + 1))
    return kind(**values)


def test_stats_arrive():
    """Every counter in its own place."""
    stats = filled(Stats)

    assert _responses.to_stats(convert.from_stats(stats)) == stats


def test_models_arrive():
    """Every field, and the end tokens as a tuple."""
    model = filled(ModelInfo)

    assert _responses.to_models(convert.from_models([model, ModelInfo()])) == [model, ModelInfo()]


def test_a_tree_arrives():
    """Nodes in order, with their tokens."""
    view = TreeView(
        nodes=(filled(TreeNodeView), TreeNodeView(node_id=9)), total_nodes=3, total_tokens=4
    )

    assert _responses.to_tree(convert.from_tree(view)) == view


def test_a_match_arrives():
    """Both numbers."""
    message = cache_service_pb2.MatchResponse(matched_tokens=3, prompt_tokens=5)

    assert _responses.to_match(message) == MatchResult(matched_tokens=3, prompt_tokens=5)
