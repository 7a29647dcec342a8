"""The documents tell the truth about commands and about each other."""

import re
import shlex
from pathlib import Path

import pytest

from radixcache_engine.cli.arguments import build_parser

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
FLAG = re.compile(r"`(--[a-z][a-z-]*)")


def _commands(path: Path) -> list[str]:
    """Return the command lines of a document that call radixcache, by itself or by a script."""
    found = []
    for line in path.read_text().splitlines():
        if not line.startswith("$ "):
            continue
        command = line[2:].partition(" #")[0].rpartition("| ")[2].strip()
        program, *arguments = shlex.split(command)
        if program == "./scripts/serve":
            found.append(shlex.join(["serve", *arguments]))
        elif program.endswith("/radixcache"):
            found.append(shlex.join(arguments))
    return found


def test_the_documents_show_commands():
    """The look-up below finds what the README opens with."""
    assert _commands(ROOT / "README.md")[0] == "serve"


@pytest.mark.parametrize(
    "command", sorted({line for path in DOCUMENTS for line in _commands(path)})
)
def test_documented_commands_parse(command):
    """Every command line in a document is one that the command accepts."""
    assert build_parser().parse_args(shlex.split(command)).command_at


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    """Every relative link in a document names a file that exists."""
    targets = [t for t in LINK.findall(path.read_text()) if not t.startswith("http")]

    assert [t for t in targets if not (path.parent / t).exists()] == []


def test_operations_lists_every_flag_of_serve():
    """The table of flags is complete, and names no flag that does not exist."""
    parser = build_parser()
    shown = parser.parse_args(["serve"])
    described = set(FLAG.findall((ROOT / "docs/operations.md").read_text()))
    named = {"--" + name.replace("_", "-") for name in vars(shown)} - {"--command-at", "--probe"}

    assert named - {"--json"} <= described
    assert described - named <= {"--no-probe", "--address", "--json", "--max-nodes"}
