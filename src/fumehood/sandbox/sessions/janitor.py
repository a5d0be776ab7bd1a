"""What is over is removed, what is kept is kept alive, and what nobody remembers is cleared away.

Nothing ends the janitor but the end of this process: a step that fails, for whatever reason, is told of and tried again
in the next round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping

import structlog

from fumehood.errors import FumehoodError, SandboxError, SandboxLostError, SandboxNotFoundError
from fumehood.sandbox.driver import Driver, Handle
from fumehood.sandbox.sessions.labels import is_once, name_of
from fumehood.sandbox.sessions.lives import Lives
from fumehood.sandbox.sessions.session import Session
from fumehood.sandbox.sessions.values import SessionName, SessionOptions

KEEP_SECONDS = 5.0
"""Between looks at the connection to each sandbox: well within the time that one lives without its owner."""
SWEEP_SECONDS = 60.0
SPENT_SECONDS = 60.0
"""How long a session for one command that has ended stays, where whoever should let go of it does not."""
STRAY_SECONDS = 1800.0
"""If by then no server said which leases it knows, sandboxes that nobody here remembers go: it is the longest lease."""
_log = structlog.get_logger()


class Janitor:
    def __init__(self, driver: Driver, lives: Lives, options: SessionOptions) -> None:
        self._driver = driver
        self._lives = lives
        self._options = options
        self._keeping: set[str] = set()
        self._leases: Mapping[SessionName, int] | None = None
        """As they were heard last."""
        self._claiming = asyncio.Lock()
        self._troubles: dict[str, str] = {}
        """What each kind of step failed for last: told once."""
        self._clearing: asyncio.Task[None] | None = None
        self._began = self._swept = _now()
        self._kept = self._began - KEEP_SECONDS  # strays would end before anybody is heard

    async def forever(self) -> None:
        while True:
            await self._step("round", self._round())
            await asyncio.sleep(self._options.janitor_seconds)

    async def _round(self) -> None:
        self._reap()
        await self._step("tidy", self._lives.commands.all.tidy())
        if (self._lives.doomed or self._lives.strays) and (self._clearing is None or self._clearing.done()):
            self._clearing = self._lives.spawn(self._clear(), "clear")
        if _now() - self._kept >= KEEP_SECONDS:
            self._kept = _now()
            self._keep_all()
        if self._leases is None and _now() - self._began >= STRAY_SECONDS:
            await self._step("hear", self.hear({}))
        if self._leases is not None and _now() - self._swept >= SWEEP_SECONDS:
            self._swept = _now()
            await self._step("sweep", self._sweep())

    async def _step(self, kind: str, work: Awaitable[None]) -> None:
        try:
            await work
        except (FumehoodError, OSError) as error:
            trouble = error.code if isinstance(error, FumehoodError) else type(error).__name__
            if self._troubles.get(kind) != trouble:
                _log.warning("janitor.trouble", step=kind, code=trouble)
            self._troubles[kind] = trouble
        except Exception as error:  # noqa: BLE001 - whatever it is, sandboxes must not be left alone for it
            _log.error("janitor.broken", step=kind, exc_info=error)
        else:
            self._troubles.pop(kind, None)

    # --- what is over --------------------------------------------------------------------------------------

    async def _clear(self) -> None:
        """What could not be removed, or claimed, before."""
        for sandbox_id in list(self._lives.doomed):
            await self._step("clear", self._lives.remove_doomed(sandbox_id))
        if self._leases is not None and not self._claiming.locked():
            await self._claim_all()

    def _reap(self) -> None:
        """Sessions whose time is over and that nobody has for himself, and those whose removal failed."""
        for session in self._lives.all():
            if session.going is not None or not session.made.done():
                continue
            session.lease = session.lease.seen(self._options.now())
            over = session.lease.over or session.is_spent(_now() - SPENT_SECONDS)
            if session.leaving or (over and session.owner is None):
                if not session.leaving:
                    session.leaving, session.farewell = True, "the session's lease was over"
                self._lives.spawn(self._lives.removed(session), f"reap-{session.sandbox_id}")

    # --- what is kept --------------------------------------------------------------------------------------

    def _keep_all(self) -> None:
        for session in self._lives.all():
            if session.there and session.handle is not None:
                self._lives.spawn(self._keep(session.handle, session), f"keep-{session.sandbox_id}")
        for handle in self._lives.strays.values():
            self._lives.spawn(self._keep(handle, None), f"keep-{handle.sandbox_id}")

    async def _keep(self, handle: Handle, session: Session | None) -> None:
        """A sandbox lives only for a while without its owner; one that ended by itself is noticed here."""
        if handle.sandbox_id in self._keeping:
            return
        self._keeping.add(handle.sandbox_id)
        try:
            await self._driver.attach(handle)
        except (SandboxLostError, SandboxNotFoundError) as error:
            if session is not None and not session.running:  # a command that runs finds out, too, and knows more
                self._lives.lost(session, error.detail)
        except SandboxError:
            return  # the engine is away: the next look may do
        finally:
            self._keeping.discard(handle.sandbox_id)

    # --- what nobody remembers -----------------------------------------------------------------------------

    async def hear(self, leases: Mapping[SessionName, int]) -> None:
        """Somebody says which sessions are known elsewhere to be on this machine, and until when. Whoever says it may
        go before it is done."""
        self._leases = dict(leases)
        await asyncio.shield(self._lives.spawn(self._claim_all(), "claim"))

    async def _claim_all(self) -> None:
        """Take over all strays, or remove them. One for which neither works stays one, until the next round."""
        async with self._claiming:
            for handle in list(self._lives.strays.values()):
                await self._step("claim", self._claim(handle))

    async def _claim(self, handle: Handle) -> None:
        name = name_of(handle)
        expires_ms = (self._leases or {}).get(name, 0) if name is not None else 0
        free = name is not None and self._lives.find(name) is None and not is_once(handle.labels)
        if not free or expires_ms <= self._options.clock():
            await self._lives.remove_stray(handle)
            return
        try:
            await self._lives.adopt(handle, expires_ms)
        except (SandboxLostError, SandboxNotFoundError, ValueError):  # of no use, or of a version that we do not know
            await self._lives.remove_stray(handle)

    async def _sweep(self) -> None:
        for handle in await self._driver.list({}):
            if name_of(handle) is not None and not self._lives.knows(handle.sandbox_id):
                await self._step("sweep", self._driver.destroy(handle))


def _now() -> float:
    return asyncio.get_running_loop().time()
