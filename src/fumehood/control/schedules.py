"""Schedules: written, seen, paused and triggered by people. Firing them is the scheduler's.

A schedule is one key, changed by compare-and-set, so that a person who changes it and a scheduler that moves it on
never undo each other. Whatever changes what its times mean makes another generation of it, which begins now: a new
schedule never fires for the past.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fumehood.broker import names
from fumehood.broker.ports import Broker, Bucket, KvEntry
from fumehood.control.callers import Caller
from fumehood.control.runs import Runs, Start
from fumehood.control.schedule import Schedule
from fumehood.control.workflows import Workflows
from fumehood.engine import cron
from fumehood.engine.zones import zone
from fumehood.errors import ConflictError, InvalidRequestError, KeyConflictError, NotFoundError
from fumehood.wire import blobref, run_api, schedule_api, strict_json
from fumehood.wire.schedule_api import CatchUp

MOST = 100
"""Schedules of one tenant: with the largest inputs and labels they are 2 MiB, a twentieth of what the smallest cluster
has for those of all tenants. Two that are made at the same moment may both be the last."""
LARGEST_INPUT = 16 * 1024
"""Bytes of JSON: it is kept in the schedule itself."""
_TRIES = 100
"""Against others who change the same schedule: each lost try is somebody else's success."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What somebody wants to be started, and when."""

    workflow: str
    cron: str
    timezone: str = "UTC"
    input: Any = None
    labels: Mapping[str, str] = field(default_factory=dict)
    catch_up: CatchUp = CatchUp.NONE
    catch_up_limit: int = schedule_api.CAUGHT_UP
    paused: bool | None = None
    """None: as it is; a new one is not."""


