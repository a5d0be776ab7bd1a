"""Why an image could not be pulled, by a real engine from real registries: for good, or for now."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from fumehood.cli.processes import held_port
from fumehood.errors import EngineUnavailableError, ImagePullError, ImagePullUnavailableError
from fumehood.images import Admission, DevelopmentPolicy, RegistryClient
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from fumehood.sandbox.spec import SandboxSpec

ABSENT = "sha256:" + "0" * 64


class Puller:
    """A driver whose credentials a test chooses."""

    def __init__(self, state_dir: Path, docker_socket: Path) -> None:
        self.auth: Mapping[str, str] | None = None
        node_id = f"pulls-{uuid.uuid4().hex}"
        self.driver = DockerDriver(
            DockerOptions(node_id=node_id, state_dir=state_dir, socket=docker_socket, credentials=lambda _: self.auth)
        )

    async def pull(self, reference: str) -> None:
        async with RegistryClient() as registry:
            image = await Admission(DevelopmentPolicy(), registry).admit(reference)
        await self.driver.destroy(await self.driver.prepare(SandboxSpec(uuid.uuid4().hex, image, runtime="runc")))


@pytest.fixture
async def puller(tmp_path: Path, docker_socket: Path) -> AsyncIterator[Puller]:
    made = Puller(tmp_path, docker_socket)
    try:
        yield made
        assert await made.driver.list({}) == []
    finally:
        await made.driver.close()


@pytest.fixture
def secured(services: dict[str, str]) -> str:
    return services["FUMEHOOD_TEST_REGISTRY_TLS"]


@pytest.fixture
def right(services: dict[str, str]) -> Mapping[str, str]:
    username, _, password = Path(services["FUMEHOOD_TEST_REGISTRY_CREDENTIALS"]).read_text().strip().partition(":")
    return {"username": username, "password": password}


@pytest.fixture
def nobody() -> Callable[[], str]:
    """An address on which nothing listens."""

    def address() -> str:
        return f"127.0.0.1:{held_port()}"

    return address


async def test_an_image_that_the_registry_does_not_have(puller: Puller, registry: str) -> None:
    with pytest.raises(ImagePullError, match="no such image") as caught:
        await puller.pull(f"{registry}/fumehood/base@{ABSENT}")
    assert not caught.value.retryable


async def test_credentials_that_the_registry_refuses(puller: Puller, secured: str) -> None:
    puller.auth = {"username": "stranger", "password": "s3cret-guess"}
    with pytest.raises(ImagePullError, match="other credentials") as caught:
        await puller.pull(f"{secured}/fumehood/base@{ABSENT}")
    assert not caught.value.retryable
    assert "s3cret-guess" not in str(caught.value)


async def test_the_right_credentials_for_an_image_that_is_not_there(
    puller: Puller, secured: str, right: Mapping[str, str]
) -> None:
    puller.auth = right
    with pytest.raises(ImagePullError, match="no such image") as caught:
        await puller.pull(f"{secured}/fumehood/base@{ABSENT}")
    assert not caught.value.retryable


async def test_a_registry_that_is_away(puller: Puller, nobody: Callable[[], str]) -> None:
    with pytest.raises(ImagePullUnavailableError) as caught:
        await puller.pull(f"{nobody()}/fumehood/base@{ABSENT}")
    assert caught.value.retryable


async def test_without_credentials_the_engine_cannot_tell_a_refusal_from_an_absence(
    puller: Puller, secured: str
) -> None:
    """It answers 500 without a word from the registry: the detail names both, and trying again harms nobody."""
    with pytest.raises(ImagePullUnavailableError, match="credentials"):
        await puller.pull(f"{secured}/fumehood/base@{ABSENT}")


async def test_an_engine_that_is_away(tmp_path: Path, registry: str) -> None:
    puller = Puller(tmp_path, tmp_path / "no-engine.sock")
    try:
        with pytest.raises(EngineUnavailableError):
            await puller.pull(f"{registry}/fumehood/base@{ABSENT}")
    finally:
        await puller.driver.close()
