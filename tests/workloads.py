"""Loads the benchmark workloads that ship beside the project."""

import functools
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

BENCH = Path(__file__).parent.parent.parent / "shared" / "bench"


@functools.cache
def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("workloads", BENCH / "workloads.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def workload(name: str) -> dict[str, Any]:
    """Workload W1 … W6 with its fixed seed and SmolLM2's vocabulary."""
    return _module().build(20240601, 49152)["workloads"][name]
