"""Admission under a policy file against the real registry, with signatures that the real cosign made, and against
registries that go away, lie and send us elsewhere."""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from fumehood.cli.admission import admitting
from fumehood.errors import ImageError, ImagePullError, InvalidReferenceError, RegistryUnavailableError
from fumehood.images import AdmittedImage
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from fumehood.sandbox.spec import SandboxSpec
from fumehood.settings import NodeSettings
from tests.integration.cosign_world import MANIFEST, Cosign, Repository
from tests.unit.signing_world import ISSUER, SUBJECT, Authority, compact

DIGEST = "sha256:" + "0" * 64


@pytest.fixture(scope="session")
def key(cosign: Cosign) -> Path:
    return cosign.key("release")


@pytest.fixture
def settings(tmp_path: Path, key: Path) -> NodeSettings:
    """Of a node on which every image of this machine's registries needs a signature with the key."""
    file = tmp_path / "policy.yaml"
    file.write_text(
        f"""\
version: 1
name: production
rules:
  - match: "127.0.0.1:*/open/**"
    unsigned: true
  - match: "127.0.0.1:*/**"
    trust: release
trust:
  release: {{keys: [{{name: ci, file: {key}}}]}}
"""
    )
    return NodeSettings(policy_file=file, state_dir=tmp_path)


async def admit(settings: NodeSettings, image: str) -> AdmittedImage:
    async with admitting(settings) as images:
        return await images.admission.admit(image)


async def denial(settings: NodeSettings, image: str, kind: type[ImageError] = ImageError) -> dict[str, Any]:
    with pytest.raises(kind) as caught:
        await admit(settings, image)
    evidence = dict(caught.value.evidence or {})
    assert evidence["policy"] == "production"
    assert evidence["detail"] == caught.value.detail
    return evidence


# --- signatures, in both forms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["tag", "bundle"])
async def test_what_cosign_signed_is_admitted(
    settings: NodeSettings, repository: Repository, cosign: Cosign, key: Path, form: str
) -> None:
    digest = repository.image()
    cosign.sign(f"{repository.name}@{digest}", key, form=form)
    assert cosign.trusts_key(f"{repository.name}@{digest}", key)
    evidence = (await admit(settings, f"{repository.name}:1")).evidence.to_dict()
    assert evidence["signature_verified"] is True
    assert evidence["resolved_digest"] == digest
    assert evidence["verifier"] == "cosign"
    assert evidence["key"].startswith("ci (sha256:")
    assert evidence["form"] == form
    assert evidence["rule"] == "127.0.0.1:*/**"


async def test_what_nobody_signed(settings: NodeSettings, repository: Repository) -> None:
    digest = repository.image()
    evidence = await denial(settings, f"{repository.name}:1")
    assert evidence["denial_reason"] == "signature_missing"
    assert evidence["registry_allowed"] is True
    assert evidence["signature_verified"] is False
    assert evidence["resolved_digest"] == digest


@pytest.mark.parametrize("form", ["tag", "bundle"])
async def test_what_somebody_else_signed(
    settings: NodeSettings, repository: Repository, cosign: Cosign, key: Path, form: str
) -> None:
    digest = repository.image()
    cosign.sign(f"{repository.name}@{digest}", cosign.key("other"), form=form)
    assert not cosign.trusts_key(f"{repository.name}@{digest}", key)
    assert (await denial(settings, f"{repository.name}@{digest}"))["denial_reason"] == "signature_invalid"


async def test_a_key_that_is_taken_out_of_the_file_counts_no_more(
    settings: NodeSettings, repository: Repository, cosign: Cosign, key: Path
) -> None:
    """In the same process, from the next decision on."""
    digest = repository.image()
    cosign.sign(f"{repository.name}@{digest}", key, form="tag")
    other = cosign.key("other")
    assert settings.policy_file is not None
    async with admitting(settings) as images:
        assert (await images.admission.admit(f"{repository.name}:1")).digest == digest
        new = settings.policy_file.with_suffix(".new")
        new.write_text(settings.policy_file.read_text().replace(str(key), str(other)))
        new.rename(settings.policy_file)
        with pytest.raises(ImageError) as caught:
            await images.admission.admit(f"{repository.name}:1")
    assert caught.value.evidence is not None
    assert caught.value.evidence["denial_reason"] == "signature_invalid"


