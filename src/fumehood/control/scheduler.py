"""The scheduler: starts what schedules say, when they say it. Every server runs one.

Each time is fired in two steps: the run is started under the id that follows from the time, then the schedule's
`done_until` moves past it by compare-and-set. Whoever dies between the two has lost nothing: the time is still due,
and whoever fires it again starts the same run. So any number of schedulers stand side by side, without a word between
them, and each time becomes one run.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from fumehood.broker.ports import Broker, Bucket, ChangeKind, KvEntry
from fumehood.control.callers import Caller, Scope
from fumehood.control.runs import Runs
from fumehood.control.schedule import Due, Fired, Refused, Schedule
from fumehood.control.schedules import wish
from fumehood.errors import BrokerError, FumehoodError, KeyConflictError

AT_ONCE = 16
"""Schedules that are served at the same time: a full hour has many, and one may have much to catch up."""
LOOK_SECONDS = 5.0
"""The longest nap: a machine that was suspended, or whose clock was set, notices after so long."""
PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
"""Between two tries of one schedule while the broker, or we, fail: well within the minute after which a time counts as
missed."""
LONGEST_MESSAGE = 500
"""Characters of a refusal that are kept in the schedule."""
_SLACK = 100
"""Naps that nobody needs any more, and that are kept because throwing each of them out would cost more."""
_log = structlog.get_logger()


@dataclass(slots=True)
class _Known:
    """A schedule as this process knows it: only when to look at it. What is then done comes from the broker."""

    revision: int
    wakes_at: int | None
    failures: int = 0


class Scheduler:
    def __init__(
        self,
        broker: Broker,
        runs: Runs,
        *,
        now_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        look_seconds: float = LOOK_SECONDS,
        draw: random.Random | None = None,
    ) -> None:
        self._bucket = broker.bucket(Bucket.SCHEDULES)
        self._runs = runs
        self._now_ms = now_ms
        self._sleep = sleep
        self._look_seconds = look_seconds
        self._draw = draw or random.Random()
        self.counts: Counter[str] = Counter()
        """`fired`; `refused`: there will be no run; `left_out`: schedules some of whose times were missed, and will not
        be fired; `conflicts`: somebody else changed the schedule first; `failed`: a fault of ours."""
        self._forget()

    def _forget(self) -> None:
        self._known: dict[str, _Known] = {}
        self._naps: list[tuple[int, str]] = []
        """When to look at which schedule; what does not agree with `_known` any more is passed over."""
        self._busy: set[str] = set()
        self._news = asyncio.Event()
        self._lanes = asyncio.Semaphore(AT_ONCE)

    # --- the loop ------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Until cancelled. A fault of ours is written down, and no reason to leave all schedules alone."""
        while True:
            try:
                await self._serve_all()
            except Exception:  # noqa: BLE001 - see above
                self.counts["failed"] += 1
                _log.exception("scheduler.failed")
            self._forget()
            await self._sleep(PAUSE_SECONDS)

    async def _serve_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            while True:
                self._news.clear()
                for key in self._due():
                    await self._lanes.acquire()
                    group.create_task(self._serve(key))
                await self._nap()

    async def _watch(self) -> None:
        async for change in self._bucket.watch():
            if change.kind is ChangeKind.PUT:
                self._note(KvEntry(change.key, change.value, change.revision))
            elif change.kind is not ChangeKind.CAUGHT_UP:
                self._known.pop(change.key, None)

    def _note(self, entry: KvEntry) -> None:
        """Remember when to look at a schedule; what is older than what we know already says nothing."""
        known = self._known.get(entry.key)
        if known is not None and known.revision > entry.revision:
            return
        try:
            wakes_at = Schedule.decode(entry).wakes_at()
        except (ValueError, TypeError, KeyError):  # such as a zone that only a newer version knows
            _log.error("schedule.unreadable", key=entry.key)
            wakes_at = None
        self._known[entry.key] = _Known(entry.revision, wakes_at)
        self._set(entry.key)

    def _set(self, key: str) -> None:
        known = self._known.get(key)
        if known is not None and known.wakes_at is not None:
            heapq.heappush(self._naps, (known.wakes_at, key))
            self._news.set()
        if len(self._naps) > 2 * len(self._known) + _SLACK:
            self._naps = [(one.wakes_at, key) for key, one in self._known.items() if one.wakes_at is not None]
            heapq.heapify(self._naps)

    def _due(self) -> list[str]:
        """Those to look at now. In no order: servers that begin at different ends meet less often."""
        now, found = self._now_ms(), []
        while self._naps and self._naps[0][0] <= now:
            at, key = heapq.heappop(self._naps)
            known = self._known.get(key)
            if known is not None and known.wakes_at == at and key not in self._busy:
                self._busy.add(key)
                found.append(key)
        self._draw.shuffle(found)
        return found

    async def _nap(self) -> None:
        """Until the next one is due, or there is news."""
        seconds = self._look_seconds
        if self._naps:
            seconds = min(seconds, max(0, self._naps[0][0] - self._now_ms()) / 1000)
        waits = [asyncio.ensure_future(self._sleep(seconds)), asyncio.ensure_future(self._news.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    # --- one schedule --------------------------------------------------------------------------------------

    async def _serve(self, key: str) -> None:
        """Whatever fails is tried again, a little later each time."""
        try:
            await self.serve(key)
        except BrokerError as error:
            _log.warning("schedule.interrupted", key=key, code=error.code, detail=error.detail)
            self._later(key)
        except Exception:  # noqa: BLE001 - one schedule that we cannot serve must not keep us from all others
            self.counts["failed"] += 1
            _log.exception("schedule.failed", key=key)
            self._later(key)
        finally:
            self._busy.discard(key)
            self._lanes.release()
            self._set(key)

    def _later(self, key: str) -> None:
        known = self._known.get(key)
        if known is not None:
            pause = min(LONGEST_PAUSE_SECONDS, PAUSE_SECONDS * 2**known.failures)
            known.failures = min(known.failures + 1, 10)
            known.wakes_at = self._now_ms() + round(pause * 1000)

    async def serve(self, key: str) -> None:
        """Fire all that is due of one schedule, as the broker knows it now."""
        known = self._known.get(key)
        entry = await self._bucket.get(key)
        while entry is not None and (due := Schedule.decode(entry).due(self._now_ms())):
            entry = await self._fire_all(Schedule.decode(entry), entry.revision, due)
        if entry is not None:
            self._note(entry)
        elif self._known.get(key) is known:  # gone, unless the watch has told of another one meanwhile
            self._known.pop(key, None)

    async def _fire_all(self, schedule: Schedule, revision: int, due: Due) -> KvEntry | None:
        """The schedule as it is afterwards, by whomever. Where it cannot be moved, what is due is fired all the same:
        the bucket may be full for long, and a time that waits for it would be missed."""
        stuck: BrokerError | None = None
        try:
            if due.left_out:
                self.counts["left_out"] += 1
                _log.warning("schedule.times_left_out", key=schedule.key, until=due.until)
            if not due.times:
                schedule, revision = await self._moved(replace(schedule, done_until=due.until), revision)
            for at in due.times:
                schedule = await self._fire(schedule, at)
                try:
                    schedule, revision = await self._moved(schedule, revision)
                    stuck = None
                except KeyConflictError:
                    raise
                except BrokerError as error:
                    stuck = error
        except KeyConflictError:
            self.counts["conflicts"] += 1
            return await self._bucket.get(schedule.key)
        if stuck is not None:
            raise stuck
        return KvEntry(schedule.key, schedule.encode(), revision)

    async def _moved(self, schedule: Schedule, revision: int) -> tuple[Schedule, int]:
        return schedule, await self._bucket.update(schedule.key, schedule.encode(), revision=revision)

    async def _fire(self, schedule: Schedule, at: int) -> Schedule:
        """The schedule past one of its times. What was refused would be refused again; a broker that is away is
        another matter."""
        run_id = schedule.run_id(at)
        caller = Caller(schedule.tenant, f"schedule/{schedule.name}", frozenset({Scope.RUNS_WRITE}))
        try:
            await self._runs.start_as(run_id, wish(schedule, at), caller)
        except BrokerError:
            raise
        except FumehoodError as error:
            self.counts["refused"] += 1
            _log.warning("schedule.refused", key=schedule.key, at=at, code=error.code, detail=error.detail)
            refused = Refused(at, error.code, error.detail[:LONGEST_MESSAGE])
            return replace(schedule, done_until=at, last_error=refused)
        self.counts["fired"] += 1
        return replace(schedule, done_until=at, last=Fired(at, run_id), last_error=None)
