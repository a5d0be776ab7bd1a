"""How providers stand: how often each was right, and which were set aside.

One key for each provider. A job counts once for each, however often its verdict is made: the last jobs are remembered
with it. A provider that was set aside is told so and takes nothing more; should it go on, what it says does not count.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from functools import partial

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fumehood.broker import names
from fumehood.broker.ports import Broker, Bucket, KvEntry
from fumehood.errors import BrokerUnavailableError, FumehoodError, InvalidRequestError, KeyConflictError
from fumehood.wire.base import UtcTime

RECENT = 64
TRIES = 10
MOST = 10_000
_log = structlog.get_logger()


class Aside(BaseModel):
    model_config = ConfigDict(frozen=True)

    reason: str
    by: str
    at: UtcTime


class Recent(BaseModel):
    model_config = ConfigDict(frozen=True)

    job_id: str
    said: str
    at: UtcTime


class Standing(BaseModel):
    model_config = ConfigDict(frozen=True)

    counts: dict[str, int] = Field(default_factory=dict)
    recent: tuple[Recent, ...] = ()
    set_aside: Aside | None = None

    def with_job(self, job_id: str, said: str, at: dt.datetime) -> Standing:
        """Unchanged where the job was counted before."""
        if any(one.job_id == job_id for one in self.recent):
            return self
        counts = {**self.counts, said: self.counts.get(said, 0) + 1}
        return self.model_copy(
            update={"counts": counts, "recent": (*self.recent, Recent(job_id=job_id, said=said, at=at))[-RECENT:]}
        )


class Standings:
    def __init__(self, broker: Broker, *, now_ms: Callable[[], int]) -> None:
        self._bucket = broker.bucket(Bucket.PROVIDERS)
        self._now_ms = now_ms

    async def all(self) -> dict[str, Standing]:
        entries = await self._bucket.entries()
        return {entry.key: _read(entry) for entry in entries[:MOST]}

    async def set_aside_of(self, workers: Collection[str]) -> frozenset[str]:
        """Which of these were set aside."""
        found = {worker: await self._bucket.get(worker) for worker in workers if names.is_token(worker)}
        return frozenset(name for name, entry in found.items() if entry is not None and _read(entry).set_aside)

    async def count(self, job_id: str, said: Mapping[str, str]) -> None:
        """What a verdict says of each worker. No verdict waits for that: what cannot be noted down is not."""
        at = self._now()
        for worker, word in said.items():
            try:
                await self._change(worker, partial(_counted, job_id=job_id, said=word, at=at))
            except FumehoodError as error:
                _log.warning("standing.not_counted", job_id=job_id, said=word, code=error.code)

    async def set_aside(self, worker: str, reason: str, by: str) -> Standing:
        aside = Aside(reason=reason, by=by, at=self._now())
        return await self._change(worker, lambda standing: standing.model_copy(update={"set_aside": aside}))

    async def restore(self, worker: str) -> Standing:
        return await self._change(worker, lambda standing: standing.model_copy(update={"set_aside": None}))

    async def _change(self, worker: str, how: Callable[[Standing], Standing]) -> Standing:
        if not names.is_token(worker):
            raise InvalidRequestError("a provider's name is letters, digits, - and _")
        for _ in range(TRIES):
            entry = await self._bucket.get(worker)
            before = _read(entry) if entry is not None else Standing()
            after = how(before)
            if entry is not None and after == before:
                return after
            data = after.model_dump_json(exclude_none=True).encode()
            try:
                if entry is None:
                    await self._bucket.create(worker, data)
                else:
                    await self._bucket.update(worker, data, revision=entry.revision)
            except KeyConflictError:
                continue
            return after
        raise BrokerUnavailableError("how this provider stands is being changed by others all the time")

    def _now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._now_ms() / 1000, dt.UTC)


def _counted(standing: Standing, *, job_id: str, said: str, at: dt.datetime) -> Standing:
    return standing.with_job(job_id, said, at)


def _read(entry: KvEntry) -> Standing:
    """What cannot be read was written by a later version: then it counts from nothing, and is not set aside."""
    try:
        return Standing.model_validate_json(entry.value)
    except ValidationError:
        return Standing()
