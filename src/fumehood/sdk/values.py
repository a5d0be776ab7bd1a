"""What sandboxes and commands are to a caller: plain values, the same for both flavours of the SDK."""

from __future__ import annotations

import codecs
import datetime as dt
import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from fumehood.errors import CommandFailedError, SandboxLostError, UnexpectedAnswerError

LONGEST_QUOTE = 300
"""Characters of a command's own words in an error."""


class CommandStatus(StrEnum):
    """How a command stands. All but `RUNNING` are for good.

    from fumehood import CommandStatus

    assert CommandStatus("timed_out") is CommandStatus.TIMED_OUT
    assert CommandStatus.EXITED == "exited"
    """

    RUNNING = "running"
    EXITED = "exited"
    """By itself; there is an `exit_code`."""
    SIGNALED = "signaled"
    """Something ended it with a `signal`."""
    TIMED_OUT = "timed_out"
    """It took longer than its `timeout`; everything in the sandbox was killed."""
    OOM = "oom"
    """The sandbox's memory was full."""
    NOT_STARTED = "not_started"
    """Nothing of it ran."""
    SANDBOX_LOST = "sandbox_lost"
    """The sandbox went, and nobody knows how far the command came."""


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """A sandbox that is there. In a list, what only its worker knows is None.

    info = sb.info()
    assert info.id == sb.id and info.running_commands == 0
    """

    id: str
    image: str
    created_at: dt.datetime | None
    lease_expires_at: dt.datetime | None
    """When it is removed, with all that is in it."""
    worker_id: str
    image_digest: str | None = None
    network: str | None = None
    runtime: str | None = None
    """What isolates it."""
    running_commands: int | None = None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """As a server says it."""
        with understood("a sandbox"):
            return cls(
                id=str(said["sandbox_id"]),
                image=str(said["image"]),
                created_at=moment(said.get("created_at")),
                lease_expires_at=moment(said.get("lease_expires_at")),
                worker_id=str(said["worker_id"]),
                image_digest=said.get("image_digest"),
                network=said.get("network"),
                runtime=said.get("runtime"),
                running_commands=said.get("running_commands"),
            )


@dataclass(frozen=True, slots=True)
class CommandInfo:
    """A command as it is now, without its output.

    sb.commands.run("true")
    known = sb.commands.list()[-1]
    assert known.status == "exited" and known.command == ["sh", "-c", "true"]
    """

    id: str
    sandbox_id: str
    status: CommandStatus
    exit_code: int | None
    signal: str | None
    """Its name, like `SIGKILL`."""
    detail: str
    """Why it did not start, or was lost."""
    command: list[str]
    """What was run, the shell included."""
    terminal: bool
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    stdout_bytes: int
    stderr_bytes: int
    """Of the whole stream so far."""
    stdin_bytes: int
    """Of input that were taken."""

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """As a server says it. How a command ended is never guessed: a status of a later version is an error."""
        with understood("a command"):
            return cls(
                id=str(said["command_id"]),
                sandbox_id=str(said["sandbox_id"]),
                status=CommandStatus(said["status"]),
                exit_code=_number(said.get("exit_code")),
                signal=signal_name(_number(said.get("signal"))),
                detail=str(said.get("detail") or ""),
                command=[str(word) for word in said.get("command", ())],
                terminal=bool(said.get("terminal", False)),
                started_at=moment(said.get("started_at")),
                ended_at=moment(said.get("ended_at")),
                stdout_bytes=int(said.get("stdout_bytes", 0)),
                stderr_bytes=int(said.get("stderr_bytes", 0)),
                stdin_bytes=int(said.get("stdin_bytes", 0)),
            )

    @property
    def has_ended(self) -> bool:
        """Whether it has, however."""
        return self.status is not CommandStatus.RUNNING


