"""What an operator may trust: keys that are strong enough, identities that mean one thing, a root that is one."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, padding, rsa
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import ConfigurationError
from fumehood.images.trust import MAX_ENTRIES, MAX_TEXT, MAX_TRUSTED_ROOT, Identity, Trust, TrustedKey
from tests.unit.signing_world import (
    DER,
    ISSUER,
    SHA256,
    SUBJECT,
    Authority,
    b64,
    new_key,
    public_pem,
    sha256,
    spki,
    words,
)

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
P384 = ec.generate_private_key(ec.SECP384R1())
ED25519 = ed25519.Ed25519PrivateKey.generate()
MESSAGE = b"what is signed"


@pytest.mark.parametrize(
    ("key", "signature"),
    [
        (RSA, RSA.sign(MESSAGE, padding.PKCS1v15(), hashes.SHA256())),
        (P384, P384.sign(MESSAGE, ec.ECDSA(hashes.SHA384()))),
        (P384, P384.sign(MESSAGE, ec.ECDSA(hashes.SHA256()))),
        (ED25519, ED25519.sign(MESSAGE)),
    ],
    ids=["rsa", "p384", "p384-sha256", "ed25519"],
)
def test_every_kind_of_key_knows_its_own_signatures(key: Any, signature: bytes) -> None:
    trusted = TrustedKey.from_pem("k", public_pem(key))
    assert trusted.made(signature, MESSAGE)
    assert not trusted.made(signature, MESSAGE + b".")
    assert not trusted.made(signature[:-1], MESSAGE)
    assert not trusted.made(b"", MESSAGE)
    assert not TrustedKey.from_pem("k", public_pem(new_key())).made(signature, MESSAGE)


def test_weaker_hashes_and_other_paddings_do_not_count() -> None:
    p256 = new_key()
    assert not TrustedKey.from_pem("k", public_pem(p256)).made(p256.sign(MESSAGE, ec.ECDSA(hashes.SHA1())), MESSAGE)
    for scheme in (padding.PSS(padding.MGF1(hashes.SHA256()), 32),):
        signature = RSA.sign(MESSAGE, scheme, hashes.SHA256())
        assert not TrustedKey.from_pem("k", public_pem(RSA)).made(signature, MESSAGE)


@given(st.binary(max_size=200))
def test_no_bytes_that_are_no_signature_raise_anything(signature: bytes) -> None:
    for key in (RSA, P384, ED25519):
        assert not TrustedKey.from_pem("k", public_pem(key)).made(signature, MESSAGE)


def test_a_fingerprint_is_that_of_the_public_key() -> None:
    trusted = TrustedKey.from_pem("release", public_pem(P384))
    assert trusted.fingerprint == "sha256:" + sha256(spki(P384.public_key())).hex()
    assert str(trusted) == f"release ({trusted.fingerprint})"
    assert trusted == TrustedKey.from_pem("release", public_pem(P384)) != TrustedKey.from_pem("other", public_pem(P384))


def private_pem(key: Any) -> str:
    formats = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    text: bytes = key.private_bytes(serialization.Encoding.PEM, *formats)
    return text.decode()


@pytest.mark.parametrize(
    ("pem", "why"),
    [
        ("", "not one public key"),
        ("release.pub", "not one public key"),
        (public_pem(P384) * 2, "not one public key"),
        (public_pem(P384) + " " * 20_000, "not one public key"),
        (public_pem(P384).replace("M", "!"), "not a public key"),
        (private_pem(P384), "a private key; give its public half"),
        (public_pem(rsa.generate_private_key(public_exponent=65537, key_size=1024)), "RSA with 1024 bits"),
        (public_pem(ec.generate_private_key(ec.SECP521R1())), "P-256 and P-384 are accepted"),
        (public_pem(ec.generate_private_key(ec.SECP256K1())), "P-256 and P-384 are accepted"),
        (public_pem(dsa.generate_private_key(1024)), "neither ECDSA nor Ed25519 nor RSA"),
    ],
    ids=lambda value: words(value)[:40] if "BEGIN" not in value else "pem",
)
def test_a_key_that_is_none_or_weak_is_refused_by_name(pem: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        TrustedKey.from_pem("release", pem)
    assert "key release" in caught.value.detail
    assert "BEGIN" not in caught.value.detail


@pytest.mark.parametrize(
    ("identity", "subject", "matches"),
    [
        (Identity(subject=SUBJECT, issuer=ISSUER), SUBJECT, True),
        (Identity(subject=SUBJECT, issuer=ISSUER), SUBJECT + "/", False),
        (Identity(subject=SUBJECT, issuer=ISSUER + "/"), SUBJECT, False),
        (Identity(subject="https://ci.example/.*", issuer=ISSUER), SUBJECT, False),
        (Identity(subject_pattern=r"https://ci\.example/[a-z]+@main", issuer=ISSUER), SUBJECT, True),
        (Identity(subject_pattern=r"https://ci\.example/", issuer=ISSUER), SUBJECT, False),
        (Identity(subject_pattern=r"build@main", issuer=ISSUER), SUBJECT, False),
        (Identity(subject_pattern=r"a|b", issuer=ISSUER), "ab", False),
        (Identity(subject_pattern=r"a|b", issuer=ISSUER), "b", True),
        (Identity(subject_pattern=r".*", issuer=ISSUER), SUBJECT + "\n", False),
        (Identity(subject_pattern=r"[a-z]*", issuer=ISSUER), "a\n", False),
        (Identity(subject_pattern=r".*", issuer=ISSUER), "a" * (MAX_TEXT + 1), False),
        (Identity(subject_pattern=r"(a+)+b", issuer=ISSUER), "a" * MAX_TEXT, False),
    ],
)
def test_a_pattern_matches_from_end_to_end_and_in_no_time(identity: Identity, subject: str, matches: bool) -> None:
    assert identity.matches(subject, ISSUER) is matches


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_subject_without_pattern_is_itself_and_nothing_else(subject: str, other: str) -> None:
    if subject:
        assert Identity(subject=subject, issuer=ISSUER).matches(other, ISSUER) is (subject == other)


@pytest.mark.parametrize(
    "given_",
    [
        {"issuer": ISSUER},
        {"subject": "a", "subject_pattern": "a", "issuer": ISSUER},
        {"subject": "a"},
        {"subject": "", "issuer": ISSUER},
        {"subject": "a" * (MAX_TEXT + 1), "issuer": ISSUER},
        {"subject_pattern": "(", "issuer": ISSUER},
        {"subject_pattern": "a)|(b", "issuer": ISSUER},
        {"subject_pattern": "(?x)a|b #", "issuer": ISSUER},
        {"subject_pattern": r"(a)\1", "issuer": ISSUER},
        {"subject_pattern": "(?=a)a", "issuer": ISSUER},
        {"subject_pattern": "((a{99}){99}){99}", "issuer": ISSUER},
    ],
)
def test_an_identity_that_could_mean_two_things_is_refused(given_: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        Identity(**given_)


WHO = (Identity(subject=SUBJECT, issuer=ISSUER),)
AUTHORITY = Authority()
ROOT = AUTHORITY.trusted_root()


def test_a_trust_with_a_good_root_is_one() -> None:
    assert Trust(identities=WHO, trusted_root=ROOT).identities == WHO


@pytest.mark.parametrize(
    ("trusted_root", "why"),
    [
        (None, "identities need a trusted_root"),
        (b"", "not a Sigstore TrustedRoot"),
        (b"{}", "TrustedRoot|names no"),
        (b"[" * 100_000, "not a Sigstore TrustedRoot"),
        (b" " * (MAX_TRUSTED_ROOT + 1), "larger than"),
        (Authority().trusted_root(mediaType="other"), "not a Sigstore TrustedRoot"),
        (Authority().trusted_root(tlogs=[]), "names no transparency log"),
        (
            Authority().trusted_root(ctlogs=[], certificateAuthorities=[]),
            "certificate authority, and no certificate log",
        ),
        (ROOT.replace(b64(AUTHORITY.root.public_bytes(DER)).encode(), b"AAAA"), "a certificate or a key that is none"),
        (ROOT.replace(b64(spki(AUTHORITY.log.public_key())).encode(), b"AAAA"), "a certificate or a key that is none"),
    ],
    ids=words,
)
def test_a_trust_whose_root_is_none_is_refused(trusted_root: bytes | None, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Trust(identities=WHO, trusted_root=trusted_root)


def test_a_trust_is_bounded() -> None:
    with pytest.raises(ConfigurationError, match=f"at most {MAX_ENTRIES}"):
        Trust(identities=WHO * (MAX_ENTRIES + 1), trusted_root=ROOT)


def test_the_first_key_that_made_it_is_named() -> None:
    keys = [new_key() for _ in range(3)]
    trust = Trust(keys=tuple(TrustedKey.from_pem(str(n), public_pem(key)) for n, key in enumerate(keys)))
    found = trust.key_of(keys[1].sign(MESSAGE, SHA256), MESSAGE)
    assert found is not None
    assert found.name == "1"
    assert trust.key_of(new_key().sign(MESSAGE, SHA256), MESSAGE) is None
