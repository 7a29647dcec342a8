"""Ctrl-C and SIGTERM: one drains, two end at once."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import time
from radixcache_engine.cli.signals import StopSignals

with StopSignals() as signals:
    print("waiting", flush=True)
    signals.wait()
    print("draining", flush=True)
    if {stays}:
        time.sleep(60)
print("drained", flush=True)
"""


def _start(*, stays: bool) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(stays=stays)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "waiting\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_the_program_drain(number):
    """One signal ends the wait, and what follows still runs."""
    with _start(stays=False) as process:
        process.send_signal(number)
        out, _ = process.communicate()

    assert out == "draining\ndrained\n"
    assert process.returncode == 0


def test_the_second_signal_ends_at_once():
    """A second signal during the drain ends the process with 130 and a word."""
    with _start(stays=True) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "draining\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()

    assert (out, err) == ("", "stopped at once\n")
    assert process.returncode == 130
