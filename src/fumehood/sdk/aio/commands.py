"""The commands of a sandbox: run, started, listed, and found again."""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

from fumehood.errors import CommandNotFoundError, FumehoodError, InvalidRequestError, SandboxGoneError
from fumehood.sdk.aio import here
from fumehood.sdk.aio.command import MAX_OUTPUT_BYTES, AsyncCommand, OnText
from fumehood.sdk.aio.results import AsyncCommandResult
from fumehood.sdk.aio.transport import AsyncTransport
from fumehood.sdk.values import CommandInfo, CommandStatus

KILL_SECONDS = 5.0


class AsyncCommands:
    """The commands of a sandbox: `sandbox.commands`.

    A text goes to the sandbox's shell; a list is a program and its arguments, which no shell sees.

        result = await sb.commands.run(["python3", "-c", "print(6 * 7)"])
        assert result.stdout == "42\\n"
    """

    def __init__(self, transport: AsyncTransport, sandbox_path: str) -> None:
        """Made by a sandbox."""
        self._transport, self._path = transport, sandbox_path

    @overload
    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        input: str | bytes | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        check: bool = False,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        background: Literal[False] = False,
    ) -> AsyncCommandResult: ...

    @overload
    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        background: Literal[True],
    ) -> AsyncCommand: ...

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        input: str | bytes | None = None,  # noqa: A002 - as the standard library has it
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        check: bool = False,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        background: bool = False,
    ) -> AsyncCommandResult | AsyncCommand:
        """Runs a command to its end, and gives its result. It runs once, whatever becomes of the connection.

        `timeout`: seconds, after which the sandbox kills **everything** that runs in it; the result is `timed_out`.
        `input`: all that it reads, however large. `on_stdout`, `on_stderr`: called with text as it comes.
        `check`: raise `CommandFailedError` unless it ends with exit code 0. `max_output_bytes`: what the result holds
        of each stream. `background`: `start`, and do not wait. While somebody waits, the sandbox's lease is extended.

        Whoever leaves early (an exception of a callback, Ctrl-C, a cancelled task) takes the command along: it is
        killed, as nobody would hear of its end.

            pieces = []
            result = await sb.commands.run("tr a-z A-Z", input="hello", on_stdout=pieces.append)
            assert result.stdout == "".join(pieces) == "HELLO"
        """
        if background:
            if input is not None or on_stdout or on_stderr or check or max_output_bytes != MAX_OUTPUT_BYTES:
                raise TypeError("a command in the background takes no input, callbacks, check or max_output_bytes here")
            return await self.start(command, cwd=cwd, env=env, timeout=timeout)
        given = input.encode() if isinstance(input, str) else input
        body = _body(command, cwd, env, timeout) | {"stdin": given is not None}
        made = AsyncCommand(self._transport, self._path, str(body["command_id"]))
        try:
            made = await self._begun(body)
            result = await _watched(made, given, max_output_bytes, on_stdout, on_stderr)
        except BaseException:
            await _killed(made)
            raise
        return result.check() if check else result

    async def start(
        self,
        command: str | Sequence[str],
        *,
        stdin: bool = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncCommand:
        """Starts a command and does not wait. `stdin`: its input stays open, for `send`.

        command = await sb.commands.start(["sleep", "60"])
        assert command.id in [one.id for one in await sb.commands.list()]
        await command.kill()
        """
        body = _body(command, cwd, env, timeout) | {"stdin": stdin}
        return await self._begun(body)

    async def _begun(self, body: dict[str, Any]) -> AsyncCommand:
        """The name is ours, so that an answer that got lost can be asked for again."""
        try:
            said = await self._transport.post(f"{self._path}/commands", {**body, "background": True}, again=True)
        except FumehoodError as error:
            if error.may_be_done:
                error.detail += f"; command {body['command_id']} may be running"
            raise
        return AsyncCommand(self._transport, self._path, str(said["command_id"]), request=_request(body))

    async def list(self) -> builtins.list[CommandInfo]:
        """Those that are known, oldest first.

        assert all(one.sandbox_id == sb.id for one in await sb.commands.list())
        """
        said = await self._transport.get(f"{self._path}/commands")
        return [CommandInfo.of(one) for one in said["commands"]]

    async def attach(self, command_id: str) -> AsyncCommand:
        """Comes back to a command, from anywhere. `CommandNotFoundError` where there is none.

        started = await sb.commands.start("echo still here")
        found = await sb.commands.attach(started.id)
        assert (await found.wait()).stdout == "still here\\n"
        """
        found = AsyncCommand(self._transport, self._path, command_id)
        info = await found.info()
        return AsyncCommand(self._transport, self._path, command_id, stdin_bytes=info.stdin_bytes)

    async def kill(self, command_id: str) -> bool:
        """Ends a command with SIGKILL. False: it had ended before, or is not known.

        command = await sb.commands.start("sleep 60")
        assert await sb.commands.kill(command.id)
        """
        return await AsyncCommand(self._transport, self._path, command_id).kill()


def _body(
    command: str | Sequence[str], cwd: str | None, env: Mapping[str, str] | None, timeout: float | None
) -> dict[str, Any]:
    if not isinstance(timeout, int | float | None):
        raise TypeError("timeout= takes a number of seconds")
    if not command or (timeout is not None and timeout <= 0):
        raise InvalidRequestError("a command must not be empty, and timeout must be greater than 0").advise()
    said: dict[str, Any] = {
        "command_id": f"cmd-{secrets.token_hex(16)}",
        "command": command if isinstance(command, str) else [str(word) for word in command],
    }
    if cwd is not None:
        said["cwd"] = cwd
    if env:
        said["env"] = dict(env)
    if timeout is not None:
        said["timeout_ms"] = max(1, round(timeout * 1000))
    return said


def _request(body: Mapping[str, Any]) -> dict[str, Any]:
    """The program that this begins, as its receipt has the hash of it."""
    command = body["command"]
    return {
        "argv": ["sh", "-c", command] if isinstance(command, str) else command,
        "cwd": body.get("cwd", "/workspace"),
        "env": body.get("env", {}),
        "stdin": body["stdin"],
        "terminal": None,
        "timeout_ms": body.get("timeout_ms", 0),
    }


async def _watched(
    command: AsyncCommand, given: bytes | None, most: int, on_stdout: OnText | None, on_stderr: OnText | None
) -> AsyncCommandResult:
    """Its output is read while its input is sent, so that neither waits for the other."""
    if given is None:
        return await command._collected(most, on_stdout, on_stderr)
    feeding = CommandInput(command, given)
    async with here.beside(feeding.work):
        try:
            result = await command._collected(most, on_stdout, on_stderr)
        finally:
            feeding.stop()
    feeding.check(result.status)
    return result


class CommandInput:
    """All of a command's input, sent while its output is read."""

    def __init__(self, command: AsyncCommand, data: bytes) -> None:
        self._command, self._data = command, data
        self._refused: FumehoodError | None = None

    async def work(self) -> None:
        """A command that waits for input that never comes would never end: it is killed, and why is told."""
        try:
            await self._command._feeding.give(self._data, eof=True)
        except (SandboxGoneError, CommandNotFoundError):
            return  # whoever reads the output tells
        except FumehoodError as error:
            if not self._command._feeding.stopped:
                self._refused = error
                await _killed(self._command)

    def stop(self) -> None:
        self._command._feeding.stopped = True

    def check(self, status: CommandStatus) -> None:
        """Raises why the input could not be sent: the command was killed for that, and did not end by itself."""
        if self._refused is not None and status is not CommandStatus.SANDBOX_LOST:
            raise self._refused


async def _killed(command: AsyncCommand) -> None:
    """As well as can be: whoever asks for it has another error to tell."""
    try:
        await command._transport.post(f"{command._path}:signal", {"signal": "SIGKILL"}, seconds=KILL_SECONDS)
    except FumehoodError:
        return
