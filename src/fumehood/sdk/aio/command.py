"""One command in a sandbox: followed, waited for, fed, and ended."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any
from urllib.parse import unquote

from fumehood.errors import CommandNotFoundError, FumehoodError, SandboxGoneError, WaitTimeoutError
from fumehood.sdk import problems
from fumehood.sdk.aio import here
from fumehood.sdk.aio.following import AsyncFeeding, AsyncFollowing, AsyncKeeping
from fumehood.sdk.aio.results import AsyncCommandResult
from fumehood.sdk.aio.transport import AsyncTransport, part
from fumehood.sdk.asking import ANSWER_SECONDS, Patience
from fumehood.sdk.printing import Kept
from fumehood.sdk.values import CommandInfo, CommandStatus, Output

MAX_OUTPUT_BYTES = 16 * 1024 * 1024
"""Of each stream that a result holds unless said otherwise."""
LONGEST_POLL_SECONDS = 20.0

OnText = Callable[[str], Any]
"""Called with text as it comes; in the asynchronous flavour it may be a coroutine function."""


class AsyncCommand:
    """A command in a sandbox. It goes on whoever holds this, and can be found again by its `id`.

    command = await sb.commands.start("echo begun; sleep 0.1; exit 7")
    async for piece in command.output():
        assert (piece.stream, piece.text) == ("stdout", "begun\\n")
    assert (await command.wait(timeout=60)).exit_code == 7
    """

    id: str
    """Its name."""

    def __init__(
        self,
        transport: AsyncTransport,
        sandbox_path: str,
        command_id: str,
        *,
        stdin_bytes: int = 0,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        """Made by `start` and `attach`."""
        self.id = command_id
        self._request = request
        self._transport = transport
        self._path = f"{sandbox_path}/commands/{part(command_id)}"
        self._sandbox_path = sandbox_path
        self._feeding = AsyncFeeding(transport, self._path, stdin_bytes)
        self._turn = here.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def info(self) -> CommandInfo:
        """How it stands.

        command = await sb.commands.start("sleep 60")
        assert not (await command.info()).has_ended
        await command.kill()
        """
        return CommandInfo.of(await self._transport.get(self._path))

    async def status(self) -> CommandStatus:
        """How it stands, in a word.

        command = await sb.commands.start("sleep 60")
        assert await command.status() == "running"
        await command.kill()
        """
        return (await self.info()).status

    async def output(self) -> AsyncGenerator[Output, None]:
        """What it prints, from the beginning to its end, as it comes. A connection that breaks is made again, and no
        byte comes twice. While you read, the program waits for you; what nobody read in time is counted by `lost`.

            command = await sb.commands.start("echo out; echo err >&2")
            said = {piece.stream: piece.data async for piece in command.output()}
            assert said == {"stdout": b"out\\n", "stderr": b"err\\n"}
        """
        async with here.closing(self._following().pieces()) as pieces:
            async for piece in pieces:
                yield piece

    def _following(self) -> AsyncFollowing:
        return AsyncFollowing(self._transport, self._path, AsyncKeeping(self._transport, self._sandbox_path))

    async def wait(
        self, timeout: float | None = None, *, max_output_bytes: int = MAX_OUTPUT_BYTES
    ) -> AsyncCommandResult:
        """How it ended, and what is kept of what it printed: of each stream the first MiB and the last eight; `run` and
        `output` read along, and miss nothing. With a `timeout` in seconds, `WaitTimeoutError` when it has not ended by
        then; the command goes on.

            from fumehood import WaitTimeoutError

            command = await sb.commands.start("sleep 60")
            try:
                await command.wait(timeout=0.1)
            except WaitTimeoutError:
                await command.kill()
            assert (await command.wait()).signal == "SIGKILL"
        """
        until = None if timeout is None else time.monotonic() + timeout
        try:
            await self._ended(until)
        except SandboxGoneError as error:  # a command that is merely forgotten is an error: its end is not known here
            return _lost(self, error, Kept(0), Kept(0))
        return await self._collected(max_output_bytes)

    async def _ended(self, until: float | None) -> None:
        patience, keeping = Patience(), AsyncKeeping(self._transport, self._sandbox_path)
        while True:
            await keeping.look()
            now = time.monotonic()
            left = LONGEST_POLL_SECONDS if until is None else min(LONGEST_POLL_SECONDS, max(0.0, until - now))
            try:
                said = await self._transport.get(
                    self._path, {"wait_ms": int(left * 1000)}, seconds=ANSWER_SECONDS + left
                )
            except FumehoodError as error:
                pause = patience.next_pause(now, error.retry_after_seconds or 0.0)
                if pause is None or not problems.is_passing(error):
                    raise
                await here.sleep(pause if until is None else min(pause, max(0.0, until - now)))
            else:
                patience.went_well()
                if CommandInfo.of(said).has_ended:
                    return
            if until is not None and time.monotonic() >= until:
                raise WaitTimeoutError(f"the command {self.id} has not ended in time, and goes on").advise()

    async def _collected(
        self, max_output_bytes: int, on_stdout: OnText | None = None, on_stderr: OnText | None = None
    ) -> AsyncCommandResult:
        """What it prints until its end, put together. A sandbox that goes meanwhile is an end, too."""
        kept = {"stdout": Kept(max_output_bytes), "stderr": Kept(max_output_bytes)}
        heard = {"stdout": on_stdout, "stderr": on_stderr}
        following = self._following()
        try:
            async with here.closing(following.pieces()) as pieces:
                async for piece in pieces:
                    kept[piece.stream].add(piece)
                    if piece.text:
                        await here.called(heard[piece.stream], piece.text)
        except SandboxGoneError as error:
            return _lost(self, error, kept["stdout"], kept["stderr"])
        assert following.ended is not None
        info = following.ended
        unheard = info.status is CommandStatus.SANDBOX_LOST  # nobody knows whether there was more
        return AsyncCommandResult(
            info,
            kept["stdout"].data,
            kept["stderr"].data,
            unheard or kept["stdout"].is_truncated(info.stdout_bytes),
            unheard or kept["stderr"].is_truncated(info.stderr_bytes),
            transport=self._transport,
            path=self._path,
            request=self._request,
        )

    # --- telling it something --------------------------------------------------------------------------------

    async def send(self, data: str | bytes, *, timeout: float = 60.0) -> None:
        """Gives it input, where it was started with `stdin=True`: all of it, however large. A program that does not
        read makes you wait; `WaitTimeoutError` after `timeout` seconds. What comes for one that has ended is thrown
        away, as with a pipe that nobody reads: `status` tells.

            command = await sb.commands.start("cat", stdin=True)
            await command.send("hello ")
            await command.send("world")
            await command.close_stdin()
            assert (await command.wait()).stdout == "hello world"
        """
        given = data.encode() if isinstance(data, str) else data
        async with self._turn:
            until = time.monotonic() + timeout
            await self._feeding.go_on(until)
            await self._feeding.give(given, until=until)

    async def close_stdin(self) -> None:
        """Nothing more comes, and the command is to know.

        command = await sb.commands.start("wc -c", stdin=True)
        await command.close_stdin()
        assert (await command.wait()).stdout == "0\\n"
        """
        async with self._turn:
            until = time.monotonic() + ANSWER_SECONDS
            await self._feeding.go_on(until)
            await self._feeding.give(b"", eof=True, until=until)

    async def signal(self, signal: str | int, *, everything: bool = False) -> None:
        """Sends a signal to the command's own processes, or to all that runs in the sandbox.

        command = await sb.commands.start("sleep 60")
        await command.signal("SIGTERM")
        assert (await command.wait()).signal == "SIGTERM"
        """
        await self._transport.post(f"{self._path}:signal", {"signal": signal, "everything": everything})

    async def kill(self) -> bool:
        """Ends it with SIGKILL. False: it had ended before, or is not known.

        command = await sb.commands.start("sleep 60")
        assert await command.kill()
        await command.wait()
        assert not await command.kill()
        """
        try:
            if (await self.info()).has_ended:
                return False
            await self.signal("SIGKILL")
        except (SandboxGoneError, CommandNotFoundError):
            return False
        return True


def _lost(command: AsyncCommand, error: FumehoodError, stdout: Kept, stderr: Kept) -> AsyncCommandResult:
    """Its sandbox is gone, and with it whoever knew how it ended. What was read is all there will be."""
    info = CommandInfo(
        id=command.id,
        sandbox_id=unquote(command._sandbox_path.rpartition("/")[2]),
        status=CommandStatus.SANDBOX_LOST,
        exit_code=None,
        signal=None,
        detail=error.detail,
        command=[],
        terminal=False,
        started_at=None,
        ended_at=None,
        stdout_bytes=0,
        stderr_bytes=0,
        stdin_bytes=0,
    )
    return AsyncCommandResult(
        info, stdout.data, stderr.data, True, True, transport=command._transport, path=command._path
    )
