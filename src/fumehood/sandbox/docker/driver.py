"""The Docker driver: the driver contract over one Docker Engine.

A sandbox is a container that bears the node's labels, named `fumehood-<sandbox id>` where it was given no name;
everything else about it is read from the engine, so that any later process with the same node id can take over. The
live part, one attachment to each warden, is in `link.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import weakref
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fumehood.broker.shield import shielded
from fumehood.errors import (
    DeadlineExceededError,
    EngineStatusError,
    EngineUnavailableError,
    InvalidRequestError,
    SandboxError,
    SandboxLostError,
    SandboxNotFoundError,
    SandboxStartError,
)
from fumehood.sandbox.docker.engine import Engine
from fumehood.sandbox.docker.images import EngineImages, ImageFacts
from fumehood.sandbox.docker.link import Link, Task
from fumehood.sandbox.docker.naming import create_named, rename
from fumehood.sandbox.docker.network_runtimes import NetworkRuntimes
from fumehood.sandbox.docker.networks import Networks
from fumehood.sandbox.docker.oom import OomWatch
from fumehood.sandbox.docker.options import DockerOptions
from fumehood.sandbox.docker.plan import (
    LABEL_NETWORK,
    LABEL_NODE,
    LABEL_SANDBOX,
    Plan,
    bounded_volumes,
    container_body,
)
from fumehood.sandbox.docker.probe import Prober
from fumehood.sandbox.docker.reading import LABEL_USER, handle_listed, handle_of, image_user, inspection, label_user
from fumehood.sandbox.driver import FEED_SECONDS, Capabilities, Files, Handle, Inspection, Phase, Sink, State
from fumehood.sandbox.network.attachment import Attachment
from fumehood.sandbox.spec import (
    Command,
    ImageCommand,
    Network,
    Outcome,
    SandboxSpec,
    Stage,
    User,
)
from fumehood.sandbox.warden import binary, ids
from fumehood.sandbox.warden.files import Content, WardenFiles, Writes
from fumehood.sandbox.warden.frames import WireCommand
from fumehood.sandbox.warden.outcome import not_started, wire_command
from fumehood.sandbox.warden.transport import TransportClosedError

GONE_SECONDS = 60.0
ANSWER_SECONDS = 10.0


class DockerDriver:
    """Implements `fumehood.sandbox.driver.Driver`."""

    def __init__(self, options: DockerOptions) -> None:
        self._options = options
        self._engine = Engine(options.socket)
        self._images = EngineImages(self._engine, options.credentials, options.pull_seconds)
        self._oom = OomWatch(self._engine)
        self._starts = asyncio.Semaphore(options.concurrent_starts)
        self._links: dict[str, Link] = {}
        self._writes: weakref.WeakValueDictionary[str, Writes] = weakref.WeakValueDictionary()
        self._warden: Path | None = None
        self._prober = Prober(self._engine, options, self._warden_path)
        self._networks = Networks(self._engine, options)
        self._network_runtimes = NetworkRuntimes(self._engine, self._prober.report)

    # --- what is here --------------------------------------------------------------------------------------

    async def capabilities(self) -> Capabilities:
        found = await self._prober.capabilities()
        return await self._network_runtimes.reported(found, await self._networks.trouble())

    async def runtime(self) -> str:
        """The runtime of sandboxes that ask for none."""
        return await self._prober.chosen()

    async def ping(self) -> None:
        """Does the engine answer at all?"""
        await self._engine.ping()

    async def check(self) -> None:
        """Really run something in a container; raises what stands in the way."""
        await self._prober.check()

    async def open(self) -> None:
        """Serve the networks of sandboxes that an earlier life of this node left running. The rest needs no opening."""
        await self._networks.open()

    async def _warden_path(self) -> Path:
        if self._warden is None:
            architecture = str((await self._engine.info()).get("Architecture"))
            self._warden = await asyncio.to_thread(binary.install, self._options.state_dir, architecture)
        return self._warden

    # --- life of a sandbox ---------------------------------------------------------------------------------

    async def prepare(self, spec: SandboxSpec) -> Handle:
        """The engine goes on making what nobody waits for any more: so that is waited for, and `list` finds it."""
        self._oom.ensure_running()
        runtime = spec.runtime or await self._prober.chosen()
        attachment = None
        if spec.network is not Network.NONE:
            runtime = await self._network_runtimes.choose(runtime)
            attachment = await self._networks.attachment(spec.network)
        with _refusals("make", runtime):
            facts = await self._images.facts(spec.image)
            plan = await self._plan(spec, facts, runtime, attachment)
            body, name = container_body(plan), spec.name or f"fumehood-{spec.sandbox_id}"
            try:
                engine_id = await shielded(create_named(self._engine, name, body))
            except EngineStatusError as error:
                if error.status != 404:
                    raise
                await self._images.pull(spec.image)  # it was there before, and somebody removed it
                engine_id = await shielded(create_named(self._engine, name, body))
            if plan.volumes:
                await self._refuse_host_folders(engine_id)
        handle = Handle(spec.sandbox_id, engine_id, plan.labels)
        env = facts.env if attachment is None else (*facts.env, *attachment.env)
        link = self._links[spec.sandbox_id] = self._link(handle, plan.user, env)
        link.image_command = facts.command
        return handle

    async def _refuse_host_folders(self, engine_id: str) -> None:
        """However an image spells its volumes: none may become a folder of the host. Seen, not assumed."""
        mounts = (await self._engine.inspect(engine_id)).get("Mounts") or []
        if any(mount.get("Type") == "volume" for mount in mounts):
            await remove_container(self._engine, engine_id)
            raise SandboxStartError("the image declares a volume that cannot be bounded")

    async def _plan(
        self, spec: SandboxSpec, facts: ImageFacts, runtime: str, attachment: Attachment | None = None
    ) -> Plan:
        user = spec.user if spec.user is not None else image_user(facts.user)
        if user.is_root:
            await self._require_root(runtime)
        return Plan(
            image=spec.image.pinned,
            runtime=runtime,
            warden=await self._warden_path(),
            limits=spec.limits,
            user=user,
            network=spec.network,
            read_only_root=spec.read_only_root,
            labels={
                **spec.labels,
                LABEL_NODE: self._options.node_id,
                LABEL_SANDBOX: spec.sandbox_id,
                LABEL_USER: f"{user.uid}:{user.gid}",
                **({LABEL_NETWORK: str(spec.network)} if attachment is not None else {}),
            },
            attachment=attachment,
            volumes=bounded_volumes(facts.volumes),
        )

    async def _require_root(self, runtime: str) -> None:
        report = await self._prober.report(runtime)
        if not report.root_allowed:
            raise SandboxStartError(f"root is refused: on runtime {runtime} it was not proven to be held back")

    async def start(self, handle: Handle) -> None:
        link = await self._find_link(handle)
        async with self._starts:
            with _refusals("start"):
                await link.start()
                if LABEL_NETWORK in handle.labels:
                    await self._join_network(handle)

    async def _join_network(self, handle: Handle) -> None:
        """Before anything runs in it. A sandbox that cannot be kept in its network does not stay."""
        try:
            await self._networks.join(await self._engine.inspect(handle.engine_id))
        except BaseException:
            await self.kill(handle)
            raise

    async def attach(self, handle: Handle) -> None:
        link = await self._find_link(handle)
        for _ in range(2):
            try:
                client = await link.client()
            except TransportClosedError as error:
                raise SandboxLostError() from error
            with contextlib.suppress(TransportClosedError):  # an attachment that broke says nothing about the sandbox
                await client.ping(ANSWER_SECONDS)
                return
        raise EngineUnavailableError("the attachment to the sandbox breaks")

    async def image_command(self, handle: Handle) -> ImageCommand:
        link = await self._find_link(handle)
        if link.image_command is None:
            with _refusals("tell the command of"):
                inspected = await self._engine.inspect(handle.engine_id)
                link.image_command = await self._images.command(str(inspected["Image"]))
        return link.image_command

    async def rename(self, handle: Handle, name: str) -> None:
        with _refusals("rename"):
            await rename(self._engine, handle.engine_id, name)

    async def kill(self, handle: Handle) -> None:
        try:
            await self._engine.kill(handle.engine_id)
        except EngineStatusError as error:
            if error.status not in (404, 409):  # gone, or not running: that is what was wanted
                raise

    async def destroy(self, handle: Handle) -> None:
        self._networks.leave(handle.sandbox_id)
        link = self._links.get(handle.sandbox_id)
        if link is None:
            await remove_container(self._engine, handle.engine_id)
            return
        try:
            try:
                await link.end()
            finally:
                link.close()  # an attachment that nobody reads can block removal for minutes
            await remove_container(self._engine, handle.engine_id)
            link.phases.end_all()
        finally:
            self._links.pop(handle.sandbox_id, None)  # not before: who asks meanwhile would make another one

    async def list(self, labels: Mapping[str, str]) -> list[Handle]:
        found = await self._engine.containers({**labels, LABEL_NODE: self._options.node_id})
        handles = [handle_listed(container) for container in found]
        return [handle for handle in handles if handle.sandbox_id not in self._prober.active]

    async def inspect(self, handle: Handle) -> Inspection:
        try:
            inspected = await self._engine.inspect(handle.engine_id)
        except EngineStatusError as error:
            if error.status == 404:
                return Inspection(State.GONE)
            raise
        return inspection(inspected)

    def traffic(self, handle: Handle) -> Mapping[str, object] | None:
        return self._networks.traffic(handle.sandbox_id)

    async def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()
        with contextlib.suppress(SandboxError):  # what could not be removed is found by the next life
            await self._networks.close()
        await self._images.close()
        await self._oom.close()
        await self._engine.close()

    # --- inside a sandbox ----------------------------------------------------------------------------------

    async def run(self, handle: Handle, command: Command, sink: Sink, *, command_id: int) -> Outcome:
        if ids.is_ours(command_id):
            raise InvalidRequestError(f"{command_id} is not an id for a command: `next_id` gives one")
        link = await self._find_link(handle)
        user = command.user or link.user
        if user.is_root:
            await self._require_root(await self._runtime_of(handle, link))
        wire = wire_command(command, user, link.image_env)
        if not wire.fits:
            link.phases.ended(command_id)
            return not_started(errno.E2BIG, Stage.EXEC)
        return await link.run(Task(wire, sink, command.stdin, command.open_stdin), command_id=command_id)

    async def _runtime_of(self, handle: Handle, link: Link) -> str:
        if link.runtime is None:
            link.runtime = str((await self._engine.inspect(handle.engine_id))["HostConfig"]["Runtime"])
        return link.runtime

    async def next_id(self, handle: Handle) -> int:
        return await (await self._find_link(handle)).next_id()

    async def settle(self, handle: Handle, command_id: int) -> None:
        await (await self._find_link(handle)).settle(command_id)

    async def disown(self, handle: Handle, keep: Collection[int]) -> None:
        await (await self._find_link(handle)).disown(keep)

    async def feed(
        self, handle: Handle, command_id: int, offset: int, data: bytes, *, seconds: float = FEED_SECONDS
    ) -> int:
        return await (await self._find_link(handle)).steering.feed(command_id, offset, data, seconds)

    async def end_input(self, handle: Handle, command_id: int) -> None:
        await (await self._find_link(handle)).steering.end_input(command_id)

    async def stdin_received(self, handle: Handle, command_id: int) -> int:
        return await (await self._find_link(handle)).steering.stdin_received(command_id)

    async def resize(self, handle: Handle, command_id: int, rows: int, columns: int) -> None:
        await (await self._find_link(handle)).steering.resize(command_id, rows, columns)

    async def begin(self, handle: Handle, command_id: int, timeout_ms: int) -> None:
        await (await self._find_link(handle)).begin(command_id, timeout_ms)

    async def signal(self, handle: Handle, command_id: int, signal: int, *, everything: bool = False) -> None:
        link = await self._find_link(handle)
        await link.signal(command_id, signal, everything=everything)

    async def reached(self, handle: Handle, command_id: int, phase: Phase) -> None:
        link = await self._find_link(handle)
        await link.phases.reached(command_id, phase)

    def files(self, handle: Handle, *, root: str, user: User | None = None) -> Files:
        async def run(command: WireCommand, sink: Sink, content: Content) -> Outcome:
            link = await self._find_link(handle)
            return await link.run_once(command, sink, content)

        link = self._links.get(handle.sandbox_id)
        writes = self._writes.setdefault(handle.sandbox_id, Writes())
        return WardenFiles(run, root=root, user=user or (link.user if link else label_user(handle)), writes=writes)

    # --- links ---------------------------------------------------------------------------------------------

    def _link(self, handle: Handle, user: User, image_env: tuple[str, ...]) -> Link:
        return Link(
            engine=self._engine,
            oom=self._oom,
            container=handle.engine_id,
            user=user,
            image_env=image_env,
            orphan_seconds=self._options.orphan_seconds,
        )

    async def _find_link(self, handle: Handle) -> Link:
        """The link of a sandbox, made anew from what the engine knows when this process did not make the sandbox."""
        link = self._links.get(handle.sandbox_id)
        if link is None:
            try:
                inspected = await self._engine.inspect(handle.engine_id)
            except EngineStatusError as error:
                if error.status == 404:
                    raise SandboxNotFoundError("the engine knows no such sandbox") from error
                raise
            self._oom.ensure_running()
            await self._networks.join(inspected)
            env = tuple(inspected["Config"].get("Env") or ())
            user = label_user(handle_of(inspected))
            link = self._links.setdefault(handle.sandbox_id, self._link(handle, user, env))
        return link


@contextlib.contextmanager
def _refusals(verb: str, runtime: str | None = None) -> Any:
    """An engine's refusal is a failed start; its message may name paths of the host, so it stays in the cause."""
    try:
        yield
    except EngineStatusError as error:
        under = f" on runtime {runtime}" if runtime is not None else ""
        raise SandboxStartError(f"the engine refused to {verb} the sandbox{under} (status {error.status})") from error


async def remove_container(engine: Engine, container: str) -> None:
    """Return only when the engine no longer knows the container."""
    deadline = asyncio.get_running_loop().time() + GONE_SECONDS
    while True:
        try:
            await engine.remove(container)
            return
        except EngineStatusError as error:
            if error.status == 404:
                return
            if error.status not in (409, 500):
                raise
        if asyncio.get_running_loop().time() > deadline:
            raise DeadlineExceededError("the engine did not remove the sandbox in time")
        await asyncio.sleep(0.05)  # 409: another removal is under way; wait for it
