"""The life of sessions: made, kept under a lease, removed.

The order of writes: a session is stored before the engine is asked to make its container, and told of only when it was
stored that it is there; its row goes when its container is gone. So the next process knows of every container that
may be there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import asdict, replace
from typing import Any, TypeVar

from fumehood.errors import CommandFailedError, LedgerError, SandboxError
from fumehood.images.admission import Admission, AdmittedImage
from fumehood.images.run_rules import RunWish
from fumehood.sandbox.driver import Driver, Handle, Isolation
from fumehood.sandbox.pauses import pause_seconds
from fumehood.sandbox.sessions.commands import Commands
from fumehood.sandbox.sessions.labels import LABEL_DIGEST, LABEL_SESSION, created_ms_of, name_of, spec_of, wish_of
from fumehood.sandbox.sessions.leases import Lease
from fumehood.sandbox.sessions.records import SessionRecord, SessionState, Sign, no_receipt
from fumehood.sandbox.sessions.session import Session, busy, not_found
from fumehood.sandbox.sessions.store import SessionStore
from fumehood.sandbox.sessions.tasks import Tasks
from fumehood.sandbox.sessions.values import SessionFacts, SessionName, SessionOptions, SessionWish
from fumehood.sandbox.spec import MIB
from fumehood.wire.console.codes import Reason

GONE_ATTEMPTS = 20

Changed = Callable[[SessionName, SessionFacts | None], None]
"""A session as it is now; `None`: it is gone."""
T = TypeVar("T")


class Lives:
    """All sessions of this machine."""

    def __init__(
        self,
        driver: Driver,
        admission: Admission,
        store: SessionStore,
        options: SessionOptions,
        sign: Sign = no_receipt,
    ) -> None:
        self._driver = driver
        self._admission = admission
        self._store = store
        self._options = options
        self._sessions: dict[SessionName, Session] = {}
        self._tasks = Tasks()
        self._listeners: list[Changed] = []
        self.doomed: dict[str, SessionName] = {}
        """Sandboxes that could not be removed yet, and that nobody may find."""
        self.strays: dict[str, Handle] = {}
        """Sandboxes of sessions that nobody here remembers, until it is heard whose they are."""
        self.draining = False
        self._closing = False
        self.commands = Commands(driver, store, options, self.lost, sign)

    # --- looking -------------------------------------------------------------------------------------------

    def all(self) -> list[Session]:
        return list(self._sessions.values())

    def names(self) -> set[SessionName]:
        """Of all sessions, and of those whose sandbox could not be removed yet."""
        return {*self._sessions, *self.doomed.values()}

    def knows(self, sandbox_id: str) -> bool:
        """Whether a sandbox is looked after, or is to be heard of."""
        owned = any(session.sandbox_id == sandbox_id for session in self._sessions.values())
        return owned or sandbox_id in self.doomed or sandbox_id in self.strays

    def find(self, name: SessionName) -> Session | None:
        return self._sessions.get(name)

    def live(self, name: SessionName, command_id: str | None = None) -> Session:
        """A session that can be used; by a command that has it for itself also when its lease is over, or while it is
        removed."""
        session = self._sessions.get(name)
        if session is None:
            raise not_found(name)
        session.lease = session.lease.seen(self._options.now())
        usable = session.there and not session.lease.over
        if not usable and (command_id is None or session.owner != command_id):
            raise not_found(name)
        return session

    def listen(self, listener: Changed) -> None:
        self._listeners.append(listener)

    def tell(self, session: Session, *, gone: bool = False) -> None:
        if not session.wish.once:
            for listener in self._listeners:
                listener(session.name, None if gone else session.facts())

    # --- making --------------------------------------------------------------------------------------------

    async def create(self, wish: SessionWish) -> Session:
        """Make a session, or find it, or wait for whoever makes it."""
        while (session := self._sessions.get(wish.name)) is not None and self._is_past(session):
            if session.owner is not None and not session.leaving:
                raise busy(wish.name)  # its lease is over, and its last command runs
            await self.remove(wish.name)
        session = session or self._begin(wish)
        try:
            await asyncio.shield(session.made)
        except asyncio.CancelledError:
            if session.made.cancelled() and not _is_cancelled():
                raise not_found(wish.name) from None  # removed while it was made
            raise
        return session

    def _is_past(self, session: Session) -> bool:
        return session.leaving or (session.there and session.lease.expired(self._options.now()))

    def _begin(self, wish: SessionWish) -> Session:
        if self.draining:
            raise CommandFailedError(Reason.NO_CAPACITY, "this worker goes away and takes no new sessions")
        if len(self._sessions) >= self._options.most_sessions:
            raise CommandFailedError(
                Reason.NO_CAPACITY, f"this worker keeps {len(self._sessions)} sessions, and takes no more"
            )
        now = self._options.now()
        session = Session(wish, uuid.uuid4().hex, Lease.begun(now, wish.lease_ms), now.wall_ms)
        session.made = self.spawn(self._make(session), f"make-{session.sandbox_id}")
        self._sessions[wish.name] = session
        return session

    async def _make(self, session: Session) -> None:
        try:
            image = await self._admitted(session)
            try:
                await self._built(session, image)
            except BaseException:
                await self._unmake(session)
                raise
        except BaseException:
            session.leaving = True
            self._forget(session)
            raise
        self.tell(session)

    async def _admitted(self, session: Session) -> AdmittedImage:
        """And what an earlier session of this name left is gone."""
        wish, policy = session.wish, self._admission.policy  # one for both, whatever becomes of its file meanwhile
        memory, cpu = wish.limits.memory_bytes // MIB, wish.limits.cpu_millis
        policy.permits(RunWish(network=wish.network, cpu_millis=cpu, memory_mib=memory))
        image = await self._admission.admit(wish.image, policy)
        await self._clear(wish.name)
        return image

    async def _built(self, session: Session, image: AdmittedImage) -> None:
        """Whatever becomes of it, there may be a row from here on, also when whoever waits for it is cancelled."""
        wish, sandbox_id, created_ms = session.wish, session.sandbox_id, session.created_ms
        evidence = {"admission": image.evidence.to_dict()}
        lease_ms = session.lease.expires_ms
        record = SessionRecord(wish, sandbox_id, image.digest, created_ms, lease_ms, evidence=evidence)
        await self._store.add_session(record)
        session.record = record
        session.handle = await self._driver.prepare(spec_of(wish, sandbox_id, created_ms, image))
        await self._driver.start(session.handle)
        await self._found(session)

    async def _found(self, session: Session) -> None:
        """The sandbox runs, and this process is its owner: from now on it is a session."""
        assert session.record is not None
        assert session.handle is not None
        isolation = (await self._driver.inspect(session.handle)).isolation
        runtime = isolation.runtime if isolation is not None else ""
        evidence = {**session.record.evidence, **_observed(isolation)}
        await self._store.mark_there(session.sandbox_id, runtime, evidence)
        session.record = replace(session.record, state=SessionState.THERE, runtime=runtime, evidence=evidence)

    async def _unmake(self, session: Session) -> None:
        """A container may be there whether or not the engine said so. If this process stops, it is the next one's."""
        if self._closing:
            return
        self.doomed[session.sandbox_id] = session.name
        with contextlib.suppress(SandboxError, LedgerError):  # the janitor goes on
            await self.remove_doomed(session.sandbox_id)

    async def remove_doomed(self, sandbox_id: str) -> None:
        name = self.doomed.get(sandbox_id)
        if name is None:
            return
        for handle in await self._driver.list({LABEL_SESSION: name.session_id}):
            if handle.sandbox_id == sandbox_id:
                await self._driver.destroy(handle)
        await self._store.drop_session(sandbox_id)
        self.doomed.pop(sandbox_id, None)

    async def _clear(self, name: SessionName) -> None:
        """What an earlier session of this name left."""
        for sandbox_id in [sandbox_id for sandbox_id, doomed in self.doomed.items() if doomed == name]:
            await self.remove_doomed(sandbox_id)

    # --- taking over ---------------------------------------------------------------------------------------

    def recovered(self, record: SessionRecord, handle: Handle) -> Session:
        """A session of an earlier life of this process, whose sandbox this one is the owner of by now."""
        lease = Lease.stored(self._options.now(), record.lease_expires_ms)
        session = Session(record.wish, record.sandbox_id, lease, record.created_ms, record, handle)
        session.made.set_result(None)
        self._sessions[record.name] = session
        return session

    def doom(self, record: SessionRecord, handle: Handle, farewell: str) -> Session:
        """One whose removal an earlier life began, or whose sandbox is of no use any more."""
        session = self.recovered(record, handle)
        session.leaving, session.farewell = True, farewell
        self.spawn(self.removed(session), f"doomed-{session.sandbox_id}")
        return session

    async def adopt(self, handle: Handle, lease_expires_ms: int) -> None:
        """A sandbox that nobody here remembers, and that somebody else knows a lease for. What ran in it is ended:
        nobody knows who asked for it. Meanwhile it is found by its name, and waited for."""
        wish, lease = wish_of(handle.labels), Lease.stored(self._options.now(), lease_expires_ms)
        session = Session(wish, handle.sandbox_id, lease, created_ms_of(handle.labels), handle=handle)
        session.made = self.spawn(self._adopted(session, handle), f"adopt-{session.sandbox_id}")
        self._sessions[wish.name] = session
        await asyncio.shield(session.made)

    async def _adopted(self, session: Session, handle: Handle) -> None:
        try:
            await self._clear(session.name)
            await self._driver.attach(handle)
            await self._driver.disown(handle, ())
            isolation = (await self._driver.inspect(handle)).isolation
            record = SessionRecord(
                wish=session.wish,
                sandbox_id=handle.sandbox_id,
                image_digest=handle.labels.get(LABEL_DIGEST, ""),
                created_ms=session.created_ms,
                lease_expires_ms=session.lease.expires_ms,
                state=SessionState.THERE,
                runtime=isolation.runtime if isolation is not None else "",
                evidence=_observed(isolation),
            )
            await self._store.add_session(record)
        except BaseException:
            if session.leaving:  # somebody wants it gone
                await self._unmake(session)
            self._forget(session)
            raise
        session.record = record
        self.strays.pop(session.sandbox_id, None)
        self.tell(session)

    # --- leases --------------------------------------------------------------------------------------------

    async def extend(self, name: SessionName, length_ms: int) -> Session:
        session = self.live(name)
        longer = session.lease.extended(self._options.now(), length_ms)
        if longer != session.lease:
            await self._store.extend(session.sandbox_id, longer.expires_ms)
            if not session.there:
                raise not_found(name)
            session.lease = session.lease.joined(longer)
            self.tell(session)
        return session

    # --- removing ------------------------------------------------------------------------------------------

    def lost(self, session: Session, detail: str) -> None:
        """Its sandbox ended by itself, or nothing is known of it: it is removed."""
        if not session.leaving:
            session.leaving = True
            session.farewell = f"the session was lost: {detail}"
            self.spawn(self.removed(session), f"lost-{session.sandbox_id}")

    def let_go(self, session: Session) -> None:
        """Nobody needs it. If this process stops before it is gone, it is the next one's."""
        if not session.leaving:
            session.leaving = True
            self.spawn(self.removed(session), f"let-go-{session.sandbox_id}")

    async def remove(self, name: SessionName) -> None:
        """Everything is dead and gone when it returns. What stood in the way is raised, and tried again later."""
        session = self._sessions.get(name)
        if session is not None:
            await self.removed(session)
        for handle in [handle for handle in self.strays.values() if name_of(handle) == name]:
            await self.remove_stray(handle)
        with contextlib.suppress(LedgerError):  # its containers are gone before its row: see `remove_doomed`
            await self._clear(name)

    async def remove_stray(self, handle: Handle) -> None:
        await self._driver.destroy(handle)
        self.strays.pop(handle.sandbox_id, None)

    async def removed(self, session: Session) -> None:
        if session.going is None:
            session.going = self.spawn(self._go(session), f"remove-{session.sandbox_id}")
        await asyncio.shield(session.going)

    async def _go(self, session: Session) -> None:
        session.leaving = True
        try:
            if not session.made.done():
                session.made.cancel()
                await asyncio.wait({session.made})
            if session.handle is not None and self._sessions.get(session.name) is session:
                await self._end(session, session.handle)
        finally:
            session.going = None  # where it failed, the next one tries again

    async def _end(self, session: Session, handle: Handle) -> None:
        with contextlib.suppress(LedgerError):  # it helps the next process, and must not keep this one
            await self._store.mark_going(session.sandbox_id, session.farewell)
        for process in session.running.values():
            process.output.release()
        await self._destroyed(handle)
        await self.commands.gone(session)
        try:
            await self._store.drop_session(session.sandbox_id)
        except LedgerError:
            self.doomed[session.sandbox_id] = session.name  # the row of something that is gone
        self._forget(session)
        self.tell(session, gone=True)

    async def _destroyed(self, handle: Handle) -> None:
        for attempt in range(GONE_ATTEMPTS):
            try:
                await self._driver.destroy(handle)
            except SandboxError:
                if attempt + 1 == GONE_ATTEMPTS:
                    raise
                await asyncio.sleep(pause_seconds(attempt))
            else:
                return

    def _forget(self, session: Session) -> None:
        if self._sessions.get(session.name) is session:
            del self._sessions[session.name]

    # --- tasks ---------------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Work that goes on when whoever asked for it has gone."""
        return self._tasks.spawn(work, name)

    async def close(self) -> None:
        """Stop everything here. Sandboxes and what runs in them stay as they are."""
        self._closing = True
        await self._tasks.close(self.commands.stop())


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _observed(isolation: Isolation | None) -> dict[str, Any]:
    """As it is stored, so that it is the same in the next life of this process."""
    return {} if isolation is None else dict(json.loads(json.dumps({"isolation": asdict(isolation)})))
