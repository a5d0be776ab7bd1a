"""The ledger: one truthful answer for each job, whatever happens to the process or the disk."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from fumehood.errors import ConfigurationError, ConflictError, LedgerError, NotFoundError
from fumehood.node import ledger_schema
from fumehood.node.ledger import JobState, Ledger, NewJob
from fumehood.node.lock import StateLock, load_node_id

R = TypeVar("R")
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def job(job_id: str = "j1", body: str = "b1", size: int = 0) -> NewJob:
    return NewJob(job_id, "t1", body, '{"x": "' + "y" * size + '"}', 300)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    opened = await Ledger.open(tmp_path / "ledger.db")
    yield opened
    await opened.close()


async def test_a_job_is_accepted_once(ledger: Ledger) -> None:
    first, second = await ledger.accept(job()), await ledger.accept(job())
    assert (first.new, second.new) == (True, False)
    assert first.record == second.record
    assert first.record.state is JobState.ACCEPTED
    assert first.record.effective_timeout_seconds == 300


async def test_many_callers_at_once_make_one_job(ledger: Ledger) -> None:
    accepted = await asyncio.gather(*(ledger.accept(job()) for _ in range(50)))
    assert sum(one.new for one in accepted) == 1


async def test_the_same_id_with_another_body_is_a_conflict(ledger: Ledger) -> None:
    await ledger.accept(job())
    with pytest.raises(ConflictError):
        await ledger.accept(job(body="b2"))
    assert (await ledger.accept(job())).record.body_sha256 == "b1"


async def test_a_job_goes_through_its_states(ledger: Ledger) -> None:
    await ledger.accept(job())
    created = await ledger.record_sandbox("j1", "s1", evidence='{"a": 1}', runtime="runc")
    assert (created.state, created.sandbox_id) == (JobState.CREATED, "s1")
    assert (created.runtime, created.evidence_json) == ("runc", '{"a": 1}')
    assert (await ledger.mark_running("j1")).state is JobState.RUNNING
    done = await ledger.finish("j1", '{"r": 1}', "oom")
    assert (done.state, done.response_json, done.exit_reason, done.done) == (JobState.DONE, '{"r": 1}', "oom", True)
    assert done.finished_at is not None
    assert done == await ledger.get("j1")


async def test_what_is_not_given_again_stays_known(ledger: Ledger) -> None:
    await ledger.accept(job())
    await ledger.record_sandbox("j1", "s1")
    await ledger.record_sandbox("j1", "s1", evidence="{}")
    await ledger.mark_running("j1")
    record = await ledger.record_sandbox("j1", "s1", runtime="runsc")
    assert (record.evidence_json, record.runtime) == ("{}", "runsc")
    assert record.state is JobState.RUNNING


async def test_a_running_job_cannot_get_another_sandbox(ledger: Ledger) -> None:
    await ledger.accept(job())
    await ledger.record_sandbox("j1", "s1")
    await ledger.mark_running("j1")
    with pytest.raises(ConflictError):
        await ledger.record_sandbox("j1", "s2")
    assert (await ledger.unfinished())[0].sandbox_id == "s1"


async def test_the_end_is_sticky(ledger: Ledger) -> None:
    await ledger.accept(job())
    first = await ledger.finish("j1", "first", None)
    assert await ledger.finish("j1", "second", "node_lost") == first
    with pytest.raises(ConflictError):
        await ledger.mark_running("j1")
    with pytest.raises(ConflictError):
        await ledger.record_sandbox("j1", "s1")
    assert await ledger.get("j1") == first


async def test_a_finished_job_keeps_no_request(ledger: Ledger, tmp_path: Path) -> None:
    await ledger.accept(NewJob("j1", "t1", "b1", '{"env": "hush-hush"}', 1))
    await ledger.finish("j1", "{}")
    record = await ledger.get("j1")
    assert record is not None
    assert record.request_json is None
    await ledger.close()
    assert b"hush-hush" not in (tmp_path / "ledger.db").read_bytes()


async def test_only_a_job_whose_command_was_never_sent_can_be_withdrawn(ledger: Ledger) -> None:
    for name in ("j1", "j2", "j3", "j4"):
        await ledger.accept(job(name))
    for name in ("j2", "j3"):
        await ledger.record_sandbox(name, "s-" + name)
    await ledger.mark_running("j3")
    await ledger.finish("j4", "{}")
    names = ("j1", "j2", "j3", "j4", "j5")
    assert [await ledger.withdraw(name) for name in names] == [True, True, False, False, False]
    assert await ledger.get("j1") is None
    assert (await ledger.accept(job("j1", body="another"))).new


async def test_unknown_jobs(ledger: Ledger) -> None:
    assert await ledger.get("nobody") is None
    for call in (ledger.mark_running("x"), ledger.finish("x", "{}"), ledger.record_sandbox("x", "s")):
        with pytest.raises(NotFoundError):
            await call


async def test_pruning_takes_only_old_ends(tmp_path: Path) -> None:
    now = START
    ledger = await Ledger.open(tmp_path / "ledger.db", clock=lambda: now)
    await ledger.accept(job("running"))
    await ledger.accept(job("old"))
    await ledger.finish("old", "{}")
    now = START + dt.timedelta(days=1)
    await ledger.accept(job("young"))
    await ledger.finish("young", "{}")
    assert await ledger.prune(now) == 1
    assert [await ledger.get(name) is None for name in ("running", "old", "young")] == [False, True, False]
    await ledger.close()


async def test_the_unfinished_come_oldest_first_after_a_restart(tmp_path: Path) -> None:
    moments = iter(START + dt.timedelta(seconds=second) for second in range(10))
    first = await Ledger.open(tmp_path / "ledger.db", clock=lambda: next(moments))
    for name in ("c", "a", "b"):
        await first.accept(job(name))
    await first.finish("a", "{}")
    await first.close()
    second = await Ledger.open(tmp_path / "ledger.db")
    assert [record.job_id for record in await second.unfinished()] == ["c", "b"]
    await second.close()


async def test_a_cancelled_caller_does_not_take_its_write_back(ledger: Ledger) -> None:
    """Not even where the write was still waiting for its turn."""
    await ledger.accept(job())
    begun, gate = threading.Event(), threading.Event()
    ledger._database._thread.submit(begun.set)
    ledger._database._thread.submit(gate.wait, 10)
    await asyncio.to_thread(begun.wait, 10)
    task = asyncio.create_task(ledger.finish("j1", "kept"))
    async with asyncio.timeout(60):
        while ledger._database._thread._work_queue.qsize() != 1 or task.done():  # noqa: ASYNC110 - a thread's queue has no event of ours
            await asyncio.sleep(0)
    task.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    record = await ledger.get("j1")
    assert record is not None
    assert record.response_json == "kept"


async def test_accept_and_finish_reach_the_disk_and_the_steps_between_need_not(ledger: Ledger) -> None:
    full, normal = 2, 1
    await ledger.accept(job())
    assert await ledger._call(_synchronous, ledger) == full
    await ledger.record_sandbox("j1", "s1")
    assert await ledger._call(_synchronous, ledger) == normal
    await ledger.finish("j1", "{}")
    assert await ledger._call(_synchronous, ledger) == full


def _synchronous(ledger: Ledger) -> int:
    (mode,) = ledger._database.execute("PRAGMA synchronous").fetchone()
    assert isinstance(mode, int)
    return mode


async def test_after_closing_every_call_is_an_error(ledger: Ledger) -> None:
    await ledger.close()
    await ledger.close()
    with pytest.raises(LedgerError):
        await ledger.accept(job())


async def test_the_file_is_its_owners_alone(ledger: Ledger, tmp_path: Path) -> None:
    await ledger.accept(job())
    assert modes(tmp_path) == dict.fromkeys(("ledger.db", "ledger.db-wal", "ledger.db-shm"), 0o600)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def test_a_ledger_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "ledger.db")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(ConfigurationError, match="newer version"):
        await Ledger.open(tmp_path / "ledger.db")


async def test_a_failed_migration_leaves_the_old_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await (await Ledger.open(tmp_path / "ledger.db")).close()
    broken = (*ledger_schema.MIGRATIONS, ("ALTER TABLE jobs ADD COLUMN more TEXT", "NOT SQL"))
    monkeypatch.setattr(ledger_schema, "MIGRATIONS", broken)
    with pytest.raises(LedgerError):
        await Ledger.open(tmp_path / "ledger.db")
    monkeypatch.undo()
    ledger = await Ledger.open(tmp_path / "ledger.db")
    assert (await ledger.accept(job())).new
    await ledger.close()


async def test_a_file_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(LedgerError):
        await Ledger.open(tmp_path / "ledger.db")


async def test_a_full_disk_is_an_error_and_not_a_lie(ledger: Ledger) -> None:
    """The refused job was not accepted, older ones still have their answers, and space heals it."""
    await ledger.accept(job("old"))
    await ledger.finish("old", "answer")
    await ledger._call(_limit_pages, ledger, 20)
    with pytest.raises(LedgerError):
        await ledger.accept(job("new", size=1_000_000))
    assert await ledger.get("new") is None
    old = await ledger.get("old")
    assert old is not None
    assert old.response_json == "answer"
    await ledger._call(_limit_pages, ledger, 1_000_000)
    assert (await ledger.accept(job("new", size=1_000_000))).new


async def test_an_end_that_cannot_be_stored_is_not_reported(ledger: Ledger) -> None:
    await ledger.accept(job())
    await ledger._call(_limit_pages, ledger, 20)
    with pytest.raises(LedgerError):
        await ledger.finish("j1", "z" * 1_000_000)
    assert [record.job_id for record in await ledger.unfinished()] == ["j1"]


def _limit_pages(ledger: Ledger, pages: int) -> None:
    ledger._database.execute(f"PRAGMA max_page_count={pages}")


CRASHING = """
import asyncio, os, sys
from pathlib import Path
from fumehood.node.ledger import Ledger, NewJob

