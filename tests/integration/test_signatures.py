"""Signatures made with keys, on the real registry: the real cosign makes them, and says of each what we must say."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from fumehood.errors import RegistryUnavailableError
from fumehood.images import ImageReference, RegistryAccess, RegistryClient, RetryPolicy, SignatureStatus
from fumehood.images.bundle import fallback_tag_of
from fumehood.images.signatures import Verification, Verifier
from fumehood.images.simple_signing import tag_of
from fumehood.images.trust import Trust, TrustedKey
from tests.integration.cosign_world import INDEX, Cosign, Repository
from tests.unit.registry_shelf import noted
from tests.unit.signing_world import (
    b64,
    bundle_of,
    changed,
    compact,
    key_bundle,
    new_key,
    pae,
    payload_of,
    public_pem,
    statement_of,
)

FORMS = ("tag", "bundle")
NEWER = (pytest.param("tag", marks=pytest.mark.variant), "bundle")
"""For what is no matter of the form: the gate has it in one of them."""
VERIFIED, INVALID, MISSING = SignatureStatus.VERIFIED, SignatureStatus.INVALID, SignatureStatus.MISSING


def trust_in(*keys: Path) -> Trust:
    return Trust(keys=tuple(TrustedKey.from_pem(key.stem, key.read_text()) for key in keys))


async def verify(repository: Repository, digest: str, trust: Trust) -> Verification:
    async with RegistryClient() as client:
        return await Verifier(client).verify(ImageReference.parse(f"{repository.name}@{digest}"), digest, trust)


async def agreed(cosign: Cosign, repository: Repository, digest: str, key: Path) -> Verification:
    """Our verdict, of which cosign's is the same."""
    found = await verify(repository, digest, trust_in(key))
    assert cosign.trusts_key(f"{repository.name}@{digest}", key) is (found.status is VERIFIED), found
    return found


@pytest.mark.parametrize("form", FORMS)
async def test_what_cosign_signed_is_verified(cosign: Cosign, repository: Repository, form: str) -> None:
    key, digest = cosign.key("release"), repository.image()
    cosign.sign(f"{repository.name}@{digest}", key, form=form)
    found = await agreed(cosign, repository, digest, key)
    (trusted,) = trust_in(key).keys
    assert (found.status, found.form, found.key, found.looked_at) == (VERIFIED, form, str(trusted), 1)


@pytest.mark.parametrize("form", FORMS)
async def test_another_key_is_not_enough(cosign: Cosign, repository: Repository, form: str) -> None:
    key, stranger, digest = cosign.key("release"), cosign.key("stranger"), repository.image()
    cosign.sign(f"{repository.name}@{digest}", stranger, form=form)
    found = await agreed(cosign, repository, digest, key)
    assert (found.status, found.detail) == (INVALID, "no trusted key made this signature")


async def test_an_unsigned_image_has_none(cosign: Cosign, repository: Repository) -> None:
    key, digest = cosign.key("release"), repository.image()
    assert (await agreed(cosign, repository, digest, key)).status is MISSING


def copy_signatures(repository: Repository, signed: str, digest: str, form: str) -> None:
    """Everything that says that one digest is signed, put where it would say so of another."""
    if form == "tag":
        document = repository.document(tag_of(signed))
        repository.put(tag_of(digest), {name: document[name] for name in ("config", "layers")})
        return
    for name in [entry["digest"] for entry in repository.document(fallback_tag_of(signed))["manifests"]]:
        layer = repository.document(name)["layers"][0]
        repository.sign_by_bundle(digest, repository.fetch("blobs", layer["digest"]))


@pytest.mark.parametrize("form", FORMS)
async def test_a_signature_of_another_digest_is_worth_nothing(
    cosign: Cosign, repository: Repository, form: str
) -> None:
    key, signed, digest = cosign.key("release"), repository.image("1"), repository.image("2")
    cosign.sign(f"{repository.name}@{signed}", key, form=form)
    copy_signatures(repository, signed, digest, form)
    found = await agreed(cosign, repository, digest, key)
    assert (found.status, found.detail) == (INVALID, "it is a signature of another digest")
    assert (await agreed(cosign, repository, signed, key)).status is VERIFIED


