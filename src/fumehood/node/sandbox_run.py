"""A task of the queue as a piece of work: the engine's sandbox steps, and the runs of the Runner API."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fumehood.broker.lease import Lease
from fumehood.errors import FumehoodError, SandboxLostError
from fumehood.images.admission import AdmissionPolicy, AdmittedImage
from fumehood.images.run_rules import RunWish
from fumehood.node import claims, report
from fumehood.node.ledger import JobRecord
from fumehood.node.receipts import Receipts, Said
from fumehood.node.task_output import TaskOutput
from fumehood.node.work import LABEL_CAPABILITY, LABEL_JOB, LABEL_TASK, Ended, Output
from fumehood.node.worker_job import limits_of
from fumehood.sandbox.driver import Driver, Handle
from fumehood.sandbox.spec import SANDBOX_USER, WORKSPACE, Command, Outcome, SandboxSpec, argv_of, network_of
from fumehood.settings import NodeSettings
from fumehood.wire.protocol import TaskPayload
from fumehood.wire.sandbox import RUN_STEP, SandboxReport, SandboxTask

OUTPUT = "output"
"""Where in the node's folder the output of tasks lies, until they were answered."""


def job_id_of(task: TaskPayload) -> str:
    """One for each hand-out of the engine: what was run once under it is never run again."""
    return f"{task.run_id}.{task.step_id}.{task.attempt}.{task.iteration}.{task.resumption or 0}"


def container_of(task: TaskPayload) -> str:
    """What people see at the engine: `run-<run_id>` for the first attempt of a single run."""
    run = task.run_id if task.run_id.startswith("run-") else f"run-{task.run_id}"
    step = "" if task.step_id == RUN_STEP else f".{task.step_id}"  # a dot is in no step's id
    return run + step + (f".a{task.attempt}" if task.attempt > 1 else "")


class SandboxRun:
    """Implements `Work`."""

    def __init__(self, record: JobRecord, settings: NodeSettings, node_id: str, receipts: Receipts) -> None:
        self._record = record
        self._settings = settings
        self._node_id = node_id
        self._receipts = receipts
        self.payload = TaskPayload.model_validate_json(record.request_json or "")
        self.task = SandboxTask.model_validate(self.payload.sandbox)
        self._program = ""
        self.out: TaskOutput | None = None
        self.begun = asyncio.Event()
        """Its command was sent, or is about to be."""
        self.on_began: Callable[[], None] = lambda: None

    @property
    def image(self) -> str:
        return self.task.image

    def permit(self, policy: AdmissionPolicy) -> None:
        """A policy's maxima also hold for what the node gives to whoever asks for nothing."""
        asked, own = self.task, self._settings
        own_seconds = self._record.effective_timeout_seconds
        policy.permits(
            RunWish(
                network=asked.network,
                cpu_millis=asked.cpu_millis or own.cpu_millis,
                memory_mib=asked.memory_mib or own.memory_mib,
                timeout_seconds=asked.timeout_ms / 1000 if asked.timeout_ms is not None else own_seconds,
                user=own.run_as,
            )
        )

    def spec(self, sandbox_id: str, image: AdmittedImage) -> SandboxSpec:
        settings, asked = self._settings, self.task
        return SandboxSpec(
            sandbox_id=sandbox_id,
            image=image,
            limits=limits_of(settings, memory_mib=asked.memory_mib, cpu_millis=asked.cpu_millis),
            user=SANDBOX_USER if settings.run_as == "sandbox" else None,
            network=network_of(asked.network),
            read_only_root=settings.read_only_root,
            name=container_of(self.payload),
            labels={
                LABEL_CAPABILITY: "sandbox-task",
                LABEL_TASK: self.payload.task_id,
                LABEL_JOB: self._record.job_id,
            },
        )

    def output(self, sandbox_id: str) -> TaskOutput:
        self.out = TaskOutput(self._settings.state_dir / OUTPUT / sandbox_id)
        return self.out

    async def command(self, driver: Driver, handle: Handle) -> Command:
        asked, payload = self.task, self.payload
        argv = argv_of(await driver.image_command(handle), asked.command, asked.args)
        self._program = argv[0]
        env = {
            "HOME": WORKSPACE,
            **asked.env,
            "FUMEHOOD_RUN_ID": payload.run_id,
            "FUMEHOOD_STEP_ID": payload.step_id,
            "FUMEHOOD_ATTEMPT": str(payload.attempt),
        }
        return Command(argv=argv, env=env, timeout_ms=self._timeout_ms, stdin=self._stdin)

    @property
    def _timeout_ms(self) -> int:
        most = self._record.effective_timeout_seconds * 1000
        return most if self.task.timeout_ms is None else min(self.task.timeout_ms, most)

    @property
    def _stdin(self) -> bytes:
        given = self.payload.input
        return b"" if given is None else json.dumps(given, ensure_ascii=False).encode()

    def began(self, handle: Handle) -> None:
        self.begun.set()
        self.on_began()

    def note(self, lease: Lease) -> None:
        """The lease was renewed."""
        if self.out is not None:
            self.out.note_expiry(lease.expires_ms)

    def finished(self, outcome: Outcome, output: Output, evidence: Mapping[str, Any]) -> Ended:
        said = report.finished(outcome, self._program, _mine(output), self._known(evidence))
        return self._ended(said, outcome.started_at)

    def lost(self, error: SandboxLostError, output: Output, evidence: Mapping[str, Any]) -> Ended:
        """Nobody is told before the sandbox is surely gone: it may be tried again elsewhere."""
        ended = self._ended(report.lost(error, _mine(output), self._known(evidence)), self._record.accepted_at)
        return replace(ended, gone_first=True)

    def not_started(self, error: FumehoodError, since: dt.datetime, evidence: Mapping[str, Any]) -> Ended:
        return self._ended(report.not_started(error, self._known(evidence)), since)

    def _known(self, evidence: Mapping[str, Any]) -> dict[str, Any]:
        return {"node": self._node_id, "container": container_of(self.payload), "evidence": dict(evidence)}

    def _ended(self, said: SandboxReport, since: dt.datetime) -> Ended:
        signed = said.model_copy(update={"receipt": self._receipts.issue(lambda: self._claim(said))})
        return Ended(
            answer_json=signed.model_dump_json(exclude_none=True),
            status=said.status,
            started_at=since,
            ended_at=max(since, said.finished_at or since),
            exit_code=said.exit_code,
            exit_reason=said.reason.value,
        )

    def _claim(self, said: SandboxReport) -> Said:
        lease_id = _lease_id(self._record)
        return claims.of_task(said, self.payload, stdin=self._stdin, timeout_ms=self._timeout_ms, lease_id=lease_id)


def _lease_id(record: JobRecord) -> str | None:
    """Of the lease that it was taken with: a later life of the node goes on under it."""
    said = json.loads(record.lease_json) if record.lease_json is not None else {}
    return str(said["lease_id"]) if "lease_id" in said else None


def _mine(output: Output) -> TaskOutput:
    assert isinstance(output, TaskOutput)
    return output
