"""Runs the tests on a copy of the library with one seeded fault at a time.

Each run is a fork of this process, which has imported what all of them need; the library itself is
imported only there. Exit status 1 if a fault goes unnoticed, if one no longer applies, or if the
tests fail without any.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

import hypothesis.stateful
import numpy as np
import pytest
import sortedcontainers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.faults.catalogue import FAULTS  # noqa: E402  the path comes first
from tests.faults.fault import Fault, StaleFaultError  # noqa: E402
from tests.faults.table import DOCS, table_of  # noqa: E402

TESTS = [
    "tests/unit/tree",
    "tests/unit/kv/test_allocator.py",
    "tests/unit/test_lease.py",
    "tests/unit/test_prefix_cache.py",
    "tests/unit/test_quotas.py",
    "tests/unit/test_pins.py",
    "tests/unit/test_events.py",
    "tests/unit/test_mirror.py",
    "tests/unit/test_pins.py",
    "tests/unit/test_quotas.py",
    "tests/property/test_cache_machine.py",
    "tests/property/test_tree_machine.py",
    "tests/property/test_explain_machine.py",
    "tests/property/test_mirror_machine.py",
]
_PYTEST = ["-x", "-q", "--tb=no", "-m", "not slow", "--hypothesis-seed=0"]
_PLUGINS = ["-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin"]
_INI = """[pytest]
pythonpath = .
addopts = --strict-markers --strict-config --import-mode=importlib
filterwarnings = error
markers = slow
"""
_IMPORTED = (hypothesis.stateful, np, sortedcontainers)
_MAX_S = 1200
"""A fault may make a loop endless; that, too, is noticed."""


def main() -> int:
    """Run the faults asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="run only this fault")
    parser.add_argument("--docs", action="store_true", help=f"write the findings to {DOCS}")
    options = parser.parse_args()
    chosen = [fault for fault in FAULTS if not options.only or fault.name in options.only]
    if options.only and len(chosen) < len(set(options.only)):
        known = {fault.name for fault in FAULTS}
        parser.error(f"no such fault: {', '.join(sorted(set(options.only) - known))}")
    with tempfile.TemporaryDirectory(prefix="seeded-faults-") as folder:
        found = run_all(Path(folder), chosen)
    if found is None:
        return 1
    missed = [name for name, test in found.items() if not test]
    print(f"\n{len(found) - len(missed)} of {len(chosen)} faults noticed")
    if options.docs and not missed and len(found) == len(FAULTS):
        (ROOT / DOCS).write_text(table_of(FAULTS, found), encoding="utf-8")
    return 0 if len(found) - len(missed) == len(chosen) else 1


def run_all(folder: Path, faults: list[Fault]) -> dict[str, str] | None:
    """Return which test noticed each fault ("" for none); None if the tests fail by themselves."""
    for part in ("radixcache", "tests"):
        shutil.copytree(ROOT / part, folder / part)
    (folder / "pytest.ini").write_text(_INI)
    if broken := run_tests(folder):
        print(f"the tests fail without any fault: {broken}")
        return None
    found: dict[str, str] = {}
    for fault in faults:
        file = folder / fault.path
        sound = file.read_text(encoding="utf-8")
        try:
            fault.put_into(folder)
        except StaleFaultError as error:
            print(f"STALE     {error}", flush=True)
            continue
        found[fault.name] = run_tests(folder)
        print(f"{'noticed' if found[fault.name] else 'SURVIVES':9} {fault.name}: ", end="")
        print(found[fault.name] or fault.breaks, flush=True)
        file.write_text(sound, encoding="utf-8")
    return found


def run_tests(folder: Path) -> str:
    """Return the first test that fails in ``folder``, or nothing."""
    # A file changed twice within a second would be taken for the one compiled before.
    for cache in (folder / "radixcache").rglob("__pycache__"):
        shutil.rmtree(cache)
    report = folder / "noticed"
    report.unlink(missing_ok=True)
    pid = os.fork()
    if not pid:
        _run_forked(folder, report)
    deadline = time.monotonic() + _MAX_S
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            return "does not end"
        time.sleep(0.02)
    return report.read_text() if report.exists() else "crashes"


def _run_forked(folder: Path, report: Path) -> None:
    """Run the tests in this process, which ends here."""
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.chdir(folder)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(ROOT))]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        watch = _First(folder / "durations.json")
        status = pytest.main([*_PYTEST, *_PLUGINS, *TESTS], plugins=[watch])
        used = Path(sys.modules["radixcache"].__file__ or "")
        if not used.is_relative_to(folder):
            watch.failed = f"wrong library: {used}"
        report.write_text(watch.failed or (f"pytest exits with {status}" if status else ""))
    except BaseException:
        report.write_text(f"crashes: {traceback.format_exc()}")
    finally:
        os._exit(0)


class _First:
    """A pytest plugin that keeps the name of the first test or file that fails.

    It runs the tests in the order of their cost, as seen in the run without a fault, so that most
    faults are noticed within a second.
    """

    def __init__(self, durations: Path) -> None:
        self.failed = ""
        self.file = durations
        self.known = json.loads(durations.read_text()) if durations.exists() else {}
        self.seen: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.known.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seen[report.nodeid] = self.seen.get(report.nodeid, 0.0) + report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_sessionfinish(self) -> None:
        if not self.known:
            self.file.write_text(json.dumps(self.seen))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


if __name__ == "__main__":
    sys.exit(main())
