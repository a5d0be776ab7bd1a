"""`client.jobs`: work that several providers do, with a verdict about what they said and the receipts that prove it."""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from fumehood.errors import RunFailedError
from fumehood.sdk.aio import here
from fumehood.sdk.aio.receipts import AsyncReceipt
from fumehood.sdk.aio.transport import AsyncTransport, part
from fumehood.sdk.aio.waiting import AsyncWaiting
from fumehood.sdk.job_values import JOB_ENDED, Candidate, JobStatus, JobType, Verdict, with_trust
from fumehood.sdk.run_values import Failure, word
from fumehood.sdk.verification import Held, Trust, Verification, outputs_of, verified_job


class AsyncJob(AsyncWaiting):
    """A job. What it says of itself is as it was when it was last asked: by `refresh` or `wait`.

    `client.jobs.submit` shows how one is made; `verify` checks all that its providers signed.
    """

    _noun: ClassVar[str] = "job"
    _has_events: ClassVar[bool] = False

    def __init__(self, transport: AsyncTransport, said: dict[str, Any]) -> None:
        """Made by `client.jobs.submit` and `client.jobs.get`."""
        super().__init__(transport, f"/v1/jobs/{part(str(said['job_id']))}", said)
        self.ignored: tuple[str, ...] = tuple(said.get("ignored") or ())
        """What the payload said that the job type has no field for, where it was just submitted."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._said.get('status')}>"

    @property
    def type(self) -> str:
        """Its job type."""
        return str(self._said["job_type"])

    @property
    def status(self) -> JobStatus | str:
        """Where it stands; a word that only later servers have is a plain text."""
        return word(JobStatus, self._said["status"])

    @property
    def has_ended(self) -> bool:
        """Whether it had when it was last asked about."""
        if isinstance(self.status, JobStatus):
            return self.status in JOB_ENDED
        return self._said.get("ended_at") is not None

    @property
    def ok(self) -> bool:
        """There is a result that was decided on as the request wanted."""
        return self.status == JobStatus.SUCCEEDED

    @property
    def result(self) -> Mapping[str, Any] | None:
        """The response that was decided on."""
        return self._said.get("result")

    @property
    def error(self) -> Failure | None:
        """Why nothing could be decided on."""
        return Failure.of(self._said.get("error"))

    @property
    def verdict(self) -> Verdict | None:
        """What was decided, and on what."""
        return Verdict.of(self._said.get("verdict"))

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Who said what."""
        return self.verdict.candidates if self.verdict is not None else ()

    @property
    def receipts(self) -> tuple[AsyncReceipt, ...]:
        """Of all executions that gave one, in their order, and of the judge."""
        return tuple(AsyncReceipt.of(one) for one in self._said.get("receipts") or ())

    @property
    def said(self) -> Mapping[str, Any]:
        """All that the server says of it: saved as JSON, `fumehood verify` takes it."""
        return self._said

    async def refresh(self) -> Self:
        """Ask how it stands now."""
        await self._look()
        return self

    async def wait(self, timeout: float | None = None) -> Self:
        """Until there is a verdict, or it is certain that there will be none. `WaitTimeoutError` leaves it as it is."""
        await self._until_ended(timeout)
        return self

    def check(self) -> Self:
        """Itself where it has succeeded; else `RunFailedError`, which says why not."""
        if self.ok:
            return self
        why = f": {self.error.message}" if self.error is not None else ""
        reason = self.error.code if self.error is not None else str(self.status)
        raise RunFailedError(reason, f"{self.id} is {str(self.status).replace('_', ' ')}{why}", run=self).advise(
            "`candidates` has what each provider said"
        )

    async def cancel(self) -> None:
        """End it; what its providers do is ended. One that has ended stays as it is."""
        await self._transport.post(f"{self._path}:cancel", again=True)

    async def verify(
        self,
        against: Held | Mapping[str, Held] | None = None,
        *,
        root: str | None = None,
        keys_file: str | Path | None = None,
    ) -> Verification:
        """Whether all receipts hold, are of this job, and the verdict follows from them; see `Receipt.verify`.

        What was asked is known here by its hash alone; `fumehood verify --request FILE` compares that, too.
        """
        outputs = await here.in_thread(outputs_of, against)
        trust = Trust(root, None if keys_file is None else Path(keys_file))
        return await here.in_thread(verified_job, self._said, outputs, trust)


class AsyncJobs:
    """Jobs by their ids, and the types of them."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def submit(
        self,
        job_type: str,
        payload: Mapping[str, Any],
        *,
        redundancy: int | None = None,
        adjudication: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncJob:
        """Have a job done. `redundancy`: so many distinct providers do it, and `adjudication` makes one result of
        theirs (the majority's, unless said otherwise). The same `idempotency_key` again is the same job.

            run = await client.runs.start_image("python:3.12-slim", ["true"])
            payload = {"sandbox": {"image_digest": run.image_digest}, "commands": [{"cmd": "echo hello"}]}
            job = await client.jobs.submit("oa.sandbox_run.v1", payload, redundancy=3)
            await job.wait(timeout=300)
            assert job.verdict.outcome == "majority"
        """
        wanted = dict(payload)
        if redundancy is not None or adjudication is not None:
            kind = await self.type(job_type)
            wanted = with_trust(wanted, kind.said.get("verification") or {}, redundancy, adjudication)
        key = idempotency_key or f"sdk-{secrets.token_hex(16)}"
        body = {"job_type": job_type, "payload": wanted}
        return AsyncJob(self._transport, await self._transport.post("/v1/jobs", body, idempotency_key=key))

    async def get(self, job_id: str) -> AsyncJob:
        """A job, as it is now."""
        return AsyncJob(self._transport, await self._transport.get(f"/v1/jobs/{part(job_id)}"))

    async def types(self) -> builtins.list[JobType]:
        """The job types that the server knows."""
        return [JobType.of(said) for said in (await self._transport.get("/v1/job-types"))["job_types"]]

    async def type(self, name: str) -> JobType:
        """One of them, with the schemas of what it takes and gives in `said`."""
        return JobType.of(await self._transport.get(f"/v1/job-types/{part(name)}"))