@pytest.mark.parametrize(
    ("identity", "reason"),
    [
        (f'subject: "{SUBJECT}"', None),
        ('subject_pattern: "https://[a-z.]+/.*"', None),
        ('subject: "https://example.org/somebody/else"', "identity_mismatch"),
        ('subject_pattern: "https://example"', "identity_mismatch"),
    ],
)
async def test_who_signed_without_a_key(
    tmp_path: Path, repository: Repository, identity: str, reason: str | None
) -> None:
    """Identities under an authority of our own; a pattern is for the whole name."""
    authority, file = Authority(), tmp_path / "policy.yaml"
    (tmp_path / "root.json").write_bytes(authority.trusted_root())
    file.write_text(
        f"""\
version: 1
name: production
rules: [{{match: "127.0.0.1:*/**", trust: builders}}]
trust:
  builders:
    identities: [{{{identity}, issuer: "{ISSUER}"}}]
    trusted_root: root.json
"""
    )
    digest = repository.image()
    repository.sign_by_bundle(digest, compact(authority.bundle(digest)))
    settings = NodeSettings(policy_file=file, state_dir=tmp_path)
    if reason is None:
        evidence = (await admit(settings, f"{repository.name}:1")).evidence.to_dict()
    else:
        evidence = await denial(settings, f"{repository.name}:1")
    assert evidence["denial_reason"] == reason
    assert evidence["signature_verified"] is (reason is None)
    assert (evidence["identity"], evidence["issuer"]) == (SUBJECT, ISSUER)


# --- tags move -----------------------------------------------------------------------------------------------------


def push_saying(repository: Repository, base_image: str, word: str) -> str:
    """The base image with another command, under the tag `moving`; its digest."""
    registry, _, rest = base_image.partition("/")
    source, _, digest = rest.partition("@")
    with httpx.Client(base_url=f"http://{registry}/v2/", trust_env=False, timeout=240) as client:
        manifest = client.get(f"{source}/manifests/{digest}", headers={"Accept": MANIFEST_TYPES}).json()
        config = client.get(f"{source}/blobs/{manifest['config']['digest']}").json()
        target = repository.name.partition("/")[2]
        for layer in manifest["layers"]:
            mount = {"mount": layer["digest"], "from": source}
            assert client.post(f"{target}/blobs/uploads/", params=mount).status_code == 201
    config["config"] |= {"Entrypoint": None, "Cmd": [word]}
    described = repository.blob(json.dumps(config).encode(), manifest["config"]["mediaType"])
    return str(
        repository.put("moving", {"config": described, "layers": manifest["layers"]}, manifest["mediaType"])["digest"]
    )


MANIFEST_TYPES = f"{MANIFEST}, application/vnd.docker.distribution.manifest.v2+json"


async def test_a_tag_that_moves_after_admission_moves_nothing(
    settings: NodeSettings,
    repository: Repository,
    cosign: Cosign,
    key: Path,
    base_image: str,
    docker_socket: Path,
    tmp_path: Path,
) -> None:
    """What was admitted is what the engine makes a container of; the next admission sees the new digest, unsigned."""
    first = push_saying(repository, base_image, "one")
    cosign.sign(f"{repository.name}@{first}", key, form="tag")
    admitted = await admit(settings, f"{repository.name}:moving")
    second = push_saying(repository, base_image, "two")
    assert first != second
    driver = DockerDriver(DockerOptions(node_id=f"t-{uuid.uuid4().hex}", state_dir=tmp_path, socket=docker_socket))
    try:
        handle = await driver.prepare(SandboxSpec(uuid.uuid4().hex, admitted))
        try:
            assert (await driver.image_command(handle)).cmd == ("one",)
        finally:
            await driver.destroy(handle)
    finally:
        await driver.close()
    evidence = await denial(settings, f"{repository.name}:moving")
    assert evidence["denial_reason"] == "signature_missing"
    assert evidence["resolved_digest"] == second


# --- registries that are away, lie, or send us elsewhere ------------------------------------------------------------


@dataclass
class FalseRegistry:
    """A registry that answers what it is told to, and remembers what was asked."""

    port: int = 0
    answers: dict[tuple[str, str], tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and `Authorization`."""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"


@pytest.fixture
def false_registry() -> Iterator[Callable[[], FalseRegistry]]:
    servers: list[ThreadingHTTPServer] = []

    def make() -> FalseRegistry:
        registry = FalseRegistry()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.seen.append((self.command, self.path, self.headers.get("Authorization")))
                status, headers, body = registry.answers.get((self.command, self.path), (404, {}, b""))
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def do_HEAD(self) -> None:
                self.do_GET()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
                """Not to the test's output."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        registry.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return registry

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


MakeRegistry = Callable[[], FalseRegistry]
PATH = "/v2/open/a/manifests/1"
BODY = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": {}, "layers": []}).encode()


async def test_a_registry_that_is_down_decides_nothing(settings: NodeSettings) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}"
        evidence = await denial(settings, f"{host}/open/a:1", RegistryUnavailableError)
        assert evidence["denial_reason"] == "digest_resolution_failed"
        assert evidence["registry_allowed"] is True
        assert "resolved_digest" not in evidence
        pinned = await denial(settings, f"{host}/a@{DIGEST}", RegistryUnavailableError)
    assert pinned["resolved_digest"] == DIGEST, "the digest is known, and its signatures are not"
    assert pinned["denial_reason"] == "digest_resolution_failed"


