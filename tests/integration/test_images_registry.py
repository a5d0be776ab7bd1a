"""The registry client and admission against real registries: an open one, and one with TLS and basic auth."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from fumehood.errors import DigestResolutionError
from fumehood.images import (
    Admission,
    DevelopmentPolicy,
    ImageReference,
    RegistryAccess,
    RegistryClient,
    RetryPolicy,
)

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class Secured:
    """The registry with TLS and basic auth."""

    host: str
    ca_file: Path
    username: str
    password: str

    @property
    def access(self) -> RegistryAccess:
        return RegistryAccess(self.host, self.username, self.password, self.ca_file)


@pytest.fixture(scope="session")
def secured(services: dict[str, str]) -> Secured:
    username, _, password = Path(services["FUMEHOOD_TEST_REGISTRY_CREDENTIALS"]).read_text().strip().partition(":")
    ca_file = Path(services["FUMEHOOD_TEST_REGISTRY_CA"])
    return Secured(services["FUMEHOOD_TEST_REGISTRY_TLS"], ca_file, username, password)


class Pusher:
    """Just enough of the push side: real manifests in a repository that no other test uses."""

    def __init__(self, client: httpx.Client, registry: str) -> None:
        self._client = client
        self.name = f"{registry}/test/images-{uuid.uuid4().hex}"
        self._path = "/v2/" + self.name.partition("/")[2]
        self.pushed: dict[str, int] = {}
        """The size of each manifest, by its digest."""

    def blob(self, data: bytes) -> dict[str, object]:
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        upload = self._client.post(f"{self._path}/blobs/uploads/")
        upload.raise_for_status()
        target = httpx.URL(upload.headers["Location"]).copy_merge_params({"digest": digest})
        self._client.put(target.raw_path.decode(), content=data).raise_for_status()
        return {"digest": digest, "size": len(data)}

    def document(self, tag: str, media_type: str, document: dict[str, object]) -> str:
        data = json.dumps({"schemaVersion": 2, "mediaType": media_type, **document}).encode()
        url, headers = f"{self._path}/manifests/{tag}", {"Content-Type": media_type}
        self._client.put(url, content=data, headers=headers).raise_for_status()
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        self.pushed[digest] = len(data)
        return digest

    def manifest(self, tag: str, content: str, media_type: str = MANIFEST) -> str:
        """Push a small image and say what its digest must be."""
        kind = "vnd.oci.image" if media_type == OCI_MANIFEST else "vnd.docker.container.image"
        config = {"mediaType": f"application/{kind}.config.v1+json", **self.blob(json.dumps({"c": content}).encode())}
        return self.document(tag, media_type, {"config": config, "layers": []})


@pytest.fixture
def pusher(registry: str) -> Iterator[Pusher]:
    with httpx.Client(base_url=f"http://{registry}", trust_env=False) as client:
        yield Pusher(client, registry)


@pytest.fixture
def secured_pusher(secured: Secured) -> Iterator[Pusher]:
    with httpx.Client(
        base_url=f"https://{secured.host}",
        auth=(secured.username, secured.password),
        verify=ssl.create_default_context(cafile=secured.ca_file),
        trust_env=False,
    ) as client:
        yield Pusher(client, secured.host)


async def resolve(name: str, *accesses: RegistryAccess) -> str:
    async with RegistryClient(accesses, retry=RetryPolicy(attempts=2)) as client:
        return await client.resolve(ImageReference.parse(name))


@pytest.mark.parametrize("media_type", [MANIFEST, OCI_MANIFEST])
async def test_a_tag_is_resolved_to_the_manifest_that_was_pushed(pusher: Pusher, media_type: str) -> None:
    digest = pusher.manifest("1", "one", media_type)
    assert await resolve(f"{pusher.name}:1") == digest
    assert await resolve(f"{pusher.name}@{digest}") == digest


async def test_an_index_is_resolved_to_itself(pusher: Pusher) -> None:
    """Not to the manifest of one platform: the engine chooses that, under the digest of the index."""
    digest = pusher.manifest("amd64", "one", OCI_MANIFEST)
    platform = {"architecture": "amd64", "os": "linux"}
    entry = {"mediaType": OCI_MANIFEST, "digest": digest, "size": pusher.pushed[digest], "platform": platform}
    index = pusher.document("multi", INDEX, {"manifests": [entry]})
    assert await resolve(f"{pusher.name}:multi") == index != digest


async def test_a_moved_tag_is_seen_at_once(pusher: Pusher) -> None:
    """Nothing is cached."""
    async with RegistryClient() as client:
        reference = ImageReference.parse(f"{pusher.name}:1")
        for content in ("one", "two"):
            digest = pusher.manifest("1", content)
            assert await client.resolve(reference) == digest


@pytest.mark.parametrize("tag", ["missing", "@sha256:" + "0" * 64])
async def test_what_is_not_there_is_said_to_be_missing(pusher: Pusher, tag: str) -> None:
    pusher.manifest("1", "one")
    with pytest.raises(DigestResolutionError, match="no such repository or tag"):
        await resolve(pusher.name + (tag if tag.startswith("@") else f":{tag}"))


async def test_get_and_head_agree(pusher: Pusher, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way for registries without HEAD, walked on a real one."""
    digest = pusher.manifest("1", "one")
    monkeypatch.setattr("fumehood.images.registry._digest_of_head", lambda answer: None)
    assert await resolve(f"{pusher.name}:1") == digest


