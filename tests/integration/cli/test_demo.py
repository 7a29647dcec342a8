"""The demo, as users start it."""

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[3] / "scripts" / "demo.py"


def _demo(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(DEMO), *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.model
def test_the_demo_answers_and_shares_the_system_prompt(served):
    """Every call is answered, and the long prompt they share is computed once."""
    run = _demo("--address", served, "--calls", "4", "--max-tokens", "4")

    assert run.returncode == 0, run.stderr
    assert "What is the capital of Japan?" in run.stdout
    assert run.stdout.count(" done ") == 4
    assert "read from the cache (hit rate 7" in run.stdout
    assert "\x1b" not in run.stdout


def test_the_demo_without_a_server_says_so():
    """An address where nobody listens is one line."""
    run = _demo("--address", "127.0.0.1:1")

    assert run.returncode == 1
    assert run.stderr.startswith("error: ")
    assert run.stderr.count("\n") == 1
