"""The archive: what is left of a run some days after its end is one compressed blob, and its line.

To archive is to move the beginning of a history: first everything is written to a blob, then the run's line names that
blob, and only then is the journal forgotten, up to the last record that the blob holds and not one further. From the
moment that a line names a blob, a run's history is what the blob holds and behind it what the journal holds
(`loading.py`), for readers and deciders alike. So nothing depends on when somebody dies, and nothing on who is quicker:

- Killed before the line was written: a blob that nobody names; the next turn writes the same one again.
- Killed before or while the journal is forgotten: the line is marked `live`, which makes the run a candidate of the
  next turn. That finds the same records, in the blob, in the journal or in both, and goes on.
- An order that takes the run up again just now: its record is appended by compare-and-set, before or after. Before the
  journal is read: the run is not ended, and is left alone. Later: the record lies behind the last one in the blob, and
  is not forgotten. A decider that has loaded the run before the journal went is refused, loads it again, from the blob,
  and appends to what is an empty journal now.
- The line that this decider writes (`summaries.py`) keeps the blob's name and is marked `live`; if it comes between our
  look at the line and our writing, that is refused, by its revision, and the run is looked at another time.
- Messages to the run are forgotten only where they lie before its last record. One that still waits there may be all
  that would bring somebody to do what follows from the run's end (tell the run that called it, start the one that goes
  on after it): so all of that is done once more before anything is forgotten. Messages that came later stay, and are
  decided upon.

Orders to a run that was archived are refused at the door. One that slips through is taken all the same, as above.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import structlog

from fumehood.broker.handout import Handouts
from fumehood.broker.ports import Broker, Bucket
from fumehood.control import archived, loading, summaries
from fumehood.control.effects import Performer
from fumehood.control.index import Index
from fumehood.control.summaries import ARCHIVED, LIVE
from fumehood.control.turns import is_our_turn
from fumehood.engine.state import RunState
from fumehood.errors import BrokerError, FumehoodError, IndexUnavailableError, KeyConflictError
from fumehood.wire import blobref

EVERY_SECONDS = 60.0
AT_ONCE = 4
"""Runs at the same time: enough for hundreds a second, few enough for nobody to notice."""
PAGE = 200
MOST_LEFT = 10_000
TURN = "archive"
_log = structlog.get_logger()


class Archiver:
    def __init__(
        self,
        broker: Broker,
        index: Index,
        *,
        now_ms: Callable[[], int],
        retention: float,
        every: float = EVERY_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._broker = broker
        self._index = index
        self._now_ms = now_ms
        self._retention_ms = int(retention * 1000)
        """After a run's end; 0: never."""
        self._every = every
        self._sleep = sleep
        self._bucket = broker.bucket(Bucket.SUMMARIES)
        self._performer = Performer(broker, Handouts(broker, now_ms=now_ms), now_ms=now_ms)
        self._left: set[str] = set()
        self.archived = 0
        self.failed = 0

    async def work(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if self._retention_ms and await is_our_turn(
                    self._broker, TURN, now_ms=self._now_ms(), every=self._every
                ):
                    await self.turn()
            except IndexUnavailableError:
                _log.debug("archive.no_index")
            except Exception:  # noqa: BLE001 - what failed once may not fail the next time
                self.failed += 1
                _log.exception("archive.failed")
            await self._sleep(self._every)

    async def turn(self) -> int:
        """All runs that are old enough, oldest first; how many were archived."""
        before, behind = self.archived, (-(2**62), "")
        while page := await self._index.archivable(self._now_ms() - self._retention_ms, behind, PAGE):
            behind = page[-1]
            waiting = iter([run_id for _, run_id in page if run_id not in self._left])
            await asyncio.gather(*(self._lane(waiting) for _ in range(AT_ONCE)))
        return self.archived - before

    async def _lane(self, waiting: Iterator[str]) -> None:
        for run_id in waiting:
            try:
                if await self.archive(run_id):
                    self.archived += 1
            except FumehoodError as error:
                self.failed += 1
                _log.warning("archive.run_failed", run_id=run_id, code=error.code, detail=error.detail)
                if not error.retryable:
                    self._leave(run_id)
            except Exception:  # noqa: BLE001 - one run that cannot be read must not keep all others
                self.failed += 1
                _log.exception("archive.run_failed", run_id=run_id)
                self._leave(run_id)

    def _leave(self, run_id: str) -> None:
        """What failed for good is not tried again every minute, only by another server or after a restart."""
        if len(self._left) < MOST_LEFT:
            self._left.add(run_id)

    async def archive(self, run_id: str) -> bool:
        """Archive a run that ended long enough ago; whether that was done. See this module's essay."""
        if not await self._is_archivable(run_id):
            return False
        state, _ = await loading.load(self._broker, run_id)
        if state is None or not self._is_old(state):
            return False
        await self._performer.conclude(state)
        return await self._move(run_id)

    async def _is_archivable(self, run_id: str) -> bool:
        line, entry = await summaries.read(self._broker, run_id)
        return entry is not None and (ARCHIVED not in line or bool(line.get(LIVE)))

    async def _move(self, run_id: str) -> bool:
        line, entry = await summaries.read(self._broker, run_id)
        if entry is None:
            return False
        history = await loading.history(self._broker, run_id)
        state = await loading.fold_all(self._broker, run_id, history.entries)
        if state is None or not self._is_old(state):
            return False
        if summaries.events_of(line) > state.events:
            raise BrokerError("the run's line knows more than its history: a part of that is missing")
        data = await archived.pack(run_id, history.entries)
        pointer = blobref.reference(await self._broker.blobs().put(data), len(data))
        marked = {**summaries.line(state), ARCHIVED: pointer, LIVE: True}
        try:
            if line != marked:
                await self._bucket.update(run_id, blobref.encode(marked), revision=entry.revision)
        except KeyConflictError:
            return False
        if history.last:
            await self._broker.journal.purge(run_id, upto=history.last)
        await self._finish(run_id, marked)
        return True

    def _is_old(self, state: RunState) -> bool:
        return state.ended_at is not None and self._now_ms() - state.ended_at >= self._retention_ms

    async def _finish(self, run_id: str, marked: Mapping[str, Any]) -> None:
        """The journal is empty: say so."""
        for _ in range(summaries.TRIES):
            line, entry = await summaries.read(self._broker, run_id)
            wanted = _finished(line, marked)
            if wanted is None:
                return
            try:
                if entry is None:
                    await self._bucket.create(run_id, blobref.encode(wanted))
                else:
                    await self._bucket.update(run_id, blobref.encode(wanted), revision=entry.revision)
            except KeyConflictError:
                continue
            return


def _finished(line: Mapping[str, Any], marked: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the line is to say once the journal is empty; `None` where somebody else has written a newer one. Whoever
    is of a version that knows no archives may have forgotten where this one lies."""
    if line != marked and ARCHIVED in line:
        return None
    done = {name: value for name, value in marked.items() if name != LIVE}
    return done if line == marked else summaries.merged(marked, line) or done
