"""Whoever tries the examples: a shell in the checkout, a home in which `fumehood dev` runs, and nothing else set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.dev_process import Dev
from tests.examples.markdown import ROOT
from tests.waiting import wait_until

SECONDS = 150.0
BIN = Path(sys.executable).parent
LOOK = 0.05

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Person:
    """Types commands, and looks at what they print."""

    dev: Dev

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**self.dev.env, "PATH": f"{BIN}:{os.environ['PATH']}", **(more or {})}

    def runs(self, *command: str | Path, env: Mapping[str, str] | None = None) -> Done:
        """To its end."""
        return subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    @contextmanager
    def starts(self, log: Path, *command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """In another terminal: what it prints is in `log`, and it is ended with the block."""
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=ROOT,
                env=self.environment({"PYTHONUNBUFFERED": "1"}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(SECONDS)


def good(done: Done) -> str:
    """What it printed, having ended well."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def until(found: Callable[[], bool], what: Callable[[], object]) -> None:
    """Wait for it, and say what was there instead."""
    wait_until(found, SECONDS, what=what)
