"""One command, from the moment it was submitted until its end is stored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from fumehood.control.console.exchange import Asked, Exchange
from fumehood.control.console.finish import Finisher
from fumehood.control.console.judge import SENTENCES, Judge
from fumehood.control.console.placing import Choose, Offers, Placing
from fumehood.control.console.presence import Entry
from fumehood.control.console.record import LOST_SECONDS, Fate, Record, error_result
from fumehood.control.console.routing import Routing
from fumehood.errors import BrokerError, CommandFailedError, FumehoodError, KeyConflictError
from fumehood.wire.command_api import CommandStatus
from fumehood.wire.console.codes import Reason
from fumehood.wire.console.console_pb2 import Dispatch, Result

OVERDUE_SECONDS: Final = 20.0
"""Past its time a command is cancelled by us, too; its worker should have ended it."""
LOOK_SECONDS: Final = 2.0
"""Between two looks at what became of a command, when nothing is heard."""
STORE_SECONDS: Final = 4.0
"""Between two looks at its record, which somebody else may have ended."""
BRIEF_SECONDS: Final = 0.1
"""A command that ends within this is written once, with its end: nobody knows its name before it is answered."""
ACK_SECONDS: Final = 0.005
"""The worker may forget a command a moment after its caller has been told: that one waits."""
PATIENCE_SECONDS: Final = 60.0
"""That storing an end is tried for. Beyond, the worker still has it."""
STORE_AGAIN_SECONDS: Final = 1.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JourneyParts:
    exchange: Exchange
    placing: Placing
    routing: Routing
    finisher: Finisher
    judge: Judge
    now_ms: Callable[[], int]


@dataclass(slots=True)
class Journey:
    parts: JourneyParts
    dispatch: Dispatch
    record: Record
    revision: int
    """Of its record; 0: there is none yet."""
    wait_seconds: float
    cancelled: bool = False
    placed: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done when a worker has it, and there is a record of that: somebody who asks about it is answered."""

    async def run(self) -> Record:
        """Its record, ended. Raises `CommandFailedError` where no worker took it: nothing of it runs then."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.wait_seconds
        with self.parts.exchange.asking(self.dispatch) as asked:
            asked.record = self.record.model_dump_json(exclude_defaults=True).encode()
            while True:
                await self._place(asked, max(0.0, deadline - loop.time()))
                self.parts.placing.occupied(self.record.worker, 1)
                try:
                    end = await self._end(asked)
                finally:
                    self.parts.placing.occupied(self.record.worker, -1)
                if end is None:
                    end = await self._taken_back()
                if end is not None:
                    return await self._finish(asked, end)

    # --- to a worker ---------------------------------------------------------------------------------------

    async def _place(self, asked: Asked, seconds: float) -> None:
        try:
            choose = await self.parts.routing.of(self.dispatch)
            entry = await self.parts.placing.place(asked, self._if_wanted(choose), seconds)
        except CommandFailedError as error:
            await self._nobody_took_it(error)
            raise
        try:
            await self._written_down(asked, entry)
        except FumehoodError:
            self.parts.exchange.cancel(self.record.command_id)  # its caller is told that it failed: so it must not run
            raise
        if self.record.cancelled or self.cancelled:
            self.parts.exchange.cancel(self.record.command_id)
        if self.revision and not self.placed.done():
            self.placed.set_result(None)

    def _if_wanted(self, choose: Choose) -> Choose:
        async def still() -> Offers:
            if self.cancelled:
                raise CommandFailedError(Reason.DEADLINE_EXCEEDED, "cancelled before any worker took it")
            return await choose()

        return still

    async def _nobody_took_it(self, error: CommandFailedError) -> None:
        """Its key can be used again, as if it had never been asked for; unless somebody was told that it runs, or
        cancelled it. And who asked under the same key meanwhile finds how it ended."""
        await self.parts.routing.abandoned(self.dispatch)
        if not self.revision:
            return
        if error.reason != Reason.DEADLINE_EXCEEDED and not self.placed.done():
            await self.parts.finisher.unnamed(self.record)
        await self.parts.finisher.fail(self.record, self.revision, error.reason, error.detail)

    async def _written_down(self, asked: Asked, entry: Entry) -> None:
        """Who has it; in a record that is made now, unless it ends at once."""
        running = {
            "status": CommandStatus.RUNNING,
            "worker": entry.worker_id,
            "epoch": entry.epoch,
            "dispatched_ms": self.parts.now_ms(),
        }
        if self.revision:
            self.record, self.revision = await self.parts.finisher.change(
                self.record, self.revision, lambda one: one.model_copy(update=running)
            )
            return
        self.record = self.record.model_copy(update=running)
        await asyncio.wait({asked.answer}, timeout=min(BRIEF_SECONDS, self.wait_seconds))
        if not asked.answer.done():
            await self._created()

    async def _created(self) -> None:
        """Its record; or the one that was made before, by whoever holds the stream: then it has ended."""
        try:
            self.revision = await self.parts.finisher.create(self.record)
        except KeyConflictError:
            found = await self.parts.finisher.get(self.record.command_id)
            if found is None:
                raise
            self.record, self.revision = found

    async def _taken_back(self) -> Record | None:
        """Nobody has it, and that is written down before it goes to the next one: until then its record is judged by
        where the last one is. Or its record, where that was done."""
        if not self.revision:
            return None
        waiting = {"status": CommandStatus.QUEUED, "worker": "", "epoch": ""}
        self.record, self.revision = await self._patiently(
            lambda: self.parts.finisher.change(self.record, self.revision, lambda one: one.model_copy(update=waiting))
        )
        return self.record if self.record.status.ended else None

    # --- to its end ----------------------------------------------------------------------------------------

    async def _end(self, asked: Asked) -> Result | Record | None:
        """Its result, from whoever brings it; a failure that can be told for certain; its record, where somebody else
        has written the end; or None, where its worker did not take it after all."""
        loop = asyncio.get_running_loop()
        overdue = loop.time() + self.record.timeout_ms / 1000 + OVERDUE_SECONDS
        looked = loop.time()
        if self.record.status.ended:
            return self.record
        while not asked.answer.done():
            await self._news(asked)
            if asked.answer.done():
                break
            if asked.refused == Reason.NO_CAPACITY:
                return None
            if loop.time() - looked > STORE_SECONDS:
                looked = loop.time()
                if (stored := await self._looked_up()) is not None:
                    return stored
            if (failure := await self._doomed(asked)) is not None:
                return failure
            await self._urge(asked, overdue=loop.time() > overdue)
            if loop.time() > overdue + LOST_SECONDS:
                message = "its worker does not answer: nothing is known of how it ended"
                return error_result(self.record.command_id, Reason.EXECUTION_FAILED, message)
        answer = asked.answer.result()
        return answer if isinstance(answer, Result) else await self.parts.exchange.result(answer)

    async def _urge(self, asked: Asked, *, overdue: bool) -> None:
        """One that should have ended is ended; one that nobody confirmed is said again."""
        if overdue:
            self.parts.exchange.cancel(self.record.command_id)
        elif not asked.taken:
            await self.parts.placing.say_again(asked)

    async def _news(self, asked: Asked) -> None:
        asked.news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await asked.news.wait()

    async def _looked_up(self) -> Record | None:
        """Its record, if somebody else has ended it; and whether somebody else wants it ended."""
        try:
            found = await self.parts.finisher.get(self.record.command_id)
        except BrokerError:
            return None
        if found is None:
            return None
        if found[0].cancelled and not found[0].status.ended:
            self.parts.exchange.cancel(self.record.command_id)
        return found[0] if found[0].status.ended else None

    async def _doomed(self, asked: Asked) -> Result | None:
        try:
            said = await self.parts.judge.fate(self.record)
        except BrokerError:
            return None
        if said is Fate.WAIT or asked.answer.done():
            return None
        return error_result(self.record.command_id, said, SENTENCES[said])

    async def _finish(self, asked: Asked, end: Result | Record) -> Record:
        """Stored, and only then told."""
        if isinstance(end, Record):
            done = end
        else:
            done = await self._stored(end)
        await self.parts.routing.noted(self.dispatch, done, end if isinstance(end, Result) else None)
        loop = asyncio.get_running_loop()
        loop.call_later(ACK_SECONDS, self.parts.exchange.tell_stored, asked.holder, done.command_id)
        return done

    async def _stored(self, end: Result) -> Record:
        return await self._patiently(lambda: self.parts.finisher.finish(self.record, self.revision, end))

    async def _patiently(self, write: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + PATIENCE_SECONDS
        while True:
            try:
                return await write()
            except BrokerError:
                if loop.time() > give_up:
                    raise
            await asyncio.sleep(STORE_AGAIN_SECONDS)
