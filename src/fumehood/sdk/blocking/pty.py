# Made by scripts/derive-sync from sdk/aio/pty.py; edit that, not this.
"""Terminals in a sandbox: a program that draws, and somebody who types."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from fumehood.sdk.blocking.command import Command
from fumehood.sdk.blocking.transport import Transport

SHELL: Final = [
    "sh",
    "-c",
    ': "${LANG:=C.UTF-8}"; export LANG; command -v bash >/dev/null 2>&1 || exec sh; exec bash',
]
"""Decided in the sandbox: bash where the image has it."""
TERM: Final = "xterm-256color"


class Terminal(Command):
    """A command with a terminal: what is drawn comes by `output()`, all of it as `stdout`, and keys go by `send`
    (`Ctrl-C` is `"\\x03"`).

        terminal = sb.pty.open(command=["sh"])
        terminal.send("echo $((6 * 7)); exit 3\\n")
        result = terminal.wait(timeout=60)
        assert "42" in result.stdout and result.exit_code == 3
    """

    def resize(self, rows: int, columns: int) -> None:
        """Tells it of another size.

        terminal = sb.pty.open()
        terminal.resize(50, 132)
        terminal.send("stty size; exit\\n")
        assert "50 132" in (terminal.wait(timeout=60)).stdout
        """
        self._transport.post(f"{self._path}:resize", {"rows": rows, "columns": columns})


class Pty:
    """The terminals of a sandbox: `sandbox.pty`.

    terminal = sb.pty.open(rows=40, columns=120)
    terminal.send("exit\\n")
    assert (terminal.wait(timeout=60)).exit_code == 0
    """

    def __init__(self, transport: Transport, sandbox_path: str) -> None:
        """Made by a sandbox."""
        self._transport, self._path = transport, sandbox_path

    def open(
        self,
        rows: int = 24,
        columns: int = 80,
        command: str | Sequence[str] | None = None,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Terminal:
        """Starts a program with a terminal; a shell unless said otherwise.

        terminal = sb.pty.open(command="tty && exit 5")
        assert (terminal.wait(timeout=60)).exit_code == 5
        """
        words = SHELL if command is None else command
        body = {
            "command_id": f"cmd-{secrets.token_hex(16)}",
            "command": words if isinstance(words, str) else list(words),
            "terminal": {"rows": rows, "columns": columns},
            "env": {"TERM": TERM, **(env or {})},
            "stdin": True,
            "background": True,
            **({"cwd": cwd} if cwd is not None else {}),
        }
        made = self._transport.post(f"{self._path}/commands", body, again=True)
        return Terminal(self._transport, self._path, str(made["command_id"]))
