"""`oa.sandbox_run.v1` on a real engine: statuses, hashes, artifacts, and nothing left behind."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fumehood.errors import JobFailedError
from fumehood.images import Admission, DevelopmentPolicy
from fumehood.images.reference import ImageReference
from fumehood.jobs.types.sandbox_run import SandboxStatus
from fumehood.node.jobs.sandbox import SandboxExecutor
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from tests.conftest import TimeBounds
from tests.integration.job_world import Jobs, Told, jobs_in
from tests.integration.worker_world import docker, running
from tests.noise import Watch
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

EMPTY = hashlib.sha256().hexdigest()


def sha256(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def jobs(tmp_path_factory: pytest.TempPathFactory, docker_socket: Path, python_image: str) -> AsyncIterator[Jobs]:
    async with jobs_in(tmp_path_factory.mktemp("jobs"), docker_socket, python_image) as made:
        yield made


# --- commands ----------------------------------------------------------------------------------------------


async def test_what_commands_give_is_hashed_and_proven(jobs: Jobs) -> None:
    """They run one after the other in one sandbox, in the request's environment, and see each other's files."""
    done = await jobs.run("echo one > made; printf out; printf err >&2", "cat made; echo $WORD; pwd", env={"WORD": "é"})
    assert done.status is SandboxStatus.SUCCESS
    assert [run.exit_code for run in done.runs] == [0, 0]
    assert (done.runs[0].stdout_preview, done.runs[0].stderr_preview) == ("out", "err")
    assert (done.runs[0].stdout_sha256, done.runs[0].stderr_sha256) == (sha256("out"), sha256("err"))
    assert done.runs[1].stdout_preview == "one\né\n/workspace\n"
    assert done.runs[1].stderr_sha256 == EMPTY
    assert done.error is None
    assert jobs.told.proven == {
        "stdout/0": sha256("out"),
        "stderr/0": sha256("err"),
        "stdout/1": sha256("one\né\n/workspace\n"),
        "stderr/1": EMPTY,
    }
    assert done.provenance.model_id.startswith("fumehood-sandbox/")


async def test_what_was_observed_is_told(jobs: Jobs) -> None:
    """The image with its evidence, the isolation as the engine reports it, and no network."""
    done = await jobs.run("true", memory_mb=128, cpus=0.5)
    facts = jobs.told.facts
    assert facts["image"]["digest"] == jobs.digest == done.env_info.image_digest
    assert facts["image"]["reference"] == jobs.image
    assert facts["image"]["evidence"]["rule"] == "loopback"
    assert facts["isolation"]["memory_bytes"] == 128 * 1024 * 1024
    assert facts["isolation"]["cpu_millis"] == 500
    assert facts["isolation"]["network"] == "none"
    assert facts["isolation"]["read_only_root"] is True
    assert facts["network"] == {"policy": "none", "profile": "deny-all"}
    assert done.env_info.hostname == "sandbox"
    assert done.env_info.system_info is not None
    assert done.env_info.system_info.startswith("Linux version")


async def test_the_first_failure_ends_the_list(jobs: Jobs) -> None:
    """Commands never started are not in `runs`."""
    done = await jobs.run("true", "exit 3", "echo never", artifacts=["*"])
    assert done.status is SandboxStatus.FAILED
    assert [run.exit_code for run in done.runs] == [0, 3]


async def test_a_failure_that_may_be_continued_after(jobs: Jobs) -> None:
    """The list goes on, and the status says that something failed all the same."""
    done = await jobs.run({"cmd": "exit 3", "continue_on_fail": True}, "echo on", "kill -TERM $$", "echo never")
    assert done.status is SandboxStatus.FAILED
    assert [run.exit_code for run in done.runs] == [3, 0, 128 + 15]
    assert done.runs[1].stdout_preview == "on\n"


async def test_a_timeout_kills_everything(jobs: Jobs, time_bounds: TimeBounds) -> None:
    """Also a child in a session of its own. The command that ran has 124; its container is gone before the answer."""
    mark = f"sleep 98{int(time.time()) % 10_000_000}"
    began = Watch()
    done = await jobs.run(
        "echo first", f"setsid {mark} & echo second; wait", "echo never", timeout_secs=2, artifacts=["**"]
    )
    assert done.status is SandboxStatus.TIMEOUT
    assert [run.exit_code for run in done.runs] == [0, 124]
    assert done.runs[1].stdout_sha256 == sha256("second\n")
    assert done.artifacts == ()
    assert running(mark) == []
    time_bounds.check(began.seconds, 20)


async def test_the_time_is_for_all_commands_together(jobs: Jobs) -> None:
    done = await jobs.run("sleep 3", "sleep 3", "echo never", timeout_secs=5)
    assert (done.status, [run.exit_code for run in done.runs]) == (SandboxStatus.TIMEOUT, [0, 124])


async def test_too_much_memory_is_a_failure(jobs: Jobs) -> None:
    done = await jobs.run("python3 -c 'x = bytearray(1 << 30)'", "echo never", memory_mb=64)
    assert done.status is SandboxStatus.FAILED
    assert [run.exit_code for run in done.runs] == [137]
    assert done.error is not None
    assert "memory" in done.error


async def test_what_cannot_be_started(jobs: Jobs) -> None:
    """A working directory that is not there is 126; a program that is not there is the shell's 127."""
    done = await jobs.run({"cmd": "true", "workdir": "nowhere", "continue_on_fail": True}, "no-such-program")
    assert [run.exit_code for run in done.runs] == [126, 127]
    assert done.status is SandboxStatus.FAILED
    assert done.error is not None
    assert "working directory" in done.error


