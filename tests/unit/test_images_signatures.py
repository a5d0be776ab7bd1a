"""Signatures made with keys, in registries that misbehave; the well-behaved one and cosign are in tests/integration."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.errors import DigestResolutionError, RegistryUnavailableError
from fumehood.images import ImageReference, RegistryClient, SignatureStatus
from fumehood.images.bundle import BUNDLE_TYPE, SIGNED, fallback_tag_of
from fumehood.images.documents import MAX_DEPTH, MAX_PARTS
from fumehood.images.reading import MAX_PAGES, OCI_INDEX
from fumehood.images.signature_store import MAX_LIST, MAX_REFERRERS, MAX_SIGNATURES
from fumehood.images.signatures import Verification, Verifier
from fumehood.images.simple_signing import LAYER_TYPE, MAX_PAYLOAD, tag_of
from fumehood.images.trust import Trust, TrustedKey
from tests.unit.registry_shelf import NAME, Shelf, noted, verify
from tests.unit.signing_world import (
    SHA256,
    b64,
    bundle_of,
    changed,
    compact,
    digest_of,
    key_bundle,
    new_key,
    pae,
    payload_of,
    public_pem,
    statement_of,
    words,
)

DIGEST = digest_of(b"the image")
OTHER = digest_of(b"another image")
KEY = new_key()
STRANGER = new_key()
TRUSTED = TrustedKey.from_pem("release", public_pem(KEY))
TRUST = Trust(keys=(TrustedKey.from_pem("spare", public_pem(new_key())), TRUSTED))
PAYLOAD = payload_of(DIGEST)
SIGNATURE = KEY.sign(PAYLOAD, SHA256)
BUNDLE = key_bundle(DIGEST, KEY)
GOOD_TAG = (PAYLOAD, noted(SIGNATURE))
GOOD_BUNDLE = compact(BUNDLE)


def signed(payload: bytes, key: Any = KEY) -> tuple[bytes, dict[str, Any]]:
    return payload, noted(key.sign(payload, SHA256))


def signed_statement(statement: bytes, key: Any = KEY) -> bytes:
    return compact(bundle_of(statement, key.sign(pae(statement), SHA256), {"publicKey": {"hint": "x"}}))


async def judged(shelf: Shelf) -> Verification:
    """The verdict, which tells of a key only when it is a good one."""
    found = await verify(shelf, DIGEST, TRUST)
    assert (found.key is not None) == (found.status is SignatureStatus.VERIFIED)
    return found


# --- what holds ----------------------------------------------------------------------------------------------------


async def test_a_good_signature_under_the_tag_is_verified() -> None:
    shelf = Shelf()
    shelf.tagged(DIGEST, GOOD_TAG)
    found = await judged(shelf)
    assert found == Verification(
        SignatureStatus.VERIFIED,
        key=f"release ({TRUSTED.fingerprint})",
        form="tag",
        detail="signed with the key release",
        looked_at=1,
    )


@pytest.mark.parametrize("api", [True, False])
async def test_a_good_bundle_is_verified_wherever_it_is_listed(api: bool) -> None:
    """At the registry's API, and under the fallback tag; what the list says of its type counts for nothing."""
    shelf = Shelf()
    shelf.listed(DIGEST, shelf.referring(GOOD_BUNDLE, digest=DIGEST), api=api, kind="application/vnd.oci.empty.v1+json")
    found = await judged(shelf)
    assert (found.status, found.form, found.key) == (SignatureStatus.VERIFIED, "bundle", str(TRUSTED))


@pytest.mark.parametrize("status", [400, 404, 405, 406, 501, 200])
async def test_a_registry_without_a_list_of_referrers_is_asked_for_the_tag(status: int) -> None:
    shelf = Shelf()
    shelf.bundled(DIGEST, GOOD_BUNDLE)
    shelf.kept[f"referrers/{DIGEST}"] = httpx.Response(status, headers={"Content-Type": "text/html"})
    assert (await judged(shelf)).status is SignatureStatus.VERIFIED


