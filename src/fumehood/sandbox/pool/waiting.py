"""A program that was started before anybody asked for it, and waits inside an idle sandbox for what it is to do.

There is one kind, a Python interpreter. It is command `NUMBER` of its sandbox, and becomes its owner's command: its
clock starts when that is sent, and everything that it says and how it ends is told to him. Whatever is done here may be
done again after this process died, and is then done once.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass, replace
from typing import Final

from fumehood.errors import DeadlineExceededError, SandboxStartError
from fumehood.sandbox.capture import Capture
from fumehood.sandbox.driver import Driver, Handle, PacedSink, Phase, Sink
from fumehood.sandbox.pool import interpreter
from fumehood.sandbox.spec import WORKSPACE, Command, End, Outcome, Stage
from fumehood.sandbox.warden.outcome import not_started

PYTHON: Final = "python"
NUMBER: Final = 1
AGAIN_SECONDS: Final = 0.05
_PROGRAM: Final = ("python", "-c")
_COMMAND: Final = Command(
    argv=(*_PROGRAM, interpreter.BOOT), env={"HOME": WORKSPACE}, open_stdin=True, waits=True, timeout_ms=0
)
_NOTHING: Final = replace(_COMMAND, argv=(*_PROGRAM, "pass"), open_stdin=False, waits=False, timeout_ms=30_000)


class Later:
    """Takes nothing until it is known who hears it: what a program says before that waits in its sandbox."""

    def __init__(self) -> None:
        self._sink: Sink | None = None
        self._told = asyncio.Event()
        self.spoke = False
        """It said something before it was asked to do anything."""

    def tell(self, sink: Sink) -> None:
        self._sink = sink
        self._told.set()

    async def room(self) -> None:
        self.spoke = self.spoke or not self._told.is_set()
        await self._told.wait()
        if isinstance(self._sink, PacedSink):
            await self._sink.room()

    def write(self, stream: int, offset: int, data: bytes) -> None:
        assert self._sink is not None  # there was no room before
        self._sink.write(stream, offset, data)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A program that waits, as the process knows it that started it."""

    task: asyncio.Task[Outcome]
    heard: Later

    @property
    def ended(self) -> bool:
        """Or as good as that: one that waits has nothing to say. Its end stands behind what it said, which nobody
        takes yet, so that it is not heard of."""
        return self.task.done() or self.heard.spoke

    @property
    def failed(self) -> bool:
        """This process does not follow it any more; it may well go on."""
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)

    def give_up(self) -> None:
        """Nobody will hear it. The sandbox goes, too."""
        self.task.cancel()
        self.task.add_done_callback(_take_note)


async def begun(driver: Driver, handle: Handle, kind: str) -> Waiting:
    """Start one in a fresh sandbox; it may take a moment more until it really waits, or has ended: see `is_fit`."""
    if kind != PYTHON:
        raise SandboxStartError(f"nothing is known that waits as {kind!r}")
    heard = Later()
    waiting = Waiting(asyncio.create_task(driver.run(handle, _COMMAND, heard, command_id=NUMBER)), heard)
    sent = asyncio.create_task(driver.reached(handle, NUMBER, Phase.SENT))
    try:
        await asyncio.wait({sent, waiting.task}, return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        waiting.give_up()
        raise
    finally:
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)
    return waiting


async def is_fit(driver: Driver, handle: Handle, waiting: Waiting) -> bool:
    """Does the image's interpreter do what it is told, and nothing else? It is given a program that does nothing; the
    sandbox is used up by that."""
    said = Capture(1)
    outcome = await run(driver, handle, waiting, _NOTHING, said)
    if outcome.end is End.TIMED_OUT:
        raise DeadlineExceededError("an interpreter that was to do nothing took too long")
    silent = all(stream is not None and stream.total_bytes == 0 for stream in (outcome.stdout, outcome.stderr))
    return silent and outcome.end is End.EXITED and outcome.exit_code == 0


def code_of(command: Command) -> str | None:
    """What the interpreter is to run; `None` for a command that it cannot stand in for."""
    like = replace(_COMMAND, argv=command.argv, open_stdin=False, waits=False, timeout_ms=command.timeout_ms)
    if command != like or len(command.argv) != len(_PROGRAM) + 1 or command.argv[:-1] != _PROGRAM:
        return None
    return command.argv[-1]


async def run(driver: Driver, handle: Handle, waiting: Waiting | None, command: Command, sink: Sink) -> Outcome:
    """Have the interpreter run a command's code to its end. Without `waiting` an earlier life may have begun that."""
    code = code_of(command)
    if code is None:
        raise SandboxStartError("this sandbox was made for a program of Python, and for nothing else")
    try:
        message = interpreter.message(code)
    except ValueError:
        return not_started(errno.E2BIG, Stage.EXEC)  # as where it is an argument; the interpreter goes with its sandbox
    followed = None if waiting is None or waiting.failed else waiting
    if followed is None:
        joined = asyncio.create_task(driver.run(handle, _COMMAND, sink, command_id=NUMBER))
    else:
        followed.heard.tell(sink)
        joined = followed.task
    telling = asyncio.create_task(_told(driver, handle, message, command.timeout_ms))
    try:
        await asyncio.wait({joined, telling}, return_when=asyncio.FIRST_COMPLETED)
        if telling.done() and not joined.done():
            telling.result()
        return await asyncio.shield(joined)
    except asyncio.CancelledError:
        joined.cancel()
        raise
    finally:
        telling.cancel()
        joined.add_done_callback(_take_note)
        await asyncio.gather(telling, return_exceptions=True)
        if followed is None:  # whoever tries again could not join it while this one waits for it
            joined.cancel()
            await asyncio.gather(joined, return_exceptions=True)


async def _told(driver: Driver, handle: Handle, message: bytes, timeout_ms: int) -> None:
    """Its time starts before it has its code: it never has more than its owner gave it."""
    await driver.begin(handle, NUMBER, timeout_ms)
    while await driver.feed(handle, NUMBER, 0, message) < len(message):  # noqa: ASYNC110 - it is asked for, not told
        await asyncio.sleep(AGAIN_SECONDS)  # it does not read, or it has ended: whoever waits for it is told


def _take_note(task: asyncio.Task[Outcome]) -> None:
    if not task.cancelled():
        task.exception()
