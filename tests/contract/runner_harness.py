"""The Runner API behind a server's real door, and a node that does what a test tells it to."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from fumehood.broker.handout import Handouts, Leased
from fumehood.broker.ports import LogKind, LogName, LogPlace, LogRecord
from fumehood.node.report import failure
from fumehood.wire.logs import LogEnd, LogStart
from fumehood.wire.sandbox import SANDBOX_TASK, RunEnd, RunReason, SandboxReport
from tests.contract.server_api_harness import Api

CONTRACTS = Path(__file__).parents[2] / "contracts"
GOLDEN = CONTRACTS / "golden" / "runner-api"
IMAGE = "127.0.0.1:5055/team/tool:1"
BEGAN = dt.datetime(2026, 2, 16, 12, 0, tzinfo=dt.UTC)
ENDED = BEGAN + dt.timedelta(seconds=3)


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def wish(**changes: Any) -> dict[str, Any]:
    """A request with all that the contract requires, and nothing else."""
    limits = {"cpu_millis": 500, "memory_mb": 128, "timeout_seconds": 30}
    return {"image_ref": IMAGE, "resources": limits, "network_policy_profile": "deny-all", **changes}


def report(status: RunEnd = RunEnd.SUCCEEDED, reason: RunReason = RunReason.EXIT, **known: Any) -> SandboxReport:
    given = {"exit_code": 0, "started_at": BEGAN, "finished_at": ENDED, "node": "n1", "container": "c1", **known}
    return SandboxReport(status=status, reason=reason, **given)


@dataclass
class Node:
    """Takes runs as a node does, and says of them what it is told."""

    api: Api

    def __post_init__(self) -> None:
        self.broker = self.api.service.broker
        self.handouts = Handouts(self.broker)

    async def take(self) -> Leased:
        await self.api.decide()
        (found,) = await self.handouts.take([SANDBOX_TASK], max_tasks=1, timeout=60, worker_id="n1", lease_seconds=30)
        await self.api.decide()
        return found

    async def begin(self) -> Leased:
        """Take one, and send its command."""
        found = await self.take()
        await self.send(found)
        return found

    async def send(self, found: Leased) -> None:
        name = LogName(found.task.run_id, found.task.step_id, found.task.attempt)
        start = LogStart(started_at=BEGAN, node="n1", container=f"run-{found.task.run_id}")
        await self.broker.logs.append(name, LogRecord(LogKind.START, data=start.encode()))

    async def print(self, leased: Leased, stdout: bytes = b"", stderr: bytes = b"") -> None:
        """And close the log."""
        name = LogName(leased.task.run_id, leased.task.step_id, leased.task.attempt)
        await self.broker.logs.append(name, LogRecord(LogKind.OUT, data=stdout))
        await self.broker.logs.append(name, LogRecord(LogKind.ERR, LogPlace(len(stdout)), stderr))
        end = LogEnd(reason=RunReason.EXIT, ended_at=ENDED, stdout=len(stdout), stderr=len(stderr))
        place = LogPlace(len(stdout), len(stderr))
        await self.broker.logs.append(name, LogRecord(LogKind.END, place, end.encode()))

    async def close(self, leased: Leased, receipt: dict[str, Any]) -> None:
        """The end of a log, of a run that nobody wants to hear of."""
        name = LogName(leased.task.run_id, leased.task.step_id, leased.task.attempt)
        end = LogEnd(reason=RunReason.STOPPED, ended_at=ENDED, receipt=receipt)
        await self.broker.logs.append(name, LogRecord(LogKind.END, data=end.encode()))

    async def complete(self, leased: Leased, said: SandboxReport) -> None:
        await self.handouts.complete(leased.lease, said.model_dump(mode="json"))
        await self.api.decide()

    async def fail(self, leased: Leased, code: str, said: SandboxReport | None = None, **more: Any) -> None:
        details = failure(said)["details"] if said is not None else None
        error = {"code": code, "message": f"it is {code}", "retryable": False, "details": details, **more}
        await self.handouts.fail(leased.lease, error)
        await self.api.decide()


@dataclass
class Door:
    api: Api
    client: httpx.AsyncClient

    def __post_init__(self) -> None:
        self.node = Node(self.api)

    async def create(self, key: str | None = None, **changes: Any) -> httpx.Response:
        headers = {"idempotency-key": key} if key is not None else {}
        return await self.client.post("/runs", json=wish(**changes), headers=headers)

    async def created(self, **changes: Any) -> str:
        answer = await self.create(**changes)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["run_id"])

    async def get(self, run_id: str) -> dict[str, Any]:
        answer = await self.client.get(f"/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def stop(self, run_id: str) -> httpx.Response:
        answer = await self.client.post(f"/runs/{run_id}/stop")
        await self.api.decide()
        return answer
