"""Keyless signatures under an authority of our own, on the real registry; cosign says of each what we must say."""

from __future__ import annotations

from typing import Any

import pytest

from fumehood.images import ImageReference, RegistryClient, SignatureStatus
from fumehood.images.signatures import Verification, Verifier
from fumehood.images.simple_signing import CERTIFICATE, LOG_PROMISE, SIGNATURE
from fumehood.images.trust import Identity, Trust
from tests.integration.cosign_world import Cosign, Repository
from tests.unit.signing_world import ISSUER, SUBJECT, Authority, b64, changed, compact, new_key, statement_of

FORMS = ("tag", "bundle")
VERIFIED, INVALID, MISMATCH = SignatureStatus.VERIFIED, SignatureStatus.INVALID, SignatureStatus.IDENTITY_MISMATCH


@pytest.fixture
def authority() -> Authority:
    return Authority()


def sign(repository: Repository, digest: str, authority: Authority, form: str, about: str = "", *who: str) -> None:
    if form == "tag":
        repository.sign_by_tag(digest, authority.tagged(about or digest, *who))
    else:
        repository.sign_by_bundle(digest, compact(authority.bundle(about or digest, *who)))


async def verify(repository: Repository, digest: str, trust: Trust) -> Verification:
    async with RegistryClient() as client:
        return await Verifier(client).verify(ImageReference.parse(f"{repository.name}@{digest}"), digest, trust)


async def agreed(
    cosign: Cosign, repository: Repository, digest: str, root: bytes, subject: str = SUBJECT, issuer: str = ISSUER
) -> Verification:
    """Our verdict, of which cosign's is the same."""
    trust = Trust(identities=(Identity(subject=subject, issuer=issuer),), trusted_root=root)
    found = await verify(repository, digest, trust)
    theirs = cosign.trusts_identity(f"{repository.name}@{digest}", root, subject, issuer)
    assert theirs is (found.status is VERIFIED), found
    return found


@pytest.mark.parametrize("form", FORMS)
async def test_a_good_signature_is_verified_and_names_its_signer(
    cosign: Cosign, repository: Repository, authority: Authority, form: str
) -> None:
    digest = repository.image()
    sign(repository, digest, authority, form)
    found = await agreed(cosign, repository, digest, authority.trusted_root())
    assert (found.status, found.form, found.identity, found.issuer) == (VERIFIED, form, SUBJECT, ISSUER)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("subject", "issuer"), [(SUBJECT + "x", ISSUER), (SUBJECT, ISSUER + "x"), (ISSUER, SUBJECT)])
async def test_somebody_else_is_a_mismatch(
    cosign: Cosign, repository: Repository, authority: Authority, form: str, subject: str, issuer: str
) -> None:
    digest = repository.image()
    sign(repository, digest, authority, form)
    found = await agreed(cosign, repository, digest, authority.trusted_root(), subject, issuer)
    assert (found.status, found.identity, found.issuer) == (MISMATCH, SUBJECT, ISSUER)


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        (r"https://ci\.example/[a-z]+@main", True),
        (r"https://.*", True),
        (r"https://ci\.example/[0-9]+@main", False),
        (r"ada@example\.org", False),
    ],
)
@pytest.mark.parametrize("form", FORMS)
async def test_a_pattern_of_identities(
    cosign: Cosign, repository: Repository, authority: Authority, form: str, pattern: str, matches: bool
) -> None:
    digest = repository.image()
    sign(repository, digest, authority, form)
    root = authority.trusted_root()
    trust = Trust(identities=(Identity(subject_pattern=pattern, issuer=ISSUER),), trusted_root=root)
    assert (await verify(repository, digest, trust)).status is (VERIFIED if matches else MISMATCH)
    assert cosign.trusts_pattern(f"{repository.name}@{digest}", root, pattern, ISSUER) is matches


async def test_a_pattern_must_match_the_whole_where_cosign_takes_a_part(
    cosign: Cosign, repository: Repository, authority: Authority
) -> None:
    """Stricter than cosign, so that a pattern for `example/us` does not let in `example/us-too`."""
    digest, pattern = repository.image(), r"ci\.example/b"
    sign(repository, digest, authority, "bundle")
    root = authority.trusted_root()
    trust = Trust(identities=(Identity(subject_pattern=pattern, issuer=ISSUER),), trusted_root=root)
    assert (await verify(repository, digest, trust)).status is MISMATCH
    assert cosign.trusts_pattern(f"{repository.name}@{digest}", root, pattern, ISSUER)