async def test_proxies_of_the_environment_are_not_used(pusher: Pusher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only settings decide where credentials and questions go."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    digest = pusher.manifest("1", "one")
    assert await resolve(f"{pusher.name}:1") == digest


async def test_tls_and_credentials(secured: Secured, secured_pusher: Pusher) -> None:
    digest = secured_pusher.manifest("1", "one")
    assert await resolve(f"{secured_pusher.name}:1", secured.access) == digest


async def test_wrong_credentials_are_refused_and_not_shown(secured: Secured, secured_pusher: Pusher) -> None:
    secured_pusher.manifest("1", "one")
    wrong = RegistryAccess(secured.host, secured.username, "not-the-password", secured.ca_file)
    with pytest.raises(DigestResolutionError, match="refuses ours") as caught:
        await resolve(f"{secured_pusher.name}:1", wrong)
    assert "not-the-password" not in str(caught.value)


async def test_missing_credentials_are_named(secured: Secured) -> None:
    with pytest.raises(DigestResolutionError, match="none are configured"):
        await resolve(f"{secured.host}/any:1", RegistryAccess(secured.host, ca_file=secured.ca_file))


async def test_an_unknown_ca_is_not_trusted(secured: Secured) -> None:
    """And nothing is sent to it: the handshake fails before the request."""
    access = RegistryAccess(secured.host, secured.username, secured.password)
    with pytest.raises(DigestResolutionError, match="certificate is not trusted"):
        await resolve(f"{secured.host}/any:1", access)


async def test_tls_is_not_given_up_for_a_plain_registry(registry: str) -> None:
    """Credentials are configured, so the open registry's plain HTTP is a failure, not a way out."""
    with pytest.raises(DigestResolutionError, match="connection failed"):
        await resolve(f"{registry}/any:1", RegistryAccess(registry, "robot", "secret"))


async def test_a_closed_port_is_a_failed_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(DigestResolutionError, match="connection failed"):
            await resolve(f"127.0.0.1:{port}/any:1")


async def test_admission_from_tag_to_pinned_image(pusher: Pusher) -> None:
    digest = pusher.manifest("1", "one")
    async with RegistryClient() as client:
        admitted = await Admission(DevelopmentPolicy(), client).admit(f"{pusher.name}:1")
    assert admitted.pinned == f"{pusher.name}@{digest}"
    assert admitted.evidence.rule == "loopback"


async def test_a_denial_for_want_of_a_digest_has_evidence(pusher: Pusher) -> None:
    async with RegistryClient() as client:
        with pytest.raises(DigestResolutionError) as caught:
            await Admission(DevelopmentPolicy(), client).admit(f"{pusher.name}:missing")
    assert caught.value.evidence is not None
    assert caught.value.evidence["denial_reason"] == "digest_resolution_failed"
