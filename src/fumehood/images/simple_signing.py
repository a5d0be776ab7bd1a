"""The older form of a cosign signature: a manifest under the tag `sha256-<hex>.sig`, each of whose layers is one. Pure.

A layer's blob is the payload: which digest is signed, in JSON. Its annotations hold the signature over the payload's
bytes, and for keyless ones the certificate and the transparency log's promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fumehood.images.documents import FlawError, objects, parse_object, part, unbase64
from fumehood.images.reference import is_digest

LAYER_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"
CERTIFICATE = "dev.sigstore.cosign/certificate"
LOG_PROMISE = "dev.sigstore.cosign/bundle"
PAYLOAD_TYPE = "cosign container image signature"
MAX_PAYLOAD = 64 * 1024
"""Real ones have some 300 bytes; annotations of the signer may make them longer."""

_WHAT = "the signature's payload"


@dataclass(frozen=True, slots=True)
class TaggedSignature:
    """One layer: where its payload is, and what was said about it."""

    layer: dict[str, Any]

    @property
    def payload_digest(self) -> str:
        digest = self.layer.get("digest")
        if not isinstance(digest, str) or not is_digest(digest):
            raise FlawError("a layer of the signatures' manifest has no good digest")
        return digest

    @property
    def signature(self) -> bytes:
        return unbase64(self.annotation(SIGNATURE), "the signature")

    @property
    def has_certificate(self) -> bool:
        return self.annotation(CERTIFICATE) is not None

    def annotation(self, name: str) -> Any:
        return part(self.layer, "annotations", name)


def tag_of(digest: str) -> str:
    """Where signatures of this digest are looked for."""
    return f"{digest.replace(':', '-')}.sig"


def signatures_in(manifest: bytes) -> list[TaggedSignature]:
    """All layers that are signatures; other layers are none of ours."""
    layers = objects(parse_object(manifest, "the signatures' manifest").get("layers"))
    return [TaggedSignature(layer) for layer in layers if layer.get("mediaType") == LAYER_TYPE]


def check_payload(payload: bytes, digest: str) -> None:
    """What was signed is this digest, as cosign signs it."""
    document = parse_object(payload, _WHAT)
    if part(document, "critical", "type") != PAYLOAD_TYPE:
        raise FlawError(f"{_WHAT} is not a cosign image signature's")
    if part(document, "critical", "image", "docker-manifest-digest") != digest:
        raise FlawError("it is a signature of another digest")
