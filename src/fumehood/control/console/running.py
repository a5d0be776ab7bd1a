"""A command in a sandbox from its start to its end, for whoever waits: its input fed, its output put together."""

from __future__ import annotations

import asyncio
import codecs
import time
from dataclasses import dataclass, field

from fumehood.control.callers import Caller
from fumehood.control.console.output_streams import unseen
from fumehood.control.console.ports_http import SandboxesPort
from fumehood.wire.command_api import OutputPosition, OutputStream
from fumehood.wire.console.sessions import (
    LONGEST_START_WAIT_MS,
    LONGEST_WAIT_MS,
    AskCommand,
    AskOutput,
    CommandStatus,
    CommandView,
    SendInput,
    StartCommand,
)

FEED_SECONDS = 10.0
"""For a command that goes on to take its first input, before the caller is told how much of it was taken."""


@dataclass(frozen=True, slots=True)
class Text:
    """The beginning of a stream."""

    text: str = ""
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Printed:
    """What an ended command printed, as far as one answer holds it."""

    stdout: Text = field(default_factory=Text)
    stderr: Text = field(default_factory=Text)


async def run(
    port: SandboxesPort, caller: Caller, start: StartCommand, given: bytes | None, wait_ms: int
) -> tuple[CommandView, bytes]:
    """Start it, give it its input, and wait for its end; with what it printed, if that came with the answer to its
    start. `given` is all of its input, unless `start.stdin`."""
    if given is None:
        began, first_ms = time.monotonic(), min(wait_ms, LONGEST_START_WAIT_MS)
        view, output = await port.start(caller, start.model_copy(update={"wait_ms": first_ms}))
        waited_ms = min(first_ms, int((time.monotonic() - began) * 1000))  # some workers answer at once
        return await waited(port, caller, view, wait_ms - waited_ms), output
    view, _ = await port.start(caller, start.model_copy(update={"stdin": True}))
    feeding = asyncio.ensure_future(_feed(port, caller, view, given, eof=not start.stdin))
    try:
        view = await waited(port, caller, view, wait_ms)
        if view.status is CommandStatus.RUNNING:
            await asyncio.wait({feeding}, timeout=FEED_SECONDS)
            if feeding.done():
                feeding.result()
            view = await port.command(caller, _ask(view, 0))
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)  # of one that has ended it does not matter
    return view, b""


async def _feed(port: SandboxesPort, caller: Caller, view: CommandView, data: bytes, *, eof: bool) -> None:
    at = view.stdin_bytes
    while True:
        asked = SendInput(session_id=view.session_id, command_id=view.command_id, offset=at, eof=eof)
        taken = await port.input(caller, asked, data[at:])
        if taken.stdin_bytes >= len(data):
            return
        at = taken.stdin_bytes


async def waited(port: SandboxesPort, caller: Caller, view: CommandView, wait_ms: int) -> CommandView:
    """As it stands when it has ended, or the time is over."""
    until = time.monotonic() + wait_ms / 1000
    while view.status is CommandStatus.RUNNING and (left := until - time.monotonic()) > 0:
        view = await port.command(caller, _ask(view, min(LONGEST_WAIT_MS, int(left * 1000) + 1)))
    return view


def _ask(view: CommandView, wait_ms: int) -> AskCommand:
    return AskCommand(session_id=view.session_id, command_id=view.command_id, wait_ms=wait_ms)


async def printed(port: SandboxesPort, caller: Caller, view: CommandView, most: int, known: bytes = b"") -> Printed:
    """Of an ended command: the beginning of each stream, up to `most` bytes. Where the sandbox was lost, nobody heard
    the end of either. `known`: all of stdout and then of stderr, if that came before."""
    out, err = _Beginning(view.stdout_bytes, most), _Beginning(view.stderr_bytes, most)
    if len(known) == view.stdout_bytes + view.stderr_bytes:
        out.add(0, known[: view.stdout_bytes])
        err.add(0, known[view.stdout_bytes :])
    while not (out.whole and err.whole):
        position = OutputPosition(out.next, err.next)
        asked = AskOutput(
            session_id=view.session_id, command_id=view.command_id, stdout=position.stdout, stderr=position.stderr
        )
        output, data = await port.output(caller, asked)
        for told, _ in unseen(position, output, data):
            (out if told.stream is OutputStream.STDOUT else err).add(told.offset, told.data)
        if not output.pieces:
            break
    unheard = view.status is CommandStatus.SANDBOX_LOST
    return Printed(out.text(unheard=unheard), err.text(unheard=unheard))


class _Beginning:
    """Of one stream."""

    def __init__(self, total: int, most: int) -> None:
        self._total = total
        self._most = most
        self._kept = bytearray()
        self.whole = total == 0
        """Nothing more is wanted."""

    @property
    def next(self) -> int:
        """From where to read on; what is not wanted was read, as far as the worker is concerned."""
        return self._total if self.whole else len(self._kept)

    def add(self, offset: int, data: bytes) -> None:
        """Where something before it is gone, what is left is no beginning."""
        if self.whole or offset != len(self._kept):
            self.whole = True
            return
        self._kept += data[: self._most - len(self._kept)]
        self.whole = len(self._kept) >= min(self._most, self._total)

    def text(self, *, unheard: bool) -> Text:
        """A character that was cut through is left out; bytes that are no text become U+FFFD."""
        truncated = unheard or len(self._kept) < self._total
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return Text(decoder.decode(bytes(self._kept), final=not truncated), truncated)
