"""A registry in memory that does as it is told, lies included: for what no real one can be made to do."""

from __future__ import annotations

from typing import Any

import httpx

from fumehood.images import ImageReference, RegistryClient, RetryPolicy
from fumehood.images.bundle import BUNDLE_TYPE, fallback_tag_of
from fumehood.images.reading import OCI_INDEX, OCI_MANIFEST
from fumehood.images.signatures import Verification, Verifier
from fumehood.images.simple_signing import LAYER_TYPE, SIGNATURE, tag_of
from fumehood.images.trust import Trust
from tests.unit.signing_world import b64, compact, digest_of

NAME = "registry.example/app"
QUICK = RetryPolicy(attempts=2, first_seconds=0.001, longest_seconds=0.002)


class Shelf:
    """What lies in the repository, by the end of its URL."""

    def __init__(self) -> None:
        self.kept: dict[str, httpx.Response] = {}
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode().removeprefix("/v2/app/")
        self.asked.append(path)
        found = self.kept.get(path, httpx.Response(404))
        body = found.read()
        return httpx.Response(found.status_code, headers=found.headers, stream=httpx.ByteStream(body))

    def manifest(self, body: bytes, name: str | None = None, kind: str = OCI_MANIFEST) -> str:
        """Under its digest, and a tag if one is given."""
        for place in {name or digest_of(body), digest_of(body)}:
            self.kept[f"manifests/{place}"] = httpx.Response(200, headers={"Content-Type": kind}, content=body)
        return digest_of(body)

    def blob(self, data: bytes) -> str:
        self.kept[f"blobs/{digest_of(data)}"] = httpx.Response(200, content=data)
        return digest_of(data)

    def tagged(self, digest: str, *signatures: tuple[bytes, dict[str, Any]]) -> None:
        """Signatures in the older form: payloads with their annotations."""
        layers = [
            {"mediaType": LAYER_TYPE, "digest": self.blob(payload), "annotations": notes}
            for payload, notes in signatures
        ]
        self.manifest(compact({"layers": layers}), tag_of(digest))

    def referring(self, *bundles: bytes, digest: str) -> list[str]:
        """Manifests for these bundles, which no list names yet."""
        return [
            self.manifest(
                compact(
                    {"layers": [{"mediaType": BUNDLE_TYPE, "digest": self.blob(one)}], "subject": {"digest": digest}}
                )
            )
            for one in bundles
        ]

    def listed(self, digest: str, manifests: list[str], *, api: bool = False, kind: str = "wrong") -> None:
        """A list of referrers, at the registry's API or under the fallback tag."""
        index = compact({"manifests": [{"digest": one, "artifactType": kind} for one in manifests]})
        if api:
            answer = httpx.Response(200, headers={"Content-Type": OCI_INDEX}, content=index)
            self.kept[f"referrers/{digest}"] = answer
        else:
            self.manifest(index, fallback_tag_of(digest), OCI_INDEX)

    def bundled(self, digest: str, *bundles: bytes) -> None:
        """Signatures in the newer form."""
        self.listed(digest, self.referring(*bundles, digest=digest))


def noted(signature: bytes) -> dict[str, Any]:
    """A layer's annotations."""
    return {SIGNATURE: b64(signature)}


async def verify(shelf: Shelf, digest: str, trust: Trust) -> Verification:
    async with RegistryClient(retry=QUICK, transport=httpx.MockTransport(shelf)) as client:
        return await Verifier(client).verify(ImageReference.parse(f"{NAME}:1"), digest, trust)
