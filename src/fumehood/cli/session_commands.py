"""Commands in a session: run one, sit at its terminal, come back to it, read what it printed, send it a signal."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from fumehood.cli import completing, detach_keys, receipt_out, run_request, session_exec, session_terminal, show
from fumehood.cli.exits import UNREAD, UsageError
from fumehood.cli.leaving import give_up_stdout
from fumehood.cli.options import Remote, grouped
from fumehood.cli.output import Screen
from fumehood.cli.parts import BEHIND
from fumehood.cli.session_calls import Command, Session
from fumehood.cli.session_pump import STREAMS, Complaints, Printing
from fumehood.cli.session_terminal import Ended, Visit, Why
from fumehood.cli.session_view import RUNNING, SHELL
from fumehood.cli.stream import Patience
from fumehood.cli.terminal import kind, size_of

STDIN, STDOUT = 0, 1
SIGNALS = ("HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "STOP", "TSTP")

SessionId = Annotated[
    str, typer.Argument(metavar="SESSION", help="The session's id.", autocompletion=completing.sessions)
]
CommandId = Annotated[str, typer.Argument(metavar="COMMAND", help="The command's id; `session ps` shows them.")]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="NAME=VALUE", help="A variable, no secret; repeat for more."),
]
Cwd = Annotated[str | None, typer.Option("--cwd", metavar="FOLDER", help="Where it runs; else /workspace.")]
DetachKeys = Annotated[
    str,
    typer.Option("--detach-keys", metavar="KEYS", help="Leave, and let it run on; an empty word for no such keys."),
]


@dataclass(frozen=True, slots=True)
class How:
    """How a command is to be run."""

    shell: Annotated[bool, typer.Option("--shell", help="What stands behind -- is one text for the shell.")] = False
    cwd: Cwd = None
    env: Env = None
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="TIME", help="Like 30s; then everything in the session is killed."),
    ] = None
    stdin: Annotated[
        bool | None,
        typer.Option("--stdin/--no-stdin", "-i/-n", help="Pass stdin on; else only where it is no terminal."),
    ] = None
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give it this terminal.")] = False
    background: Annotated[bool, typer.Option("--background", "-d", help="Print its id and do not wait.")] = False

    def body(self, words: list[str]) -> dict[str, Any]:
        if not words:
            raise UsageError("say behind -- what to run; `fumehood session shell` opens a shell")
        if self.shell and len(words) > 1:
            raise UsageError("--shell takes one text: put quotes around it")
        if self.tty and (self.background or self.stdin is False):
            raise UsageError("--tty is for somebody who sits at the terminal: without --background and --no-stdin")
        return {
            "command": words[0] if self.shell else words,
            "stdin": self.reads,
            **_placed(self.cwd, self.env),
            **({"timeout_ms": 1000 * run_request.timeout_seconds(self.timeout)} if self.timeout else {}),
        }

    @property
    def reads(self) -> bool:
        if self.background:
            return bool(self.stdin)
        return self.tty or (not os.isatty(STDIN) if self.stdin is None else self.stdin)


def _placed(cwd: str | None, env: list[str] | None) -> dict[str, Any]:
    return ({"cwd": cwd} if cwd else {}) | ({"env": run_request.environment(env)} if env else {})


@grouped
def exec_(
    session: SessionId,
    words: Annotated[
        list[str] | None, typer.Argument(metavar=BEHIND, help="Behind --: the program and its arguments.")
    ] = None,
    *,
    how: How,
    keys: DetachKeys = detach_keys.DEFAULT,
    remote: Remote,
) -> None:
    """Run a command in a session: its output as it appears, its exit code as the command's own.

    Other ends: 122 unknown (the session was lost), 124 timeout, 125 not started, 130 left with Ctrl-C, 137 out of
    memory, 128+N signal N. The first Ctrl-C goes to the command.
    """
    body = how.body(words or [])
    if how.tty:
        _at_terminal(session, body, keys, remote)
        return
    screen = Screen()
    with remote.opened() as api:
        there = Session(api, session)
        made = there.start(body)
        if how.background:
            remote.tell(made, made["command_id"])
            return
        command = Command(there, made["command_id"])
        raise typer.Exit(session_exec.watched(command, screen, reads=how.reads, as_json=remote.as_json))


@grouped
def receipt(session: SessionId, command: CommandId, *, out: receipt_out.Out = None, remote: Remote) -> None:
    """Give what the worker signed about a command that has ended: `fumehood verify` checks it."""
    with remote.opened() as api:
        receipt_out.give(Command(Session(api, session), command).receipt(), out)


@grouped
def shell(
    session: SessionId, *, keys: DetachKeys = detach_keys.DEFAULT, cwd: Cwd = None, env: Env = None, remote: Remote
) -> None:
    """Open a shell in a session: bash where its image has it, else sh.

    Ctrl-P Ctrl-Q leaves it running; `session attach` comes back.
    """
    _at_terminal(session, {"command": SHELL, **_placed(cwd, env)}, keys, remote)


@grouped
def attach(session: SessionId, command: CommandId, *, keys: DetachKeys = detach_keys.DEFAULT, remote: Remote) -> None:
    """Come back to a command: the last of what it printed, and then what it prints."""
    detach_keys.parsed(keys)
    with remote.opened() as api:
        found = Command(Session(api, session), command)
        view = found.get()
        if not view.get("terminal"):
            raise typer.Exit(session_exec.watched(found, Screen(), reads=False, as_json=remote.as_json))
        session_terminal.needs_terminal("a command with a terminal", "`fumehood session logs` prints what is there")
        _left(found, Visit(found, keys).come_back(view), remote)


def _at_terminal(session: str, body: dict[str, Any], keys: str, remote: Remote) -> None:
    detach_keys.parsed(keys)
    session_terminal.needs_terminal("this", "`fumehood session exec SESSION -- CMD` does without")
    size = size_of(STDOUT)
    terminal = {"rows": size.rows, "columns": size.columns}
    env = {"TERM": kind(), **body.get("env", {})}
    with remote.opened() as api:
        there = Session(api, session)
        made = there.start({**body, "stdin": True, "terminal": terminal, "env": env})
        command = Command(there, made["command_id"])
        _left(command, Visit(command, keys).begin(), remote)


def _left(command: Command, why: Why, remote: Remote) -> None:
    end = session_terminal.told(why, command)
    if end.line:
        show.console(stderr=True).print(f"fumehood: {show.plain(end.line)}", soft_wrap=True)
    if remote.as_json:
        view = why.command if isinstance(why, Ended) else {"command_id": command.command_id, "status": RUNNING}
        show.document(view)
    raise typer.Exit(end.code)


@grouped
def logs(
    session: SessionId,
    command: CommandId,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it has ended.")] = False,
    remote: Remote,
) -> None:
    """Print what is kept of a command's output."""
    screen = Screen()
    with remote.opened() as api:
        found = Command(Session(api, session), command)
        view = found.get()
        goes_on = follow or view["status"] != RUNNING
        until = None if goes_on else {name: int(view[f"{name}_bytes"]) for name in STREAMS}
        printing = Printing(api, found.path, Patience(Complaints(screen.say)), until=until)
        try:
            if remote.as_json:
                _lines(printing)
            else:
                session_exec.show(printing, screen)
        except BrokenPipeError:
            give_up_stdout()
            raise typer.Exit(UNREAD) from None


def _lines(printing: Printing) -> None:
    for chunk in printing.chunks():
        offset = printing.places[chunk.stream] - len(chunk.data)
        show.line({"stream": chunk.stream, "offset": offset, "data": base64.b64encode(chunk.data).decode()})


@grouped
def kill(
    session: SessionId,
    command: CommandId,
    *,
    signal: Annotated[
        str, typer.Option("--signal", "-s", metavar="NAME", help=f"One of {', '.join(SIGNALS)}.")
    ] = "TERM",
    remote: Remote,
) -> None:
    """Send a signal to a command."""
    name = signal.upper().removeprefix("SIG")
    if name not in SIGNALS:
        raise UsageError(f"--signal: there are {', '.join(SIGNALS)}")
    with remote.opened() as api:
        found = Command(Session(api, session), command)
        if (status := found.get()["status"]) != "running":
            raise UsageError(f"{command} has ended ({status}): there is nothing to send a signal to")
        found.signal(f"SIG{name}")
    remote.tell({"command_id": command, "signal": f"SIG{name}"}, f"SIG{name} was sent to {command}")
