"""Jobs that mean harm, on a real engine and with the real git: no answer is false, nothing leaks, nothing stays."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
import secrets
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fumehood.broker.memory import MemoryBroker
from fumehood.broker.names import NODES_TENANT
from fumehood.errors import JobFailedError
from fumehood.jobs.types.sandbox_run import SandboxRunResponse, SandboxStatus
from fumehood.node.jobs.sandbox.repo import local
from tests.conftest import TimeBounds
from tests.integration.job_world import Jobs, Told, git, jobs_in, repository
from tests.integration.worker_world import running
from tests.noise import Watch
from tests.waiting import until

pytestmark = [pytest.mark.hostile, pytest.mark.asyncio(loop_scope="module")]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class World:
    """A provider, a folder whose repositories it may use, and one beside it that is nobody's business."""

    jobs: Jobs
    folder: Path
    broker: MemoryBroker

    def repository(self) -> Path:
        return repository(self.folder / "allowed" / secrets.token_hex(6))

    async def uploaded(self, data: bytes) -> str:
        return "bundle:" + await self.broker.blobs(NODES_TENANT).put(data)

    async def over(self, source: str, *commands: str, **asked: Any) -> SandboxRunResponse:
        done = await self.jobs.run(*(commands or ("true",)), repo={"source": source}, **asked)
        assert str(self.folder) not in (done.error or "").replace(source, "")
        return done


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    tmp_path_factory: pytest.TempPathFactory, docker_socket: Path, python_image: str
) -> AsyncIterator[World]:
    folder, broker = tmp_path_factory.mktemp("hostile"), MemoryBroker()
    (folder / "allowed").mkdir()
    options: dict[str, Any] = {"repo_roots": (folder / "allowed",), "blobs": broker.blobs(NODES_TENANT)}
    async with jobs_in(folder / "state", docker_socket, python_image, **options) as jobs:
        yield World(jobs, folder, broker)


# --- what is hashed ----------------------------------------------------------------------------------------


async def test_whoever_goes_on_writing_is_dead_before_anything_is_hashed(world: World) -> None:
    """A process in a session of its own, with all its pipes closed, that changes an artifact and puts a link there."""
    mark = secrets.token_hex(8)
    code = (
        f"import os\nwhile True:\n  open('f', 'w').write('{mark}' * 300_000)\n"
        "  os.symlink('/etc/passwd', 'l')\n  os.replace('l', 'g')\n"
        "  open('h', 'w').write('x')\n  os.replace('h', 'g')\n"
    )
    done = await world.jobs.run(
        f"cat > w.py <<'E'\n{code}E\nsetsid python3 w.py </dev/null >/dev/null 2>&1 & sleep 0.7; printf done > e",
        artifacts=["*"],
    )
    assert (done.status, done.runs[0].exit_code) == (SandboxStatus.SUCCESS, 0)
    found = {one.path: one for one in done.artifacts}
    assert found["e"].sha256 == sha256(b"done")
    whole = (mark * 300_000).encode()[: found["f"].size_bytes]
    assert found["f"].sha256 == sha256(whole)
    assert "g" not in found or found["g"].sha256 in (sha256(b"x"), sha256(b""))


async def test_a_flood_is_hashed_to_its_end(world: World) -> None:
    done = await world.jobs.run("head -c 90000000 /dev/zero & head -c 90000000 /dev/zero >&2; wait", timeout_secs=30)
    assert done.status is SandboxStatus.SUCCESS
    assert done.runs[0].stdout_sha256 == done.runs[0].stderr_sha256 == sha256(bytes(90_000_000))


async def test_a_sandbox_that_ended_as_a_whole_leaves_no_hash_of_half_an_output(
    world: World, docker_socket: Path, python_image: str, tmp_path: Path
) -> None:
    """gVisor's goes as one when its memory is over: what had come out by then is not what the command printed."""
    async with jobs_in(tmp_path, docker_socket, python_image, runtime="runsc") as jobs:
        done = await jobs.run("echo first", "echo second; head -c 150000000 /dev/zero > big", memory_mb=64)
    assert (done.status, [run.stdout_preview for run in done.runs]) == (SandboxStatus.ERROR, ["first\n"])
    assert "not known to its end" in (done.error or "")
    assert set(jobs.told.proven) == {"stdout/0", "stderr/0"}


async def test_a_workspace_that_took_all_memory_is_an_answer(world: World) -> None:
    """Nothing can be read there any more, by whomever: trying again would only kill the next sandbox."""
    done = await world.jobs.run("head -c 150000000 /dev/zero > big", memory_mb=64, artifacts=["*"])
    assert (done.status, [run.exit_code for run in done.runs]) == (SandboxStatus.ERROR, [137])
    assert "no memory left" in (done.error or "")


# --- artifacts ---------------------------------------------------------------------------------------------


