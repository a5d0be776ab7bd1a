"""What the console is to its gRPC door, and the door to the console. Neither knows the other's parts."""

from __future__ import annotations

from typing import Protocol

from fumehood.wire.console.console_pb2 import ConsoleFrame, Hello, HelloAck, WorkerFrame


class OutletClosedError(Exception):
    """The stream takes no more: it was closed, or its worker does not read."""


class Outlet(Protocol):
    """The way to a worker, over one stream."""

    def send(self, frame: ConsoleFrame) -> None:
        """Never waits. `OutletClosedError` where it is closed, or more waits to be read than is allowed: then it closes
        itself."""
        ...

    def close(self, code: str, detail: str) -> None:
        """End the stream, for a reason that the worker is told: `worker_replaced`, `unauthenticated` or `draining`."""
        ...


class Held(Protocol):
    """A stream that the console took."""

    @property
    def ack(self) -> HelloAck:
        """To be sent first."""
        ...

    async def take(self, frame: WorkerFrame) -> None:
        """What the worker said. Raises `InvalidRequestError` for what it may not say: the stream must be ended then."""
        ...

    async def gone(self) -> None:
        """The stream has ended, whoever ended it. Once, in any case."""
        ...


class Welcomer(Protocol):
    async def welcome(self, hello: Hello, outlet: Outlet) -> Held:
        """Raises `UnauthenticatedError`, `InvalidRequestError`, or `DrainingError` where this server leaves."""
        ...
