"""Jobs in sandboxes of a real engine: an executor, what it was told, and repositories to run over."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fumehood.images import Admission, DevelopmentPolicy, RegistryClient
from fumehood.images.admission import PolicySource
from fumehood.jobs.types.sandbox_run import SandboxRunRequest, SandboxRunResponse
from fumehood.node.jobs.sandbox import SandboxExecutor, SandboxJobOptions
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from tests.integration.worker_world import docker


@dataclass
class Told:
    """A `Context` that remembers."""

    worker_id: str = "worker-1"
    task_id: str = field(default_factory=lambda: f"task-{uuid.uuid4().hex[:8]}")
    tenant: str = "default"
    proven: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def prove(self, name: str, sha256: str) -> None:
        self.proven[name] = sha256

    def observe(self, **facts: Any) -> None:
        json.dumps(facts)
        self.facts |= facts


@dataclass
class Jobs:
    """One provider."""

    driver: DockerDriver
    admission: Admission
    options: SandboxJobOptions
    node_id: str
    image: str
    told: Told = field(default_factory=Told)

    @property
    def digest(self) -> str:
        return self.image.partition("@")[2]

    def executor(self, **changes: Any) -> SandboxExecutor:
        return SandboxExecutor(self.driver, self.admission, replace(self.options, **changes))

    def request(self, *commands: str | dict[str, Any], **asked: Any) -> SandboxRunRequest:
        """Words of a sandbox's own (`timeout_secs`, `memory_mb`) go where they belong."""
        listed = [{"cmd": one} if isinstance(one, str) else one for one in commands]
        names = ("timeout_secs", "memory_mb", "cpus", "disk_mb")
        resources = {name: asked.pop(name) for name in names if name in asked}
        sandbox = {"image_digest": self.digest, "resources": resources, **asked.pop("sandbox", {})}
        return SandboxRunRequest.model_validate({"sandbox": sandbox, "commands": listed, **asked})

    async def run(self, *commands: str | dict[str, Any], **asked: Any) -> SandboxRunResponse:
        """Nothing is left of it on the engine, nor in the provider's folder."""
        options = asked.pop("options", {})
        self.told = Told()
        response = await self.executor(**options).run(self.request(*commands, **asked), self.told)
        assert self.containers() == []
        assert list(self.options.folder.iterdir()) == []
        return SandboxRunResponse.model_validate(response.typed())

    def containers(self) -> list[str]:
        return docker("ps", "-aq", "--no-trunc", "--filter", f"label=fumehood.node={self.node_id}").split()

    def clear(self) -> None:
        for container in self.containers():
            with contextlib.suppress(subprocess.CalledProcessError):
                docker("rm", "-f", container)


@contextlib.asynccontextmanager
async def jobs_in(
    folder: Path, socket: Path, image: str, *, policy: PolicySource | None = None, runtime: str = "runc", **options: Any
) -> AsyncIterator[Jobs]:
    node_id = f"jobs-{uuid.uuid4().hex[:12]}"
    driver = DockerDriver(DockerOptions(node_id=node_id, state_dir=folder, socket=socket, runtime=runtime))
    async with RegistryClient() as registry:
        rules = policy or DevelopmentPolicy(job_repositories=(image.partition("@")[0],))
        made = Jobs(
            driver,
            Admission(rules, registry),
            SandboxJobOptions(worker_id=node_id, work_dir=folder / "jobs", **options),
            node_id,
            image,
        )
        await made.executor().sweep()
        try:
            yield made
        finally:
            await driver.close()
            made.clear()


def git(folder: Path, *words: str) -> str:
    """The real one, with nobody's configuration."""
    env = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.com",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.com",
        "GIT_AUTHOR_DATE": "1700000000 +0000",
        "GIT_COMMITTER_DATE": "1700000000 +0000",
    }
    done = subprocess.run(["git", *words], cwd=folder, env=env, check=True, capture_output=True, text=True, timeout=240)
    return done.stdout.strip()


def repository(folder: Path) -> Path:
    """A work tree with two commits, a tag, a program, a link, and a change that nobody committed."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "src").mkdir()
    (folder / "src" / "hello.py").write_text("print('hello')\n")
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "name with ' and é").write_text("odd\n")
    (folder / "link").symlink_to("src/hello.py")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    git(folder, "tag", "-a", "v1", "-m", "one")
    (folder / "src" / "hello.py").write_text("print('hello again')\n")
    git(folder, "commit", "-q", "-a", "-m", "second")
    (folder / "uncommitted").write_text("x")
    return folder