@pytest.mark.parametrize("form", FORMS)
async def test_a_changed_payload_is_worth_nothing(cosign: Cosign, repository: Repository, form: str) -> None:
    """The signature of one digest, over a payload that was changed to name another."""
    key, signed, digest = cosign.key("release"), repository.image("1"), repository.image("2")
    cosign.sign(f"{repository.name}@{signed}", key, form=form)
    if form == "tag":
        (layer,) = repository.document(tag_of(signed))["layers"]
        payload = repository.fetch("blobs", layer["digest"]).replace(signed.encode(), digest.encode())
        repository.sign_by_tag(digest, (payload, layer["annotations"]))
    else:
        (entry,) = repository.document(fallback_tag_of(signed))["manifests"]
        bundle = json.loads(repository.fetch("blobs", repository.document(entry["digest"])["layers"][0]["digest"]))
        twisted = changed(bundle, ("dsseEnvelope", "payload"), b64(statement_of(digest)))
        repository.sign_by_bundle(digest, compact(twisted))
    found = await agreed(cosign, repository, digest, key)
    assert (found.status, found.detail) == (INVALID, "no trusted key made this signature")


@pytest.mark.parametrize("form", NEWER)
async def test_an_index_is_signed_as_such(cosign: Cosign, repository: Repository, form: str) -> None:
    """The index's signature says nothing of the platform's manifest, and the other way round."""
    key = cosign.key("release")
    index, platform = repository.index()
    cosign.sign(f"{repository.name}@{index}", key, form=form)
    assert (await agreed(cosign, repository, index, key)).status is VERIFIED
    assert (await agreed(cosign, repository, platform, key)).status is MISSING

    index, platform = repository.index("second")
    cosign.sign(f"{repository.name}@{platform}", key, form=form)
    assert (await agreed(cosign, repository, index, key)).status is MISSING
    assert (await agreed(cosign, repository, platform, key)).status is VERIFIED


@pytest.mark.parametrize("form", NEWER)
async def test_one_good_signature_among_others_is_found(cosign: Cosign, repository: Repository, form: str) -> None:
    keys = [cosign.key(name) for name in ("first", "second", "third")]
    digest = repository.image()
    for key in keys:
        cosign.sign(f"{repository.name}@{digest}", key, form=form)
    for key in keys:
        assert (await agreed(cosign, repository, digest, key)).status is VERIFIED
    assert (await agreed(cosign, repository, digest, cosign.key("fourth"))).looked_at == 3


@pytest.mark.parametrize("good", FORMS)
async def test_the_two_forms_are_read_as_one(cosign: Cosign, repository: Repository, good: str) -> None:
    """A good one in either form counts, whatever lies in the other. cosign reads bundles alone where there are any."""
    key, stranger, digest = cosign.key("release"), cosign.key("stranger"), repository.image()
    for form in FORMS:
        cosign.sign(f"{repository.name}@{digest}", key if form == good else stranger, form=form)
    found = await verify(repository, digest, trust_in(key))
    assert (found.status, found.form) == (VERIFIED, good)
    assert cosign.trusts_key(f"{repository.name}@{digest}", key) is (good == "bundle")


@pytest.mark.parametrize("form", NEWER)
async def test_rsa_keys_are_cosigns_too(cosign: Cosign, repository: Repository, form: str) -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    key, digest = cosign.import_key("rsa", private_pem(private)), repository.image()
    cosign.sign(f"{repository.name}@{digest}", key, form=form)
    assert (await agreed(cosign, repository, digest, key)).status is VERIFIED


def private_pem(key: Any) -> bytes:
    plain = serialization.NoEncryption()
    text: bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return text


P384 = ec.generate_private_key(ec.SECP384R1())
ED25519 = ed25519.Ed25519PrivateKey.generate()


@pytest.mark.parametrize("form", NEWER)
@pytest.mark.parametrize("private", [new_key(), P384, ED25519], ids=["p256", "p384", "ed25519"])
async def test_what_is_signed_by_other_means_cosign_verifies_too(
    cosign: Cosign, repository: Repository, form: str, private: Any
) -> None:
    """The formats are understood, not only parsed: signatures written here pass there."""
    digest = repository.image()
    key = cosign.home / "imported.pub"
    key.write_text(public_pem(private))
    how = () if private is ED25519 else (ec.ECDSA(hashes.SHA256()),)
    payload, statement = payload_of(digest), statement_of(digest)
    if form == "tag":
        repository.sign_by_tag(digest, (payload, noted(private.sign(payload, *how))))
    else:
        repository.sign_by_bundle(digest, compact(bundle_of(statement, private.sign(pae(statement), *how), _hint())))
    assert (await agreed(cosign, repository, digest, key)).status is VERIFIED


def _hint() -> dict[str, Any]:
    return {"publicKey": {"hint": "x"}}


@pytest.mark.parametrize("form", NEWER)
async def test_cosigns_own_p384_signatures_are_verified(cosign: Cosign, repository: Repository, form: str) -> None:
    """It signs with SHA-384 and verifies with SHA-256, so that it refuses its own; the key made both."""
    key, digest = cosign.import_key("p384", private_pem(P384)), repository.image()
    cosign.sign(f"{repository.name}@{digest}", key, form=form)
    assert (await verify(repository, digest, trust_in(key))).status is VERIFIED


