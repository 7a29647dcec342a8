"""Rules about the sources that a type checker does not know."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVER = sorted((ROOT / "engine/radixcache_engine/server").glob("*.py"))
SOURCES = sorted(
    path
    for top in ("radixcache", "engine/radixcache_engine")
    for path in (ROOT / top).rglob("*.py")
    if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
)


def names_in(node):
    """Every identifier in a piece of syntax."""
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return found | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def swallowing(tree):
    """Lines of handlers that catch a cancellation and may not raise."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = {"BaseException"} if node.type is None else names_in(node.type)
        if caught & {"CancelledError", "BaseException"} and not isinstance(
            node.body[-1], ast.Raise
        ):
            yield node.lineno


def calls_in(tree):
    """Dotted names of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("try: x()\nexcept CancelledError: pass", [2]),
        ("try: x()\nexcept (A, asyncio.CancelledError): return", [2]),
        ("try: x()\nexcept: y()", [2]),
        ("try: x()\nexcept asyncio.CancelledError:\n  y()\n  raise", []),
        ("try: x()\nexcept ValueError: pass", []),
    ],
)
def test_the_rule_about_cancellation_finds_what_it_should(source, found):
    """The check itself works."""
    assert list(swallowing(ast.parse(source))) == found


@pytest.mark.parametrize("path", SERVER, ids=lambda path: path.name)
def test_cancellation_is_raised_again(path):
    """Case 90: a handler that swallows it leaks native memory with every cancelled call."""
    allowed = {"grpc_server.py"}  # the thread's own end, outside of any handler
    lines = list(swallowing(ast.parse(path.read_text())))

    assert not lines or path.name in allowed


@pytest.mark.parametrize("path", SERVER, ids=lambda path: path.name)
def test_only_the_interceptor_chooses_a_status(path):
    """Servicers raise; no one else aborts a call or sets its code."""
    called = {name for name, _ in calls_in(ast.parse(path.read_text()))}
    choosing = {"context.abort", "context.abort_with_status", "context.set_code"}

    assert path.name == "interceptors.py" or not called & choosing


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_forks(path):
    """Case 94: a child forked after gRPC has started hangs; only spawn works."""
    for name, call in calls_in(ast.parse(path.read_text())):
        words = [a.value for a in ast.walk(call) if isinstance(a, ast.Constant)]
        keywords = {keyword.arg for keyword in call.keywords}

        assert name not in {"os.fork", "os.forkpty", "multiprocessing.Process", "Process"}
        assert not (name.endswith(("get_context", "set_start_method")) and "spawn" not in words)
        assert "preexec_fn" not in keywords


def loaded_by(statement):
    """Top-level modules that a fresh interpreter has after a statement."""
    code = f"{statement}\nimport sys\nprint(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'engine'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_the_package_loads_nothing_heavy():
    """``import radixcache`` is cheap because it loads none of these."""
    heavy = {"grpc", "google", "torch", "transformers", "numpy", "sortedcontainers"}

    assert not loaded_by("import radixcache") & heavy


def test_the_client_loads_no_engine():
    """A machine that only asks needs neither torch nor the engine nor googleapis."""
    loaded = loaded_by("from radixcache import AsyncClient, Client")

    assert "grpc" in loaded
    assert not loaded & {"torch", "transformers", "radixcache_engine", "grpc_status", "numpy"}


def test_the_client_works_without_googleapis():
    """The base install has no google.rpc."""
    code = "import sys; sys.modules['google.rpc'] = None; import radixcache.client"

    assert "grpc" in loaded_by(code)