class Schedules:
    def __init__(self, broker: Broker, workflows: Workflows, runs: Runs, *, now_ms: Callable[[], int]) -> None:
        self._bucket = broker.bucket(Bucket.SCHEDULES)
        self._workflows = workflows
        self._runs = runs
        self._now_ms = now_ms

    async def put(self, name: str, plan: Plan, caller: Caller) -> tuple[Schedule, bool]:
        """Make the schedule say this and nothing else; whether it is a new one."""
        _check(name, plan)
        await self._check_workflow(plan, caller.tenant)
        for _ in range(_TRIES):
            entry = await self._bucket.get(_key(caller.tenant, name))
            before = Schedule.decode(entry) if entry is not None else None
            if before is None and len(await self._bucket.keys(caller.tenant)) >= MOST:
                raise ConflictError(f"there are {MOST} schedules already; delete one first")
            after = self._planned(name, plan, caller, before)
            if after is before or await self._stored(after, entry):
                return after, before is None
        raise ConflictError("too many others change this schedule at the same time")

    async def _check_workflow(self, plan: Plan, tenant: str) -> None:
        try:
            stored, _ = await self._workflows.show(plan.workflow, tenant=tenant)
        except NotFoundError:
            raise InvalidRequestError("workflow: there is no such workflow") from None
        if stored.input_schema is not None:
            stored.input_schema.check(plan.input)

    def _planned(self, name: str, plan: Plan, caller: Caller, before: Schedule | None) -> Schedule:
        now = self._now_ms()
        paused = plan.paused if plan.paused is not None else before is not None and before.paused
        after = Schedule(
            tenant=caller.tenant,
            name=name,
            workflow=plan.workflow,
            cron=plan.cron,
            timezone=plan.timezone,
            created_at=now,
            by=caller.name,
            generation=secrets.token_hex(16),
            done_until=now,
            input=plan.input,
            labels=dict(plan.labels),
            catch_up=plan.catch_up,
            catch_up_limit=plan.catch_up_limit,
            paused=paused,
        )
        if before is None:
            return after
        after = replace(after, created_at=before.created_at)
        if _meaning(after) != _meaning(before):
            return after
        begins = max(now, before.done_until) if before.paused and not paused else before.done_until
        after = replace(
            after,
            done_until=begins,
            generation=before.generation,
            last=before.last,
            last_error=before.last_error,
            more=before.more,
        )
        return before if replace(after, by=before.by).encode() == before.encode() else after

    async def _stored(self, after: Schedule, entry: KvEntry | None) -> bool:
        try:
            if entry is None:
                await self._bucket.create(after.key, after.encode())
            else:
                await self._bucket.update(after.key, after.encode(), revision=entry.revision)
        except KeyConflictError:
            return False
        return True

    async def get(self, name: str, caller: Caller) -> Schedule:
        return Schedule.decode(await self._entry(name, caller))

    async def _entry(self, name: str, caller: Caller) -> KvEntry:
        entry = await self._bucket.get(_key(caller.tenant, name)) if names.is_token(name) else None
        if entry is None:
            raise NotFoundError("there is no such schedule")
        return entry

    async def list(self, caller: Caller, *, after: str = "", limit: int = 100) -> tuple[Sequence[Schedule], str | None]:
        """By name, from behind `after`; and where to go on, if there are more."""
        keys = sorted(key for key in await self._bucket.keys(caller.tenant) if key > _key(caller.tenant, after))
        entries = await asyncio.gather(*(self._bucket.get(key) for key in keys[:limit]))
        page = [Schedule.decode(entry) for entry in entries if entry is not None]
        return page, keys[limit - 1].rpartition(".")[2] if len(keys) > limit else None

    async def delete(self, name: str, caller: Caller) -> None:
        """Runs that it started go on."""
        await self._entry(name, caller)
        await self._bucket.delete(_key(caller.tenant, name))

    async def pause(self, name: str, caller: Caller) -> Schedule:
        """From now on its times are left out."""
        return await self._switch(name, caller, paused=True)

    async def resume(self, name: str, caller: Caller) -> Schedule:
        """It begins now: what lay in the pause is not caught up."""
        return await self._switch(name, caller, paused=False)

    async def _switch(self, name: str, caller: Caller, *, paused: bool) -> Schedule:
        for _ in range(_TRIES):
            entry = await self._entry(name, caller)
            before = Schedule.decode(entry)
            if before.paused is paused:
                return before
            until = before.done_until if paused else max(before.done_until, self._now_ms())
            after = replace(before, paused=paused, by=caller.name, done_until=until)
            if await self._stored(after, entry):
                return after
        raise ConflictError("too many others change this schedule at the same time")

    def next_at(self, schedule: Schedule) -> int | None:
        """When it fires next; None while it is paused."""
        return None if schedule.paused else schedule.next_after(max(self._now_ms(), schedule.done_until))

    async def trigger(self, name: str, caller: Caller) -> str:
        """Start what it would start, now, whatever its times say; its times go on as they were."""
        schedule = await self.get(name, caller)
        run_id, _ = await self._runs.start(wish(schedule, self._now_ms()), caller)
        return run_id


def wish(schedule: Schedule, at_ms: int) -> Start:
    """The run that a schedule starts for a time."""
    about = {"name": schedule.name, "at": at_ms}
    return Start(workflow=schedule.workflow, input=schedule.input, labels=schedule.labels, schedule=about)


def _key(tenant: str, name: str) -> str:
    return f"{tenant}.{name}"


def _meaning(schedule: Schedule) -> tuple[str, str, str]:
    """What its times mean."""
    return schedule.workflow, schedule.cron, schedule.timezone


def _check(name: str, plan: Plan) -> None:
    if len(name) > schedule_api.LONGEST_NAME or re.fullmatch(schedule_api.NAME_PATTERN, name) is None:
        raise InvalidRequestError("name: must be letters, digits and underscores, with single dashes between them")
    for what, read, given in (("cron", cron.parse, plan.cron), ("timezone", zone, plan.timezone)):
        try:
            read(given)
        except ValueError as error:
            raise InvalidRequestError(f"{what}: {error}") from None
    if not strict_json.is_flat(plan.input):
        raise InvalidRequestError("input: it is nested too deeply")
    if blobref.mentions_blob(plan.input):
        raise InvalidRequestError(f"input: the key {blobref.KEY} is not for callers")
    if len(blobref.encode(plan.input)) > LARGEST_INPUT:
        raise InvalidRequestError(f"input: must have at most {LARGEST_INPUT} bytes")
    run_api.check_labels(plan.labels)
