"""The real cosign binary and the real registry: images to sign, signatures made and judged by cosign itself."""

from __future__ import annotations

import json
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from fumehood.images.bundle import BUNDLE_TYPE, fallback_tag_of
from fumehood.images.simple_signing import LAYER_TYPE, tag_of
from tests.unit.signing_world import compact, digest_of

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
PASSWORD = "not-a-secret"


class Repository:
    """A repository that no other test uses, with just enough of the push side."""

    def __init__(self, client: httpx.Client, registry: str) -> None:
        self._client = client
        self.name = f"{registry}/test/signed-{uuid.uuid4().hex}"
        self._path = "/v2/" + self.name.partition("/")[2]

    def blob(self, data: bytes, media_type: str = "application/octet-stream") -> dict[str, Any]:
        upload = self._client.post(f"{self._path}/blobs/uploads/")
        upload.raise_for_status()
        target = httpx.URL(upload.headers["Location"]).copy_merge_params({"digest": digest_of(data)})
        self._client.put(target.raw_path.decode(), content=data).raise_for_status()
        return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}

    def put(self, name: str | None, document: dict[str, Any], media_type: str = MANIFEST) -> dict[str, Any]:
        """A manifest or an index, under a tag or its own digest; returns its descriptor."""
        data = compact({"schemaVersion": 2, "mediaType": media_type, **document})
        digest = digest_of(data)
        headers = {"Content-Type": media_type}
        url = f"{self._path}/manifests/{name or digest}"
        self._client.put(url, content=data, headers=headers).raise_for_status()
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def image(self, tag: str = "1") -> str:
        """Push an image that there is only once, and say its digest."""
        return str(self._image(tag)["digest"])

    def index(self, tag: str = "multi") -> tuple[str, str]:
        """Push an index of one platform; its digest, and that of the platform's manifest."""
        one = {**self._image("amd64"), "platform": {"architecture": "amd64", "os": "linux"}}
        return str(self.put(tag, {"manifests": [one]}, INDEX)["digest"]), str(one["digest"])

    def sign_by_tag(self, digest: str, *signatures: tuple[bytes, dict[str, str]]) -> None:
        """Signatures in the older form: payloads with their annotations."""
        layers = [{**self.blob(payload, LAYER_TYPE), "annotations": notes} for payload, notes in signatures]
        config = self.blob(compact({"rootfs": {"type": "layers", "diff_ids": [one["digest"] for one in layers]}}))
        config["mediaType"] = "application/vnd.oci.image.config.v1+json"
        self.put(tag_of(digest), {"config": config, "layers": layers})

    def sign_by_bundle(self, digest: str, *bundles: bytes, subject: str | None = None) -> None:
        """Signatures in the newer form, listed under the fallback tag with the wrong type that cosign gives too."""
        empty = self.blob(b"{}", "application/vnd.oci.empty.v1+json")
        about = {"mediaType": MANIFEST, "digest": subject or digest, "size": 1}
        manifests = [
            self.put(None, {"config": empty, "layers": [self.blob(one, BUNDLE_TYPE)], "subject": about})
            for one in bundles
        ]
        listed = [{**one, "artifactType": "application/vnd.oci.empty.v1+json"} for one in manifests]
        self.put(fallback_tag_of(digest), {"manifests": listed}, INDEX)

    def fetch(self, kind: str, name: str) -> bytes:
        answer = self._client.get(f"{self._path}/{kind}/{name}", headers={"Accept": f"{INDEX}, {MANIFEST}"})
        answer.raise_for_status()
        return answer.content

    def document(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.fetch("manifests", name))
        return found

    def _image(self, tag: str) -> dict[str, Any]:
        labels = {"Labels": {"made": uuid.uuid4().hex}}
        rootfs = {"type": "layers", "diff_ids": []}
        config = compact({"architecture": "amd64", "os": "linux", "config": labels, "rootfs": rootfs})
        kept = self.blob(config, "application/vnd.oci.image.config.v1+json")
        return self.put(tag, {"config": kept, "layers": []})


@dataclass(frozen=True)
class Cosign:
    """The binary with a home of its own; it asks nobody but the registry."""

    binary: Path
    home: Path

    def key(self, name: str) -> Path:
        """The path of a public key, made when it is first asked for; the private one lies beside it."""
        path = self.home / f"{name}.pub"
        if not path.exists():
            self._do("generate-key-pair", "--output-key-prefix", name)
        return path

    def import_key(self, name: str, pem: bytes) -> Path:
        (self.home / f"{name}.pem").write_bytes(pem)
        self._do("import-key-pair", "--key", f"{name}.pem", "--output-key-prefix", name, "-y")
        return self.home / f"{name}.pub"

    def sign(self, image: str, key: Path, *, form: str) -> None:
        newer = str(form == "bundle").lower()
        offline = ["--use-signing-config=false", "--tlog-upload=false"]
        private = str(key.with_suffix(".key"))
        self._do("sign", "--key", private, f"--new-bundle-format={newer}", *offline, "-y", image)

    def trusts_key(self, image: str, key: Path) -> bool:
        return self._run("verify", "--key", str(key), "--insecure-ignore-tlog", image).returncode == 0

    def trusts_identity(self, image: str, root: bytes, subject: str, issuer: str) -> bool:
        path = self.home / f"root-{uuid.uuid4().hex}.json"
        path.write_bytes(root)
        who = ["--certificate-identity", subject, "--certificate-oidc-issuer", issuer]
        return self._run("verify", "--trusted-root", str(path), *who, image).returncode == 0

    def trusts_pattern(self, image: str, root: bytes, pattern: str, issuer: str) -> bool:
        path = self.home / f"root-{uuid.uuid4().hex}.json"
        path.write_bytes(root)
        who = ["--certificate-identity-regexp", pattern, "--certificate-oidc-issuer", issuer]
        return self._run("verify", "--trusted-root", str(path), *who, image).returncode == 0

    def _do(self, *arguments: str) -> None:
        done = self._run(*arguments)
        assert done.returncode == 0, done.stderr

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # a proxy that nobody listens at: whatever else it may want to ask for, it does not get
        nobody = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
        environment = {"HOME": str(self.home), "PATH": "/usr/bin:/bin", "COSIGN_PASSWORD": PASSWORD, **nobody}
        return subprocess.run(
            [str(self.binary), *arguments],
            cwd=self.home,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
