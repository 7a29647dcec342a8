"""How much memory and how many cores this process may really use: the machine's or its cgroup's."""

import os
from pathlib import Path

import torch

__all__ = ["available_bytes", "usable_cores"]

_PROC = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(device: str = "cpu") -> int | None:
    """Return the bytes that can still be taken on ``device``; None where nobody tells."""
    if device.partition(":")[0] == "cuda":
        return torch.cuda.mem_get_info(torch.device(device))[0]
    found = [size for size in (_meminfo(), _cgroup_v2(), _cgroup_v1()) if size is not None]
    return min(found) if found else None


def usable_cores() -> int:
    """Return the cores this process may run on, at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    quota = _read_words(_CGROUP / "cpu.max")
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores, -(-int(quota[0]) // int(quota[1])))
    return max(1, cores)


def _meminfo() -> int | None:
    try:
        lines = _PROC.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_v2() -> int | None:
    limit, used = _read_words(_CGROUP / "memory.max"), _read_words(_CGROUP / "memory.current")
    if not limit or not used or not limit[0].isdigit():
        return None
    return max(0, int(limit[0]) - int(used[0]))


def _cgroup_v1() -> int | None:
    folder = _CGROUP / "memory"
    limit = _read_words(folder / "memory.limit_in_bytes")
    used = _read_words(folder / "memory.usage_in_bytes")
    if not limit or not used:
        return None
    return max(0, int(limit[0]) - int(used[0]))


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []
