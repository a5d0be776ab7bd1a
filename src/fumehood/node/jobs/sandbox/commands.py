"""A job's commands: one after the other in one sandbox, each with how it ended and the hashes of all it printed."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass, field
from typing import Final

from fumehood.errors import FileOperationError, SandboxLostError
from fumehood.jobs.types.sandbox_run import TIMED_OUT, CommandResult, SandboxRunRequest, SandboxStatus
from fumehood.node.jobs.sandbox.asked import Asked, known
from fumehood.node.jobs.sandbox.previews import Printed, Room
from fumehood.node.jobs.sandbox.refused import RefusedError, shown
from fumehood.node.jobs.sandbox.time_left import TimeIsUpError, TimeLeft
from fumehood.sandbox.capture import STDERR, STDOUT
from fumehood.sandbox.driver import Driver, Handle, State
from fumehood.sandbox.spec import WORKSPACE, Command, End, Outcome, Stage

SHELL: Final = "/bin/sh"
NOT_FOUND: Final = 127
NOT_STARTABLE: Final = 126
OUT_OF_MEMORY: Final = 137
SIGNALED: Final = 128


@dataclass(slots=True)
class Runs:
    """What came of the commands so far."""

    results: list[CommandResult] = field(default_factory=list)
    status: SandboxStatus = SandboxStatus.SUCCESS
    error: str | None = None
    """Why one could not even be started, or why there were no more."""
    out_of_memory: bool = False
    """One of them was: what it left in the workspace may be what takes it."""
    sandbox_is_there: bool = True


class Commands:
    def __init__(self, driver: Driver, handle: Handle, request: SandboxRunRequest, asked: Asked) -> None:
        self._driver = driver
        self._handle = handle
        self._request = request
        self._asked = asked
        self._room = Room()

    async def run(self, runs: Runs, left: TimeLeft) -> None:
        """Into `runs`, so that what has run is known whatever comes in between."""
        for number, command in enumerate(self._request.commands):
            result = await self._one(number, runs, left)
            runs.results.append(result)
            if runs.status is SandboxStatus.TIMEOUT:
                return
            if result.exit_code != 0:
                runs.status = SandboxStatus.FAILED
                if not command.continue_on_fail or not runs.sandbox_is_there:
                    return

    async def _one(self, number: int, runs: Runs, left: TimeLeft) -> CommandResult:
        command, workdir = self._request.commands[number], self._asked.workdirs[number]
        await self._check_workdir(workdir, left)
        printed, handle = Printed(), self._handle
        wire = Command(
            (SHELL, "-c", command.cmd),
            env={"HOME": WORKSPACE, **self._request.env},
            cwd=workdir,
            timeout_ms=left.ms,
        )
        command_id = await self._driver.next_id(handle)
        outcome = await self._driver.run(handle, wire, printed, command_id=command_id)
        _check_told(outcome, number)
        printed.check(outcome)
        await self._after(outcome, command_id, number, runs)
        return CommandResult(
            cmd=command.cmd,
            exit_code=exit_code_of(outcome),
            duration_ms=_duration_ms(outcome),
            stdout_sha256=printed.sha256(STDOUT),
            stderr_sha256=printed.sha256(STDERR),
            **known(
                stdout_preview=self._room.taken(printed.preview(STDOUT)),
                stderr_preview=self._room.taken(printed.preview(STDERR)),
            ),
        )

    async def _check_workdir(self, workdir: str, left: TimeLeft) -> None:
        """Whether it is where it says: a link in it could lead anywhere. That it is there at all, the start shows."""
        if workdir == self._asked.mount:
            return
        below = workdir[len(self._asked.mount) + 1 :]
        try:
            async with asyncio.timeout(left.seconds):
                await self._driver.files(self._handle, root=self._asked.mount).list(below)
        except TimeoutError:
            raise TimeIsUpError from None
        except FileOperationError as error:
            if error.errno == errno.ELOOP:
                raise RefusedError(f"the working directory {shown(below)} is a link, or leads through one") from error

    async def _after(self, outcome: Outcome, command_id: int, number: int, runs: Runs) -> None:
        match outcome.end:
            case End.TIMED_OUT:
                runs.status = SandboxStatus.TIMEOUT
            case End.NOT_STARTED:
                runs.error = f"command {number} could not be started: {_why(outcome)}"
            case End.OOM:
                runs.error = f"command {number} took more memory than the sandbox may have"
                runs.out_of_memory = True
                runs.sandbox_is_there = (await self._driver.inspect(self._handle)).state is State.RUNNING
        if runs.sandbox_is_there and outcome.end is not End.TIMED_OUT:
            await self._driver.settle(self._handle, command_id)


def _check_told(outcome: Outcome, number: int) -> None:
    """Where a sandbox had to be ended as a whole, its supervisor told nobody how much was printed: what came out is
    then not all of it, and no hash of it would be true."""
    if outcome.stdout is not None and outcome.stderr is not None:
        return
    unknown = "what it printed is not known to its end"
    if outcome.end is End.TIMED_OUT:
        raise TimeIsUpError(f"the time was over, and command {number} ended with its whole sandbox: {unknown}")
    if outcome.end is End.OOM:
        raise RefusedError(f"command {number} took more memory than the sandbox may have, which ended: {unknown}")
    raise SandboxLostError(f"nobody told how command {number} ended")


def exit_code_of(outcome: Outcome) -> int:
    """As a shell would say it."""
    match outcome.end:
        case End.TIMED_OUT:
            return TIMED_OUT
        case End.OOM:
            return OUT_OF_MEMORY
        case End.SIGNALED:
            return SIGNALED + (outcome.signal or 0)
        case End.NOT_STARTED:
            missing = outcome.stage is Stage.EXEC and outcome.errno == errno.ENOENT
            return NOT_FOUND if missing else NOT_STARTABLE
    return outcome.exit_code if outcome.exit_code is not None else NOT_STARTABLE


def _why(outcome: Outcome) -> str:
    if outcome.stage is Stage.DIRECTORY:
        return "its working directory is not there, or is no folder"
    if outcome.stage is Stage.EXEC and outcome.errno == errno.E2BIG:
        return "command and environment are too long"
    if outcome.stage is Stage.EXEC:
        return f"the image has no {SHELL} that can be run"
    return "the sandbox has too many processes"


def _duration_ms(outcome: Outcome) -> int:
    if outcome.duration_us:
        return outcome.duration_us // 1000
    return max(0, int((outcome.ended_at - outcome.started_at).total_seconds() * 1000))
