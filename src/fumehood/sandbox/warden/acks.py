"""What may be acknowledged: all frames up to the first one that is not yet safe with us, and behind it those of each
command by itself. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from fumehood.errors import WardenProtocolError
from fumehood.sandbox.warden import frames

ACK_EVERY = frames.WINDOW // 4
"""Acknowledge this often (bytes): rarely enough to cost nothing, early enough that no window ever runs dry."""
EVERY_COMMAND = 0

Ack = tuple[int, int]
"""A command, or `EVERY_COMMAND`, and the number up to which its frames are safe."""


@dataclass(slots=True)
class _Waiting:
    command_id: int
    seq: int
    size: int
    safe: bool = False
    ends: bool = False


class Acks:
    """The reliable frames of one attachment, in the order in which they came.

    Each command's frames become safe in order, but at its own pace: one that waits must not keep the others from being
    acknowledged. What is due is counted when it becomes safe and not when it arrives: with a window that is full
    nothing more arrives that could remind us. It is counted once more when all before it is safe, too: a warden that
    was started before it could be told of single commands has only then heard of it.
    """

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._frames: dict[int, _Waiting] = {}
        self._live = 1
        self._last = 0
        self._ready = 0
        self._told = 0
        self._loose: dict[int, int] = {}
        self._ready_bytes = 0
        self._loose_bytes = 0
        self._slot_waits = False

    def welcomed(self, next_seq: int) -> None:
        """Frames before this number come again, without those that were acknowledged; from it on there is no gap."""
        self._live = next_seq

    def arrived(self, command_id: int, seq: int, payload_bytes: int) -> bool:
        """Note a frame; whether it is a new one. A gap would be lost output: that is an error, never passed over."""
        if seq <= self._last:
            return False
        if seq >= self._live and seq != max(self._last + 1, self._live):
            raise WardenProtocolError(f"the warden sent frame {seq} after {self._last}")
        self._last = seq
        frame = self._frames[seq] = _Waiting(command_id, seq, frames.HEADER_SIZE + payload_bytes)
        self._waiting.append(frame)
        return True

    def safe(self, seq: int, *, ends: bool = False) -> None:
        """This frame need never come again. `ends`: it was the last of a command, which has its slot until then."""
        frame = self._frames[seq]
        frame.safe, frame.ends = True, ends
        self._loose[frame.command_id] = seq
        self._loose_bytes += frame.size
        self._slot_waits |= ends
        while self._waiting and self._waiting[0].safe:
            first = self._waiting.popleft()
            del self._frames[first.seq]
            self._ready = first.seq
            self._ready_bytes += first.size
            self._slot_waits |= first.ends

    @property
    def due(self) -> bool:
        return self._slot_waits or max(self._ready_bytes, self._loose_bytes) >= ACK_EVERY

    def take(self) -> list[Ack]:
        """What to acknowledge now, if there is any news."""
        news = [(EVERY_COMMAND, self._ready)] if self._ready > self._told else []
        news += [(command_id, seq) for command_id, seq in self._loose.items() if seq > self._ready]
        self._told = self._ready
        self._loose.clear()
        self._ready_bytes = self._loose_bytes = 0
        self._slot_waits = False
        return news
