"""One suite, every driver: what differs between them is only how a program is spelled."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fumehood.images.admission import Admission, AdmittedImage
from fumehood.images.development import DevelopmentPolicy
from fumehood.images.registry import RegistryClient
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from fumehood.sandbox.driver import Driver, Handle
from fumehood.sandbox.fake import FakeDriver, FakeEngine
from fumehood.sandbox.pool.driver import Engine, PooledDriver
from fumehood.sandbox.spec import ImageCommand, Limits, SandboxSpec
from tests.always_warm import always_warm
from tests.conformance.declared_image import push_declaring

FAKE_IMAGE = "127.0.0.1:5055/fake/image@sha256:" + "0" * 64
FAKE_DECLARING_IMAGE = "127.0.0.1:5055/fake/image@sha256:" + "1" * 64

Programs = Callable[..., tuple[str, ...]]


def fake_programs(name: str, *words: str) -> tuple[str, ...]:
    return (name, *words)


_SHELL = {
    "echo": 'echo "$@"',
    "both": 'printf %s "$1"; printf %s "$2" >&2',
    "exit": 'exit "$1"',
    "sleep": 'echo begun; sleep "$1"',
    "forks": 'echo begun; i=0; while [ $i -lt 30 ]; do sleep "$1" & i=$((i+1)); done; wait',
    "flood": 'head -c "$1" /dev/zero | tr "\\0" x',
    "ticks": 'i=0; while [ $i -lt "$1" ]; do echo "tick $i"; i=$((i+1)); sleep "$2"; done',
    "cat": "cat",
    "size": 'while :; do new=$(stty size); [ "$new" = "$old" ] || echo "$new"; old=$new; sleep 0.05; done',
    "env": "env",
    "whoami": 'echo "$(id -u):$(id -g)"',
    "raise": 'kill -"$1" $$',
    "hog": "exec tail /dev/zero",
    "obeys": 'trap "exit $1" TERM; echo begun; while :; do sleep 0.1; done',
    "ignores": 'trap "" TERM; echo begun; sleep 60',
    "leaves": 'setsid sh -c "trap \\"\\" TERM; echo begun; exec sleep $1" & wait',
    "left": (
        'for one in /proc/[0-9]*; do case "$(tr "\\0" " " <"$one/cmdline")" in "sleep $1 ") echo alive; exit;; esac; '
        "done; echo gone"
    ),
}


def shell_programs(name: str, *words: str) -> tuple[str, ...]:
    return ("sh", "-c", _SHELL[name], name, *words) if name in _SHELL else (name, *words)


@dataclass
class Bench:
    """A driver under test, with what a test needs around it."""

    kind: str
    image: AdmittedImage
    programs: Programs
    make_driver: Callable[[], Awaitable[Driver]]
    runtime: str | None
    driver: Driver
    declaring: Callable[[ImageCommand], Awaitable[AdmittedImage]]
    """An image that declares this."""

    def spec(self, **changes: object) -> SandboxSpec:
        values: dict[str, object] = {
            "sandbox_id": uuid.uuid4().hex,
            "image": self.image,
            "runtime": self.runtime,
            "limits": Limits(memory_bytes=192 * 1024 * 1024),
            **changes,
        }
        return SandboxSpec(**values)  # type: ignore[arg-type]

    @asynccontextmanager
    async def sandbox(self, **changes: object) -> AsyncIterator[Handle]:
        handle = await self.driver.prepare(self.spec(**changes))
        try:
            await self.driver.start(handle)
            yield handle
        finally:
            await self.driver.destroy(handle)

    def cut(self, handle: Handle) -> None:
        """The connection to a sandbox breaks under whoever uses it."""
        driver: Driver = self.driver
        if isinstance(driver, PooledDriver):
            handle, driver = driver._inner(handle), driver._driver
        if isinstance(driver, DockerDriver):
            driver._links[handle.sandbox_id].close()

    async def restart(self) -> None:
        """The driver's process dies; another one with the same identity comes up."""
        await self.driver.close()
        self.driver = await self.make_driver()


KINDS = (
    "fake",
    "docker-runc",
    pytest.param("docker-runsc", marks=pytest.mark.gvisor),
    pytest.param("fake-warm", marks=pytest.mark.variant),
    pytest.param("docker-runc-warm", marks=pytest.mark.variant),
    pytest.param("docker-runsc-warm", marks=pytest.mark.record),
)


@pytest.fixture(params=KINDS)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    """The warm ones are the same drivers behind a pool, out of which every sandbox comes."""
    kind: str = request.param
    warm = kind.endswith("-warm")
    if kind.startswith("fake"):
        engine = FakeEngine()
        reference, programs, runtime = FAKE_IMAGE, fake_programs, None

        def bare() -> Engine:
            return FakeDriver(engine)

        def push(declared: ImageCommand) -> str:
            engine.image_commands[FAKE_DECLARING_IMAGE] = declared
            return FAKE_DECLARING_IMAGE
    else:
        socket: Path = request.getfixturevalue("docker_socket")
        reference, programs, runtime = request.getfixturevalue("base_image"), shell_programs, kind.split("-")[1]
        options = DockerOptions(node_id=f"conformance-{uuid.uuid4().hex}", state_dir=tmp_path, socket=socket)

        def bare() -> Engine:
            return DockerDriver(options)

        def push(declared: ImageCommand) -> str:
            return push_declaring(reference, declared)

    async def admit(image: str) -> AdmittedImage:
        async with RegistryClient() as registry:
            return await Admission(DevelopmentPolicy(), registry).admit(image)

    async def declaring(declared: ImageCommand) -> AdmittedImage:
        return await admit(await asyncio.to_thread(push, declared))

    async def make() -> Driver:
        return await always_warm(bare(), tmp_path) if warm else bare()

    made = Bench(kind, await admit(reference), programs, make, runtime, await make(), declaring)
    try:
        yield made
        assert await made.driver.list({}) == [], "the test left a sandbox behind"
    finally:
        for handle in await made.driver.list({}):
            await made.driver.destroy(handle)
        await made.driver.close()
        await asyncio.sleep(0)
