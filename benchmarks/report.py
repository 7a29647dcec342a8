"""What all benchmarks share: the machine's line, tables, and the files under results/."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SHARED = ROOT.parent / "shared"  # the project's data and the peers' benchmark lie beside the clone


def machine() -> dict[str, Any]:
    """Return what a figure depends on besides the code: processor, memory, Python, commit."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "ram_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "commit": _commit(),
        "load": round(os.getloadavg()[0], 2),
    }


def machine_line(facts: Mapping[str, Any]) -> str:
    """Return :func:`machine` as one line of text."""
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['ram_gib']} GiB, "
        f"Python {facts['python']}, {facts['system']}, commit {facts['commit']}, "
        f"load {facts['load']} at the start"
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+changes" if changed else "")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table, columns padded so that it reads well unrendered; None is "–"."""
    cells = [list(head)] + [["–" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def median(values: Sequence[float]) -> float:
    """Return the middle value, the upper one of two."""
    return sorted(values)[len(values) // 2]


def save(name: str, data: Mapping[str, Any], text: str, folder: Path = RESULTS) -> Path:
    """Write ``name-<date>.json`` and ``.md``; return the path of the Markdown file."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{datetime.now(tz=UTC):%Y-%m-%d}"
    (folder / f"{stem}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    path = folder / f"{stem}.md"
    path.write_text(text + "\n", encoding="utf-8")
    return path
