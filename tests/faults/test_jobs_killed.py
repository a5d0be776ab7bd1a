"""Verified jobs, while providers are killed at random and one of them lies.

Each ends with the right verdict, or says that there is none: jobs of a type that takes a while, and some in sandboxes.
The full size of both is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fumehood.verify import receipt
from fumehood.verify.keylist import KeyList
from tests import slow_job
from tests.jobs_process import JobsCell, ProviderProcess

LIAR = 5
PROVIDERS = 6
OBJECTIVE = {"mode": "objective", "redundancy": 3, "adjudication": "majority_vote"}


@dataclass(frozen=True)
class Sandboxes:
    """Commands in real sandboxes."""

    image: str
    name = "oa.sandbox_run.v1"

    def payload(self, number: int) -> dict[str, Any]:
        limits = {"memory_mb": 64, "cpus": 0.5, "timeout_secs": 60}
        return {
            "sandbox": {"image_digest": self.image.rpartition("@")[2], "resources": limits},
            "commands": [{"cmd": f"echo job {number}; exit {number % 3}"}],
            "verification": OBJECTIVE,
        }

    def check(self, result: dict[str, Any], number: int) -> None:
        (run,) = result["runs"]
        assert run["exit_code"] == number % 3
        assert run["stdout_sha256"] == hashlib.sha256(f"job {number}\n".encode()).hexdigest()
        assert result["status"] == ("success" if number % 3 == 0 else "failed")


@dataclass(frozen=True)
class Digests:
    """What takes a while and no engine."""

    name = slow_job.NAME

    def payload(self, number: int) -> dict[str, Any]:
        return {"text": f"job {number}", "takes_ms": 100 + number % 7 * 100, "verification": OBJECTIVE}

    def check(self, result: dict[str, Any], number: int) -> None:
        assert result["sha256"] == hashlib.sha256(f"job {number}".encode()).hexdigest()


Kind = Sandboxes | Digests


class Killer:
    """Kills one provider after another, and starts it again a while later; never so many that none would be left."""

    def __init__(self, providers: list[ProviderProcess], seed: int) -> None:
        self._providers = providers
        self._random = random.Random(seed)
        self.killed = 0

    async def work(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0.5, 2.5))
            victim = self._random.choice(self._providers)
            await asyncio.to_thread(victim.kill)
            self.killed += 1
            await asyncio.sleep(self._random.uniform(0.0, 1.0))
            victim.launch()
            await asyncio.to_thread(victim.wait)


async def storm(cell: JobsCell, kind: Kind, jobs: int, at_once: int) -> tuple[list[dict[str, Any]], int]:
    gate = asyncio.Semaphore(at_once)

    async def one(number: int) -> dict[str, Any]:
        async with gate:
            job_id = await cell.submit(kind.name, kind.payload(number), key=f"job-{number}", server=number % 2)
            return await cell.ended(job_id, server=number % 2, timeout=400, look_seconds=1.0)

    killer = Killer(cell.providers, seed=7)
    killing = asyncio.create_task(killer.work())
    try:
        found = await asyncio.gather(*(one(number) for number in range(jobs)))
    finally:
        killing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await killing
    return list(found), killer.killed


def check(kind: Kind, job: dict[str, Any], number: int, keys: KeyList) -> str:
    """The right verdict, on receipts that hold, or an error that says so. How it ended."""
    if job["status"] != "succeeded":
        assert job["status"] == "failed", job
        assert job["error"]["code"] in ("too_few_workers", "too_few_answers", "no_valid_answer"), job["error"]
        return str(job["error"]["code"])
    kind.check(job["result"], number)
    candidates = job["verdict"]["candidates"]
    assert len({one["worker"] for one in candidates}) == 3
    for envelope in job["receipts"]:
        said = receipt.check(envelope, keys).predicate
        assert (said.task["run_id"], said.request.sha256) == (job["job_id"], job["request_sha256"])
    chosen = candidates[job["verdict"]["chosen"]]
    assert chosen["response"] == job["result"]
    return "majority"


async def _storm(tmp_path: Path, kind: Kind, jobs: int, record: Any) -> None:
    commands = {LIAR: ("-m", "tests.liar_provider")}
    env = {"PROVIDER_JOB_TYPES": kind.name, "PROVIDER_CONCURRENCY": "2", "FUMEHOOD_JOB_MODULES": "tests.slow_job"}
    told = {"FUMEHOOD_JOB_WAIT_SECONDS": "60", "FUMEHOOD_JOB_MODULES": "tests.slow_job"}
    with JobsCell(tmp_path, servers=2, providers=PROVIDERS, commands=commands, env=env, server_env=told) as cell:
        began = time.monotonic()
        found, killed = await storm(cell, kind, jobs, at_once=max(12, jobs // 3))
        keys = cell.key_list()
        ends = Counter(check(kind, job, number, keys) for number, job in enumerate(found))
        async with cell.client() as client:
            standing = (await client.get("/v1/providers")).json()["providers"]
    counts = {one["worker"]: one["counts"] for one in standing}
    liar = counts.get(f"provider-{LIAR}", {})
    record("jobs", jobs)
    record("ends", dict(ends))
    record("killed", killed)
    record("seconds", round(time.monotonic() - began))
    record("liar", liar)
    assert killed >= jobs // 20
    assert ends["majority"] >= jobs * 0.9, ends
    assert liar.get("disagreed", 0) >= 1, "the liar was never asked, so that nothing was shown"
    assert not liar.get("agreed")
    for worker, one in counts.items():
        assert worker == f"provider-{LIAR}" or not one.get("disagreed"), "an honest provider was outvoted"


@pytest.mark.storm
@pytest.mark.timeout(600)
async def test_jobs_end_with_a_right_verdict_or_say_so(tmp_path: Path, record_property: Any) -> None:
    await _storm(tmp_path, Digests(), 40, record_property)


@pytest.mark.storm
@pytest.mark.timeout(600)
async def test_so_do_jobs_in_sandboxes(tmp_path: Path, base_image: str, record_property: Any) -> None:
    await _storm(tmp_path, Sandboxes(base_image), 12, record_property)


@pytest.mark.record
@pytest.mark.timeout(3600)
async def test_so_do_200_jobs(tmp_path: Path, record_property: Any) -> None:
    await _storm(tmp_path, Digests(), 200, record_property)


@pytest.mark.record
@pytest.mark.timeout(3600)
async def test_so_do_200_jobs_in_sandboxes(tmp_path: Path, base_image: str, record_property: Any) -> None:
    await _storm(tmp_path, Sandboxes(base_image), 200, record_property)
