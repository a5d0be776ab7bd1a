"""Sessions and their commands as people see them, and how a command ended as an exit code. Pure."""

from __future__ import annotations

import datetime as dt
import shlex
import signal
from collections.abc import Mapping
from typing import Any, Final

from fumehood.cli import show
from fumehood.cli.exits import KILLED, NOT_RUN, TIMED_OUT, UNKNOWN
from fumehood.cli.run_end import End
from fumehood.cli.show import Cell

RUNNING: Final = "running"
SHELL: Final = [
    "sh",
    "-c",
    ': "${LANG:=C.UTF-8}"; export LANG; command -v bash >/dev/null 2>&1 || exec sh; '
    "id -un >/dev/null 2>&1 || export PROMPT_COMMAND='PS1=${PS1//\\\\u@/}; unset PROMPT_COMMAND'; exec bash",
]
"""Decided in the sandbox: bash where the image has it. A shell that edits lines must know that they are UTF-8, and bash
greets a user without a name, as ours is, with "I have no name!" unless it is kept from it."""
SESSION_HEAD: Final = ["session", "image", "created", "lease left", "worker"]
COMMAND_HEAD: Final = ["command", "status", "started", "took", "what"]


def session_row(session: Mapping[str, Any], now: dt.datetime) -> list[Cell]:
    return [
        session["sandbox_id"],
        session.get("image"),
        show.local(session.get("created_at")),
        lease_left(session, now),
        session.get("worker_id"),
    ]


def lease_left(session: Mapping[str, Any], now: dt.datetime) -> str:
    until = show.moment(session.get("lease_expires_at"))
    if until is None:
        return ""
    left = (until - now).total_seconds()
    return show.lasted(left) if left > 0 else "over"


def session_pairs(session: Mapping[str, Any], now: dt.datetime) -> dict[str, Cell]:
    until = show.local(session.get("lease_expires_at"))
    return {
        "session": session["sandbox_id"],
        "image": session.get("image"),
        "digest": session.get("image_digest"),
        "network": session.get("network"),
        "runtime": session.get("runtime"),
        "worker": session.get("worker_id"),
        "created": show.local(session.get("created_at")),
        "lease": f"until {until}, {lease_left(session, now)} left" if until else "",
        "commands": f"{session.get('running_commands', 0)} running",
    }


def command_row(command: Mapping[str, Any], now: dt.datetime) -> list[Cell]:
    return [
        command["command_id"],
        _status(command),
        show.local(command.get("started_at")),
        show.between(command.get("started_at"), command.get("ended_at"), now),
        "shell" if command.get("command") == SHELL else shlex.join(map(str, command.get("command", ()))),
    ]


def _status(command: Mapping[str, Any]) -> str:
    code, number = command.get("exit_code"), command.get("signal")
    if command["status"] == "exited":
        return f"exited {code}"
    if command["status"] == "signaled":
        return _name(number)
    return show.plain(command["status"]).replace("_", " ")


def _name(number: object) -> str:
    known = {int(one): one.name for one in signal.Signals}
    return known.get(number, f"signal {number}") if isinstance(number, int) else "a signal"


def end_of(command: Mapping[str, Any]) -> End:
    """Of a command that has ended; the exit codes are those of `fumehood run`."""
    name, detail = command["command_id"], show.plain(str(command.get("detail") or "")).strip()
    why = f": {detail}" if detail else ""
    status, code, number = str(command["status"]), command.get("exit_code"), command.get("signal")
    if status == "exited" and isinstance(code, int):
        return End(code)
    if status == "signaled" and isinstance(number, int):
        return End(128 + number, f"{name} was ended by {_name(number)}")
    if status == "not_started" and detail.endswith("(exec)") and _is_a_line(command.get("command")):
        why += "; `session exec --shell` gives it to the shell"
    otherwise, words = _ENDS.get(status, (UNKNOWN, "{name} ended as {status}{why}"))
    return End(otherwise, words.format(name=name, why=why, status=show.plain(status)))


def _is_a_line(argv: object) -> bool:
    """Whether a whole command line stands where a program's name should."""
    return isinstance(argv, list) and len(argv) == 1 and " " in str(argv[0])


_ENDS: Final[Mapping[str, tuple[int, str]]] = {
    "timed_out": (TIMED_OUT, "{name} was killed: it took longer than its --timeout; a longer one gives it more time"),
    "oom": (KILLED, "{name} was killed: the session's memory was full; `session new --memory` gives more"),
    "not_started": (NOT_RUN, "{name} did not start{why}"),
    "sandbox_lost": (
        UNKNOWN,
        "the session of {name} was lost, and nobody knows how far it came{why}; `session new` makes another one",
    ),
}
