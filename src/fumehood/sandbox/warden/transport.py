"""What a warden's client speaks over."""

from __future__ import annotations

from typing import Protocol


class TransportClosedError(Exception):
    """The attachment ended; the sandbox itself may well live on."""


class NotRunningError(TransportClosedError):
    """There is nothing to attach to: the sandbox has ended, or was never started."""


class Transport(Protocol):
    """A byte stream to and from a warden, whatever carries it."""

    async def read(self) -> bytes:
        """The next bytes that the warden wrote; empty at the end of the stream."""
        ...

    async def write(self, data: bytes) -> None: ...

    def abort(self) -> None:
        """Let go at once, without waiting for anything."""
        ...
