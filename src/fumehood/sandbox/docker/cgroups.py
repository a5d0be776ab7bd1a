"""The kernel's own account of a container: its cgroup, in both versions and under both drivers.

Readable only where the engine runs on this machine; elsewhere everything here is simply not known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_PLACES = ("docker/{id}", "system.slice/docker-{id}.scope")

_LIMITS = {
    "memory_bytes": ("memory/memory.limit_in_bytes", "memory.max"),
    "memory_and_swap_bytes": ("memory/memory.memsw.limit_in_bytes", "memory.swap.max"),
    "pids": ("pids/pids.max", "pids.max"),
    "cpu_quota_us": ("cpu/cpu.cfs_quota_us", "cpu.max"),
}
"""Version 1 (controller and file) and version 2."""


def oom_kills(container: str, root: Path = ROOT) -> int | None:
    """How often the OOM killer struck in a container; `None` where that cannot be read."""
    for path in (*_files(container, "memory/memory.oom_control", root), *_files(container, "memory.events", root)):
        with contextlib.suppress(OSError, ValueError):
            pairs = dict(line.split() for line in path.read_text().splitlines())
            if "oom_kill" in pairs:
                return int(pairs["oom_kill"])
    return None


def limits(container: str, root: Path = ROOT) -> dict[str, str]:
    """What the kernel holds a container to."""
    found: dict[str, str] = {}
    for name, files in _LIMITS.items():
        for path in (path for file in files for path in _files(container, file, root)):
            with contextlib.suppress(OSError):
                found.setdefault(name, path.read_text().strip())
    return found


def _files(container: str, file: str, root: Path) -> Iterator[Path]:
    controller, _, name = file.rpartition("/")
    for place in _PLACES:
        yield root / controller / place.format(id=container) / name