async def test_a_registry_whose_body_is_not_what_it_says(settings: NodeSettings, false_registry: MakeRegistry) -> None:
    """Content is hashed, and the registry's word for it is only compared."""
    lying = false_registry()
    lying.answers["HEAD", PATH] = (405, {}, b"")
    lying.answers["GET", PATH] = (200, {"Content-Type": MANIFEST, "Docker-Content-Digest": DIGEST}, BODY)
    evidence = await denial(settings, f"{lying.host}/open/a:1")
    assert evidence["denial_reason"] == "digest_resolution_failed"
    assert "is not that of the manifest" in evidence["detail"]


async def test_a_lie_that_only_names_a_digest_runs_nothing(
    settings: NodeSettings, false_registry: MakeRegistry, docker_socket: Path, tmp_path: Path
) -> None:
    """A digest without content behind it: whoever pulls it hashes what comes. Where signatures count, it has none."""
    lying = false_registry()
    said = {"Content-Type": MANIFEST, "Docker-Content-Digest": DIGEST}
    for path in (PATH, f"/v2/open/a/manifests/{DIGEST}"):
        for method in ("HEAD", "GET"):
            lying.answers[method, path] = (200, {**said, "Content-Length": str(len(BODY))}, BODY)
    lying.answers["GET", "/v2/"] = (200, {}, b"{}")
    lying.answers["HEAD", "/v2/a/manifests/1"] = (200, said, b"")
    signed = await denial(settings, f"{lying.host}/a:1")
    assert signed["denial_reason"] == "signature_missing"
    admitted = await admit(settings, f"{lying.host}/open/a:1")
    driver = DockerDriver(DockerOptions(node_id=f"t-{uuid.uuid4().hex}", state_dir=tmp_path, socket=docker_socket))
    try:
        with pytest.raises(ImagePullError):
            await driver.prepare(SandboxSpec(uuid.uuid4().hex, admitted))
        assert await driver.list({}) == []
    finally:
        await driver.close()


async def test_a_redirect_to_another_host_gets_no_credentials(
    false_registry: MakeRegistry, settings: NodeSettings
) -> None:
    """And when that host asks for some, that is the end of it."""
    elsewhere, registry = false_registry(), false_registry()
    registry.answers["HEAD", PATH] = (307, {"Location": f"http://{elsewhere.host}{PATH}"}, b"")
    elsewhere.answers["HEAD", PATH] = (401, {"WWW-Authenticate": 'Basic realm="give"'}, b"")
    evidence = await denial(settings, f"{registry.host}/open/a:1")
    assert evidence["denial_reason"] == "digest_resolution_failed"
    assert "another host, which wants credentials" in evidence["detail"]
    assert [authorization for _, _, authorization in elsewhere.seen] == [None]


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("http://registry.example/v2/open/a/manifests/1", "a plain HTTP URL"),
        ("http://u:hunter2@{host}/v2/open/a/manifests/1", "credentials"),
        ("http://127.1:{port}/v2/open/a/manifests/1", "not spelled plainly"),
        ("ftp://{host}/a", "neither HTTP nor HTTPS"),
    ],
)
async def test_a_redirect_to_where_nobody_should_go(
    settings: NodeSettings, false_registry: MakeRegistry, location: str, reason: str
) -> None:
    registry = false_registry()
    place = location.format(host=registry.host, port=registry.port)
    registry.answers["HEAD", PATH] = (307, {"Location": place}, b"")
    evidence = await denial(settings, f"{registry.host}/open/a:1")
    assert evidence["denial_reason"] == "digest_resolution_failed"
    assert reason in evidence["detail"]
    assert "hunter2" not in json.dumps(evidence)
    assert len(registry.seen) == 1


@pytest.mark.parametrize(
    "form", ["u:hunter2@{registry}/a:1", "https://u:hunter2@{registry}/a", "{registry}/a:1@hunter2"]
)
async def test_credentials_in_a_name_are_refused_and_repeated_nowhere(
    settings: NodeSettings, registry: str, form: str
) -> None:
    evidence = await denial(settings, form.format(registry=registry), InvalidReferenceError)
    assert evidence["denial_reason"] == "invalid_image_ref"
    assert evidence["registry_allowed"] is False
    assert "hunter2" not in json.dumps(evidence)
