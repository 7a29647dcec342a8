"""What users get wrong outside of a request: one clear line, no traceback."""

import socket

import pytest

from radixcache.errors import RadixCacheError


def _refused(run, *words: str) -> None:
    assert run.code == 1
    assert run.out == ""
    assert "Traceback" not in run.err
    *progress, last = run.err.splitlines()
    assert last.startswith("error: ")
    assert not any(line.startswith("error: ") for line in progress)
    assert all(word in last for word in words)


@pytest.mark.parametrize(
    "command",
    [("stats",), ("tree", "--json"), ("match", "x"), ("flush",), ("generate", "x"), ("chat",)],
)
def test_an_unreachable_server_is_one_line(command, radixcache):
    """Where nobody listens, every client command says so, with the address."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        run = radixcache(*command, "--address", address)

    _refused(run, address)


def test_an_unknown_model_is_one_line(radixcache):
    """A model that is neither known nor a path is named, with what is known."""
    run = radixcache("serve", "--grpc-port=0", "--model", "no-such-model")

    _refused(run, "no-such-model", "smollm2")


def test_a_broken_gguf_is_one_line(radixcache, tmp_path):
    """A file that is no GGUF is one clear line with its path."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"this is no model" * 100)

    _refused(radixcache("serve", "--grpc-port=0", "--model", str(broken)), "broken.gguf")
    _refused(radixcache("fetch", str(broken)), "broken.gguf")


def test_a_folder_without_a_model_is_one_line(radixcache, tmp_path):
    """An empty folder is one clear line with its path."""
    _refused(radixcache("serve", "--grpc-port=0", "--model", str(tmp_path)), str(tmp_path))


@pytest.mark.model
def test_a_pool_larger_than_memory_is_one_line(radixcache):
    """A pool no machine has is refused as one line, not as a traceback."""
    _refused(radixcache("serve", "--grpc-port=0", "--kv-tokens", str(1 << 34)))


def test_the_errors_are_what_main_catches():
    """Every error of the project is caught by its base, so that none escapes as a traceback."""
    assert issubclass(RadixCacheError, Exception)
    assert not issubclass(RadixCacheError, OSError)
