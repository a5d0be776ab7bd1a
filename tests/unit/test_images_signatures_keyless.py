"""Keyless signatures under an authority of our own, in both forms, twisted in every place; the network is not asked."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from typing import Any, NoReturn

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fumehood.images import SignatureStatus
from fumehood.images.documents import FlawError
from fumehood.images.keyless import bundle_signer
from fumehood.images.signatures import Verification
from fumehood.images.simple_signing import CERTIFICATE, LOG_PROMISE, SIGNATURE
from fumehood.images.trust import Identity, Trust, TrustedKey
from tests.unit.registry_shelf import Shelf, verify
from tests.unit.signing_world import (
    ISSUER,
    SHA256,
    SUBJECT,
    Authority,
    b64,
    changed,
    compact,
    digest_of,
    new_key,
    pae,
    payload_of,
    public_pem,
    statement_of,
)

DIGEST = digest_of(b"the image")
OTHER = digest_of(b"another image")
AUTHORITY = Authority()
WHO = Identity(subject=SUBJECT, issuer=ISSUER)
TRUST = Trust(identities=(WHO,), trusted_root=AUTHORITY.trusted_root())
FORMS = ("tag", "bundle")

Signed = tuple[bytes, dict[str, Any]]

# one bit of a certificate is the sign of its serial number
pytestmark = pytest.mark.filterwarnings("ignore:Parsed a serial number")


def signature(form: str, authority: Authority = AUTHORITY, digest: str = DIGEST, *who: str) -> Shelf:
    shelf = Shelf()
    if form == "tag":
        shelf.tagged(DIGEST, authority.tagged(digest, *who))
    else:
        shelf.bundled(DIGEST, compact(authority.bundle(digest, *who)))
    return shelf


async def judged(shelf: Shelf, trust: Trust = TRUST) -> Verification:
    found = await verify(shelf, DIGEST, trust)
    assert found.key is None
    return found


@pytest.mark.parametrize("form", FORMS)
async def test_a_good_signature_names_its_signer(form: str) -> None:
    found = await judged(signature(form))
    assert found == Verification(
        SignatureStatus.VERIFIED,
        identity=SUBJECT,
        issuer=ISSUER,
        form=form,
        detail="signed by an identity that is trusted",
        looked_at=1,
    )


@pytest.mark.parametrize("form", FORMS)
async def test_an_address_is_an_identity_too(form: str) -> None:
    trust = Trust(identities=(Identity(subject="ada@example.org", issuer=ISSUER),), trusted_root=TRUST.trusted_root)
    found = await judged(signature(form, AUTHORITY, DIGEST, "ada@example.org"), trust)
    assert (found.status, found.identity) == (SignatureStatus.VERIFIED, "ada@example.org")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("subject", "issuer"), [(SUBJECT + "x", ISSUER), (SUBJECT, ISSUER + "x")])
async def test_somebody_else_is_a_mismatch(form: str, subject: str, issuer: str) -> None:
    """The signature holds, so the evidence says whose it is."""
    found = await judged(signature(form, AUTHORITY, DIGEST, subject, issuer))
    assert (found.status, found.identity, found.issuer) == (SignatureStatus.IDENTITY_MISMATCH, subject, issuer)


@pytest.mark.parametrize("form", FORMS)
async def test_a_signature_of_another_digest_is_invalid_whoever_made_it(form: str) -> None:
    found = await judged(signature(form, AUTHORITY, OTHER))
    assert (found.status, found.detail) == (SignatureStatus.INVALID, "it is a signature of another digest")


@pytest.mark.parametrize("form", FORMS)
async def test_another_authority_is_not_believed(form: str) -> None:
    found = await judged(signature(form, Authority()))
    assert found.status is SignatureStatus.INVALID
    assert found.identity is None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("ended", "why"),
    [
        ("certificateAuthorities", "no certificate authority of the trusted root was valid"),
        ("tlogs", "no transparency log of the trusted root was valid"),
        ("ctlogs", "no certificate log of the trusted root was valid"),
    ],
)
async def test_an_authority_that_had_ended_is_not_believed(form: str, ended: str, why: str) -> None:
    """Whoever holds the key of an authority that was given up can sign with it to this day."""
    trust = Trust(identities=(WHO,), trusted_root=AUTHORITY.trusted_root(ended=ended))
    found = await judged(signature(form), trust)
    assert found.status is SignatureStatus.INVALID
    assert why in found.detail


@pytest.mark.parametrize("stranger", ["certificate_log", "log", "key"])
@pytest.mark.parametrize("form", FORMS)
async def test_each_of_the_three_must_be_the_roots(form: str, stranger: str) -> None:
    """The certificate's log, the transparency log and the authority: one stranger among them is enough."""
    mixed = Authority(AUTHORITY.now)
    for name in ("root_key", "root", "key", "certificate", "certificate_log", "log"):
        setattr(mixed, name, getattr(AUTHORITY, name))
    assert (await judged(signature(form, mixed))).status is SignatureStatus.VERIFIED
    setattr(mixed, stranger, new_key())
    assert (await judged(signature(form, mixed))).status is SignatureStatus.INVALID


