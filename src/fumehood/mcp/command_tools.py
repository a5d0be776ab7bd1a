"""Running things: Python in a sandbox of its own, commands in sessions, and what they print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from fumehood.errors import ExecutionFailedError, FumehoodError, SandboxGoneError
from fumehood.mcp import limits
from fumehood.mcp.command_answer import CommandAnswer
from fumehood.mcp.following import Place, Printed, answer_of, to_its_end
from fumehood.mcp.sessions import finished, found_or_made, made, new_name
from fumehood.mcp.tool import Arguments, Call, SessionAnswer, Tool
from fumehood.sdk.aio import here
from fumehood.sdk.aio.commands import CommandInput
from fumehood.sdk.values import CommandInfo, CommandStatus

if TYPE_CHECKING:
    from fumehood.sdk.aio.command import AsyncCommand
    from fumehood.sdk.aio.sandbox import AsyncSandbox

FRESH_SECONDS = 300
"""Of a sandbox of its own: while its command is followed that is extended, and behind us it goes by itself."""
READ_ON_SECONDS = 600
"""That it is kept for, where not all of the output was shown."""


def _fits(text: str) -> str:
    if len(text.encode("utf-8", "surrogatepass")) > limits.MOST_CODE:
        raise ValueError(
            f"must have at most {limits.MOST_CODE} bytes; write a longer program with write_file, and run that"
        )
    if "\0" in text:
        raise ValueError("must not contain the character NUL")
    return text


Code = Annotated[str, Field(min_length=1), AfterValidator(_fits)]
Env = Annotated[dict[str, str], Field(max_length=256, description="Environment variables")]


# --- run_python --------------------------------------------------------------------------------------------


class RunPython(Arguments):
    code: Annotated[Code, Field(description="The program; what it prints is the answer")]
    session: Annotated[
        limits.NewSessionName,
        Field(
            description="Run it in this session, with its files, and keep that; made if there is none. Without it: "
            "a fresh sandbox that is removed afterwards"
        ),
    ] = None
    timeout_seconds: limits.Timeout = limits.TIMEOUT_SECONDS
    image: limits.Image = None
    network: limits.Network = None
    output_bytes: limits.OutputBytes = limits.DEFAULT_OUTPUT


async def run_python(call: Call, asked: RunPython) -> CommandAnswer:
    argv = ["python3", "-u", "-c", asked.code]
    if asked.session is not None:
        async with found_or_made(call, asked.session, asked.image, asked.network) as sandbox:
            return await _foreground(call, sandbox, argv, asked.output_bytes, timeout=asked.timeout_seconds)
    making = made(call, new_name(), image=asked.image, network=asked.network, lease_seconds=FRESH_SECONDS)
    sandbox = await finished(call, making, _removed, "sandbox")
    kept = False
    try:
        answer = await _foreground(call, sandbox, argv, asked.output_bytes, timeout=asked.timeout_seconds)
        kept = answer.truncated and answer.session_kept and await _kept(sandbox)
    finally:
        if not kept:
            call.aftermath.leave(_removed(sandbox), "sandbox")
    return answer if kept else answer.model_copy(update={"session_kept": False})


async def _removed(sandbox: AsyncSandbox) -> None:
    await sandbox.kill()


async def _kept(sandbox: AsyncSandbox) -> bool:
    """A little longer, so that the rest of its output can be read."""
    try:
        await sandbox.extend(READ_ON_SECONDS)
    except FumehoodError:
        return False
    return True


# --- run_command, start_command ----------------------------------------------------------------------------


class StartCommand(Arguments):
    command: Annotated[Code, Field(description="For the shell (sh -c)")]
    session: limits.NewSessionName = None
    cwd: Annotated[str | None, Field(max_length=4096, description="Where it runs; without it /workspace")] = None
    env: Env = Field(default_factory=dict)
    image: limits.Image = None
    network: limits.Network = None
    lease_seconds: limits.Lease = limits.LEASE_SECONDS


class RunCommand(StartCommand):
    timeout_seconds: limits.Timeout = limits.TIMEOUT_SECONDS
    input: Annotated[str | None, Field(max_length=256 * 1024, description="What it reads from stdin")] = None
    output_bytes: limits.OutputBytes = limits.DEFAULT_OUTPUT


class Started(SessionAnswer):
    command_id: str
    status: Annotated[str, Field(description="running, unless it has ended already")]

    def text(self) -> str:
        return (
            f"status: {self.status}\n{self.session_line()}\ncommand_id: {self.command_id}\n"
            "command_output tells how it stands and what it printed, stop_command ends it"
        )


async def run_command(call: Call, asked: RunCommand) -> CommandAnswer:
    given = {"input_": asked.input, "timeout": asked.timeout_seconds, **_given(asked)}
    async with _session_for(call, asked) as sandbox:
        return await _foreground(call, sandbox, asked.command, asked.output_bytes, **given)


async def start_command(call: Call, asked: StartCommand) -> Started:
    async with _session_for(call, asked) as sandbox:
        command = await sandbox.commands.start(asked.command, **_given(asked))
        with _named(command, sandbox):
            status = await command.status()
    return Started(session=sandbox.id, session_created=sandbox.created, command_id=command.id, status=status.value)


def _session_for(call: Call, asked: StartCommand) -> AbstractAsyncContextManager[AsyncSandbox]:
    return found_or_made(call, asked.session, asked.image, asked.network, asked.lease_seconds)


def _given(asked: StartCommand) -> dict[str, Any]:
    given = {"cwd": asked.cwd, "env": asked.env or None}
    return {name: value for name, value in given.items() if value is not None}


async def _foreground(
    call: Call, sandbox: AsyncSandbox, command: str | list[str], limit: int, *, input_: str | None = None, **given: Any
) -> CommandAnswer:
    """To its end. If the call is cancelled, or fails on our side, so that its caller never hears of the command, the
    command is killed."""
    starting = sandbox.commands.start(command, stdin=input_ is not None, **given)
    started = await finished(call, starting, _killed, "command")
    place, printed = Place(sandbox.id, started.id), Printed(limit)
    try:
        with _named(started, sandbox):
            ended, feeding = await _ended(call, started, input_, place, printed)
        feeding.check(ended.status)
        answer = answer_of(place, ended, printed, session_created=sandbox.created)
        if ended.status is CommandStatus.OOM:
            try:
                await sandbox.files.stat("/")
            except (SandboxGoneError, ExecutionFailedError):  # under gVisor, a full memory can end the whole sandbox
                return answer.model_copy(update={"session_kept": False})
            except FumehoodError:
                return answer.model_copy(update={"detail": "could not find out whether the session is still there"})
        return answer
    except FumehoodError:
        raise  # the caller is told of the command, if it may run on
    except BaseException:
        call.aftermath.leave(_killed(started), "command")
        raise


@contextmanager
def _named(command: AsyncCommand, sandbox: AsyncSandbox) -> Iterator[None]:
    """Whoever hears of trouble hears of the command, too: it was started."""
    try:
        yield
    except FumehoodError as error:
        error.detail += f"; the command {command.id} in the session {sandbox.id} may run on"
        raise


async def _ended(
    call: Call, command: AsyncCommand, text: str | None, place: Place, printed: Printed
) -> tuple[CommandInfo, CommandInput]:
    """How it ended, and what became of its input, which is sent while its output is read."""
    feeding = CommandInput(command, (text or "").encode())
    if text is None:
        return await to_its_end(call, place, printed), feeding
    async with here.beside(feeding.work):
        try:
            return await to_its_end(call, place, printed), feeding
        finally:
            feeding.stop()


async def _killed(command: AsyncCommand) -> None:
    await command.kill()


TOOLS = (
    Tool(
        "run_python",
        "Run Python",
        "Run a Python program in a locked-down sandbox and get its status, exit code and output. Without `session` the "
        "sandbox is fresh and removed afterwards. With one, files stay for later calls; variables never do: each call "
        "is a new process. There is no network unless the sandbox was made with one. It waits for the end; for what "
        "takes longer than a few minutes use write_file and start_command.",
        RunPython,
        CommandAnswer,
        run_python,
        destructive=True,
    ),
    Tool(
        "run_command",
        "Run a shell command",
        "Run a shell command in a session (a sandbox that keeps its files between calls) and get its status, exit code "
        "and output. It waits for the end; use start_command for servers and for what takes longer than a few minutes. "
        "Each command is a new shell: `cd` and variables do not carry over, files do.",
        RunCommand,
        CommandAnswer,
        run_command,
        destructive=True,
    ),
    Tool(
        "start_command",
        "Start a command in the background",
        "Start a shell command in a session and return at once, with its command_id. It runs until it ends, is "
        "stopped, or the session's lease is over.",
        StartCommand,
        Started,
        start_command,
        destructive=True,
    ),
)