async def main():
    ledger = await Ledger.open(Path(sys.argv[1]))
    async def one(lane):
        for number in range(100000):
            name = f"{lane}-{number}"
            await ledger.accept(NewJob(name, "t", "b", "{}", 1))
            os.write(1, f"accepted {name}\\n".encode())
            await ledger.finish(name, name * 50, None)
            os.write(1, f"finished {name}\\n".encode())
    await asyncio.gather(*(one(lane) for lane in range(4)))

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 7, 50, 301])
async def test_kill_9_in_mid_write_keeps_what_was_acknowledged(tmp_path: Path, lines: int) -> None:
    said = _run_until_killed(tmp_path / "ledger.db", lines)
    ledger = await Ledger.open(tmp_path / "ledger.db")
    for line in said:
        word, name = line.split()
        record = await ledger.get(name)
        assert record is not None, line
        assert word != "finished" or record.response_json == name * 50, line
    await ledger.close()


def _run_until_killed(path: Path, lines: int) -> list[str]:
    """What a writer had acknowledged, complete lines only, when it was killed without warning."""
    process = subprocess.Popen([sys.executable, "-c", CRASHING, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        said = [process.stdout.readline() for _ in range(lines)]
        os.kill(process.pid, signal.SIGKILL)
        said += process.stdout.read().splitlines(keepends=True)
    assert process.returncode == -signal.SIGKILL
    return [line for line in said if line.endswith("\n")]


class LedgerMachine(RuleBasedStateMachine):
    """The ledger beside a dict: any order of calls, restarts included, must give the same."""

    jobs = Bundle("jobs")

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.model: dict[str, dict[str, Any]] = {}
        self.now = START
        self.open()

    def open(self) -> None:
        self.ledger = self.run(Ledger.open(Path(self.folder.name) / "ledger.db", clock=lambda: self.now))

    def run(self, call: Awaitable[R]) -> R:
        async def awaited() -> R:
            return await call

        return self.loop.run_until_complete(awaited())

    def attempt(self, call: Callable[[], Awaitable[object]]) -> bool:
        try:
            self.run(call())
        except (ConflictError, NotFoundError):
            return False
        return True

    @rule(target=jobs, name=st.sampled_from("abcdef"), body=st.sampled_from("xy"))
    def accept(self, name: str, body: str) -> str:
        known = self.model.get(name)
        assert self.attempt(lambda: self.ledger.accept(job(name, body))) == (known is None or known["body"] == body)
        if known is None:
            self.model[name] = {"body": body, "state": "accepted", "sandbox": None, "response": None, "end": None}
        return name

    @rule(name=jobs, sandbox=st.sampled_from(["s1", "s2"]))
    def record_sandbox(self, name: str, sandbox: str) -> None:
        known = self.model.get(name, {"state": "unknown"})
        early = known["state"] in ("accepted", "created")
        fits = early or (known["state"] == "running" and known["sandbox"] == sandbox)
        assert self.attempt(lambda: self.ledger.record_sandbox(name, sandbox)) == fits
        if fits:
            known.update(sandbox=sandbox, state="created" if early else "running")

    @rule(name=jobs)
    def mark_running(self, name: str) -> None:
        known = self.model.get(name, {"state": "unknown"})
        fits = known["state"] not in ("done", "unknown")
        assert self.attempt(lambda: self.ledger.mark_running(name)) == fits
        if fits:
            known["state"] = "running"

    @rule(name=jobs, response=st.sampled_from(["r1", "r2"]))
    def finish(self, name: str, response: str) -> None:
        known = self.model.get(name)
        assert self.attempt(lambda: self.ledger.finish(name, response)) == (known is not None)
        if known is not None and known["state"] != "done":
            known.update(state="done", response=response, end=self.now)

    @rule(name=consumes(jobs))
    def withdraw(self, name: str) -> None:
        known = self.model.get(name, {"state": "unknown"})
        early = known["state"] in ("accepted", "created")
        assert self.run(self.ledger.withdraw(name)) == early
        if early:
            del self.model[name]

    @rule()
    def time_passes(self) -> None:
        self.now += dt.timedelta(seconds=1)

    @rule()
    def prune(self) -> None:
        old = [name for name, known in self.model.items() if known["end"] is not None and known["end"] < self.now]
        assert self.run(self.ledger.prune(self.now)) == len(old)
        for name in old:
            del self.model[name]

    @rule()
    def restart(self) -> None:
        self.run(self.ledger.close())
        self.open()

    @invariant()
    def every_record_is_as_in_the_model(self) -> None:
        for name in "abcdef":
            record, known = self.run(self.ledger.get(name)), self.model.get(name)
            assert (record is None) == (known is None)
            if record is not None and known is not None:
                seen = (record.body_sha256, record.state.value, record.sandbox_id, record.response_json)
                assert seen == (known["body"], known["state"], known["sandbox"], known["response"])

    @invariant()
    def the_unfinished_are_those_without_an_end(self) -> None:
        open_jobs = {record.job_id for record in self.run(self.ledger.unfinished())}
        assert open_jobs == {name for name, known in self.model.items() if known["state"] != "done"}

    def teardown(self) -> None:
        self.run(self.ledger.close())
        self.loop.close()
        self.folder.cleanup()


LedgerMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase


def test_a_state_directory_has_one_owner(tmp_path: Path) -> None:
    with StateLock(tmp_path / "state"):
        with pytest.raises(ConfigurationError, match="another node"):
            StateLock(tmp_path / "state")
        assert _other_process_takes(tmp_path / "state") == "another node"
    with StateLock(tmp_path / "state"):
        pass


def _other_process_takes(path: Path) -> str:
    code = (
        "import sys, pathlib\nfrom fumehood.node.lock import StateLock\n"
        "try: StateLock(pathlib.Path(sys.argv[1])); print('taken')\n"
        "except Exception as e: print('another node' if 'another node' in e.detail else repr(e))"
    )
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_state_directory_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be used") as caught:
        StateLock(tmp_path / "file" / "state")
    assert str(tmp_path / "file" / "state") in caught.value.detail, "the operator must see which one"


def test_a_node_keeps_its_id(tmp_path: Path) -> None:
    with StateLock(tmp_path) as lock:
        first = load_node_id(lock)
    with StateLock(tmp_path) as lock:
        assert load_node_id(lock) == first
    assert first.startswith("node-")
    assert len(first) == 17


def test_a_state_folder_that_the_node_makes_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with StateLock(tmp_path / "state"):
            assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
