"""The table of the seeded faults in the documentation."""

from collections.abc import Iterable, Mapping

from tests.faults.fault import Fault

DOCS = "docs/seeded-faults.md"

_HEAD = """# Seeded faults

Small wrong changes, made on purpose to a copy of the library, one at a time. A suite that lets one
pass has a hole. `scripts/seeded-faults` puts each into a copy and runs the fast tests until one
fails; that test is named below. Tests come in the order of their cost, so a fault is mostly
noticed by several more. The faults are data: `tests/faults/`. A change of the library that makes
one stale fails a test of the quick tier; `scripts/test --all` runs them all.

`scripts/seeded-faults --docs` writes this file.

"""


def table_of(faults: Iterable[Fault], noticed: Mapping[str, str]) -> str:
    """Return the document: each fault, what it breaks, and which test noticed it."""
    lines = ["| fault | in | what it breaks | noticed by |", "|---|---|---|---|"]
    for fault in faults:
        test = noticed[fault.name].removeprefix("tests/").replace("|", "\\|")
        file = fault.path.removeprefix("radixcache/")
        lines.append(f"| {fault.name} | `{file}` | {fault.breaks} | `{test}` |")
    return f"{_HEAD}{len(lines) - 2} faults, all noticed.\n\n" + "\n".join(lines) + "\n"
