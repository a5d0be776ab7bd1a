"""What one attachment knows of one command."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from fumehood.sandbox.driver import Sink
from fumehood.sandbox.warden import frames
from fumehood.sandbox.warden.frames import Exit, Frame, Type


@dataclass(slots=True, eq=False)
class Known:
    """A command that was started over this attachment, or was there when it began."""

    command_id: int
    received: int = 0
    """Input that the warden has for certain."""
    written: int = 0
    """Input that was sent over this attachment, or before it: what the warden has unless the attachment breaks."""
    handed: int = 0
    """Input that the program has, as far as we were told."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """`handed` grew, or the command or the attachment is over."""
    input_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    input_ended: bool = False
    input_refused: bool = False
    refused: bool = False
    """The warden did not take it: it never was."""
    over: bool = False
    """It has ended, though perhaps nobody took its EXIT yet."""
    exit_arrived: bool = False
    lost: BaseException | None = None
    """Why the attachment is over."""
    dropped: bool = False
    """Nobody wants anything of it any more: whatever still comes is passed over."""
    held: deque[Frame] = field(default_factory=deque)
    """Arrived and not yet taken. The warden keeps at most a window unacknowledged of each command: bounded."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    ended: Exit | None = None
    exit_seq: int | None = None
    """Of the EXIT that was taken; it is safe once the outcome is settled."""
    waiter: Waiter | None = None

    @property
    def all_here(self) -> bool:
        """Whatever becomes of the attachment: all that there ever will be of it has arrived."""
        return bool(self.held) and self.held[-1].type == Type.EXIT

    @property
    def forgotten(self) -> bool:
        """The warden has nothing more to tell of it."""
        return self.dropped and self.exit_arrived

    @property
    def room(self) -> int:
        """How much more input the warden takes now."""
        return self.handed + frames.STDIN_WINDOW - self.written

    def hold(self, frame: Frame) -> None:
        self.held.append(frame)
        self.arrived.set()
        if frame.type == Type.EXIT:
            self.over = self.exit_arrived = True
            self.moved.set()

    def was_handed(self, total: int) -> None:
        self.handed = max(self.handed, total)
        self.received = max(self.received, total)
        self.moved.set()


@dataclass(slots=True, eq=False)
class Waiter:
    """Who waits for a command's end and takes its output."""

    sink: Sink
    exit: asyncio.Future[Exit]
    pump: asyncio.Task[None] | None = None
    """Takes the output of a paced sink."""