async def test_a_certificate_that_was_never_logged_is_not_believed() -> None:
    shelf = Shelf()
    shelf.bundled(DIGEST, compact(AUTHORITY.bundle(DIGEST, sct=False)))
    found = await judged(shelf)
    assert found.status is SignatureStatus.INVALID
    assert "signed certificate timestamp" in found.detail


@pytest.mark.parametrize("form", FORMS)
async def test_a_signature_long_after_its_certificate_is_not_believed(form: str) -> None:
    """The log's entry says when; the certificate had ended by then."""
    late = Authority(AUTHORITY.now)
    certificate_time = late.now
    leaf = late.leaf

    def early(*given: Any, **more: Any) -> Any:
        now, late.now = late.now, certificate_time
        try:
            return leaf(*given, **more)
        finally:
            late.now = now

    late.leaf = early  # type: ignore[method-assign]
    trust = Trust(identities=(WHO,), trusted_root=late.trusted_root())
    assert (await judged(signature(form, late), trust)).status is SignatureStatus.VERIFIED
    late.now = certificate_time.replace(year=certificate_time.year + 1)
    assert (await judged(signature(form, late), trust)).status is SignatureStatus.INVALID


async def test_parts_of_two_signatures_do_not_make_one() -> None:
    """The log's entry belongs to one signature: beside another payload it proves nothing."""
    payload, notes = AUTHORITY.tagged(DIGEST)
    _, other = AUTHORITY.tagged(OTHER)
    for name in (SIGNATURE, CERTIFICATE, LOG_PROMISE):
        shelf = Shelf()
        shelf.tagged(DIGEST, (payload, {**notes, name: other[name]}))
        assert (await judged(shelf)).status is SignatureStatus.INVALID, name

    bundle, another = AUTHORITY.bundle(DIGEST), AUTHORITY.bundle(DIGEST)
    for path in (("verificationMaterial", "tlogEntries"), ("verificationMaterial", "certificate"), ("dsseEnvelope",)):
        value = another[path[0]] if len(path) == 1 else another[path[0]][path[1]]
        shelf = Shelf()
        shelf.bundled(DIGEST, compact(changed(bundle, path, value)))
        assert (await judged(shelf)).status is SignatureStatus.INVALID, path


async def test_a_thief_of_the_logged_certificate_needs_its_key() -> None:
    """A new signature by a key of the thief's own, beside a certificate and an entry of somebody else's."""
    thief = new_key()
    statement = statement_of(DIGEST)
    stolen = changed(
        AUTHORITY.bundle(DIGEST), ("dsseEnvelope", "signatures", 0, "sig"), b64(thief.sign(pae(statement), SHA256))
    )
    payload = payload_of(DIGEST)
    _, notes = AUTHORITY.tagged(DIGEST)
    shelf = Shelf()
    shelf.bundled(DIGEST, compact(stolen))
    shelf.tagged(DIGEST, (payload, {**notes, SIGNATURE: b64(thief.sign(payload, SHA256))}))
    found = await judged(shelf)
    assert (found.status, found.looked_at) == (SignatureStatus.INVALID, 2)


@pytest.mark.parametrize("name", [SIGNATURE, CERTIFICATE])
async def test_what_was_not_logged_does_not_count_even_by_the_same_key(name: str) -> None:
    """Another signature of the same payload, or another certificate of the same key: each good, and not in the log."""
    key = new_key()
    payload, notes = AUTHORITY.tagged(DIGEST, key=key)
    _, other = AUTHORITY.tagged(DIGEST, key=key)
    shelf = Shelf()
    shelf.tagged(DIGEST, (payload, {**notes, name: other[name]}))
    found = await judged(shelf)
    assert (found.status, found.detail) == (SignatureStatus.INVALID, "the log's entry is of another signature")


