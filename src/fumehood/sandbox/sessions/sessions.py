"""Sessions: sandboxes that are kept under a lease, and the commands in them.

Everything here may be asked twice: whoever asks chooses the names and counts bytes from the beginning, so the second
time finds what the first one did, also in another life of this process. Errors of the domain are
`CommandFailedError` with a reason of the console's protocol; what the engine, the image or the store says comes as
it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress

from fumehood.errors import CommandFailedError, InvalidRequestError, LedgerError
from fumehood.images.admission import Admission
from fumehood.sandbox.driver import Driver, Files, Handle
from fumehood.sandbox.sessions.bounded_files import BoundedFiles
from fumehood.sandbox.sessions.janitor import Janitor
from fumehood.sandbox.sessions.lives import Changed, Lives
from fumehood.sandbox.sessions.output import behind
from fumehood.sandbox.sessions.process import Process
from fumehood.sandbox.sessions.records import Sign, no_receipt
from fumehood.sandbox.sessions.recovery import Recovery
from fumehood.sandbox.sessions.session import busy, not_found
from fumehood.sandbox.sessions.store import SessionStore
from fumehood.sandbox.sessions.values import (
    Captured,
    Piece,
    ProcessFacts,
    ProcessWish,
    SessionFacts,
    SessionName,
    SessionOptions,
    SessionWish,
)
from fumehood.wire.console.codes import PIECE_BYTES, Reason

INPUT_SECONDS = 10.0
"""How long a piece of input waits for a program that does not read."""
REMOVE_ROUNDS = 3


class Sessions:
    """Use `async with Sessions.open(…)`. Leaving it leaves all sandboxes as they are: see `remove_all`."""

    def __init__(self, driver: Driver, lives: Lives, janitor: Janitor, options: SessionOptions) -> None:
        self._driver = driver
        self._lives = lives
        self._janitor = janitor
        self._options = options

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        driver: Driver,
        admission: Admission,
        store: SessionStore,
        options: SessionOptions | None = None,
        *,
        sign: Sign = no_receipt,
    ) -> AsyncIterator[Sessions]:
        """Take over what an earlier life of this process left. The driver and the store stay the caller's to close.
        `sign` makes the receipt of each command's end, which is stored with it."""
        options = options or SessionOptions()
        lives = Lives(driver, admission, store, options, sign)
        try:
            await Recovery(driver, store, lives).run()
            janitor = Janitor(driver, lives, options)
            lives.spawn(janitor.forever(), "janitor")
            yield cls(driver, lives, janitor, options)
        finally:
            await lives.close()

    # --- sessions ------------------------------------------------------------------------------------------

    async def create(self, wish: SessionWish) -> SessionFacts:
        """Make a session, or find the one of this name. It is not extended by that."""
        return (await self._lives.create(wish)).facts()

    def get(self, name: SessionName) -> SessionFacts:
        return self._lives.live(name).facts()

    async def extend(self, name: SessionName, lease_ms: int) -> SessionFacts:
        """A lease never becomes shorter, and one that is over is never revived."""
        return (await self._lives.extend(name, lease_ms)).facts()

    async def remove(self, name: SessionName) -> None:
        """Everything of it is dead and gone when this returns, whether or not there was such a session."""
        await self._lives.remove(name)

    async def remove_all(self) -> None:
        """Take no new sessions, and remove all there are."""
        self._lives.draining = True
        for _ in range(REMOVE_ROUNDS):
            await asyncio.gather(*map(self._lives.remove, self._lives.names()), return_exceptions=True)
        await asyncio.gather(*map(self._lives.remove, self._lives.names()))

    @contextmanager
    def exclusive(self, name: SessionName, command_id: str = "") -> Iterator[None]:
        """Have a session for oneself; its lease may then run out without harm. Who names a command and comes back to it
        in another life of this process goes on, and nobody comes between."""
        session = self._lives.live(name, command_id or None)
        if session.holder is not None or session.owner not in (None, command_id):
            raise busy(name)
        session.holder = command_id
        try:
            yield
        finally:
            session.holder = None

    def files(self, name: SessionName) -> Files:
        """From the sandbox's root on; paths do not begin with a slash."""
        session = self._lives.live(name)
        _, handle = session.known()
        return BoundedFiles(self._driver.files(handle, root="/"), session.files)

    def on_change(self, callback: Changed) -> None:
        """Called with each session that was made or extended, and with `None` for one that is gone."""
        self._lives.listen(callback)

    async def leases(self, known: Mapping[SessionName, int]) -> None:
        """What is known elsewhere: sandboxes that nobody here remembers are taken over with these leases (in
        milliseconds of the wall clock), or removed."""
        await self._janitor.hear(known)

    # --- commands ------------------------------------------------------------------------------------------

    async def start(self, name: SessionName, wish: ProcessWish) -> ProcessFacts:
        """Begin a command, or find the one of this id."""
        process = self._lives.commands.known(name, wish)
        if process is None:
            session = self._lives.live(name, wish.command_id)
            task = self._lives.spawn(self._lives.commands.start(session, wish), f"start-{wish.command_id}")
            process = await asyncio.shield(task)
        return process.facts()

    def begun(self, name: SessionName, wish: ProcessWish) -> ProcessFacts | None:
        """The command of this id, if it was begun before, also in an earlier life. The id of another one, whoever's
        and wherever that is, is refused."""
        process = self._lives.commands.known(name, wish)
        return None if process is None else process.facts()

    async def remove_with(self, command_id: str) -> None:
        """Remove the session that a command ran in, as `remove` does; a later one of that name stays."""
        record = self._process(command_id).record
        session = self._lives.find(record.name)
        if session is None or session.sandbox_id == record.sandbox_id:
            await self._lives.remove(record.name)
        else:
            with suppress(LedgerError):  # its container is gone before its row
                await self._lives.remove_doomed(record.sandbox_id)

    def let_go(self, command_id: str) -> None:
        """The session that a command ran in, and in which nothing runs any more, is removed beside."""
        record = self._process(command_id).record
        session = self._lives.find(record.name)
        if session is not None and session.sandbox_id == record.sandbox_id:
            self._lives.let_go(session)

    def process(self, command_id: str) -> ProcessFacts:
        return self._process(command_id).facts()

    def processes(self, name: SessionName) -> list[ProcessFacts]:
        """Those of a session that are remembered, in the order of their beginning."""
        return [process.facts() for process in self._lives.live(name).processes.values()]

    async def ended(self, command_id: str, seconds: float) -> ProcessFacts:
        """How it stands, as soon as it has ended or the time is over."""
        process = self._process(command_id)
        try:
            async with asyncio.timeout(seconds):
                await process.over.wait()
        except TimeoutError:
            pass
        return process.facts()

    async def output(
        self, command_id: str, stdout: int, stderr: int, limit: int = PIECE_BYTES, seconds: float = 0.0
    ) -> tuple[list[Piece], ProcessFacts | None]:
        """What comes behind a place in each stream, as soon as there is something; and how it ended, once these are the
        last pieces."""
        process = self._process(command_id)
        pieces = await process.output.read((stdout, stderr), limit, seconds)
        over = not process.running and not process.output.left(behind((stdout, stderr), pieces))
        return pieces, process.facts() if over else None

    async def captured(self, command_id: str) -> Captured:
        """The first bytes of each stream."""
        return self._process(command_id).captured(self._options.output_limit)

    async def send_input(self, command_id: str, offset: int, data: bytes, eof: bool = False) -> int:
        """More for its stdin; returns how much it has in all. What it had before is skipped, a gap is refused."""
        process = self._process(command_id)
        if not process.record.stdin:
            raise CommandFailedError(Reason.INVALID_PAYLOAD, "this command was started without an open stdin")
        async with process.input:
            if not process.running:
                return max(process.stdin_bytes, offset + len(data))  # nobody reads it any more
            try:
                return await self._feed(process, offset, data, eof=eof)
            except InvalidRequestError as error:
                raise CommandFailedError(Reason.INVALID_PAYLOAD, error.detail) from error

    async def _feed(self, process: Process, offset: int, data: bytes, *, eof: bool) -> int:
        handle, number = self._handle(process), process.record.number
        if data:
            taken = await self._driver.feed(handle, number, offset, data, seconds=INPUT_SECONDS)
            process.stdin_bytes = max(process.stdin_bytes, taken)
        if eof and process.stdin_bytes >= offset + len(data):
            await self._driver.end_input(handle, number)
        return process.stdin_bytes

    async def resize(self, command_id: str, rows: int, columns: int) -> None:
        """Its terminal has another size now."""
        process = self._process(command_id)
        if not process.record.terminal:
            raise CommandFailedError(Reason.INVALID_PAYLOAD, "this command has no terminal")
        if process.running:
            await self._driver.resize(self._handle(process), process.record.number, rows, columns)

    async def signal(self, command_id: str, number: int, everything: bool = False) -> None:
        """To a command's own processes, or to everything that runs in its session, whatever began it."""
        process = self._process(command_id)
        if not process.running and not everything:
            return
        session = self._lives.find(process.record.name)
        if session is None or session.sandbox_id != process.record.sandbox_id:
            return
        await self._lives.commands.signalled(session.running.values() if everything else [process])
        await self._driver.signal(self._handle(process), process.record.number, number, everything=everything)

    def _process(self, command_id: str) -> Process:
        return self._lives.commands.get(command_id)

    def _handle(self, process: Process) -> Handle:
        session = self._lives.find(process.record.name)
        if session is None or session.sandbox_id != process.record.sandbox_id:
            raise not_found(process.record.name)
        return session.known()[1]

    # Last in the class: behind it, `list` is this method.
    def made_by(self, name: SessionName) -> str | None:
        """Which command asked for a session, also while it is made. `None`: there is none."""
        session = self._lives.find(name)
        return session.wish.made_by if session is not None else None

    def list(self) -> list[SessionFacts]:
        """All that can be used, but those for a single command."""
        now = self._options.now()
        return [
            session.facts()
            for session in self._lives.all()
            if session.there and not session.lease.expired(now) and not session.wish.once
        ]