async def test_odd_files_are_told_as_they_are_or_not_at_all(world: World) -> None:
    code = (
        "import os, socket\n"
        "for name in ('a\\nb', ' ', '-x', '*', '\\x01', '\\u202e', '\"'): open(name, 'w').write(name)\n"
        "os.mkfifo('fifo'); socket.socket(socket.AF_UNIX).bind('socket'); os.symlink('/dev/zero', 'zero')\n"
        "open('sparse', 'w').truncate(20_000_000)\n"
    )
    done = await world.jobs.run(f"python3 - <<'E'\n{code}E", artifacts=["*"])
    assert done.status is SandboxStatus.SUCCESS, done.error
    found = {one.path: one.sha256 for one in done.artifacts}
    names = ("a\nb", " ", "-x", "*", "\x01", "\u202e", '"')
    assert found == {**{name: sha256(name.encode()) for name in names}, "sparse": sha256(bytes(20_000_000))}
    assert world.jobs.told.proven["artifact/a\nb"] == sha256(b"a\nb")


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("import os\nos.close(os.open(b'a\\xff', os.O_CREAT))", "not UTF-8"),
        ("import os\nfor _ in range(15): os.mkdir('x' * 240); os.chdir('x' * 240)\nopen('f', 'w')", "too long"),
        ("import os\nfor _ in range(70): os.mkdir('x'); os.chdir('x')", "more folders"),
        ("for n in range(1500): open('x' * 200 + str(n), 'w')", "more than 1000"),
    ],
)
async def test_names_that_no_receipt_can_bear_are_an_answer(world: World, code: str, word: str) -> None:
    done = await world.jobs.run(f'python3 -c "{code}"', artifacts=["**"])
    assert (done.status, len(done.runs), done.artifacts) == (SandboxStatus.ERROR, 1, ())
    assert word in (done.error or "")


async def test_globs_hold_up_nobody_else(world: World, time_bounds: TimeBounds) -> None:
    """While a thousand files are compared with all that a request may ask for, others have their turn."""
    globs = [f"{'**/*/' * 30}**/{number}" for number in range(64)]
    longest = 0.0

    async def others() -> None:
        nonlocal longest
        while True:
            began = time.thread_time()  # whatever else this machine does
            await asyncio.sleep(0.01)
            longest = max(longest, time.thread_time() - began)

    watching = asyncio.create_task(others())
    code = "import os\nfor _ in range(25): os.mkdir('x'); os.chdir('x')\nfor n in range(1200): open(str(n + 100), 'w')"
    done = await world.jobs.run(f'python3 -c "{code}"', artifacts=globs)
    watching.cancel()
    assert (done.status, done.artifacts) == (SandboxStatus.SUCCESS, ())
    time_bounds.check(longest, 1)


# --- repositories ------------------------------------------------------------------------------------------


def made(repo: Path, kind: str, data: bytes) -> str:
    """An object that git's own commands would not make."""
    words = ["git", "hash-object", "-w", "--literally", "-t", kind, "--stdin"]
    return subprocess.run(words, cwd=repo, input=data, check=True, capture_output=True).stdout.decode().strip()


@pytest.mark.parametrize("committer", ["", "committer a <a@b> soon +0000\n", f"committer a <a@b> {'9' * 30} +0000\n"])
async def test_a_commit_of_no_time(world: World, committer: str) -> None:
    """Is one like any other, but for when its files are from."""
    repo = world.repository()
    tree = git(repo, "rev-parse", "HEAD^{tree}")
    commit = made(repo, "commit", f"tree {tree}\nauthor a <a@b> 1 +0000\n{committer}\nx\n".encode())
    git(repo, "update-ref", "refs/heads/main", commit)
    done = await world.over(str(repo), "cat src/hello.py")
    assert (done.status, done.repo_commit, done.repo_tree) == (SandboxStatus.SUCCESS, commit, tree)


@pytest.mark.parametrize("mode", [b"100644", b"120000"])
async def test_a_file_whose_content_is_a_folder(world: World, mode: bytes) -> None:
    """No other try makes a file of it."""
    repo = world.repository()
    inner = bytes.fromhex(git(repo, "rev-parse", "HEAD:src"))
    commit = git(repo, "commit-tree", made(repo, "tree", mode + b" a\0" + inner), "-m", "x")
    git(repo, "update-ref", "refs/heads/main", commit)
    done = await world.over(str(repo))
    assert (done.status, done.runs) == (SandboxStatus.ERROR, ())
    assert "something else" in (done.error or "")


