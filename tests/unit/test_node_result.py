"""Every way a command can end, and what the Worker API says about it."""

from __future__ import annotations

import datetime as dt
import errno
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import ImagePullError, SandboxLostError
from fumehood.node import report, result
from fumehood.node.result import Verdict, verdict
from fumehood.node.task_output import TaskOutput
from fumehood.node.worker_job import command_of
from fumehood.sandbox.capture import STDERR, STDOUT, Capture
from fumehood.sandbox.pauses import LONGEST_RETRY_SECONDS, pause_seconds
from fumehood.sandbox.spec import End, Outcome, Stage, StreamEnd
from fumehood.wire.sandbox import Cut
from fumehood.wire.worker_api import ExitReason, JobStatus, RunJobRequest, SandboxRequest

NOW = dt.datetime(2026, 2, 16, 12, tzinfo=dt.UTC)
REQUEST = RunJobRequest(
    version=1,
    task_id=str(UUID(int=1)),
    job_id=str(UUID(int=2)),
    sandbox=SandboxRequest(image="a", command=("true",), env={"CYNODE_JOB_ID": "forged", "HOME": "/", "KEY": "v"}),
)


def outcome(end: End, **facts: object) -> Outcome:
    return Outcome(end, started_at=NOW, ended_at=NOW, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (outcome(End.EXITED, exit_code=0), Verdict(JobStatus.COMPLETED, 0)),
        (outcome(End.EXITED, exit_code=3), Verdict(JobStatus.FAILED, 3)),
        (outcome(End.EXITED, exit_code=137), Verdict(JobStatus.FAILED, 137)),
        (outcome(End.SIGNALED, signal=15), Verdict(JobStatus.FAILED, 143, ExitReason.SIGNAL)),
        (outcome(End.TIMED_OUT), Verdict(JobStatus.TIMEOUT)),
        (outcome(End.OOM, exit_code=137), Verdict(JobStatus.FAILED, 137, ExitReason.OOM)),
        (outcome(End.SANDBOX_LOST), Verdict(JobStatus.FAILED, 137, ExitReason.SANDBOX_LOST)),
    ],
)
def test_each_end_has_one_meaning(ended: Outcome, said: Verdict) -> None:
    assert verdict(ended) == said


@pytest.mark.parametrize(
    ("stage", "number", "code"),
    [
        (Stage.EXEC, errno.ENOENT, 127),
        (Stage.EXEC, errno.EACCES, 126),
        (Stage.EXEC, errno.ENOEXEC, 126),
        (Stage.EXEC, errno.E2BIG, 126),
        (Stage.DIRECTORY, errno.ENOENT, 125),
        (Stage.FORK, errno.EAGAIN, 125),
        (Stage.USER, errno.EPERM, 125),
    ],
)
def test_a_program_that_never_ran_says_why_on_stderr(stage: Stage, number: int, code: int) -> None:
    ended = outcome(End.NOT_STARTED, stage=stage, errno=number, stdout=StreamEnd(0, ""), stderr=StreamEnd(0, ""))
    answer = result.finished(REQUEST, ended, Capture(10))
    assert (answer.response.status, answer.response.exit_code) == (JobStatus.FAILED, code)
    assert answer.response.stderr.startswith("fumehood: ")
    assert answer.exit_reason is ExitReason.NOT_STARTED


@pytest.mark.parametrize(
    ("program", "number", "said"),
    [
        ("python3", errno.ENOENT, '"python3" was not found in the image\'s PATH'),
        ("./run.sh", errno.ENOENT, ": No such file or directory"),
        ("./run.sh", errno.EACCES, '"./run.sh" could not be executed: Permission denied'),
        ("a\nb", errno.ENOEXEC, '"a\\nb" could not be executed: Exec format error'),
        ("bash", errno.E2BIG, '"bash" could not be executed: an argument or environment value is longer than 131,071'),
        ("x" * 5000, errno.ENAMETOOLONG, 'xxx…" could not be executed: an argument or environment value is longer'),
    ],
)
def test_a_program_that_cannot_be_executed_is_named(program: str, number: int, said: str) -> None:
    note = verdict(outcome(End.NOT_STARTED, stage=Stage.EXEC, errno=number), program).note
    assert note is not None
    assert note.startswith('fumehood: "')
    assert said in note
    assert note.count("\n") == 1
    assert len(note) < 500


