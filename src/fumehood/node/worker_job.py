"""A job of the Worker API as a piece of work."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from fumehood.errors import FumehoodError, SandboxLostError
from fumehood.images.admission import AdmissionPolicy, AdmittedImage
from fumehood.node import claims, result
from fumehood.node.ledger import JobRecord
from fumehood.node.receipts import Receipts
from fumehood.node.result import Result
from fumehood.node.work import LABEL_CAPABILITY, LABEL_JOB, LABEL_TASK, Ended, Output
from fumehood.sandbox.capture import Capture
from fumehood.sandbox.driver import Driver, Handle
from fumehood.sandbox.spec import MIB, SANDBOX_USER, WORKSPACE, Command, Limits, Network, Outcome, SandboxSpec
from fumehood.settings import NodeSettings
from fumehood.wire.receipts import encoded
from fumehood.wire.worker_api import JobStatus, NetworkPolicy, RunJobRequest


class WorkerJob:
    """Implements `Work`."""

    def __init__(self, record: JobRecord, settings: NodeSettings, receipts: Receipts) -> None:
        self._record = record
        self._settings = settings
        self._receipts = receipts
        self._has_egress = False
        """Whether the operator named whom a sandbox may speak to."""
        self._request = RunJobRequest.model_validate_json(record.request_json or "")

    @property
    def image(self) -> str:
        return self._request.sandbox.image

    def permit(self, policy: AdmissionPolicy) -> None:
        """The contract leaves nothing to choose: user, network and limits are the node's own."""
        self._has_egress = bool(policy.egress)

    def spec(self, sandbox_id: str, image: AdmittedImage) -> SandboxSpec:
        return SandboxSpec(
            sandbox_id=sandbox_id,
            image=image,
            limits=limits_of(self._settings),
            user=SANDBOX_USER if self._settings.run_as == "sandbox" else None,
            network=self._network(),
            read_only_root=self._settings.read_only_root,
            labels={
                LABEL_CAPABILITY: "worker-api",
                LABEL_TASK: self._record.task_id,
                LABEL_JOB: self._record.job_id,
            },
        )

    def _network(self) -> Network:
        """`restricted` is none at all, unless the operator named whom a sandbox may speak to."""
        asked = self._request.sandbox.network_policy
        return Network.RESTRICTED if asked is NetworkPolicy.RESTRICTED and self._has_egress else Network.NONE

    def output(self, sandbox_id: str) -> Capture:
        return Capture(self._settings.output_limit_bytes, self._settings.state_dir / "spool" / sandbox_id)

    async def command(self, driver: Driver, handle: Handle) -> Command:
        return command_of(self._request, self._record.effective_timeout_seconds)

    def began(self, handle: Handle) -> None:
        """Nobody is told before the end."""

    def finished(self, outcome: Outcome, output: Output, evidence: Mapping[str, Any]) -> Ended:
        return self._ended(result.finished(self._request, outcome, _capture(output)), evidence, outcome)

    def lost(self, error: SandboxLostError, output: Output, evidence: Mapping[str, Any]) -> Ended:
        return self._ended(result.lost(self._request, error, _capture(output), self._record.accepted_at), evidence)

    def not_started(self, error: FumehoodError, since: dt.datetime, evidence: Mapping[str, Any]) -> Ended:
        return self._ended(result.not_started(self._request, error, since), evidence)

    def _ended(self, given: Result, evidence: Mapping[str, Any], outcome: Outcome | None = None) -> Ended:
        timeout_ms = self._record.effective_timeout_seconds * 1000
        signed = self._receipts.issue(
            lambda: claims.of_job(self._request, given, evidence, outcome, timeout_ms=timeout_ms)
        )
        response = given.response
        return Ended(
            answer_json=response.model_dump_json(exclude_none=True),
            status=response.status,
            started_at=response.started_at,
            ended_at=response.ended_at,
            exit_code=response.exit_code,
            exit_reason=given.exit_reason,
            gone_first=response.status is JobStatus.TIMEOUT,  # the contract: gone before the answer
            receipt_json=None if signed is None else encoded(signed).decode(),
        )


def _capture(output: Output) -> Capture:
    assert isinstance(output, Capture)
    return output


def command_of(request: RunJobRequest, timeout_seconds: int) -> Command:
    """The request's command in its environment: the request's own first, then what it cannot override."""
    env = {
        **request.sandbox.env,
        "HOME": WORKSPACE,
        "CYNODE_TASK_ID": str(request.task_id),
        "CYNODE_JOB_ID": str(request.job_id),
        "CYNODE_WORKSPACE_DIR": WORKSPACE,
    }
    return Command(argv=request.sandbox.command, env=env, timeout_ms=timeout_seconds * 1000)


def limits_of(settings: NodeSettings, *, memory_mib: int | None = None, cpu_millis: int | None = None) -> Limits:
    """The node's own, where nothing else is asked for."""
    return Limits(
        memory_bytes=(memory_mib or settings.memory_mib) * MIB,
        cpu_millis=cpu_millis or settings.cpu_millis,
        pids=settings.pids,
        file_bytes=settings.workspace_mib * MIB,
        workspace_bytes=settings.workspace_mib * MIB,
        tmp_bytes=settings.tmp_mib * MIB,
    )