async def test_all_output_is_hashed_and_the_first_of_it_shown(jobs: Jobs) -> None:
    """5 MB of characters of two bytes each: the preview ends between two of them."""
    code = "import sys; sys.stdout.write('x' + 'é' * 2_500_000)"
    done = await jobs.run(f'python3 -c "{code}"', r"printf '\377ok'")
    whole = ("x" + "é" * 2_500_000).encode()
    assert done.runs[0].stdout_sha256 == sha256(whole)
    preview = done.runs[0].stdout_preview
    assert preview is not None
    assert whole.startswith(preview.encode())
    assert 16 * 1024 - 2 < len(preview.encode()) <= 16 * 1024
    assert (done.runs[1].stdout_preview, done.runs[1].stdout_sha256) == ("\ufffdok", sha256(b"\xffok"))


async def test_two_runs_declare_the_same(jobs: Jobs) -> None:
    """Objective: what counts is what the commands gave, and that is the same."""
    asked: dict[str, Any] = {"artifacts": ["out"]}
    first = await jobs.run("echo $((6 * 7)) | tee out", **asked)
    second = await jobs.run("echo $((6 * 7)) | tee out", **asked)
    assert first.declared() == second.declared()


# --- places ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workdir", ["..", "/", "/etc", "a/../../..", "/workspace/../etc", "/workspacex"])
async def test_a_working_directory_that_leads_out_is_refused(jobs: Jobs, workdir: str) -> None:
    done = await jobs.run({"cmd": "pwd", "workdir": workdir})
    assert (done.status, done.runs) == (SandboxStatus.ERROR, ())
    assert "leads out" in (done.error or "")
    assert done.env_info.image_digest == jobs.digest


async def test_a_working_directory_through_a_link_is_refused(jobs: Jobs) -> None:
    """Whatever made it: what ran before is told, and the rest does not run."""
    done = await jobs.run("mkdir -p a && ln -s /etc a/b", {"cmd": "ls", "workdir": "a/b"})
    assert (done.status, len(done.runs)) == (SandboxStatus.ERROR, 1)
    assert "is a link" in (done.error or "")


