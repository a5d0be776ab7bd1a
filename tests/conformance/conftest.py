"""One suite, every driver: what differs between them is only how a program is spelled."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fumehood.images.admission import Admission, AdmittedImage, DevelopmentPolicy
from fumehood.images.registry import RegistryClient
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from fumehood.sandbox.driver import Driver, Handle
from fumehood.sandbox.fake import FakeDriver, FakeEngine
from fumehood.sandbox.spec import Limits, SandboxSpec

FAKE_IMAGE = "127.0.0.1:5055/fake/image@sha256:" + "0" * 64

Programs = Callable[..., tuple[str, ...]]


def fake_programs(name: str, *words: str) -> tuple[str, ...]:
    return (name, *words)


_SHELL = {
    "echo": 'echo "$@"',
    "both": 'printf %s "$1"; printf %s "$2" >&2',
    "exit": 'exit "$1"',
    "sleep": 'echo begun; sleep "$1"',
    "flood": 'head -c "$1" /dev/zero | tr "\\0" x',
    "ticks": 'i=0; while [ $i -lt "$1" ]; do echo "tick $i"; i=$((i+1)); sleep "$2"; done',
    "cat": "cat",
    "env": "env",
    "whoami": 'echo "$(id -u):$(id -g)"',
    "raise": 'kill -"$1" $$',
    "hog": "exec tail /dev/zero",
}


def shell_programs(name: str, *words: str) -> tuple[str, ...]:
    return ("sh", "-c", _SHELL[name], name, *words) if name in _SHELL else (name, *words)


@dataclass
class Bench:
    """A driver under test, with what a test needs around it."""

    kind: str
    image: AdmittedImage
    programs: Programs
    make_driver: Callable[[], Driver]
    runtime: str | None
    driver: Driver

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

    async def restart(self) -> None:
        """The driver's process dies; another one with the same identity comes up."""
        await self.driver.close()
        self.driver = self.make_driver()


@pytest.fixture(params=["fake", "docker-runc", "docker-runsc"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    kind: str = request.param
    if kind == "fake":
        engine = FakeEngine()
        reference, programs, runtime = FAKE_IMAGE, fake_programs, None

        def make() -> Driver:
            return FakeDriver(engine)
    else:
        socket: Path = request.getfixturevalue("docker_socket")
        reference, programs, runtime = request.getfixturevalue("base_image"), shell_programs, kind.split("-")[1]
        options = DockerOptions(node_id=f"conformance-{uuid.uuid4().hex}", state_dir=tmp_path, socket=socket)

        def make() -> Driver:
            return DockerDriver(options)

    async with RegistryClient() as registry:
        image = await Admission(DevelopmentPolicy(), registry).admit(reference)
    made = Bench(kind, image, programs, make, runtime, make())
    try:
        yield made
        assert await made.driver.list({}) == [], "the test left a sandbox behind"
    finally:
        for handle in await made.driver.list({}):
            await made.driver.destroy(handle)
        await made.driver.close()
        await asyncio.sleep(0)
