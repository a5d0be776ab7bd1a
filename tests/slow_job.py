"""A job type that takes a while: long enough for its provider to be killed in the middle."""

from __future__ import annotations

import hashlib

from fumehood.jobs.base import Context, JobRequest, JobResponse, JobType, SchemaVersion, Workbench
from fumehood.wire.jobs import U32, Adjudication, Mode, Provenance, Verification
from tests.waiting import past

NAME = "oa.text_digest.v1"


class DigestRequest(JobRequest):
    text: str
    takes_ms: U32 = 200
    verification: Verification = Verification(
        mode=Mode.OBJECTIVE, redundancy=3, adjudication=Adjudication.MAJORITY_VOTE
    )


class DigestResponse(JobResponse):
    sha256: str


class Digesting:
    async def run(self, request: DigestRequest, context: Context) -> DigestResponse:
        await past(request.takes_ms / 1000)
        return DigestResponse(
            sha256=hashlib.sha256(request.text.encode()).hexdigest(), provenance=Provenance(model_id="digest/1")
        )


def _local(workbench: Workbench) -> Digesting:
    return Digesting()


JOB_TYPE = JobType(
    name=NAME,
    version=SchemaVersion(1, 0, 0),
    about="Hashes a text, without haste.",
    request=DigestRequest,
    response=DigestResponse,
    handlers={"local": _local},
)