@pytest.mark.parametrize("mount", ["/workspace/deep/er", "/tmp/here", "/tmp"])
async def test_another_mount(jobs: Jobs, mount: str) -> None:
    (done) = await jobs.run({"cmd": "pwd; mkdir sub"}, {"cmd": "pwd", "workdir": "sub"}, repo={"mount_path": mount})
    assert done.status is SandboxStatus.SUCCESS
    assert [run.stdout_preview for run in done.runs] == [f"{mount}\n", f"{mount}/sub\n"]


@pytest.mark.parametrize("mount", ["/", "/etc", "/workspace/../usr", "relative", "/tmpx"])
async def test_a_mount_that_cannot_be_written_to_is_refused(jobs: Jobs, mount: str) -> None:
    done = await jobs.run("true", repo={"mount_path": mount})
    assert done.status is SandboxStatus.ERROR
    assert done.error is not None


# --- artifacts ---------------------------------------------------------------------------------------------


async def test_artifacts_by_glob(jobs: Jobs) -> None:
    """Sorted, hashed by the worker, with their types; also after a failure. Links are neither taken nor followed."""
    done = await jobs.run(
        "mkdir -p out/deep/er; printf '{}' > out/a.json; printf text > out/deep/er/b; printf '\\0' > out/deep/c;"
        "head -c 3000000 /dev/zero > out/large; ln -s /etc/passwd out/leak; ln -s /etc out/folder; : > out/empty;"
        "mkfifo out/pipe; printf x > other; exit 1",
        artifacts=["out/**", "/workspace/out/a.json", "nothing/*"],
    )
    assert done.status is SandboxStatus.FAILED
    found = {one.path: (one.size_bytes, one.sha256, one.mime_type) for one in done.artifacts}
    assert [one.path for one in done.artifacts] == sorted(found)
    assert found == {
        "out/a.json": (2, sha256("{}"), "application/json"),
        "out/deep/c": (1, sha256(b"\0"), "application/octet-stream"),
        "out/deep/er/b": (4, sha256("text"), "text/plain"),
        "out/empty": (0, EMPTY, "text/plain"),
        "out/large": (3_000_000, sha256(bytes(3_000_000)), "application/octet-stream"),
    }
    assert jobs.told.proven["artifact/out/deep/er/b"] == sha256("text")


@pytest.mark.parametrize("glob", ["../*", "/etc/*", "a/../../etc/passwd"])
async def test_a_glob_that_leads_out_is_refused(jobs: Jobs, glob: str) -> None:
    done = await jobs.run("true", artifacts=[glob])
    assert (done.status, done.runs) == (SandboxStatus.ERROR, ())


@pytest.mark.parametrize(("bound", "word"), [({"artifact_count": 3}, "more than 3"), ({"artifact_bytes": 10}, "bytes")])
async def test_too_many_artifacts_are_an_error_and_said(jobs: Jobs, bound: dict[str, int], word: str) -> None:
    """The commands ran, and that is told; half of the artifacts is not."""
    done = await jobs.run("for i in 1 2 3 4; do echo word > $i; done", artifacts=["*"], options=bound)
    assert (done.status, len(done.runs), done.artifacts) == (SandboxStatus.ERROR, 1, ())
    assert word in (done.error or "")


# --- images and policy -------------------------------------------------------------------------------------


async def test_a_digest_that_is_nowhere(jobs: Jobs) -> None:
    """No repository of the policy's has it: an error that says so."""
    missing = "sha256:" + "ab" * 32
    done = await jobs.run("true", sandbox={"image_digest": missing})
    assert (done.status, done.env_info.image_digest) == (SandboxStatus.ERROR, missing)
    assert "image-not-found" in (done.error or "")


async def test_a_repository_that_is_not_allowed(jobs: Jobs) -> None:
    """Nothing is sent to its registry."""

    class Nobody:
        async def resolve(self, reference: ImageReference) -> str:
            raise AssertionError("a registry was asked that is not allowed")

    policy = DevelopmentPolicy(job_repositories=("registry.example/private/tool",))
    executor = SandboxExecutor(jobs.driver, Admission(policy, Nobody()), jobs.options)
    told = Told()
    done = await executor.run(jobs.request("true"), told)
    assert done.status is SandboxStatus.ERROR
    assert "registry_not_allowed" in (done.error or "")
    assert told.facts["image"]["evidence"]["denial_reason"] == "registry_not_allowed"


