"""Jobs in one process: real decider, adjudicator and providers over the in-memory broker, and providers that lie."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.memory import MemoryBroker, MemoryServer
from fumehood.control.callers import ADMIN, Caller
from fumehood.control.jobs.jobs import Submission, Waits
from fumehood.control.service import Service, keep_at_it, now_ms
from fumehood.errors import JobFailedError
from fumehood.jobs.base import Context, JobRequest, JobResponse, JobType, SchemaVersion
from fumehood.jobs.registry import Registry
from fumehood.jobs.types import candidate_judge
from fumehood.jobs.types.candidate_judge import JudgeRequest, JudgeResponse
from fumehood.node.jobs.worker import JobWorker, WorkerParts
from fumehood.verify.dsse import SigningKey
from fumehood.verify.keylist import KeyList, ListedKey
from fumehood.wire.job_api import JobView, SubmitJobRequest
from fumehood.wire.jobs import Adjudication, JobModel, Mode, Provenance, Verification
from fumehood.wire.sealed import job_task
from tests.waiting import until

ECHO = "oa.text_echo.v1"
SINGLE = Verification(mode=Mode.OBJECTIVE, redundancy=1, adjudication=Adjudication.NONE)


class EchoRequest(JobRequest):
    text: str
    verification: Verification = SINGLE


class EchoResponse(JobResponse):
    text: str
    exit_code: int = 0
    took_ms: int = 0

    def declared(self) -> Any:
        return {"text": self.text, "exit_code": self.exit_code}


class Parts(JobModel):
    texts: Annotated[tuple[str, ...], Field(strict=False)] = ()


Say = Callable[[str], str | Awaitable[str]]


class Echo:
    """Says what `say` makes of the text."""

    def __init__(self, say: Say = lambda text: text, exit_code: int = 0) -> None:
        self._say = say
        self._exit_code = exit_code
        self.done = 0

    async def run(self, request: EchoRequest, context: Context) -> EchoResponse:
        said = self._say(request.text)
        text = said if isinstance(said, str) else await said
        self.done += 1
        return EchoResponse(
            text=text, exit_code=self._exit_code, took_ms=self.done, provenance=Provenance(model_id="e")
        )


class Judge:
    """Takes the longest text."""

    def __init__(self) -> None:
        self.asked: list[JudgeRequest] = []

    async def run(self, request: JudgeRequest, context: Context) -> JudgeResponse:
        self.asked.append(request)
        lengths = [len(one["text"]) for one in request.candidates]
        index = lengths.index(max(lengths))
        return JudgeResponse(index=index, reason="the longest", provenance=Provenance(model_id="j"))


def merge(request: EchoRequest, responses: Sequence[EchoResponse]) -> EchoResponse:
    return EchoResponse(text="+".join(sorted(one.text for one in responses)), provenance=Provenance(model_id="merge"))


REGISTRY = Registry(
    [
        JobType(
            name=ECHO,
            version=SchemaVersion(1, 0, 0),
            about="Says it again.",
            request=EchoRequest,
            response=EchoResponse,
            handlers={"local": lambda _: Echo()},
            merge=merge,
        ),
        candidate_judge.JOB_TYPE,
    ]
)


class JobsWorld:
    def __init__(self, *, wait_seconds: int = 5) -> None:
        self.server = MemoryServer()
        self.service = Service(
            MemoryBroker(self.server), job_types=REGISTRY, job_waits=Waits(wait_seconds, wait_seconds)
        )
        self.root = SigningKey.generate()
        self.keys: dict[str, SigningKey] = {}
        self.listed: dict[str, ListedKey] = {}
        self._version = 0
        self._tasks: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        await self.publish()
        self._tasks += [asyncio.create_task(keep_at_it(self.service.decider, 0))]
        self._tasks += [asyncio.create_task(self.service.adjudicator.work())]
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- providers -----------------------------------------------------------------------------------------

    async def enroll(self, name: str, key: SigningKey | None = None) -> SigningKey:
        self.keys[name] = key or SigningKey.generate()
        mine = self.keys[name]
        since = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
        self.listed[name] = ListedKey(
            key_id=mine.key_id, public_key=mine.public_key.hex(), worker=name, not_before=since
        )
        await self.publish()
        return mine

    async def publish(self) -> None:
        self._version += 1
        listed = KeyList(version=self._version, issued_at=dt.datetime.now(dt.UTC), keys=tuple(self.listed.values()))
        await self.service.receipt_keys.publish({"root": self.root.public_key.hex(), "list": listed.sign(self.root)})

    async def revoke(self, name: str) -> None:
        now = dt.datetime.now(dt.UTC)
        self.listed[name] = self.listed[name].model_copy(update={"revoked_at": now, "revoked_because": "stolen"})
        await self.publish()

    async def provider(
        self, name: str, handler: Echo | None = None, *, judge: Judge | None = None, key: SigningKey | None = None
    ) -> JobWorker:
        """An honest worker around a handler that may not be."""
        if name not in self.keys:
            await self.enroll(name)
        handlers: dict[str, Any] = (
            {ECHO: handler or Echo()} if judge is None else {candidate_judge.JOB_TYPE.name: judge}
        )
        signing = key or self.keys[name]
        parts = WorkerParts(name, MemoryBroker(self.server), REGISTRY, handlers, lambda: signing, at_once=2)
        worker = JobWorker(parts)
        self._tasks.append(asyncio.create_task(worker.forever()))
        return worker

    async def forger(self, name: str, answer: Callable[[Leased], Any]) -> None:
        """A worker of its own making: it answers whatever it likes."""
        handouts = Handouts(MemoryBroker(self.server))

        async def forever() -> None:
            while True:
                taken = await handouts.take([job_task(ECHO)], max_tasks=1, timeout=1, worker_id=name, lease_seconds=15)
                for leased in taken:
                    await handouts.complete(leased.lease, answer(leased))

        self._tasks.append(asyncio.create_task(forever()))

    # --- jobs ----------------------------------------------------------------------------------------------

    async def submit(
        self, text: str, redundancy: int = 1, adjudication: str = "none", caller: Caller = ADMIN, key: str | None = None
    ) -> str:
        mode = "objective" if adjudication in ("none", "majority_vote") else "subjective"
        wanted = {"mode": mode, "redundancy": redundancy, "adjudication": adjudication}
        asked = SubmitJobRequest(job_type=ECHO, payload={"text": text, "verification": wanted})
        job_id, _ = await self.service.jobs.submit(Submission(asked, key), caller)
        return job_id

    async def ended(self, job_id: str, seconds: float = 120) -> JobView:
        async def ended() -> JobView | None:
            found = await self.service.jobs.get(job_id, ADMIN)
            return found if found.status.ended else None

        return await until(ended, seconds)

    async def done(self, text: str, redundancy: int = 1, adjudication: str = "none") -> JobView:
        return await self.ended(await self.submit(text, redundancy, adjudication))


def failing(reason: str, *, again: bool) -> Say:
    def say(_: str) -> str:
        raise JobFailedError(reason, "it will not do", again=again)

    return say


__all__ = ["ECHO", "REGISTRY", "Echo", "JobsWorld", "Judge", "failing", "now_ms"]
