"""What the scripts that make a machine ready have in common: a folder, a log for each thing they call, and one error.

Standard library only: they run before anything of the project is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

STATE = Path(os.environ.get("FUMEHOOD_SERVICES_DIR") or "/var/tmp/fumehood-services")


class SetupError(Exception):
    """Something that the person at the terminal must read; its text is the whole message."""


def say(message: str) -> None:
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr, flush=True)


def search_path() -> str:
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def logged(log: Path, command: list[str]) -> int:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PATH": search_path()}
    with log.open("ab") as out:
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment).returncode


def runs(*command: str) -> bool:
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20).returncode == 0
    except OSError:
        return False


def tail(log: Path, lines: int = 15) -> str:
    try:
        return "\n".join("    " + line for line in log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return f"    (no {log})"


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file in one step, never readable by more than `mode` says."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as out:
        out.write(text)
    draft.replace(path)


@contextlib.contextmanager
def lock(name: str = "lock") -> Iterator[None]:
    with (STATE / name).open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