async def test_what_the_policy_does_not_permit(jobs: Jobs) -> None:
    done = await jobs.run("true", sandbox={"network_policy": "full"})
    assert done.status is SandboxStatus.ERROR
    assert "network_not_allowed" in (done.error or "")


async def test_localhost_is_no_network_with_a_loopback(jobs: Jobs) -> None:
    code = "from socket import *; s = create_server(('127.0.0.1', 0)); create_connection(s.getsockname()); print('ok')"
    done = await jobs.run(f'python3 -c "{code}"', sandbox={"network_policy": "localhost"})
    assert done.status is SandboxStatus.SUCCESS
    assert done.runs[0].stdout_preview == "ok\n"
    assert jobs.told.facts["isolation"]["network"] == "none"


async def test_another_provider_is_refused(jobs: Jobs) -> None:
    done = await jobs.run("true", sandbox={"provider": "firecracker"})
    assert (done.status, done.runs) == (SandboxStatus.ERROR, ())
    assert "firecracker" in (done.error or "")


async def test_the_workspace_is_as_large_as_was_asked(jobs: Jobs) -> None:
    done = await jobs.run("head -c 3000000 /dev/zero > a", disk_mb=2)
    assert done.status is SandboxStatus.FAILED


# --- trouble -----------------------------------------------------------------------------------------------


async def test_a_cancelled_job_leaves_nothing(jobs: Jobs) -> None:
    """Its sandbox is gone before the cancellation is raised."""
    mark = f"sleep 97{int(time.time()) % 10_000_000}"
    executor = jobs.executor()
    task = asyncio.create_task(executor.run(jobs.request(mark, timeout_secs=60), Told()))

    async def begun() -> bool:
        return bool(running(mark))

    await until(begun, what="the command runs")
    (container,) = jobs.containers()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert jobs.containers() == []
    assert running(mark) == []
    assert container


async def test_a_sandbox_that_is_lost_is_no_result(jobs: Jobs) -> None:
    """Somebody removes the container: the job is tried again elsewhere, and nobody is told of an exit code."""
    mark = f"sleep 96{int(time.time()) % 10_000_000}"
    task = asyncio.create_task(jobs.executor().run(jobs.request(mark, timeout_secs=60), Told()))

    async def begun() -> bool:
        return bool(running(mark))

    await until(begun, what="the command runs")
    await asyncio.to_thread(docker, "rm", "-f", *jobs.containers())
    with pytest.raises(JobFailedError) as caught:
        await task
    assert (caught.value.reason, caught.value.again) == ("sandbox_lost", True)


async def test_an_engine_that_is_away(jobs: Jobs, tmp_path: Path) -> None:
    driver = DockerDriver(DockerOptions(node_id="nobody", state_dir=tmp_path, socket=tmp_path / "no.sock"))
    executor = SandboxExecutor(driver, jobs.admission, jobs.executor(orphan_seconds=0.5)._options)
    try:
        with pytest.raises(JobFailedError) as caught:
            await executor.run(jobs.request("true"), Told())
    finally:
        await driver.close()
    assert (caught.value.reason, caught.value.again) == ("engine_unavailable", True)


async def test_a_sweep_removes_what_an_earlier_life_left(jobs: Jobs) -> None:
    """A process that was killed leaves its sandbox; the next one removes it, and spares what runs now."""
    mark = f"sleep 95{int(time.time()) % 10_000_000}"
    left = jobs.executor()
    task = asyncio.create_task(left.run(jobs.request(mark, timeout_secs=60), Told()))

    async def begun() -> bool:
        return bool(running(mark))

    await until(begun, what="the command runs")
    assert await left.sweep() == 0
    assert len(jobs.containers()) == 1
    assert await jobs.executor().sweep() == 1
    assert jobs.containers() == []
    with pytest.raises(JobFailedError):
        await task
