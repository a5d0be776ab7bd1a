"""Terminals in a sandbox: a program that draws, and somebody who types."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from fumehood.sdk.aio.command import AsyncCommand
from fumehood.sdk.aio.transport import AsyncTransport

SHELL: Final = [
    "sh",
    "-c",
    ': "${LANG:=C.UTF-8}"; export LANG; command -v bash >/dev/null 2>&1 || exec sh; exec bash',
]
"""Decided in the sandbox: bash where the image has it."""
TERM: Final = "xterm-256color"


class AsyncTerminal(AsyncCommand):
    """A command with a terminal: what is drawn comes by `output()`, all of it as `stdout`, and keys go by `send`
    (`Ctrl-C` is `"\\x03"`).

        terminal = await sb.pty.open(command=["sh"])
        await terminal.send("echo $((6 * 7)); exit 3\\n")
        result = await terminal.wait(timeout=60)
        assert "42" in result.stdout and result.exit_code == 3
    """

    async def resize(self, rows: int, columns: int) -> None:
        """Tells it of another size.

        terminal = await sb.pty.open()
        await terminal.resize(50, 132)
        await terminal.send("stty size; exit\\n")
        assert "50 132" in (await terminal.wait(timeout=60)).stdout
        """
        await self._transport.post(f"{self._path}:resize", {"rows": rows, "columns": columns})


class AsyncPty:
    """The terminals of a sandbox: `sandbox.pty`.

    terminal = await sb.pty.open(rows=40, columns=120)
    await terminal.send("exit\\n")
    assert (await terminal.wait(timeout=60)).exit_code == 0
    """

    def __init__(self, transport: AsyncTransport, sandbox_path: str) -> None:
        """Made by a sandbox."""
        self._transport, self._path = transport, sandbox_path

    async def open(
        self,
        rows: int = 24,
        columns: int = 80,
        command: str | Sequence[str] | None = None,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> AsyncTerminal:
        """Starts a program with a terminal; a shell unless said otherwise.

        terminal = await sb.pty.open(command="tty && exit 5")
        assert (await terminal.wait(timeout=60)).exit_code == 5
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
        made = await self._transport.post(f"{self._path}/commands", body, again=True)
        return AsyncTerminal(self._transport, self._path, str(made["command_id"]))