async def test_a_repository_that_borrows_only_once_we_have_looked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who may write there is quicker than we are: the objects of others are not read all the same."""
    secret = repository(world.folder / "secret")
    (secret / "secret").write_text("of others")
    git(secret, "add", "secret")
    git(secret, "commit", "-q", "-m", "secret")
    repo = world.repository()
    (repo / ".git/refs/heads/main").write_text(git(secret, "rev-parse", "HEAD") + "\n")
    (repo / ".git/objects/info").mkdir(exist_ok=True)
    (repo / ".git/objects/info/alternates").write_text(f"{secret}/.git/objects\n")
    monkeypatch.setattr(local, "_is_there", lambda *_: False)
    done = await world.over(str(repo), "cat secret")
    assert (done.status, done.runs) == (SandboxStatus.ERROR, ())


async def test_a_bundle_that_holds_back_its_files(world: World) -> None:
    """`over` looks whether the sentence names a place of this machine."""
    repo, file = world.repository(), world.folder / "partial.bundle"
    git(repo, "bundle", "create", "--version=3", str(file), "--filter=blob:none", "HEAD")
    done = await world.over(await world.uploaded(file.read_bytes()))
    assert (done.status, done.runs) == (SandboxStatus.ERROR, ())
    assert "did not send all necessary objects" in (done.error or "")


@pytest.mark.parametrize("name", ["--upload-pack=touch MARK", "refs/heads/*", "a:refs/heads/b", "^main"])
async def test_a_bundle_with_a_name_that_git_could_read_otherwise(world: World, name: str) -> None:
    repo, file, mark = world.repository(), world.folder / "name.bundle", world.folder / "sprung"
    git(repo, "bundle", "create", str(file), "main")
    data = file.read_bytes().replace(b"refs/heads/main", name.replace("MARK", str(mark)).encode())
    done = await world.jobs.run("true", repo={"source": await world.uploaded(data)})
    assert "is no branch" in (done.error or "")
    assert not mark.exists()


@pytest.mark.parametrize("packed", [gzip.compress(b"") * 300_000, b"\x1f\x8b\x08\x08" + bytes(6) + b"a" * 20_000_000])
async def test_gzip_that_never_comes_to_its_point(world: World, packed: bytes) -> None:
    began = Watch()
    done = await world.over(await world.uploaded(packed))
    assert (done.status, began.seconds < 3) == (SandboxStatus.ERROR, True)


@pytest.mark.parametrize(
    "source", ["https://user:hunter2@git.test/x", "ext::sh -c 'echo hunter2'", "-oProxyCommand=hunter2", "git@h:x"]
)
async def test_a_password_in_an_address_is_repeated_nowhere(world: World, source: str) -> None:
    done = await world.jobs.run("true", repo={"source": source})
    assert done.status is SandboxStatus.ERROR
    assert "hunter2" not in done.model_dump_json() + json.dumps(world.jobs.told.facts)


# --- what stays --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0.0, 0.005, 0.05])
async def test_a_job_that_is_cancelled_while_its_sandbox_is_made(
    world: World, after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine goes on with what it was asked for, whoever hangs up: that is gone, too."""
    engine, begun = world.jobs.driver._engine, asyncio.Event()
    create = engine.create

    async def creating(name: str, body: dict[str, Any]) -> str:
        begun.set()
        return await create(name, body)

    monkeypatch.setattr(engine, "create", creating)
    task = asyncio.create_task(world.jobs.executor().run(world.jobs.request("true"), Told()))
    await begun.wait()
    await asyncio.sleep(after)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await world.jobs.run("true")  # by when the engine is done with what it began before; `run` sees what is left


async def test_another_providers_sandbox_is_not_touched(world: World, docker_socket: Path, tmp_path: Path) -> None:
    """Neither by a sweep of one beside it on the same engine, nor by that of one in the same process."""
    mark = f"sleep 94{int(time.time()) % 10_000_000}"
    jobs = world.jobs
    task = asyncio.create_task(jobs.executor().run(jobs.request(mark, timeout_secs=60), Told()))

    async def begun() -> bool:
        return bool(running(mark))

    await until(begun, what="the command runs")
    assert await jobs.executor(worker_id="another").sweep() == 0
    async with jobs_in(tmp_path, docker_socket, jobs.image) as others:
        assert await others.executor(worker_id=jobs.options.worker_id).sweep() == 0
    assert len(jobs.containers()) == 1
    assert running(mark) != []
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert jobs.containers() == []


async def test_artifacts_that_are_not_read_in_time_are_no_answer(world: World) -> None:
    """How quick this machine is says nothing about the request."""
    with pytest.raises(JobFailedError) as caught:
        await world.jobs.run("truncate -s 200M a", artifacts=["*"], options={"artifact_seconds": 0.05})
    assert (caught.value.reason, caught.value.again) == ("artifacts_unread", True)
    assert world.jobs.containers() == []


async def test_the_environment_of_the_provider_is_nobodys(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUMEHOOD_TEST_SECRET", "hunter3")
    monkeypatch.setenv("GIT_SSH_COMMAND", f"touch {world.folder}/sprung")
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'core.fsmonitor'='touch sprung'")
    done = await world.over(str(world.repository()), "env; cat /proc/*/environ | tr '\\0' '\\n'")
    assert done.runs[0].stdout_preview is not None
    assert "hunter3" not in done.runs[0].stdout_preview
    assert not any("sprung" in name for _, _, names in os.walk(world.folder) for name in names)
