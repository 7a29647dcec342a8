"""Runs the tests on a copy of the library with one seeded fault at a time.

Exit status 1 if a fault goes unnoticed, if one no longer applies, or if the tests fail without any.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.faults.catalogue import FAULTS  # noqa: E402  the path comes first
from tests.faults.fault import Fault, StaleFaultError  # noqa: E402
from tests.faults.table import DOCS, table_of  # noqa: E402

# Cheap tests first: most faults are found within a second.
TESTS = [
    "tests/unit/tree/test_keys.py",
    *(
        f"tests/unit/tree/test_tree_{part}.py"
        for part in ("locks", "evict", "match", "misuse", "view", "check")
    ),
    "tests/unit/kv/test_allocator.py",
    "tests/unit/test_lease.py",
    "tests/unit/test_prefix_cache.py",
    "tests/property/test_tree_machine.py",
    "tests/property/test_cache_machine.py",
]
TESTS += sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "tests/unit/tree").glob("test_*.py")
    if str(path.relative_to(ROOT)) not in TESTS
)
_PYTEST = ["-x", "-q", "--tb=no", "-rfE", "-m", "not slow", "--hypothesis-seed=0"]
_PLUGINS = ["-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin"]
_NOTICED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_MAX_S = 900
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
    for part in ("radixcache", "tests", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, folder / part)
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
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(folder)}
    # asyncio_mode stands in pyproject.toml, so its plugin must be there.
    command = [sys.executable, "-m", "pytest", *_PYTEST, *_PLUGINS, "-p", "pytest_asyncio.plugin"]
    try:
        run = subprocess.run(
            [*command, *TESTS],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=_MAX_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "does not end"
    if run.returncode == 0:
        return ""
    noticed = _NOTICED.search(run.stdout)
    return noticed.group(1) if noticed else f"pytest exits with {run.returncode}"


if __name__ == "__main__":
    sys.exit(main())
