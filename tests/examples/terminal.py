"""A terminal that a page's blocks are typed into, one after the other: what one of them sets, the next one sees."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.examples import installed
from tests.examples.markdown import ROOT
from tests.waiting import wait_until

SECONDS = 480.0
STOP_SECONDS = 60.0
LOOK = 0.02


class Terminal:
    """One bash in a folder of its own, in which `.venv` has the built wheel and `examples` is the checkout's. When the
    block ends, everything that was started in it does."""

    def __init__(self, folder: Path, places: Mapping[str, str], environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._places = places
        self._environment = {
            "PATH": f"{installed.bin_folder()}:{os.environ['PATH']}",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            **(environment or {}),
        }
        self._count = 0
        (folder / ".venv").symlink_to(installed.environment())
        (folder / "examples").symlink_to(ROOT / "examples")

    def __enter__(self) -> Self:
        self._errors = (self._folder / "errors").open("wb")
        self._bash = subprocess.Popen(
            ["bash", "-eu"],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=self._errors,
            stderr=self._errors,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._errors.close()
        assert self._bash.stdin is not None
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._bash.pid, number)
            if self._is_gone():
                break
        with contextlib.suppress(BrokenPipeError):
            self._bash.stdin.close()

    def _is_gone(self) -> bool:
        def look() -> bool:
            self._bash.poll()
            try:
                os.killpg(self._bash.pid, 0)
            except ProcessLookupError:
                return True
            return False

        with contextlib.suppress(AssertionError):
            return wait_until(look, STOP_SECONDS)
        return False

    def here(self, text: str) -> str:
        """The same text, but for ports and folders."""
        for written, real in self._places.items():
            text = text.replace(written, real)
        return text

    def save(self, name: str, text: str) -> None:
        """In the folder that the terminal is in."""
        self.type(f"cat > '{name}' <<'END OF FILE'\n{text}END OF FILE\n")

    def type(self, text: str) -> str:
        """What it prints. A command that fails ends the terminal, as `set -e` does."""
        self._count += 1
        block, out, done = (self._folder / f"{name}-{self._count}" for name in ("block", "out", "done"))
        block.write_text(self.here(text), encoding="utf-8")
        assert self._bash.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._bash.stdin.write(f". '{block}' < /dev/null > '{out}'\n: > '{done}'\n".encode())
            self._bash.stdin.flush()

        def has_ended() -> bool:
            ended = done.exists()
            assert ended or self._bash.poll() is None, self._trouble(text, out, "failed")
            return ended

        wait_until(has_ended, SECONDS, what=lambda: self._trouble(text, out, "did not end"))
        return out.read_text(encoding="utf-8")

    def _trouble(self, text: str, out: Path, what: str) -> str:
        printed = out.read_text(encoding="utf-8") if out.exists() else ""
        errors = (self._folder / "errors").read_text(encoding="utf-8", errors="replace")
        return f"a block {what}\n{text}\n--- it printed\n{printed}\n--- errors\n{errors[-4000:]}"