async def test_what_was_logged_must_be_what_was_signed() -> None:
    shelf = Shelf()
    shelf.tagged(DIGEST, AUTHORITY.tagged(DIGEST, logged=payload_of(OTHER)))
    found = await judged(shelf)
    assert (found.status, found.detail) == (SignatureStatus.INVALID, "the log's entry is of another signature")


def test_only_a_statement_is_believed_whatever_holds_around_it() -> None:
    """Sigstore's verifier is content with every type of payload, and leaves that to us."""
    good = compact(AUTHORITY.bundle(DIGEST))
    assert bundle_signer(good, AUTHORITY.trusted_root())[0].subject == SUBJECT
    other = compact(AUTHORITY.bundle(DIGEST, kind="application/vnd.example+json"))
    with pytest.raises(FlawError, match="no in-toto statement"):
        bundle_signer(other, AUTHORITY.trusted_root())


@pytest.mark.parametrize("form", FORMS)
async def test_a_certificate_of_two_subjects_names_nobody(form: str) -> None:
    """Which of them signed? Neither is believed, though one is trusted."""
    found = await judged(signature(form, AUTHORITY, DIGEST, f"{SUBJECT} ada@example.org"))
    assert (found.status, found.detail) == (
        SignatureStatus.INVALID,
        "the certificate does not name exactly one subject",
    )


async def test_a_log_that_holds_anything_proves_nothing() -> None:
    """The entry is logged and fits, and the signature in it is not of the certificate's key."""
    shelf = Shelf()
    shelf.tagged(DIGEST, AUTHORITY.tagged(DIGEST, by=new_key()))
    shelf.bundled(DIGEST, compact(AUTHORITY.bundle(DIGEST, by=new_key())))
    found = await judged(shelf)
    assert (found.status, found.looked_at) == (SignatureStatus.INVALID, 2)
    assert "not of the certificate's key" in found.detail


@pytest.mark.parametrize("form", FORMS)
async def test_keys_and_identities_may_be_trusted_at_once(form: str) -> None:
    key = new_key()
    trust = Trust((TrustedKey.from_pem("k", public_pem(key)),), (WHO,), TRUST.trusted_root)
    assert (await judged(signature(form), trust)).status is SignatureStatus.VERIFIED


@pytest.mark.parametrize("form", FORMS)
async def test_without_trusted_identities_a_keyless_signature_says_so(form: str) -> None:
    found = await judged(signature(form), Trust(keys=(TrustedKey.from_pem("k", public_pem(new_key())),)))
    assert (found.status, found.detail) == (
        SignatureStatus.INVALID,
        "it is a keyless signature, and no identity is trusted",
    )


async def test_a_mismatch_says_more_than_a_broken_one_beside_it() -> None:
    shelf = signature("tag", AUTHORITY, OTHER)
    shelf.bundled(DIGEST, b"{}", compact(AUTHORITY.bundle(DIGEST, "https://else.example/x")))
    found = await judged(shelf)
    assert (found.status, found.form, found.looked_at) == (SignatureStatus.IDENTITY_MISMATCH, "bundle", 3)


@pytest.mark.parametrize("form", FORMS)
async def test_a_name_that_a_terminal_would_obey_is_not_repeated(form: str) -> None:
    found = await judged(signature(form, AUTHORITY, DIGEST, SUBJECT, "https://x.example/\x1b[2J"))
    assert found.status is SignatureStatus.IDENTITY_MISMATCH
    assert found.issuer == "https://x.example/?[2J"


