"""One served model for the tests of the command line, started as users start it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

COMMAND = (sys.executable, "-m", "radixcache_engine.cli.main")


@dataclass(frozen=True)
class Run:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        """The one JSON object on stdout."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


def run(*arguments: str, stdin: str = "") -> Run:
    """Run ``radixcache`` with these arguments in a process of its own."""
    done = subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, text=True, check=False
    )
    return Run(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def radixcache():
    """The command, as a function of its arguments."""
    return run


@pytest.fixture(scope="session")
def served() -> Iterator[str]:
    """Address of a small server on the default model, in float32 so that answers repeat."""
    flags = ["--grpc-port=0", "--json", "--kv-tokens=8192", "--dtype=float32", "--no-probe"]
    with subprocess.Popen([*COMMAND, "serve", *flags], stdout=subprocess.PIPE) as server:
        ready = server.stdout.readline()
        assert ready, "the server did not start"
        yield json.loads(ready)["address"]
        server.terminate()
        last = server.stdout.read()

    assert json.loads(last) == {"event": "stopped"}
    assert server.returncode == 0
