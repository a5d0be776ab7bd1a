"""Between our values and the warden's: a command on its way in, its end on its way out."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping, Sequence

from fumehood.errors import WardenProtocolError
from fumehood.sandbox.spec import Command, End, Outcome, Stage, StreamEnd, Usage, User
from fumehood.sandbox.warden.frames import Exit, Flag, Kind, WireCommand

_STAGES = {1: Stage.FORK, 2: Stage.USER, 3: Stage.DIRECTORY, 4: Stage.EXEC, 5: Stage.PTY}
_KILLED_BY_OWNER = 1


def wire_command(command: Command, user: User, image_env: Sequence[str]) -> WireCommand:
    """The command as the warden takes it: the image's environment first, then the command's own."""
    env = merge_env(image_env, command.env)
    rows, columns = command.pty or (0, 0)
    return WireCommand(
        kind=Kind.EXEC,
        flags=_flags(command),
        uid=user.uid,
        gid=user.gid,
        directory=command.cwd.encode(),
        argv=[argument.encode() for argument in command.argv],
        env=[f"{name}={value}".encode() for name, value in env.items()],
        timeout_ms=command.timeout_ms,
        rows=rows,
        columns=columns,
    )


def _flags(command: Command) -> Flag:
    flags = Flag.SWEEP_ON_TIMEOUT
    if command.sweep:
        flags |= Flag.SWEEP_ON_EXIT
    if command.pty is not None:
        flags |= Flag.PTY
    if command.stdin or command.open_stdin:
        flags |= Flag.STDIN
    if command.waits:
        flags |= Flag.WAITS
    return flags


def merge_env(image_env: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    declared = dict(item.split("=", 1) for item in image_env if "=" in item)
    return {**declared, **env}


def outcome_of(ended: Exit) -> Outcome:
    """The warden's terminal record as a value. Whether a kill was an OOM kill is for the driver to find out."""
    end = {1: End.EXITED, 2: End.SIGNALED, 3: End.TIMED_OUT, 4: End.NOT_STARTED}.get(ended.state)
    if end is None:
        raise WardenProtocolError(f"a command ended in state {ended.state}")
    return Outcome(
        end=end,
        started_at=from_ms(ended.started_ms),
        ended_at=from_ms(ended.ended_ms),
        exit_code=ended.code if end is End.EXITED else None,
        signal=ended.code if end is End.SIGNALED else None,
        errno=ended.code if end is End.NOT_STARTED else None,
        stage=_STAGES.get(ended.stage) if end is End.NOT_STARTED else None,
        killed_by_owner=bool(ended.flags & _KILLED_BY_OWNER),
        duration_us=ended.duration_us,
        stdout=StreamEnd(ended.stdout_total, ended.stdout_sha256.hex()),
        stderr=StreamEnd(ended.stderr_total, ended.stderr_sha256.hex()),
        usage=Usage(ended.user_us, ended.system_us, ended.max_rss_kib),
    )


def not_started(number: int, stage: Stage) -> Outcome:
    """A command that need not even be sent: the kernel would refuse it for certain."""
    now, nothing = dt.datetime.now(dt.UTC), StreamEnd(0, hashlib.sha256().hexdigest())
    return Outcome(
        End.NOT_STARTED, started_at=now, ended_at=now, errno=number, stage=stage, stdout=nothing, stderr=nothing
    )


def from_ms(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
