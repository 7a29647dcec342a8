"""``radixcache serve`` from the first line to the last."""

import json
import signal
import subprocess
import sys

import pytest

from radixcache import Client, RadixCacheError

pytestmark = pytest.mark.model

COMMAND = (
    sys.executable,
    "-m",
    "radixcache_engine.cli.main",
    "serve",
    "--grpc-port=0",
    "--no-probe",
)


def _start(*flags: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, "--kv-tokens=4096", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_serve_says_where_what_and_how_to_try():
    """People read address, model, capacity, types and one line to paste, which works."""
    with _start() as server:
        lines = [server.stdout.readline().rstrip() for _ in range(6)]
        paste = next(line.split(None, 1)[1] for line in lines if line.strip().startswith("try"))
        tried = subprocess.run(paste, shell=True, capture_output=True, text=True, check=False)
        server.send_signal(signal.SIGINT)
        out, err = server.communicate()

    text = "\n".join(lines)
    assert "127.0.0.1:" in text
    assert "smollm2" in text
    assert "4,096 tokens in blocks of 16" in text
    assert tried.returncode == 0, tried.stderr
    assert tried.stdout.strip()
    assert out == "stopped\n"
    assert "stopping: running requests have 10 s to finish" in err
    assert server.returncode == 0


def test_a_running_request_finishes_while_the_server_drains():
    """SIGTERM lets an admitted request end as it would have; a new one is refused."""
    with _start("--json", "--drain-s=60") as server:
        address = json.loads(server.stdout.readline())["address"]
        with Client(address) as client:
            stream = client.stream(
                "Count: one two", max_tokens=64, ignore_eos=True, temperature=0.0
            )
            next(stream)
            server.send_signal(signal.SIGTERM)
            assert "stopping" in _line_with(server, "stopping")
            answer = stream.answer()

            with pytest.raises(RadixCacheError):
                client.generate("Hello", max_tokens=1)
        out, _ = server.communicate()

    assert len(answer.token_ids) == 64
    assert json.loads(out) == {"event": "stopped"}
    assert server.returncode == 0


def test_a_request_longer_than_the_grace_is_ended():
    """With no grace the running request is cut with an error, and the server still ends cleanly."""
    with _start("--json", "--drain-s=0") as server:
        address = json.loads(server.stdout.readline())["address"]
        with Client(address) as client:
            stream = client.stream("Count: one two", max_tokens=1000, ignore_eos=True)
            next(stream)
            server.send_signal(signal.SIGTERM)

            with pytest.raises(RadixCacheError):
                stream.answer()
        out, err = server.communicate()

    assert json.loads(out) == {"event": "stopped"}
    assert "Traceback" not in err
    assert server.returncode == 0


def _line_with(server: "subprocess.Popen[str]", word: str) -> str:
    for line in server.stderr:
        if word in line:
            return line
    return ""