def paged(shelf: Shelf, count: int, link: str = '</v2/app/referrers/x?page={}>; rel="next"') -> None:
    """So many pages of referrers, of which the last names a good bundle."""
    good = shelf.referring(GOOD_BUNDLE, digest=DIGEST)
    for number in range(count):
        page = compact({"manifests": [{"digest": one} for one in good] if number == count - 1 else []})
        more = {"Link": link.format(number + 1)} if number < count - 1 else {}
        headers = {"Content-Type": OCI_INDEX, **more}
        place = f"referrers/{DIGEST}" + (f"?page={number}" if number else "")
        shelf.kept[place] = httpx.Response(200, headers=headers, content=page)


async def test_a_list_of_several_pages_is_read_as_far_as_the_bound() -> None:
    shelf = Shelf()
    paged(shelf, MAX_PAGES)
    assert (await judged(shelf)).status is SignatureStatus.VERIFIED
    shelf = Shelf()
    paged(shelf, MAX_PAGES + 1)
    assert (await judged(shelf)).status is SignatureStatus.MISSING
    assert len(shelf.asked) == 1 + MAX_PAGES


@pytest.mark.parametrize(
    "link", ["", "nonsense", "<?page=1>", "<?page= 1>; rel=next", "<?page=1\\>; rel=next", "<x>; rel=next"]
)
async def test_a_next_page_that_is_none_is_not_asked_for(link: str) -> None:
    shelf = Shelf()
    paged(shelf, 2, link)
    assert (await judged(shelf)).status is SignatureStatus.MISSING
    assert len(shelf.asked) == 2


async def test_a_next_page_elsewhere_is_asked_for_here() -> None:
    """The registry names a host of its own choice; only the query of it is used."""
    shelf = Shelf()
    paged(shelf, 2, "<http://127.0.0.1:1/v2/app/referrers/x?page={}>; rel=next")
    assert (await judged(shelf)).status is SignatureStatus.VERIFIED


async def test_a_bad_signature_does_not_hide_a_good_one() -> None:
    """In the same form, on either side of it, and in the other form."""
    bad = [
        (b"{", noted(b"x")),
        signed(PAYLOAD, STRANGER),
        signed(payload_of(OTHER)),
        (PAYLOAD, {}),
        (PAYLOAD, {"x": 1}),
    ]
    shelf = Shelf()
    shelf.tagged(DIGEST, *bad, GOOD_TAG, *bad)
    assert (await judged(shelf)).status is SignatureStatus.VERIFIED

    shelf = Shelf()
    broken = [b"", b"[]", compact(key_bundle(DIGEST, STRANGER)), compact(key_bundle(OTHER, KEY))]
    shelf.tagged(DIGEST, *bad)
    shelf.bundled(DIGEST, *broken, GOOD_BUNDLE, b"{}")
    found = await judged(shelf)
    assert (found.status, found.form) == (SignatureStatus.VERIFIED, "bundle")
    assert found.looked_at == len(bad) + len(broken) + 1


async def test_a_broken_layer_does_not_hide_a_good_one() -> None:
    layer = {"mediaType": LAYER_TYPE, "digest": digest_of(PAYLOAD), "annotations": noted(SIGNATURE)}
    shelf = Shelf()
    shelf.blob(PAYLOAD)
    bad = [7, {"mediaType": LAYER_TYPE}, {**layer, "digest": "sha256:short"}, {**layer, "annotations": []}]
    shelf.manifest(compact({"layers": [*bad, layer]}), tag_of(DIGEST))
    assert (await judged(shelf)).status is SignatureStatus.VERIFIED


# --- what does not -------------------------------------------------------------------------------------------------


async def test_nothing_at_all_is_missing() -> None:
    shelf = Shelf()
    found = await judged(shelf)
    assert (found.status, found.looked_at, found.form) == (SignatureStatus.MISSING, 0, None)
    assert shelf.asked == [
        f"manifests/{tag_of(DIGEST)}",
        f"referrers/{DIGEST}",
        f"manifests/{fallback_tag_of(DIGEST)}",
    ]


