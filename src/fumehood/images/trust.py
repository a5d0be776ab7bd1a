"""Whose signatures count: public keys, and identities under a trusted root.

Everything here comes from the operator's policy, so what is wrong with it is a `ConfigurationError`, raised when the
value is made: a trust that exists can be used.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field
from typing import Final, Self, TypeAlias

import jsonschema_rs
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from fumehood.errors import ConfigurationError

PublicKey: TypeAlias = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey

MAX_PEM: Final = 16 * 1024
MAX_TRUSTED_ROOT: Final = 1024 * 1024
MAX_ENTRIES: Final = 32
"""Keys, and identities, of one trust: each is tried on each signature."""
MAX_TEXT: Final = 1024
"""Of a subject, a pattern or an issuer."""
_RSA_BITS = range(2048, 8192 + 1)

# cosign signs P-384 with SHA-384, and its `verify` expects SHA-256 unless told otherwise: both are of this key.
_HASHES: Final[dict[str, tuple[hashes.HashAlgorithm, ...]]] = {
    ec.SECP256R1.name: (hashes.SHA256(),),
    ec.SECP384R1.name: (hashes.SHA384(), hashes.SHA256()),
}
_PATTERN_BOUNDS = jsonschema_rs.RegexOptions(size_limit=1024 * 1024, dfa_size_limit=1024 * 1024)


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key with the name that the policy gives it: ECDSA on P-256 or P-384, Ed25519, or RSA."""

    name: str
    key: PublicKey = field(compare=False, repr=False)
    fingerprint: str
    """`sha256:` and the hash of its SubjectPublicKeyInfo."""

    @classmethod
    def from_pem(cls, name: str, pem: str) -> Self:
        """From the text of a file such as `cosign.pub`."""
        key = _load(name, pem)
        _check_strength(name, key)
        spki = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return cls(name, key, "sha256:" + hashlib.sha256(spki).hexdigest())

    def made(self, signature: bytes, message: bytes) -> bool:
        """The signature is this key's, over this message."""
        match self.key:
            case ec.EllipticCurvePublicKey() as key:
                return any(_ecdsa(key, signature, message, algorithm) for algorithm in _HASHES[key.curve.name])
            case ed25519.Ed25519PublicKey() as key:
                return _ed25519(key, signature, message)
            case key:
                return _rsa(key, signature, message)

    def __str__(self) -> str:
        return f"{self.name} ({self.fingerprint})"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who may have signed: a subject, or a pattern for the whole of it, and the issuer that vouched for it."""

    subject: str | None = None
    subject_pattern: str | None = None
    """A regular expression of the kind that runs in linear time, as in cosign (RE2); it must match from end to end."""
    issuer: str = ""

    def __post_init__(self) -> None:
        if (self.subject is None) == (self.subject_pattern is None):
            raise ConfigurationError("an identity needs either a subject or a subject_pattern")
        for text in (self.subject, self.subject_pattern, self.issuer):
            if text is not None and not 0 < len(text) <= MAX_TEXT:
                raise ConfigurationError(f"an identity's subject and issuer have 1 to {MAX_TEXT} characters")
        if self.subject_pattern is not None:
            _whole(self.subject_pattern)

    def matches(self, subject: str, issuer: str) -> bool:
        if issuer != self.issuer or len(subject) > MAX_TEXT:
            return False
        if self.subject_pattern is not None:
            return _whole(self.subject_pattern).is_valid(subject)
        return subject == self.subject


@dataclass(frozen=True, slots=True)
class Trust:
    """Any of these keys, or any of these identities under the root; what holds for one of them holds."""

    keys: tuple[TrustedKey, ...] = ()
    identities: tuple[Identity, ...] = ()
    trusted_root: bytes | None = field(default=None, repr=False)
    """Sigstore's TrustedRoot as JSON: certificate authorities, transparency logs, and when each was valid."""

    def __post_init__(self) -> None:
        if max(len(self.keys), len(self.identities)) > MAX_ENTRIES:
            raise ConfigurationError(f"a trust has at most {MAX_ENTRIES} keys and {MAX_ENTRIES} identities")
        if self.identities and self.trusted_root is None:
            raise ConfigurationError("identities need a trusted_root: nobody else says who they are")
        if self.trusted_root is not None:
            _check_root(self.trusted_root)

    def key_of(self, signature: bytes, message: bytes) -> TrustedKey | None:
        """The key that made the signature over this message."""
        return next((key for key in self.keys if key.made(signature, message)), None)


def _check_root(trusted_root: bytes) -> None:
    if len(trusted_root) > MAX_TRUSTED_ROOT:
        raise ConfigurationError(f"the trusted_root is larger than {MAX_TRUSTED_ROOT} bytes")
    from fumehood.images.trusted_root import check_trusted_root  # half a second that only keyless trust need spend

    check_trusted_root(trusted_root)


def _load(name: str, pem: str) -> PublicKey:
    if len(pem) > MAX_PEM or pem.count("-----BEGIN") != 1:
        raise ConfigurationError(f"key {name}: not one public key in PEM")
    if "PRIVATE KEY" in pem:
        raise ConfigurationError(f"key {name}: a private key; give its public half, and keep this one elsewhere")
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(f"key {name}: not a public key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey):
        raise ConfigurationError(f"key {name}: neither ECDSA nor Ed25519 nor RSA")
    return key


def _check_strength(name: str, key: PublicKey) -> None:
    if isinstance(key, rsa.RSAPublicKey) and key.key_size not in _RSA_BITS:
        raise ConfigurationError(f"key {name}: RSA with {key.key_size} bits; 2048 to 8192 are accepted")
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name not in _HASHES:
        raise ConfigurationError(f"key {name}: on the curve {key.curve.name}; P-256 and P-384 are accepted")


def _ecdsa(key: ec.EllipticCurvePublicKey, signature: bytes, message: bytes, algorithm: hashes.HashAlgorithm) -> bool:
    try:
        key.verify(signature, message, ec.ECDSA(algorithm))
    except InvalidSignature:
        return False
    return True


def _ed25519(key: ed25519.Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _rsa(key: rsa.RSAPublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message, padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature:
        return False
    return True


@functools.lru_cache(maxsize=256)
def _whole(pattern: str) -> jsonschema_rs.Validator:
    """The pattern alone must be one, lest `a)|(b` escapes from the group that holds it to the whole text."""
    try:
        jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=_PATTERN_BOUNDS)
        return jsonschema_rs.validator_for({"pattern": f"^(?:{pattern})$"}, pattern_options=_PATTERN_BOUNDS)
    except ValueError:
        raise ConfigurationError(
            "a subject_pattern is not a regular expression of the kind that cosign takes"
        ) from None