@pytest.mark.parametrize("form", NEWER)
async def test_cosigns_own_ed25519_signatures_are_refused_by_both(
    cosign: Cosign, repository: Repository, form: str
) -> None:
    """It signs a hash (Ed25519ph) and verifies the message: nobody can use such keys with it."""
    key, digest = cosign.import_key("ed25519", private_pem(ED25519)), repository.image()
    cosign.sign(f"{repository.name}@{digest}", key, form=form)
    assert (await agreed(cosign, repository, digest, key)).status is INVALID


MALFORMED = [
    b"",
    b"{}",
    b"[" * 5000,
    compact({"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json"}),
    compact(changed(key_bundle("sha256:" + "0" * 64, new_key()), ("dsseEnvelope", "signatures"), [])),
]


@pytest.mark.parametrize("body", MALFORMED, ids=["empty", "nothing in it", "deep", "no statement", "no signature"])
async def test_malformed_signatures_are_refused_by_both(cosign: Cosign, repository: Repository, body: bytes) -> None:
    key, digest = cosign.key("release"), repository.image()
    repository.sign_by_bundle(digest, body)
    repository.sign_by_tag(digest, (body or b"x", noted(b"x")))
    found = await agreed(cosign, repository, digest, key)
    assert (found.status, found.looked_at) == (INVALID, 2)


async def test_a_bundle_about_another_subject_is_not_believed(cosign: Cosign, repository: Repository) -> None:
    key, digest = cosign.key("release"), repository.image()
    cosign.sign(f"{repository.name}@{digest}", key, form="bundle")
    (entry,) = repository.document(fallback_tag_of(digest))["manifests"]
    layer = repository.document(entry["digest"])["layers"][0]
    other = repository.image("2")
    repository.sign_by_bundle(digest, repository.fetch("blobs", layer["digest"]), subject=other)
    assert (await verify(repository, digest, trust_in(key))).status is INVALID


async def test_a_list_that_names_what_is_not_there_is_no_signature(cosign: Cosign, repository: Repository) -> None:
    """Somebody deleted the signature's manifest and left the list."""
    key, digest = cosign.key("release"), repository.image()
    cosign.sign(f"{repository.name}@{digest}", key, form="bundle")
    assert (await agreed(cosign, repository, digest, key)).status is VERIFIED
    repository.put(fallback_tag_of(digest), {"manifests": []}, INDEX)
    assert (await agreed(cosign, repository, digest, key)).status is MISSING


async def test_a_signature_by_the_key_in_two_forms_is_looked_at_once(cosign: Cosign, repository: Repository) -> None:
    key, digest = cosign.key("release"), repository.image()
    for form in FORMS:
        cosign.sign(f"{repository.name}@{digest}", key, form=form)
    found = await agreed(cosign, repository, digest, key)
    assert (found.status, found.looked_at) == (VERIFIED, 1)


async def test_a_registry_that_is_down_decides_nothing(unused_tcp_port: int) -> None:
    digest = "sha256:" + "0" * 64
    reference = ImageReference.parse(f"127.0.0.1:{unused_tcp_port}/app@{digest}")
    async with RegistryClient(retry=RetryPolicy(attempts=1)) as client:
        with pytest.raises(RegistryUnavailableError, match="cannot read the signatures of"):
            await Verifier(client).verify(reference, digest, Trust())


@pytest.fixture
def secured(services: dict[str, str]) -> RegistryAccess:
    username, _, password = Path(services["FUMEHOOD_TEST_REGISTRY_CREDENTIALS"]).read_text().strip().partition(":")
    ca_file = Path(services["FUMEHOOD_TEST_REGISTRY_CA"])
    return RegistryAccess(services["FUMEHOOD_TEST_REGISTRY_TLS"], username, password, ca_file)


async def test_signatures_behind_tls_and_a_password_are_read(secured: RegistryAccess) -> None:
    private = new_key()
    trust = Trust(keys=(TrustedKey.from_pem("k", public_pem(private)),))
    context = ssl.create_default_context(cafile=secured.ca_file)
    headers = {"Authorization": str(secured.basic)}
    url = f"https://{secured.host}"
    with httpx.Client(base_url=url, headers=headers, verify=context, trust_env=False) as client:
        repository = Repository(client, secured.host)
        digest = repository.image()
        repository.sign_by_bundle(digest, compact(key_bundle(digest, private)))
    reference = ImageReference.parse(f"{repository.name}@{digest}")
    async with RegistryClient([secured]) as reader:
        assert (await Verifier(reader).verify(reference, digest, trust)).status is VERIFIED