async def test_what_refers_to_the_image_and_is_no_signature_is_passed_over() -> None:
    """A bill of materials, and an attestation, which is a bundle too and by a key that is trusted."""
    shelf = Shelf()
    other = shelf.manifest(compact({"layers": [{"mediaType": "text/spdx", "digest": OTHER}], "subject": {}}))
    attestation = compact(key_bundle(DIGEST, KEY, "https://slsa.dev/provenance/v1"))
    shelf.listed(DIGEST, [other, *shelf.referring(attestation, digest=DIGEST)])
    assert (await judged(shelf)).status is SignatureStatus.MISSING


@pytest.mark.parametrize(
    ("signature", "why"),
    [
        (signed(PAYLOAD, STRANGER), "no trusted key"),
        (signed(payload_of(OTHER)), "another digest"),
        (signed(payload_of(DIGEST, "atomic container signature")), "not a cosign image signature"),
        (signed(b"[]"), "not a JSON object"),
        (signed(b"\xff"), "not good JSON"),
        (signed(PAYLOAD.replace(b'"type"', b'"type":"","type"')), "not good JSON"),
        (signed(b'{"critical":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}"), "nested too deep"),
        (signed(b'{"critical":' + b"[" * (MAX_PARTS - 1)), "not good JSON"),
        (signed(b'{"critical":' + b"[" * MAX_PARTS), "too many parts"),
        (signed(PAYLOAD + b" " * MAX_PAYLOAD), "larger than"),
        ((PAYLOAD, {}), "the signature is missing"),
        ((PAYLOAD, noted(SIGNATURE[:-1])), "no trusted key"),
        ((PAYLOAD, {next(iter(noted(b""))): b64(SIGNATURE) + "\n"}), "not good base64"),
        ((PAYLOAD + b" ", noted(SIGNATURE)), "no trusted key"),
        ((PAYLOAD, {**noted(SIGNATURE[::-1]), "dev.sigstore.cosign/certificate": "x"}), "no identity is trusted"),
    ],
    ids=words,
)
async def test_a_signature_under_the_tag_that_does_not_hold(signature: tuple[bytes, Any], why: str) -> None:
    shelf = Shelf()
    shelf.tagged(DIGEST, signature)
    found = await judged(shelf)
    assert (found.status, found.form, found.looked_at) == (SignatureStatus.INVALID, "tag", 1)
    assert why in found.detail


@pytest.mark.parametrize(
    ("bundle", "why"),
    [
        (compact(key_bundle(DIGEST, STRANGER)), "no trusted key"),
        (compact(key_bundle(OTHER, KEY)), "another digest"),
        (signed_statement(statement_of(DIGEST).replace(b"Statement/v1", b"Statement/v9")), "not a cosign image"),
        (signed_statement(compact({"predicateType": SIGNED, "_type": ["x"]})), "not a cosign image"),
        (signed_statement(statement_of(DIGEST).replace(b'"subject":[', b'"subject":{},"x":[')), "another digest"),
        (b"", "not good JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "too many parts"),
        (b'{"x":' + b"9" * 5000 + b"}", "not good JSON"),
        (compact(changed(BUNDLE, ("mediaType",), "other")), "another type"),
        (compact(changed(BUNDLE, ("dsseEnvelope",), None)), "no statement"),
        (compact(changed(BUNDLE, ("dsseEnvelope", "payloadType"), "text/plain")), "no statement"),
        (compact(changed(BUNDLE, ("dsseEnvelope", "payload"), "!")), "not good base64"),
        (compact(changed(BUNDLE, ("dsseEnvelope", "payload"), b64(b"1"))), "not a JSON object"),
        (compact(changed(BUNDLE, ("dsseEnvelope", "signatures"), [])), "exactly one signature"),
        (compact(changed(BUNDLE, ("dsseEnvelope", "signatures"), [{}, {}])), "exactly one signature"),
        (compact(changed(BUNDLE, ("dsseEnvelope", "signatures"), ["x"])), "exactly one signature"),
        (compact(changed(BUNDLE, ("dsseEnvelope", "signatures", 0, "sig"), 7)), "the signature is missing"),
        (compact({**BUNDLE, "messageSignature": {}, "dsseEnvelope": {}}), "no statement"),
    ],
    ids=words,
)
async def test_a_bundle_that_does_not_hold(bundle: bytes, why: str) -> None:
    shelf = Shelf()
    shelf.bundled(DIGEST, bundle)
    found = await judged(shelf)
    assert (found.status, found.form, found.looked_at) == (SignatureStatus.INVALID, "bundle", 1)
    assert why in found.detail


async def test_of_two_spellings_of_a_signature_one_counts() -> None:
    """The last letter before the padding has bits that decode to nothing."""
    signature = next(made for made in iter(lambda: KEY.sign(PAYLOAD, SHA256), None) if len(made) == 70)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    text = b64(signature).rstrip("=")
    other = text[:-1] + letters[letters.index(text[-1]) + 1] + "=="
    assert base64.b64decode(other) == signature
    shelf = Shelf()
    shelf.tagged(DIGEST, (PAYLOAD, {next(iter(noted(b""))): other}))
    assert "not good base64" in (await judged(shelf)).detail


async def test_a_bundle_counts_only_with_a_manifest_about_this_digest() -> None:
    shelf = Shelf()
    shelf.listed(DIGEST, shelf.referring(GOOD_BUNDLE, digest=OTHER))
    found = await judged(shelf)
    assert (found.status, found.detail) == (SignatureStatus.INVALID, "the bundle's manifest is about another digest")


async def test_a_manifest_of_two_bundles_is_no_signature() -> None:
    shelf = Shelf()
    layer = {"mediaType": BUNDLE_TYPE, "digest": shelf.blob(GOOD_BUNDLE)}
    shelf.listed(DIGEST, [shelf.manifest(compact({"layers": [layer, layer], "subject": {"digest": DIGEST}}))])
    assert "exactly one bundle" in (await judged(shelf)).detail


async def test_the_details_name_each_flaw_once_and_not_all_of_many() -> None:
    shelf = Shelf()
    flaws = [
        signed(PAYLOAD, STRANGER),
        signed(payload_of(OTHER)),
        (PAYLOAD, {}),
        signed(b"[]"),
        signed(PAYLOAD, STRANGER),
    ]
    shelf.tagged(DIGEST, *flaws)
    detail = (await judged(shelf)).detail
    assert detail.count("no trusted key") == 1
    assert detail.endswith("; and 1 more")


async def test_who_trusts_nobody_finds_nothing_valid() -> None:
    shelf = Shelf()
    shelf.tagged(DIGEST, GOOD_TAG)
    assert (await verify(shelf, DIGEST, Trust())).status is SignatureStatus.INVALID


# --- bounds --------------------------------------------------------------------------------------------------------


async def test_only_so_many_signatures_are_looked_at_in_each_form() -> None:
    shelf = Shelf()
    shelf.tagged(DIGEST, *[(PAYLOAD, noted(b"%d" % n)) for n in range(MAX_SIGNATURES)], GOOD_TAG)
    shelf.bundled(DIGEST, *[compact({"n": n}) for n in range(MAX_SIGNATURES)], GOOD_BUNDLE)
    found = await judged(shelf)
    assert (found.status, found.looked_at) == (SignatureStatus.INVALID, 2 * MAX_SIGNATURES)

    shelf.bundled(DIGEST, *[compact({"n": n}) for n in range(MAX_SIGNATURES - 1)], GOOD_BUNDLE)
    assert (await judged(shelf)).status is SignatureStatus.VERIFIED


async def test_only_so_many_referrers_are_opened() -> None:
    shelf = Shelf()
    others = [shelf.manifest(compact({"n": n})) for n in range(MAX_REFERRERS)]
    shelf.listed(DIGEST, [*others, *shelf.referring(GOOD_BUNDLE, digest=DIGEST)])
    assert (await judged(shelf)).status is SignatureStatus.MISSING
    assert len(shelf.asked) == 3 + MAX_REFERRERS


async def test_a_list_that_repeats_itself_is_read_once() -> None:
    shelf = Shelf()
    bad = shelf.referring(b"{}", digest=DIGEST)
    shelf.listed(DIGEST, bad * 1000 + shelf.referring(GOOD_BUNDLE, digest=DIGEST))
    found = await judged(shelf)
    assert (found.status, found.looked_at) == (SignatureStatus.VERIFIED, 2)


@pytest.mark.parametrize("place", [tag_of(DIGEST), fallback_tag_of(DIGEST)])
@pytest.mark.parametrize("body", [b"", b"[]", b"{" * 9999, b'{"layers": 1, "manifests": {}}', b"\xff" * (MAX_LIST + 1)])
async def test_manifests_that_are_none_raise_nothing(place: str, body: bytes) -> None:
    shelf = Shelf()
    shelf.manifest(body, place, OCI_INDEX)
    assert (await judged(shelf)).status in (SignatureStatus.INVALID, SignatureStatus.MISSING)


# --- registries that lie, or do not answer ---------------------------------------------------------------------------


async def test_a_blob_with_another_digest_is_refused() -> None:
    """A good payload in the place of another: the signature holds, and the registry lied."""
    shelf = Shelf()
    shelf.tagged(DIGEST, signed(payload_of(OTHER)))
    place = f"blobs/{digest_of(payload_of(OTHER))}"
    shelf.kept[place] = httpx.Response(200, content=PAYLOAD)
    shelf.bundled(DIGEST, b"{}")
    shelf.kept[f"blobs/{digest_of(b'{}')}"] = httpx.Response(200, content=GOOD_BUNDLE)
    found = await judged(shelf)
    assert (found.status, found.looked_at) == (SignatureStatus.INVALID, 2)
    assert "another blob than the digest names" in found.detail


async def test_a_manifest_with_another_digest_is_refused() -> None:
    shelf = Shelf()
    (good,) = shelf.referring(GOOD_BUNDLE, digest=DIGEST)
    shelf.listed(DIGEST, [OTHER])
    shelf.kept[f"manifests/{OTHER}"] = shelf.kept[f"manifests/{good}"]
    found = await judged(shelf)
    assert found.status is SignatureStatus.INVALID
    assert "another manifest than the digest names" in found.detail


async def test_content_that_is_gone_is_no_signature() -> None:
    shelf = Shelf()
    shelf.tagged(DIGEST, GOOD_TAG)
    shelf.bundled(DIGEST, GOOD_BUNDLE)
    for blob in [place for place in shelf.kept if place.startswith("blobs/")]:
        del shelf.kept[blob]
    found = await judged(shelf)
    assert (found.status, found.detail) == (SignatureStatus.INVALID, "the signature's content is not there")


PLACES = [
    f"manifests/{tag_of(DIGEST)}",
    f"blobs/{digest_of(PAYLOAD)}",
    f"referrers/{DIGEST}",
    f"manifests/{fallback_tag_of(DIGEST)}",
    f"blobs/{digest_of(GOOD_BUNDLE)}",
]


@pytest.mark.parametrize("place", PLACES, ids=["tag", "payload", "referrers", "fallback tag", "bundle"])
@pytest.mark.parametrize(("status", "kind"), [(503, RegistryUnavailableError), (403, DigestResolutionError)])
async def test_what_the_registry_does_not_give_is_an_error(place: str, status: int, kind: type[Exception]) -> None:
    """Nothing is decided: neither that there is a signature nor that there is none."""
    shelf = Shelf()
    shelf.tagged(DIGEST, signed(PAYLOAD, STRANGER))
    shelf.bundled(DIGEST, GOOD_BUNDLE)
    assert (await judged(shelf)).status is SignatureStatus.VERIFIED
    shelf.kept[place] = httpx.Response(status)
    with pytest.raises(kind, match=r"cannot read the signatures of registry\.example/app@sha256:") as caught:
        await verify(shelf, DIGEST, TRUST)
    assert type(caught.value) is kind


async def test_equal_questions_at_the_same_time_are_asked_once() -> None:
    """A fan-out of a hundred steps; the trust is part of the question."""
    shelf = Shelf()
    shelf.tagged(DIGEST, GOOD_TAG)
    reference = ImageReference.parse(f"{NAME}:1")
    async with RegistryClient(transport=httpx.MockTransport(shelf)) as client:
        verifier = Verifier(client)
        questions = [verifier.verify(reference, DIGEST, TRUST) for _ in range(100)]
        found, *others = await asyncio.gather(*questions, verifier.verify(reference, DIGEST, Trust()))
        assert found.status is SignatureStatus.VERIFIED
        assert others[-1].status is SignatureStatus.INVALID
        assert set(others[:-1]) == {found}
        assert len(shelf.asked) == 2 + 4
        shelf.kept.clear()
        assert (await verifier.verify(reference, DIGEST, TRUST)).status is SignatureStatus.MISSING


async def test_signatures_are_of_digests() -> None:
    with pytest.raises(ValueError, match="of digests"):
        await verify(Shelf(), "latest", TRUST)


# --- whatever else somebody may write ------------------------------------------------------------------------------

settled = settings(max_examples=100, deadline=None)


def flipped(data: bytes, at: int, mask: int) -> bytes:
    place = at % len(data)
    return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]


masks = st.integers(1, 255)
places = st.integers(0, 10_000)


@settled
@given(places, masks)
def test_no_flipped_bit_of_a_payload_or_signature_verifies(at: int, mask: int) -> None:
    shelf = Shelf()
    shelf.tagged(DIGEST, (flipped(PAYLOAD, at, mask), noted(SIGNATURE)), (PAYLOAD, noted(flipped(SIGNATURE, at, mask))))
    found = asyncio.run(judged(shelf))
    assert (found.status, found.looked_at) == (SignatureStatus.INVALID, 2)


@settled
@given(places, masks)
def test_no_flipped_bit_of_a_bundle_verifies(at: int, mask: int) -> None:
    statement = statement_of(DIGEST)
    signature = KEY.sign(pae(statement), SHA256)
    shelf = Shelf()
    shelf.bundled(
        DIGEST,
        compact(bundle_of(flipped(statement, at, mask), signature, {})),
        compact(bundle_of(statement, flipped(signature, at, mask), {})),
    )
    assert asyncio.run(judged(shelf)).status in (SignatureStatus.INVALID, SignatureStatus.MISSING)


@settled
@given(places, masks)
def test_a_flipped_bit_of_the_whole_bundle_changes_nothing_that_is_signed(at: int, mask: int) -> None:
    """Whatever still verifies (a changed hint, say) holds the very statement that was signed."""
    twisted = flipped(GOOD_BUNDLE, at, mask)
    shelf = Shelf()
    shelf.bundled(DIGEST, twisted)
    if asyncio.run(judged(shelf)).status is SignatureStatus.VERIFIED:
        assert json.loads(twisted)["dsseEnvelope"] == BUNDLE["dsseEnvelope"]


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(DIGEST) | st.just(BUNDLE_TYPE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def paths(document: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    steps = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [found for step, inner in steps for found in [(*path, step), *paths(inner, (*path, step))]]


MANIFEST = {"layers": [{"mediaType": BUNDLE_TYPE, "digest": digest_of(GOOD_BUNDLE)}], "subject": {"digest": DIGEST}}
STATEMENT = json.loads(statement_of(DIGEST))


@settled
@given(st.sampled_from(paths(BUNDLE)), st.sampled_from(paths(MANIFEST)), st.sampled_from(paths(STATEMENT)), junk)
def test_junk_in_any_place_raises_nothing(
    in_bundle: tuple[str | int, ...],
    in_manifest: tuple[str | int, ...],
    in_statement: tuple[str | int, ...],
    value: Any,
) -> None:
    shelf = Shelf()
    shelf.blob(GOOD_BUNDLE)
    twisted = [
        *shelf.referring(compact(changed(BUNDLE, in_bundle, value)), digest=DIGEST),
        *shelf.referring(signed_statement(compact(changed(STATEMENT, in_statement, value))), digest=DIGEST),
        shelf.manifest(compact(changed(MANIFEST, in_manifest, value))),
    ]
    shelf.listed(DIGEST, twisted)
    asyncio.run(judged(shelf))