@pytest.mark.parametrize("form", FORMS)
def test_the_network_is_not_asked(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the root nor for a proof; the registry here is in memory."""

    def refuse(*given: Any) -> NoReturn:
        raise AssertionError("the network was asked")

    loop = asyncio.new_event_loop()
    shelf = signature(form)
    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    try:
        assert loop.run_until_complete(judged(shelf)).status is SignatureStatus.VERIFIED
    finally:
        loop.close()


# --- whatever else somebody may write ------------------------------------------------------------------------------

BUNDLE = AUTHORITY.bundle(DIGEST)
TAGGED = AUTHORITY.tagged(DIGEST)
settled = settings(max_examples=60, deadline=None)


def flipped(data: bytes, at: int, mask: int) -> bytes:
    place = at % len(data)
    return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]


PARTS: list[tuple[str | int, ...]] = [
    ("verificationMaterial", "certificate", "rawBytes"),
    ("verificationMaterial", "tlogEntries", 0, "canonicalizedBody"),
    ("verificationMaterial", "tlogEntries", 0, "inclusionPromise", "signedEntryTimestamp"),
    ("verificationMaterial", "tlogEntries", 0, "inclusionProof", "rootHash"),
    ("dsseEnvelope", "payload"),
    ("dsseEnvelope", "signatures", 0, "sig"),
]


def at_path(document: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


@settled
@given(st.sampled_from(PARTS), st.integers(0, 10_000), st.integers(1, 255))
def test_no_flipped_bit_of_a_bundles_parts_verifies(path: tuple[str | int, ...], at: int, mask: int) -> None:
    data = base64.b64decode(at_path(BUNDLE, path))
    shelf = Shelf()
    shelf.bundled(DIGEST, compact(changed(BUNDLE, path, b64(flipped(data, at, mask)))))
    found = asyncio.run(judged(shelf))
    assert found.status in (SignatureStatus.INVALID, SignatureStatus.MISSING)


@settled
@given(st.sampled_from(["payload", SIGNATURE, CERTIFICATE]), st.integers(0, 10_000), st.integers(1, 255))
@example(CERTIFICATE, 12, 1).via("an X.509 version that does not exist")
def test_no_flipped_bit_of_a_tagged_signature_verifies(name: str, at: int, mask: int) -> None:
    payload, notes = TAGGED
    twisted = dict(notes)
    if name == "payload":
        payload = flipped(payload, at, mask)
    elif name == SIGNATURE:
        twisted[name] = b64(flipped(base64.b64decode(notes[name]), at, mask))
    else:
        lines = notes[name].splitlines()
        der = base64.b64decode("".join(lines[1:-1]))
        twisted[name] = "\n".join([lines[0], b64(flipped(der, at, mask)), lines[-1], ""])
    shelf = Shelf()
    shelf.tagged(DIGEST, (payload, twisted))
    assert asyncio.run(judged(shelf)).status is SignatureStatus.INVALID


PROMISE = json.loads(TAGGED[1][LOG_PROMISE])
PROMISED: list[tuple[str | int, ...]] = [
    ("SignedEntryTimestamp",),
    ("Payload",),
    *[("Payload", name) for name in ("body", "integratedTime", "logIndex", "logID")],
]
junk: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
    | st.just([])
    | st.just({})
)


@settled
@given(st.sampled_from(PROMISED), junk)
def test_no_changed_promise_verifies_or_raises(path: tuple[str | int, ...], value: Any) -> None:
    payload, notes = TAGGED
    twisted = changed(PROMISE, path, value)
    shelf = Shelf()
    shelf.tagged(DIGEST, (payload, {**notes, LOG_PROMISE: compact(twisted).decode()}))
    found = asyncio.run(judged(shelf))
    assert found.status is (
        SignatureStatus.VERIFIED if twisted == PROMISE and type(value) is int else SignatureStatus.INVALID
    )


def paths(document: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    steps = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [found for step, inner in steps for found in [(*path, step), *paths(inner, (*path, step))]]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(paths(BUNDLE)), junk | st.integers(-(2**70), 2**70).map(str))
def test_junk_in_any_place_of_a_bundle_raises_nothing(path: tuple[str | int, ...], value: Any) -> None:
    shelf = Shelf()
    shelf.bundled(DIGEST, compact(changed(BUNDLE, path, value)))
    asyncio.run(judged(shelf))


@settled
@given(st.sampled_from([SIGNATURE, CERTIFICATE, LOG_PROMISE]), junk)
def test_junk_in_any_annotation_raises_nothing(name: str, value: Any) -> None:
    payload, notes = TAGGED
    shelf = Shelf()
    shelf.tagged(DIGEST, (payload, {**notes, name: value}))
    assert asyncio.run(judged(shelf)).status is SignatureStatus.INVALID
