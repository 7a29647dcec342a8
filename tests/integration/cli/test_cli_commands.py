"""Every client command against a real server."""

import json
import uuid

import pytest

pytestmark = pytest.mark.model

GREEDY = ("--temperature", "0", "--max-tokens", "8")


def _long_prompt() -> str:
    """A prompt of several blocks that no other test has used."""
    return (
        f"{uuid.uuid4()} The quick brown fox jumps over the lazy dog. " + "Again and again. " * 10
    )


def test_generate_writes_text_to_stdout_and_cost_to_stderr(radixcache, served):
    """The completion alone is on stdout; usage is on stderr."""
    run = radixcache("generate", "The capital of France is", *GREEDY, "--address", served)

    assert run.code == 0
    assert "Paris" in run.out
    assert "prompt 5 tokens" in run.err
    assert run.err.count("\n") == 1


def test_generate_json_is_one_object(radixcache, served):
    """--json gives the whole answer, and nothing on stderr."""
    arguments = ("generate", "The capital of France is", *GREEDY, "--address", served)
    run = radixcache(*arguments, "--json")

    assert run.code == 0
    assert run.err == ""
    assert run.json["usage"]["prompt_tokens"] == 5
    assert run.json["usage"]["completion_tokens"] == len(run.json["choices"][0]["token_ids"]) == 8
    assert run.json["finish_reason"] == "length"
    assert run.json["text"] + "\n" == radixcache(*arguments).out


def test_generate_json_stream_is_lines_that_join_to_the_text(radixcache, served):
    """--json --stream gives a line a delta, then the usage; the deltas join to the text."""
    arguments = ("generate", "Once upon a time", *GREEDY, "--address", served, "--json")
    *deltas, last = map(json.loads, radixcache(*arguments, "--stream").out.splitlines())

    assert (
        "".join(line["delta"].get("text", "") for line in deltas)
        == radixcache(*arguments).json["text"]
    )
    assert deltas[-1]["delta"]["finish_reason"] == "length"
    assert last["usage"]["completion_tokens"] == 8


def test_generate_prints_each_of_n_samples(radixcache, served):
    """Several samples are printed with their index."""
    run = radixcache("generate", "A", "--n", "3", "--max-tokens", "2", "--address", served)

    assert all(f"[{index}]" in run.out for index in range(3))
    assert "completion 6" in run.err


def test_generate_reads_the_prompt_from_stdin(radixcache, served):
    """A prompt of - is read from stdin, as it is."""
    run = radixcache(
        "generate", "-", *GREEDY, "--json", "--address", served, stdin="The capital of France is"
    )

    assert run.json["usage"]["prompt_tokens"] == 5


def test_generate_chat_uses_the_template(radixcache, served):
    """--chat sends a user's message, so the prompt is longer than its text."""
    run = radixcache("generate", "--chat", "Hi", *GREEDY, "--json", "--address", served)

    assert run.json["usage"]["prompt_tokens"] > 5


def test_match_stats_tree_and_flush_tell_one_story(radixcache, served):
    """What generate computed is matched, counted, drawn, and gone after a flush."""
    prompt, at = _long_prompt(), ("--address", served, "--json")
    before = radixcache("stats", *at).json
    assert radixcache("match", prompt, *at).json["matched_tokens"] == 0

    usage = radixcache("generate", prompt, *GREEDY, *at).json["usage"]
    match = radixcache("match", prompt, *at).json
    after = radixcache("stats", *at).json
    tree = radixcache("tree", *at).json

    assert match["prompt_tokens"] == usage["prompt_tokens"]
    assert match["matched_tokens"] == usage["prompt_tokens"] // 16 * 16
    assert after["prompt_tokens"] - before["prompt_tokens"] == usage["prompt_tokens"]
    assert any(prompt[:8] in node["text"] for node in tree["nodes"])
    assert radixcache("flush", *at).json["flushed_tokens"] >= match["matched_tokens"]
    assert radixcache("match", prompt, *at).json["matched_tokens"] == 0


def test_the_same_commands_speak_to_people(radixcache, served):
    """Without --json the commands print words and tables."""
    prompt, at = _long_prompt(), ("--address", served)
    radixcache("generate", prompt, *GREEDY, *at)

    assert "prompt tokens are cached" in radixcache("match", prompt, *at).out
    assert "hit rate" in radixcache("stats", *at).out
    assert "cached tokens in" in radixcache("tree", *at).out
    assert radixcache("flush", *at).out.startswith("flushed ")


def test_chat_remembers_and_reads_its_history_from_the_cache(radixcache, served):
    """The second turn's prompt holds the first turn, most of it cached; /reset forgets it."""
    lines = "My name is Ada and I like rivers.\nWhat is my name?\n/reset\nHello\n/quit\nnever\n"
    run = radixcache("chat", *GREEDY, "--json", "--address", served, stdin=lines)
    first, second, fresh = (json.loads(line)["usage"] for line in run.out.splitlines())

    assert run.code == 0
    assert second["prompt_tokens"] > first["prompt_tokens"] + first["completion_tokens"]
    assert second["cached_tokens"] >= first["prompt_tokens"] // 16 * 16
    assert fresh["prompt_tokens"] < second["prompt_tokens"]


def test_chat_through_a_pipe_tells_each_turns_cost(radixcache, served):
    """Answers are on stdout and what they cost is on stderr, with a terminal or without one."""
    run = radixcache("chat", *GREEDY, "--address", served, stdin="Hello\nAnd now?\n")

    assert run.code == 0
    costs = run.err.splitlines()
    assert len(costs) == 2
    assert all(line.startswith("(prompt ") for line in costs)
    assert "(prompt" not in run.out


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_chat_answers_an_unknown_command_itself(form, radixcache, served):
    """What looks like a command is not sent to the model; a path is something to say."""
    lines = "/exit\n/help me\n/tmp/x is a path.\n/quit\n"
    run = radixcache("chat", *GREEDY, *form, "--address", served, stdin=lines)
    told = [line for line in run.err.splitlines() if "/reset forgets" in line]

    assert run.code == 0
    assert [line.split()[0] for line in told] == ["/exit", "/help"]
    assert run.err.count("(prompt ") == (0 if form else 1)
    assert len(run.out.splitlines()) == 1 or not form


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--temperature", "nan"), "temperature"),
        (("--top-p", "0"), "top_p"),
        (("--max-tokens", "0"), "max_tokens"),
        (("--max-tokens", "1000000"), "max_tokens"),
        (("--n", "129"), "n"),
        (("--stop", ""), "stop"),
    ],
)
def test_a_refused_request_is_one_line_and_exit_2(flags, named, radixcache, served):
    """A field out of range comes back as one line that names it, with or without --json."""
    for form in ((), ("--json",)):
        run = radixcache("generate", "Hello", *flags, *form, "--address", served)

        assert run.code == 2
        assert run.out == ""
        assert run.err.startswith("error: ")
        assert run.err.count("\n") == 1
        assert named in run.err


def test_an_empty_prompt_is_refused(radixcache, served):
    """62: an empty prompt is one clear line, and the server goes on."""
    run = radixcache("generate", "", "--address", served)

    assert run.code == 2
    assert run.err.startswith("error: ")
    assert radixcache("generate", "A", "--max-tokens", "1", "--address", served).code == 0
