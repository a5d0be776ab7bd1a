"""One job: an image, a repository, a sandbox, its commands, its artifacts; and what is answered of all that."""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Final

from fumehood.errors import ImageError, PolicyDeniedError, SandboxError, SandboxLostError
from fumehood.images.admission import Admission, AdmittedImage
from fumehood.jobs.base import Context
from fumehood.jobs.types.sandbox_run import (
    Artifact,
    EnvInfo,
    SandboxRunRequest,
    SandboxRunResponse,
    SandboxStatus,
)
from fumehood.node.jobs.sandbox.artifacts import Artifacts
from fumehood.node.jobs.sandbox.asked import Asked, known
from fumehood.node.jobs.sandbox.commands import Commands, Runs
from fumehood.node.jobs.sandbox.mounting import Mounting
from fumehood.node.jobs.sandbox.options import SandboxJobOptions
from fumehood.node.jobs.sandbox.refused import RefusedError
from fumehood.node.jobs.sandbox.repo.opening import Repositories
from fumehood.node.jobs.sandbox.repo.tree import Tree
from fumehood.node.jobs.sandbox.sandboxes import Sandboxes
from fumehood.node.jobs.sandbox.time_left import TimeIsUpError, TimeLeft
from fumehood.sandbox.driver import Driver, Handle, State
from fumehood.sandbox.spec import network_of
from fumehood.wire.jobs import Provenance

SYSTEM_BYTES: Final = 512


class Job:
    """What is known of it so far is kept here: the answer is made of that, however it ends."""

    def __init__(
        self,
        driver: Driver,
        admission: Admission,
        options: SandboxJobOptions,
        sandboxes: Sandboxes,
        request: SandboxRunRequest,
        context: Context,
    ) -> None:
        self._driver = driver
        self._admission = admission
        self._options = options
        self._sandboxes = sandboxes
        self._request = request
        self._context = context
        self._info = EnvInfo(image_digest=request.sandbox.image_digest)
        self._runs = Runs()
        self._artifacts: list[Artifact] = []
        self._tree: Tree | None = None

    async def response(self) -> SandboxRunResponse:
        try:
            await self._do()
        except RefusedError as error:
            return self._answered(SandboxStatus.ERROR, str(error))
        except TimeIsUpError as error:
            return self._answered(SandboxStatus.TIMEOUT, str(error))
        return self._answered(self._runs.status, self._runs.error)

    async def _do(self) -> None:
        asked = Asked.of(self._request)
        image = await self._admitted(asked)
        policy = self._admission
        async with contextlib.AsyncExitStack() as repository:
            opening = Repositories(self._options).opened(self._request.repo, lambda: policy.policy.egress, asked.room)
            self._tree = await repository.enter_async_context(opening)
            self._observe_repo()
            network = network_of(asked.profile)
            async with self._sandboxes.made(image, asked.limits, network, self._context.task_id) as handle:
                await self._in(handle, asked, repository)

    async def _admitted(self, asked: Asked) -> AdmittedImage:
        """Before anything is fetched or made."""
        digest, policy = self._request.sandbox.image_digest, self._admission.policy  # one for both questions
        try:
            policy.permits(asked.wish)
            image = await self._admission.find(digest, policy)
        except PolicyDeniedError as error:
            raise RefusedError(f"{error.reason}: {error.detail}") from error
        except ImageError as error:
            if error.retryable:
                raise
            if error.evidence is not None:
                self._context.observe(image={"digest": digest, "evidence": dict(error.evidence)})
            reason = getattr(error, "reason", error.code)
            raise RefusedError(f"{reason}: {error.detail}") from error
        evidence = image.evidence.to_dict()
        self._context.observe(image={"digest": image.digest, "reference": image.pinned, "evidence": evidence})
        return image

    def _observe_repo(self) -> None:
        tree = self._tree
        if tree is not None:
            found = {"commit": tree.commit, "tree": tree.tree, "files": len(tree.entries)}
            self._context.observe(repo={name: value for name, value in found.items() if value is not None})

    async def _in(self, handle: Handle, asked: Asked, repository: contextlib.AsyncExitStack) -> None:
        await self._look(handle)
        left = TimeLeft(asked.timeout_seconds)
        mounting = Mounting(self._driver, handle, base=asked.base, mount=asked.mount)
        await mounting.folder(left)
        if self._tree is not None:
            await mounting.tree(self._tree, left)
        await repository.aclose()  # it takes room, and commands may take long
        try:
            await Commands(self._driver, handle, self._request, asked).run(self._runs, left)
        finally:
            self._observe_network(handle, asked)
        if self._runs.status is not SandboxStatus.TIMEOUT and self._runs.sandbox_is_there:
            await self._find_artifacts(handle, asked)

    async def _find_artifacts(self, handle: Handle, asked: Asked) -> None:
        """A workspace counts as memory: where commands filled that up, whoever reads there is killed, and in the end
        the sandbox. That would be the same again, unless somebody else removed it."""
        files = self._driver.files(handle, root=asked.mount)
        try:
            self._artifacts = await Artifacts(files, asked.globs, self._options).found()
        except SandboxLostError as error:
            if self._runs.out_of_memory and (await self._driver.inspect(handle)).state in (State.RUNNING, State.ENDED):
                raise RefusedError("the sandbox has no memory left for its artifacts to be read with") from error
            raise

    async def _look(self, handle: Handle) -> None:
        """What is in force on the sandbox, and what it says of itself."""
        isolation = (await self._driver.inspect(handle)).isolation
        if isolation is not None:
            self._context.observe(isolation=_plain(asdict(isolation)))
        self._info = EnvInfo(
            image_digest=self._info.image_digest,
            **known(
                hostname=await self._said(handle, "/proc/sys/kernel/hostname"),
                system_info=await self._said(handle, "/proc/version"),
            ),
        )

    async def _said(self, handle: Handle, path: str) -> str | None:
        """A line of the sandbox's kernel. Nothing depends on it."""
        folder, name = posixpath.split(path)
        try:
            data = await self._driver.files(handle, root=folder).read(name, limit=SYSTEM_BYTES)
        except SandboxError:
            return None
        return data.decode("utf-8", "replace").strip() or None

    def _observe_network(self, handle: Handle, asked: Asked) -> None:
        policy = self._request.sandbox.network_policy.value
        seen = self._driver.traffic(handle)
        traffic = {"traffic": _plain(dict(seen))} if seen is not None else {}
        self._context.observe(network={"policy": policy, "profile": asked.profile.value, **traffic})

    def _answered(self, status: SandboxStatus, error: str | None) -> SandboxRunResponse:
        tree, runs = self._tree, self._runs.results
        for number, run in enumerate(runs):
            self._context.prove(f"stdout/{number}", run.stdout_sha256)
            self._context.prove(f"stderr/{number}", run.stderr_sha256)
        for artifact in self._artifacts:
            self._context.prove(f"artifact/{artifact.path}", artifact.sha256)
        return SandboxRunResponse(
            env_info=self._info,
            runs=tuple(runs),
            artifacts=tuple(self._artifacts),
            status=status,
            **known(
                error=error,
                repo_commit=tree.commit if tree is not None else None,
                repo_tree=tree.tree if tree is not None else None,
            ),
            provenance=Provenance(model_id=f"fumehood-sandbox/{version('fumehood')}"),
        )


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}
