"""Names that are taken at a real engine: by a sandbox, of this node or another, or by a stranger."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fumehood.errors import SandboxNameTakenError, SandboxStartError
from fumehood.images import Admission, DevelopmentPolicy, RegistryClient
from fumehood.images.admission import AdmittedImage
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from fumehood.sandbox.docker.engine import Engine
from fumehood.sandbox.spec import SandboxSpec


@pytest.fixture
async def image(base_image: str) -> AdmittedImage:
    async with RegistryClient() as registry:
        return await Admission(DevelopmentPolicy(), registry).admit(base_image)


@pytest.fixture
def name() -> str:
    return f"run-{uuid.uuid4().hex}"


@asynccontextmanager
async def node(state_dir: Path, docker_socket: Path) -> AsyncIterator[DockerDriver]:
    driver = DockerDriver(DockerOptions(node_id=f"names-{uuid.uuid4().hex}", state_dir=state_dir, socket=docker_socket))
    try:
        yield driver
        assert await driver.list({}) == [], "the test left a sandbox behind"
    finally:
        await driver.close()


def spec(image: AdmittedImage, name: str) -> SandboxSpec:
    return SandboxSpec(uuid.uuid4().hex, image, name=name, runtime="runc")


async def test_a_sandbox_of_another_node_is_a_reason_to_try_again(
    tmp_path: Path, docker_socket: Path, image: AdmittedImage, name: str
) -> None:
    async with node(tmp_path, docker_socket) as here, node(tmp_path, docker_socket) as there:
        handle = await there.prepare(spec(image, name))
        with pytest.raises(SandboxNameTakenError):
            await here.prepare(spec(image, name))
        await there.destroy(handle)


async def test_a_stranger_is_not_and_stays_as_it_is(
    tmp_path: Path, docker_socket: Path, image: AdmittedImage, name: str
) -> None:
    engine = Engine(docker_socket)
    try:
        stranger = await engine.create(name, {"Image": image.pinned, "Cmd": ["true"]})
        try:
            async with node(tmp_path, docker_socket) as here:
                with pytest.raises(SandboxStartError, match="no sandbox") as caught:
                    await here.prepare(spec(image, name))
            assert not caught.value.retryable
            assert (await engine.inspect(name))["Id"] == stranger
        finally:
            await engine.remove(stranger)
    finally:
        await engine.close()


async def test_the_engine_shows_the_name(tmp_path: Path, docker_socket: Path, image: AdmittedImage, name: str) -> None:
    engine = Engine(docker_socket)
    async with node(tmp_path, docker_socket) as here:
        handle = await here.prepare(spec(image, name))
        try:
            assert (await engine.inspect(name))["Id"] == handle.engine_id
        finally:
            await here.destroy(handle)
            await engine.close()