@given(out=st.binary(max_size=50), err=st.binary(max_size=50), limit=st.integers(1, 60))
def test_output_is_the_programs_own_and_cuts_are_marked(out: bytes, err: bytes, limit: int) -> None:
    capture = Capture(limit)
    capture.write(STDOUT, 0, out)
    capture.write(STDERR, 0, err)
    ended = outcome(End.EXITED, exit_code=0, stdout=StreamEnd(len(out), ""), stderr=StreamEnd(len(err), ""))
    response = result.finished(REQUEST, ended, capture).response
    assert response.truncated.stdout == (len(out) > limit)
    assert response.truncated.stderr == (len(err) > limit)
    response.stdout.encode()  # valid text, whatever the bytes were


@pytest.mark.parametrize(("engine_lost", "reason"), [(True, ExitReason.NODE_LOST), (False, ExitReason.SANDBOX_LOST)])
def test_a_lost_sandbox_is_said_to_be_lost(engine_lost: bool, reason: ExitReason) -> None:
    capture = Capture(10)
    capture.write(STDOUT, 0, b"begun\n")
    answer = result.lost(REQUEST, SandboxLostError("gone", engine_lost=engine_lost), capture, NOW)
    assert (answer.response.status, answer.response.exit_code, answer.exit_reason) == (JobStatus.FAILED, 137, reason)
    assert answer.response.stdout == "begun\n"
    assert (answer.response.truncated.stdout, answer.response.truncated.stderr) == (True, True), "nobody heard the end"


@pytest.mark.parametrize("end", [End.OOM, End.TIMED_OUT, End.SANDBOX_LOST])
def test_an_end_without_the_supervisors_count_is_not_called_whole(end: End, tmp_path: Path) -> None:
    """The engine's word that it ended is no word about its output: in the answer to a job, and in a task's report."""
    capture, output = Capture(10), TaskOutput(tmp_path)
    capture.write(STDOUT, 0, b"begun\n")
    output.write(STDOUT, 0, b"begun\n")
    response = result.finished(REQUEST, outcome(end), capture).response
    assert (response.truncated.stdout, response.truncated.stderr) == (True, True)
    said = report.finished(outcome(end), "x", output, {})
    assert said.truncated == Cut(stdout=True, stderr=True)
    assert report.lost(SandboxLostError("gone"), output, {}).truncated == Cut(stdout=True, stderr=True)
    counted = outcome(end, stdout=StreamEnd(6, ""), stderr=StreamEnd(1, ""))
    assert report.finished(counted, "x", output, {}).truncated == Cut(stdout=False, stderr=True)
    output.remove()


@pytest.mark.parametrize(
    ("written", "tail"),
    [
        (b"", ""),
        (b"why \xff\n", "why \ufffd\n"),
        (b"x" * 5000 + b"\n" + b"the end\n", "the end\n"),
        ("é".encode() * 3000, "é" * 2048),
        (b"x" + "é".encode() * 3000, "é" * 2048),
        (b"x" * 5000 + b"\n\n", "x" * (report.TAIL_BYTES - 2) + "\n\n"),
        (b"x\n" * report.SHOWN_BYTES, "x\n" * (report.TAIL_BYTES // 2 - 1)),
    ],
)
def test_a_failed_step_says_what_it_wrote_last_to_stderr(written: bytes, tail: str, tmp_path: Path) -> None:
    output = TaskOutput(tmp_path)
    output.write(STDOUT, 0, b"out\n")
    output.write(STDERR, 0, written)
    details = report.failure(report.finished(outcome(End.EXITED, exit_code=1), "x", output, {}))["details"]
    assert details["stderr_tail"] == tail
    assert details.keys().isdisjoint({"stdout", "stderr"})
    whole = report.finished(outcome(End.EXITED, exit_code=0), "x", output, {})
    assert (whole.stderr_tail, "stderr_tail" in report.output_of(whole)) == (None, False)
    output.remove()


def test_an_image_that_cannot_be_had_is_a_failed_job() -> None:
    answer = result.not_started(REQUEST, ImagePullError("no such image"), NOW)
    assert (answer.response.status, answer.response.exit_code) == (JobStatus.FAILED, 125)
    assert answer.response.stderr == "fumehood: no such image\n"
    assert not answer.response.truncated.stderr


def test_the_nodes_own_variables_cannot_be_overridden() -> None:
    env = command_of(REQUEST, 5).env
    assert env == {
        "KEY": "v",
        "HOME": "/workspace",
        "CYNODE_TASK_ID": str(UUID(int=1)),
        "CYNODE_JOB_ID": str(UUID(int=2)),
        "CYNODE_WORKSPACE_DIR": "/workspace",
    }


def test_a_job_is_tried_again_for_as_long_as_it_takes() -> None:
    pauses = [pause_seconds(attempt) for attempt in (0, 1, 2, 10, 2_000, 1_000_000)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_RETRY_SECONDS
