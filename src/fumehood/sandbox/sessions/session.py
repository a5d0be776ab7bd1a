"""A session, as this process knows it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from fumehood.errors import CommandFailedError
from fumehood.sandbox.driver import Handle
from fumehood.sandbox.sessions.leases import Lease
from fumehood.sandbox.sessions.process import Process
from fumehood.sandbox.sessions.records import SessionRecord
from fumehood.sandbox.sessions.values import SessionFacts, SessionName, SessionWish
from fumehood.wire.console.codes import Reason

FILE_OPERATIONS = 6
"""At once in one session: with its commands they stay below what a supervisor takes."""


@dataclass(slots=True, eq=False)
class Session:
    wish: SessionWish
    sandbox_id: str
    lease: Lease
    created_ms: int
    record: SessionRecord | None = None
    """Once its image was admitted."""
    handle: Handle | None = None
    """Once the engine made it."""
    made: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done when it can be used, or when it is clear that it will never be."""
    going: asyncio.Task[None] | None = None
    """Its removal, while that is under way."""
    leaving: bool = False
    """It takes no commands any more."""
    gone: bool = False
    """Nothing of it is left at the engine."""
    farewell: str = "the session was removed"
    """What its commands are told that it ends."""
    holder: str | None = None
    """Which command has it for itself; an empty name is somebody, too."""
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Commands are sent in the order of their numbers."""
    files: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FILE_OPERATIONS))
    processes: dict[str, Process] = field(default_factory=dict)
    """Running and ended, in the order of their beginning."""
    running: dict[str, Process] = field(default_factory=dict)
    """Those of them that run. `Known` keeps both."""

    @property
    def name(self) -> SessionName:
        return self.wish.name

    @property
    def there(self) -> bool:
        return self.made.done() and not self.made.cancelled() and not self.made.exception() and not self.leaving

    @property
    def owner(self) -> str | None:
        """The command that has it for itself, also one that an earlier life of this process began."""
        if self.holder is not None:
            return self.holder
        return next((command_id for command_id, process in self.running.items() if process.record.exclusive), None)

    def is_spent(self, since: float) -> bool:
        """It was for one command, which has ended, and nobody has asked for that since."""
        if not self.wish.once or self.running or not self.processes:
            return False
        return max(process.used for process in self.processes.values()) < since

    def known(self) -> tuple[SessionRecord, Handle]:
        """Of a session that is there."""
        if self.record is None or self.handle is None or self.leaving:
            raise not_found(self.name)
        return self.record, self.handle

    def facts(self) -> SessionFacts:
        record, _ = self.known()
        return SessionFacts(
            name=self.name,
            sandbox_id=record.sandbox_id,
            image=self.wish.image,
            image_digest=record.image_digest,
            created_ms=self.created_ms,
            lease_expires_ms=self.lease.expires_ms,
            network=self.wish.network,
            runtime=record.runtime,
            running=len(self.running),
            made_by=self.wish.made_by,
            limits=self.wish.limits,
            env=self.wish.env,
            evidence=record.evidence,
        )


def not_found(name: SessionName) -> CommandFailedError:
    return CommandFailedError(Reason.SESSION_NOT_FOUND, f"there is no session {name.session_id} (any more)")


def busy(name: SessionName) -> CommandFailedError:
    return CommandFailedError(
        Reason.SESSION_BUSY,
        f"another command has the session {name.session_id} for itself: try again when it has ended",
    )
