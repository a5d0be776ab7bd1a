"""Verified jobs on real sandboxes, while providers are killed at random and one of them lies.

Each job ends with the right verdict, or says that there is none. The full size is recorded; CI runs a tenth.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fumehood.verify import receipt
from fumehood.verify.keylist import KeyList
from tests.jobs_process import JobsCell, ProviderProcess

SANDBOX = "oa.sandbox_run.v1"
LIAR = 5
PROVIDERS = 6


def payload(image: str, number: int) -> dict[str, Any]:
    digest = image.rpartition("@")[2]
    return {
        "sandbox": {"image_digest": digest, "resources": {"memory_mb": 64, "cpus": 0.5, "timeout_secs": 60}},
        "commands": [{"cmd": f"echo job {number}; exit {number % 3}"}],
        "verification": {"mode": "objective", "redundancy": 3, "adjudication": "majority_vote"},
    }


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


async def storm(cell: JobsCell, image: str, jobs: int, at_once: int) -> tuple[list[dict[str, Any]], int]:
    gate = asyncio.Semaphore(at_once)

    async def one(number: int) -> dict[str, Any]:
        async with gate:
            job_id = await cell.submit(SANDBOX, payload(image, number), key=f"job-{number}", server=number % 2)
            return await cell.ended(job_id, server=number % 2, timeout=400)

    killer = Killer(cell.providers, seed=7)
    killing = asyncio.create_task(killer.work())
    try:
        found = await asyncio.gather(*(one(number) for number in range(jobs)))
    finally:
        killing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await killing
    return list(found), killer.killed


def check(job: dict[str, Any], number: int, keys: KeyList) -> str:
    """The right verdict, on receipts that hold, or an error that says so. How it ended."""
    if job["status"] != "succeeded":
        assert job["status"] == "failed", job
        assert job["error"]["code"] in ("too_few_workers", "too_few_answers", "no_valid_answer"), job["error"]
        return str(job["error"]["code"])
    (run,) = job["result"]["runs"]
    assert run["exit_code"] == number % 3
    assert run["stdout_sha256"] == hashlib.sha256(f"job {number}\n".encode()).hexdigest()
    assert job["result"]["status"] == ("success" if number % 3 == 0 else "failed")
    candidates = job["verdict"]["candidates"]
    assert len({one["worker"] for one in candidates}) == 3
    for envelope in job["receipts"]:
        said = receipt.check(envelope, keys).predicate
        assert (said.task["run_id"], said.request.sha256) == (job["job_id"], job["request_sha256"])
    chosen = candidates[job["verdict"]["chosen"]]
    assert chosen["response"] == job["result"]
    return "majority"


async def _storm(tmp_path: Path, image: str, jobs: int, record: Any) -> None:
    commands = {LIAR: ("tests/liar_provider.py",)}
    env = {"PROVIDER_JOB_TYPES": SANDBOX, "PROVIDER_CONCURRENCY": "2"}
    wait = {"FUMEHOOD_JOB_WAIT_SECONDS": "60"}
    with JobsCell(tmp_path, servers=2, providers=PROVIDERS, commands=commands, env=env, server_env=wait) as cell:
        began = time.monotonic()
        found, killed = await storm(cell, image, jobs, at_once=8)
        keys = cell.key_list()
        ends = Counter(check(job, number, keys) for number, job in enumerate(found))
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


@pytest.mark.timeout(400)
async def test_each_job_ends_with_a_right_verdict_or_says_that_there_is_none(
    tmp_path: Path, base_image: str, record_property: Any
) -> None:
    await _storm(tmp_path, base_image, 20, record_property)


@pytest.mark.record
@pytest.mark.timeout(3600)
async def test_200_jobs_end_with_a_right_verdict_or_say_that_there_is_none(
    tmp_path: Path, base_image: str, record_property: Any
) -> None:
    await _storm(tmp_path, base_image, 200, record_property)
