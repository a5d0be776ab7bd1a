"""Is this digest signed by somebody whom we trust? cosign's signatures, in both forms in which registries keep them.

Each signature is judged alone: one that is broken, or not ours, says nothing about the one beside it, and the first
that holds decides. What holds is what was signed (this digest, and no other) and who signed it (a key of the trust, or
an identity under its trusted root). Where none holds, the status says how near the best of them came.

An index is signed as such: the signature of its digest counts, not those of the platforms' manifests.

Key-made signatures are not looked up in a transparency log: whoever trusts a key trusts its holder to say so, and the
log could only tell when.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final

from fumehood.errors import DigestResolutionError, RegistryUnavailableError
from fumehood.images.admission import SignatureStatus
from fumehood.images.aside import Aside
from fumehood.images.bundle import check_statement, parse_bundle
from fumehood.images.documents import FlawError
from fumehood.images.reference import ImageReference, is_digest
from fumehood.images.registry import RegistryClient
from fumehood.images.signature_store import Bundled, Kept, SignatureStore, Tagged, Unreadable
from fumehood.images.signer import Signer
from fumehood.images.simple_signing import check_payload
from fumehood.images.singleflight import SingleFlight, Turn, WorkCancelledError
from fumehood.images.trust import Trust, TrustedKey

MOST_AT_ONCE: Final = 16
"""Digests whose signatures are read at the same time; each may hold some MiB of what a registry sent."""

_NEAREST_FIRST: Final = (SignatureStatus.IDENTITY_MISMATCH, SignatureStatus.INVALID)
_SHOWN = 256


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found out about the signatures of one digest."""

    status: SignatureStatus
    verifier: str = "cosign"
    identity: str | None = None
    issuer: str | None = None
    key: str | None = None
    """Its name in the trust, and its fingerprint."""
    form: str | None = None
    """`tag` or `bundle`: where the signature that decided was kept."""
    detail: str = ""
    looked_at: int = 0
    """How many signatures were judged."""


@dataclass(frozen=True, slots=True)
class _Finding:
    """What was found out about one signature."""

    status: SignatureStatus
    form: str
    detail: str = ""
    identity: str | None = None
    issuer: str | None = None
    key: str | None = None


class Verifier:
    """Verifies digests under a trust. Nothing is kept, since signatures come and go; equal questions that wait at the
    same time are asked once. What registries send is read and judged beside the loop, by few threads."""

    def __init__(self, registry: RegistryClient) -> None:
        self._registry = registry
        self._aside = Aside()
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        self._flights: SingleFlight[tuple[str, str, Trust], Verification] = SingleFlight()

    async def verify(self, reference: ImageReference, digest: str, trust: Trust) -> Verification:
        """What the signatures of this digest in the reference's repository are worth.

        An error of the registry (`DigestResolutionError` and its kinds) says that nothing was decided.
        """
        if not is_digest(digest):
            raise ValueError("signatures are of digests")
        question = (reference.name, digest, trust)
        try:
            return await self._flights.run(question, lambda turn: self._verify(reference, digest, trust, turn))
        except WorkCancelledError:
            raise RegistryUnavailableError(f"{_cannot_read(reference, digest)}: this process is about to end") from None
        except DigestResolutionError as error:
            raise error.again() from error

    async def _verify(self, reference: ImageReference, digest: str, trust: Trust, turn: Turn) -> Verification:
        await turn()
        async with self._places:
            reader = self._registry.reader(reference, _cannot_read(reference, digest))
            return _summary(await self._findings(SignatureStore(reader, digest, self._aside), digest, trust))

    async def _findings(self, store: SignatureStore, digest: str, trust: Trust) -> list[_Finding]:
        findings: list[_Finding] = []
        async with contextlib.aclosing(store.signatures()) as signatures:
            async for kept in signatures:
                finding = await self._aside.run(_judge, kept, digest, trust)
                findings += [finding] if finding is not None else []
                if finding is not None and finding.status is SignatureStatus.VERIFIED:
                    break
        return findings


def _cannot_read(reference: ImageReference, digest: str) -> str:
    return f"cannot read the signatures of {reference.name}@{digest}"


