"""What commands print: error lines, JSON records, tables, progress."""

import io
import json

import pytest
from rich.console import Console
from rich.progress import Progress

from radixcache.errors import InvalidRequestError, ServerUnreachableError
from radixcache.types import (
    Answer,
    Choice,
    Delta,
    Stats,
    TokenLogprob,
    TreeNodeView,
    TreeView,
    Usage,
)
from radixcache_engine.cli.messages import print_error
from radixcache_engine.cli.progress import BarProgress, LineProgress, show_progress
from radixcache_engine.cli.records import (
    answer_record,
    delta_record,
    describe_usage,
    print_json,
    stats_record,
)
from radixcache_engine.cli.tables import stats_table, tree_picture


def _drawn(picture) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(picture)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InvalidRequestError("top_p", 2, "above 0, up to 1"), "top_p: got 2, allowed: above 0"),
        (ServerUnreachableError("nobody at 127.0.0.1:1"), "nobody at 127.0.0.1:1"),
        (MemoryError(), "out of memory"),
        (OSError(28, "No space left on device", "/x/model"), "No space left on device: /x/model"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "radixcache[engine]"),
        (RuntimeError("one\ntwo\n"), "one two"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_an_error_is_one_line_on_stderr(error, words, capsys):
    """Whatever went wrong, one line says what and, where known, what to do."""
    print_error(error)

    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert words in shown.err


def test_an_answer_becomes_one_json_object(capsys):
    """The record has the first choice's text on top, every choice, and the usage."""
    logprob = TokenLogprob(7, -0.5, ((7, -0.5), (8, -1.5)))
    first = Choice(text="Ahoj 🌍", token_ids=(7,), logprobs=(logprob,), finish_reason="stop")
    answer = Answer(request_id="r", model="m", choices=(first,), usage=Usage(prompt_tokens=3))

    print_json(answer_record(answer))

    shown = capsys.readouterr().out
    record = json.loads(shown)
    assert shown.count("\n") == 1
    assert record["text"] == record["choices"][0]["text"] == "Ahoj 🌍"
    assert record["finish_reason"] == "stop"
    assert record["choices"][0]["logprobs"][0]["top"] == [[7, -0.5], [8, -1.5]]
    assert record["usage"]["prompt_tokens"] == 3


def test_a_delta_leaves_out_what_says_nothing():
    """An ordinary delta is index, text and ids; the index stays even where it is 0."""
    assert delta_record(Delta(text="a", token_ids=(1,))) == {
        "index": 0,
        "text": "a",
        "token_ids": (1,),
    }


def test_hit_rate_is_null_without_traffic():
    """No prompts is no rate, not a rate of 0."""
    assert stats_record(Stats())["hit_rate"] is None
    assert stats_record(Stats(prompt_tokens=8, cached_tokens=2))["hit_rate"] == 0.25


def test_usage_is_described_in_one_line():
    """The line under an answer names every number of the usage that a person asks for."""
    usage = Usage(
        prompt_tokens=1500, cached_tokens=1488, completion_tokens=9, queue_s=0.002, ttft_s=0.25
    )

    assert describe_usage(usage) == (
        "prompt 1,500 tokens (1,488 cached), completion 9 · queue 2 ms, first token 250 ms"
    )


def test_stats_table_shows_counters_and_the_hit_rate():
    """The table shows the counters with the rate beside them, and a dash without traffic."""
    shown = _drawn(stats_table(Stats(prompt_tokens=2000, cached_tokens=1500, blocks_free=321)))

    assert "2,000" in shown
    assert "hit rate 75.0 %" in shown
    assert "321" in shown
    assert "hit rate –" in _drawn(stats_table(Stats()))


def test_tree_picture_nests_children_and_counts_what_is_hidden():
    """Children stand below their parents; nodes outside the picture are counted."""
    nodes = (
        TreeNodeView(node_id=1, num_tokens=32, num_hits=3, text="You are\na [bold] assistant"),
        TreeNodeView(node_id=2, parent_id=1, num_tokens=16, num_locks=2, token_ids=(5, 6)),
    )

    lines = _drawn(tree_picture(TreeView(nodes=nodes, total_nodes=5, total_tokens=80))).splitlines()

    assert "80 cached tokens in 5 nodes" in lines[0]
    assert "32 tokens, 3 hits" in lines[1]
    assert "You are⏎a [bold] assistant" in lines[1]
    assert lines[2].index("16 tokens") > lines[1].index("32 tokens")
    assert "2 locks" in lines[2]
    assert "5 6" in lines[2]
    assert "3 more nodes" in lines[3]


def test_line_progress_tells_quarters_of_a_known_total(capsys):
    """A log shows the start, each quarter once, and the end, however small the steps are."""
    with LineProgress().task("downloading", total=1000) as task:
        for _ in range(1000):
            task.advance(1)

    lines = capsys.readouterr().err.splitlines()
    assert lines[:4] == [
        "downloading ...",
        "downloading: 25 %",
        "downloading: 50 %",
        "downloading: 75 %",
    ]
    assert lines[4].startswith("downloading: done in ")
    assert len(lines) == 5


def test_line_progress_without_a_total_tells_start_and_end(capsys):
    """Work of unknown length still shows that it began and ended."""
    with LineProgress().task("loading") as task:
        task.advance()

    assert [line[:10] for line in capsys.readouterr().err.splitlines()] == [
        "loading ..",
        "loading: d",
    ]


def test_bars_fill_and_stay():
    """A finished bar is full, whether or not its total was known."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)

    with Progress(console=console) as bars:
        progress = BarProgress(bars)
        with progress.task("converting", total=4) as task:
            task.advance(3)
        with progress.task("loading") as task:
            task.advance()

    assert [(task.description, task.percentage) for task in bars.tasks] == [
        ("converting", 100.0),
        ("loading", 100.0),
    ]


def test_progress_without_a_terminal_is_lines(capsys):
    """Where stderr is no terminal, progress is written as lines, never as moving bars."""
    with show_progress() as progress, progress.task("x"):
        pass

    assert "\x1b" not in capsys.readouterr().err
    assert isinstance(progress, LineProgress)
