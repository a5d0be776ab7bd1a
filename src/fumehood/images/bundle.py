"""The newer form of a cosign signature: a Sigstore bundle in a manifest whose subject is the signed digest. Pure.

The bundle holds a DSSE envelope around an in-toto statement: which digests it is about, and what it says about them.
A statement that says something else than "signed" (an attestation, kept in the same form) is no signature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fumehood.images.documents import FlawError, objects, parse_object, part, unbase64
from fumehood.images.reference import is_digest

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
STATEMENT_TYPE = "application/vnd.in-toto+json"
STATEMENTS = ("https://in-toto.io/Statement/v1", "https://in-toto.io/Statement/v0.1")
SIGNED = "https://sigstore.dev/cosign/sign/v1"
MAX_BUNDLE = 512 * 1024
"""Real ones have one to ten KiB."""

_WHAT = "the bundle"


@dataclass(frozen=True, slots=True)
class SignedBundle:
    """What was signed, the signature over it, and whether a certificate came along."""

    payload: bytes
    signature: bytes
    has_certificate: bool
    statement: dict[str, Any]

    @property
    def message(self) -> bytes:
        """The bytes that the signature is over: DSSE's pre-authentication encoding."""
        kind = STATEMENT_TYPE.encode()
        return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(self.payload), self.payload)

    @property
    def is_signature(self) -> bool:
        return self.statement.get("predicateType") == SIGNED


def fallback_tag_of(digest: str) -> str:
    """Where registries without a list of referrers keep one."""
    return digest.replace(":", "-")


def manifests_in(index: bytes) -> list[str]:
    """The digests of all manifests that a list of referrers names. What it says of their types is not believed."""
    listed = objects(parse_object(index, "the list of referrers").get("manifests"))
    digests = [entry.get("digest") for entry in listed]
    return [digest for digest in digests if isinstance(digest, str) and is_digest(digest)]


def bundle_in(manifest: bytes, digest: str) -> str | None:
    """The digest of the bundle that this manifest brings for the subject; `None` where it brings something else."""
    document = parse_object(manifest, "the bundle's manifest")
    layers = [one for one in objects(document.get("layers")) if one.get("mediaType") == BUNDLE_TYPE]
    if not layers:
        return None
    if part(document, "subject", "digest") != digest:
        raise FlawError("the bundle's manifest is about another digest")
    found = layers[0].get("digest")
    if len(layers) != 1 or not isinstance(found, str) or not is_digest(found):
        raise FlawError("the bundle's manifest does not name exactly one bundle")
    return found


def parse_bundle(body: bytes) -> SignedBundle:
    """The parts of a bundle that every signature has."""
    document = parse_object(body, _WHAT)
    if document.get("mediaType") != BUNDLE_TYPE:
        raise FlawError(f"{_WHAT} is of another type than it is kept as")
    envelope = part(document, "dsseEnvelope")
    if not isinstance(envelope, dict) or envelope.get("payloadType") != STATEMENT_TYPE:
        raise FlawError(f"{_WHAT} holds no statement")
    signatures = envelope.get("signatures")
    if not isinstance(signatures, list) or len(signatures) != 1 or not isinstance(signatures[0], dict):
        raise FlawError(f"{_WHAT} does not hold exactly one signature")
    payload = unbase64(envelope.get("payload"), "the bundle's statement")
    return SignedBundle(
        payload,
        unbase64(signatures[0].get("sig"), "the signature"),
        part(document, "verificationMaterial", "certificate") is not None,
        parse_object(payload, "the bundle's statement"),
    )


def check_statement(bundle: SignedBundle, digest: str) -> None:
    """What was signed is this digest, as cosign signs it."""
    if bundle.statement.get("_type") not in STATEMENTS or not bundle.is_signature:
        raise FlawError("the bundle's statement is not a cosign image signature")
    subjects = objects(bundle.statement.get("subject"))
    if not any(part(subject, "digest", "sha256") == digest.removeprefix("sha256:") for subject in subjects):
        raise FlawError("it is a signature of another digest")