def _judge(kept: Kept, digest: str, trust: Trust) -> _Finding | None:
    """What one signature is worth; `None` for what is no signature at all."""
    try:
        match kept:
            case Tagged():
                return _judge_tagged(kept, digest, trust)
            case Bundled():
                return _judge_bundle(kept, digest, trust)
            case Unreadable():
                return _Finding(SignatureStatus.INVALID, kept.form, kept.detail)
    except FlawError as flaw:
        return _Finding(SignatureStatus.INVALID, kept.form, str(flaw))


def _judge_tagged(kept: Tagged, digest: str, trust: Trust) -> _Finding:
    key = trust.key_of(kept.layer.signature, kept.payload)
    if key is not None:
        check_payload(kept.payload, digest)
        return _by_key(kept.form, key)
    root = _root_for(trust, kept.layer.has_certificate)
    signer = _tagged_signer(kept, root)
    check_payload(kept.payload, digest)
    return _by_identity(kept.form, signer, trust)


def _judge_bundle(kept: Bundled, digest: str, trust: Trust) -> _Finding | None:
    bundle = parse_bundle(kept.body)
    if not bundle.is_signature:
        return None
    key = trust.key_of(bundle.signature, bundle.message)
    if key is not None:
        check_statement(bundle, digest)
        return _by_key(kept.form, key)
    root = _root_for(trust, bundle.has_certificate)
    signer, payload = _bundle_signer(kept, root)
    if payload != bundle.payload:
        raise FlawError("the bundle reads in two ways")
    check_statement(bundle, digest)
    return _by_identity(kept.form, signer, trust)


def _root_for(trust: Trust, has_certificate: bool) -> bytes:
    """The root under which a signature that no trusted key made may still hold."""
    if not has_certificate:
        raise FlawError("no trusted key made this signature")
    if trust.trusted_root is None or not trust.identities:
        raise FlawError("it is a keyless signature, and no identity is trusted")
    return trust.trusted_root


# Both imports take half a second, which only keyless trust need spend.


def _tagged_signer(kept: Tagged, trusted_root: bytes) -> Signer:
    from fumehood.images.keyless_tag import tagged_signer

    return tagged_signer(kept.layer, kept.payload, trusted_root)


def _bundle_signer(kept: Bundled, trusted_root: bytes) -> tuple[Signer, bytes]:
    from fumehood.images.keyless import bundle_signer

    return bundle_signer(kept.body, trusted_root)


def _by_key(form: str, key: TrustedKey) -> _Finding:
    return _Finding(SignatureStatus.VERIFIED, form, f"signed with the key {key.name}", key=str(key))


def _by_identity(form: str, signer: Signer, trust: Trust) -> _Finding:
    who = {"identity": _shown(signer.subject), "issuer": _shown(signer.issuer)}
    if any(identity.matches(signer.subject, signer.issuer) for identity in trust.identities):
        return _Finding(SignatureStatus.VERIFIED, form, "signed by an identity that is trusted", **who)
    detail = "the signature holds, and is of somebody whom no trusted identity names"
    return _Finding(SignatureStatus.IDENTITY_MISMATCH, form, detail, **who)


def _shown(text: str) -> str:
    """What a certificate says, for evidence and logs: bounded, and without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_SHOWN])


def _summary(findings: list[_Finding]) -> Verification:
    count = len(findings)
    last = findings[-1] if findings else None
    if last is not None and last.status is SignatureStatus.VERIFIED:
        return _verification(last, last.detail, count)
    for status in _NEAREST_FIRST:
        fitting = [finding for finding in findings if finding.status is status]
        if fitting:
            return _verification(fitting[0], _details(fitting), count)
    return Verification(SignatureStatus.MISSING, detail="no signature of this digest was found", looked_at=count)


def _verification(finding: _Finding, detail: str, count: int) -> Verification:
    return Verification(
        finding.status,
        identity=finding.identity,
        issuer=finding.issuer,
        key=finding.key,
        form=finding.form,
        detail=detail,
        looked_at=count,
    )


def _details(findings: list[_Finding]) -> str:
    """The different things that are wrong, each once, in the order in which they were met."""
    said = list(dict.fromkeys(finding.detail for finding in findings))
    return "; ".join(said[:3]) + (f"; and {len(said) - 3} more" if len(said) > 3 else "")
