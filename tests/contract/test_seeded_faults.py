"""The seeded faults are kept up to date with the code, and all of them are noticed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.fault import Fault, StaleFaultError
from tests.faults.table import DOCS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_still_be_put_in(fault):
    """Its old text is in the file exactly once, and what it makes of the file is Python."""
    sound = (ROOT / fault.path).read_text(encoding="utf-8")
    faulty = fault.applied_to(sound)

    assert faulty != sound
    compile(faulty, fault.path, "exec")


def test_there_are_enough_of_them_and_each_has_a_name():
    """At least thirty in the tree; names are words; each says what it breaks."""
    names = [fault.name for fault in FAULTS]

    assert len(set(names)) == len(names)
    assert sum(fault.path.startswith("radixcache/tree/") for fault in FAULTS) >= 30
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in names)
    assert all(fault.breaks and not fault.breaks.endswith(".") for fault in FAULTS)


def test_the_documentation_lists_them():
    """In the order of the catalogue, each with the test that noticed it."""
    lines = (ROOT / DOCS).read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]

    assert [row[0] for row in rows] == [fault.name for fault in FAULTS]
    assert all(row[-1].startswith("`") for row in rows)


def test_a_fault_that_has_gone_stale_is_refused():
    """Neither a text that is gone nor one that is there twice is replaced."""
    fault = Fault("a-b", "x.py", "old", "new", "everything")

    assert fault.applied_to("an old hat") == "an new hat"
    for text in ("a hat", "old old"):
        with pytest.raises(StaleFaultError, match="a-b"):
            fault.applied_to(text)


@pytest.mark.slow
def test_every_fault_is_noticed():
    """Each in a copy of the library, until a test fails: minutes."""
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts/seeded_faults.py")],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout
    assert run.stdout.count("noticed   ") == len(FAULTS)