@dataclass(frozen=True, slots=True)
class Output:
    """Some bytes of a stream, behind those that came before.

    `text` is what they say: a character that is split between two pieces stands in the second one, and what is no
    UTF-8 is U+FFFD. `lost` bytes before them were not kept by anybody.

        command = sb.commands.start("echo one; echo two")
        assert "".join(piece.text for piece in command.output()) == "one\\ntwo\\n"
    """

    stream: str
    """`stdout` or `stderr`."""
    data: bytes
    text: str
    offset: int = 0
    """Where it begins in its stream."""
    lost: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Ended:
    """How a command ended, and what it printed. `CommandResult` has its receipt, too."""

    info: CommandInfo
    stdout_bytes: bytes
    stderr_bytes: bytes
    stdout_truncated: bool = False
    """Something of it is missing: more was printed than is kept, or was wanted."""
    stderr_truncated: bool = False

    def __repr__(self) -> str:
        how = f"status={str(self.status)!r}, exit_code={self.exit_code}, signal={self.signal!r}"
        said = [how, f"stdout={_short(self.stdout)}, stderr={_short(self.stderr)}"]
        said += [f"{name}=True" for name in ("stdout_truncated", "stderr_truncated") if getattr(self, name)]
        said += [f"detail={self.detail!r}"] if self.detail else []
        return f"{type(self).__name__}({', '.join(said)})"

    @property
    def stdout(self) -> str:
        """As text: what is no UTF-8 is U+FFFD, and a character that was cut through at the end is left out."""
        return decoded(self.stdout_bytes, whole=not self.stdout_truncated)

    @property
    def stderr(self) -> str:
        """The same of the other stream."""
        return decoded(self.stderr_bytes, whole=not self.stderr_truncated)

    @property
    def command_id(self) -> str:
        """Its name."""
        return self.info.id

    @property
    def status(self) -> CommandStatus:
        """How it ended."""
        return self.info.status

    @property
    def exit_code(self) -> int | None:
        """None where it did not end with one."""
        return self.info.exit_code

    @property
    def signal(self) -> str | None:
        """The name of what ended it, where a signal did."""
        return self.info.signal

    @property
    def detail(self) -> str:
        """Why it did not start, or was lost."""
        return self.info.detail

    @property
    def started_at(self) -> dt.datetime | None:
        """When it started; None where that is not known."""
        return self.info.started_at

    @property
    def ended_at(self) -> dt.datetime | None:
        """When it ended; None where that is not known."""
        return self.info.ended_at

    @property
    def ok(self) -> bool:
        """It ended by itself, with exit code 0."""
        return self.status is CommandStatus.EXITED and self.exit_code == 0

    def check(self) -> Self:
        """Itself if it is `ok`; else `CommandFailedError`, which says how it ended.

        from fumehood import CommandFailedError

        try:
            sb.commands.run("echo no such thing >&2; exit 3").check()
        except CommandFailedError as error:
            assert error.detail == "it exited with 3: no such thing" and error.reason == "exited"
        """
        if self.ok:
            return self
        raise failure(CommandFailedError, self)


# --- in words ----------------------------------------------------------------------------------------------

REMEDIES: Mapping[CommandStatus, str] = {
    CommandStatus.EXITED: "what it printed says why: `result.stderr`",
    CommandStatus.SIGNALED: "what it printed says how far it came: `result.stdout`",
    CommandStatus.TIMED_OUT: "give it more time with timeout=; everything in the sandbox was killed",
    CommandStatus.OOM: "make the sandbox with more memory_mib=, or give the command less to do",
    CommandStatus.NOT_STARTED: "look whether the image has the program, and whether cwd= is there",
    CommandStatus.SANDBOX_LOST: SandboxLostError.remedy,
}


def failure(kind: type[CommandFailedError], ended: Ended, before: str = "it") -> CommandFailedError:
    """Why something did not end well, as an error: at most one line of what it printed last."""
    quoted = _last_line(ended.stderr) if ended.status in (CommandStatus.EXITED, CommandStatus.SIGNALED) else ""
    said = f"{before} {in_words(ended.info)}" + (f": {quoted}" if quoted else "")
    made = kind(str(ended.status), said, result=ended)
    return made.advise(REMEDIES.get(ended.status))


def in_words(info: CommandInfo) -> str:
    """How a command ended."""
    why = f": {_line(info.detail)}" if info.detail else ""
    said = {
        CommandStatus.RUNNING: "has not ended",
        CommandStatus.EXITED: f"exited with {info.exit_code}",
        CommandStatus.SIGNALED: f"was ended by {info.signal or 'a signal'}",
        CommandStatus.TIMED_OUT: "was killed, since it took longer than its timeout",
        CommandStatus.OOM: "was killed, since the sandbox's memory was full",
        CommandStatus.NOT_STARTED: f"did not start{why}",
        CommandStatus.SANDBOX_LOST: f"was lost with its sandbox, and nobody knows how far it came{why}",
    }
    return said[info.status]


def signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def decoded(data: bytes, *, whole: bool = True) -> str:
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final=whole)


def _short(text: str) -> str:
    return repr(text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…")


def _last_line(text: str) -> str:
    lines = text.rstrip().splitlines()
    return _line(lines[-1]) if lines else ""


def _line(text: str) -> str:
    """On one line, and without what a terminal takes for orders."""
    words = " ".join(text.split())
    words = words if len(words) <= LONGEST_QUOTE else f"{words[:LONGEST_QUOTE]}…"
    return "".join(letter if letter.isprintable() else "�" for letter in words)


# --- reading what a server says ------------------------------------------------------------------------------


def moment(text: object) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if isinstance(text, str) else None


def _number(found: object) -> int | None:
    return found if isinstance(found, int) and not isinstance(found, bool) else None


class understood:  # noqa: N801 - reads as a word in a `with`
    """What cannot be read is the server's, and told as that."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyError | ValueError | TypeError | AttributeError):
            raise UnexpectedAnswerError(
                f"the server says something about {self._what} that cannot be understood"
            ).advise("bring this client to the version of the server") from None