@pytest.mark.parametrize("form", FORMS)
async def test_another_root_is_another_world(
    cosign: Cosign, repository: Repository, authority: Authority, form: str
) -> None:
    digest = repository.image()
    sign(repository, digest, authority, form)
    assert (await agreed(cosign, repository, digest, Authority().trusted_root())).status is INVALID


@pytest.mark.parametrize("ended", ["certificateAuthorities", "tlogs", "ctlogs"])
@pytest.mark.parametrize("form", FORMS)
async def test_what_had_ended_is_not_believed(
    cosign: Cosign, repository: Repository, authority: Authority, form: str, ended: str
) -> None:
    digest = repository.image()
    sign(repository, digest, authority, form)
    found = await agreed(cosign, repository, digest, authority.trusted_root(ended=ended))
    assert found.status is INVALID


@pytest.mark.parametrize("form", FORMS)
async def test_a_signature_of_another_digest_is_worth_nothing(
    cosign: Cosign, repository: Repository, authority: Authority, form: str
) -> None:
    digest, other = repository.image("1"), repository.image("2")
    sign(repository, digest, authority, form, other)
    found = await agreed(cosign, repository, digest, authority.trusted_root())
    assert (found.status, found.detail) == (INVALID, "it is a signature of another digest")


@pytest.mark.parametrize("form", FORMS)
async def test_an_index_is_signed_as_such(
    cosign: Cosign, repository: Repository, authority: Authority, form: str
) -> None:
    index, platform = repository.index()
    sign(repository, index, authority, form)
    assert (await agreed(cosign, repository, index, authority.trusted_root())).status is VERIFIED
    found = await agreed(cosign, repository, platform, authority.trusted_root())
    assert found.status is SignatureStatus.MISSING


@pytest.mark.parametrize("stranger", ["certificate_log", "log", "key"])
@pytest.mark.parametrize("form", FORMS)
async def test_each_of_the_three_must_be_the_roots(
    cosign: Cosign, repository: Repository, authority: Authority, form: str, stranger: str
) -> None:
    """The certificate's log, the transparency log and the authority: one stranger among them is enough."""
    digest, root = repository.image(), authority.trusted_root()
    setattr(authority, stranger, new_key())
    sign(repository, digest, authority, form)
    assert (await agreed(cosign, repository, digest, root)).status is INVALID


@pytest.mark.parametrize("name", ["payload", SIGNATURE, CERTIFICATE, LOG_PROMISE])
async def test_parts_of_two_tagged_signatures_do_not_make_one(
    cosign: Cosign, repository: Repository, authority: Authority, name: str
) -> None:
    digest = repository.image()
    payload, notes = authority.tagged(digest)
    _, other = authority.tagged(digest)
    twisted = {**notes, name: other[name]} if name != "payload" else notes
    repository.sign_by_tag(digest, (payload + b" " if name == "payload" else payload, twisted))
    assert (await agreed(cosign, repository, digest, authority.trusted_root())).status is INVALID


TWISTS: list[tuple[tuple[str | int, ...], Any]] = [
    (("dsseEnvelope", "payload"), b64(statement_of("sha256:" + "0" * 64))),
    (("dsseEnvelope", "signatures", 0, "sig"), b64(b"x" * 70)),
    (("verificationMaterial", "tlogEntries"), []),
    (("verificationMaterial", "tlogEntries", 0, "integratedTime"), "1"),
    (("verificationMaterial", "tlogEntries", 0, "inclusionProof"), None),
    (("verificationMaterial", "tlogEntries", 0, "inclusionProof", "rootHash"), b64(b"x" * 32)),
    (("verificationMaterial", "tlogEntries", 0, "inclusionPromise", "signedEntryTimestamp"), b64(b"x" * 70)),
    (("verificationMaterial", "tlogEntries", 0, "canonicalizedBody"), b64(b"{}")),
    (("verificationMaterial", "certificate", "rawBytes"), b64(b"x")),
]


@pytest.mark.parametrize(
    ("path", "value"), TWISTS, ids=lambda value: str(value[-1]) if isinstance(value, tuple) else ""
)
async def test_a_twisted_bundle_is_refused_by_both(
    cosign: Cosign, repository: Repository, authority: Authority, path: tuple[str | int, ...], value: Any
) -> None:
    digest = repository.image()
    repository.sign_by_bundle(digest, compact(changed(authority.bundle(digest), path, value)))
    assert (await agreed(cosign, repository, digest, authority.trusted_root())).status is INVALID
