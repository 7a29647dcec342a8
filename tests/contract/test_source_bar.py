"""The bar that CONTRIBUTING sets for source files."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = sorted(
    path
    for folder in ("radixcache", "engine/radixcache_engine")
    for path in (ROOT / folder).rglob("*.py")
    if "v1" not in path.relative_to(ROOT).parts
)
SCRIPTS = sorted(
    path
    for path in [*(ROOT / "scripts").iterdir(), ROOT / ".ci/run"]
    if path.is_file() and path.read_bytes().startswith(b"#!/usr/bin/env bash")
)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PRODUCT, ids=_name)
def test_files_and_functions_stay_short(path):
    """No product file is over 400 lines, no function over 60 without its docstring."""
    text = path.read_text()
    long = [
        f"{node.name}: {_length(node)}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _length(node) > 60
    ]

    assert text.count("\n") <= 400
    assert long == []


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    docstring = ast.get_docstring(node, clean=False)
    return node.end_lineno - node.lineno + 1 - (len(docstring.splitlines()) if docstring else 0)


@pytest.mark.parametrize("path", PRODUCT, ids=_name)
def test_nothing_is_pickled_or_evaluated(path):
    """Product code imports no pickle and calls neither eval nor exec."""
    tree = ast.parse(path.read_text())
    imported = {
        alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        (node.module or "").partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }

    assert imported.isdisjoint({"pickle", "cloudpickle", "dill", "shelve", "marshal"})
    assert called.isdisjoint({"eval", "exec"})


@pytest.mark.parametrize("path", SCRIPTS, ids=_name)
def test_scripts_parse_and_are_executable(path):
    """Every shell script is valid bash, stops at errors, and can be started."""
    subprocess.run(["bash", "-n", str(path)], check=True)

    assert path.stat().st_mode & 0o111
    assert "pipefail" in path.read_text()
