"""Keyless signatures in the older form: a certificate and a log's promise, in a layer's annotations.

cosign wrote these before there were bundles. They bring no proof of inclusion, only the transparency log's signed
promise to include the entry; Sigstore's Python verifier refuses them for that, cosign accepts them, and so do we: the
promise is signed by a log that the trusted root names. All else is checked as for bundles.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.certificate_transparency import LogEntryType
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import Criticality, ExtensionPolicy, PolicyBuilder, Store, VerificationError
from sigstore_models.trustroot.v1 import TransparencyLogInstance
from sigstore_models.trustroot.v1 import TrustedRoot as RootDocument

from fumehood.images.documents import FlawError, parse_object, part, unbase64
from fumehood.images.signer import MALFORMED, Signer, signer_of
from fumehood.images.simple_signing import CERTIFICATE, LOG_PROMISE, SIGNATURE, TaggedSignature
from fumehood.images.trusted_root import root_at

MAX_ANNOTATION = 64 * 1024
_LOG_ID = re.compile(r"[0-9a-f]{64}")
_DIGITALLY_SIGNED = "!BBQH32s"


@dataclass(frozen=True, slots=True)
class _Promise:
    """The log's word that it will hold this entry, as it is signed."""

    body: str
    time: int
    index: int
    log: str
    signature: bytes

    @property
    def message(self) -> bytes:
        """In canonical JSON, which for these values is what `json` writes."""
        said = {"body": self.body, "integratedTime": self.time, "logID": self.log, "logIndex": self.index}
        return json.dumps(said, separators=(",", ":"), sort_keys=True).encode()


def tagged_signer(layer: TaggedSignature, payload: bytes, trusted_root: bytes) -> Signer:
    """Who signed this payload; `FlawError` where that does not hold."""
    try:
        certificate = x509.load_pem_x509_certificate(_annotation(layer, CERTIFICATE))
        promise = _promise(parse_object(_annotation(layer, LOG_PROMISE), "the log's promise"))
        time = dt.datetime.fromtimestamp(promise.time, tz=dt.UTC)
        root = root_at(trusted_root, [time])
        _check_promise(promise, root)
        _check_entry(unbase64(promise.body, "the log's entry"), layer, payload, certificate)
        _check_certificate(certificate, time, root)
        _check_signature(certificate, layer.signature, payload)
        return signer_of(certificate)
    except MALFORMED:
        raise FlawError("the signature's certificate or log entry is malformed") from None


def _annotation(layer: TaggedSignature, name: str) -> bytes:
    text = layer.annotation(name)
    if not isinstance(text, str) or len(text) > MAX_ANNOTATION:
        raise FlawError("a keyless signature lacks its certificate or its log's promise, or they are too large")
    return text.encode()


def _promise(document: dict[str, Any]) -> _Promise:
    said = document.get("Payload")
    if not isinstance(said, dict):
        raise FlawError("the log's promise is about nothing")
    body, time, index, log = (said.get(name) for name in ("body", "integratedTime", "logIndex", "logID"))
    if not isinstance(body, str) or not isinstance(log, str) or not _LOG_ID.fullmatch(log):
        raise FlawError("the log's promise is malformed")
    if type(time) is not int or type(index) is not int:
        raise FlawError("the log's promise is malformed")
    return _Promise(body, time, index, log, unbase64(document.get("SignedEntryTimestamp"), "the log's signature"))


def _check_promise(promise: _Promise, root: RootDocument) -> None:
    if not _signed(root.tlogs, bytes.fromhex(promise.log), promise.signature, promise.message):
        raise FlawError("the transparency log's promise is not signed by a log of the trusted root")


def _check_entry(body: bytes, layer: TaggedSignature, payload: bytes, certificate: x509.Certificate) -> None:
    """The entry is of this payload, this signature and this certificate, lest one of them came from elsewhere."""
    entry = parse_object(body, "the log's entry")
    spec = part(entry, "spec")
    if (entry.get("kind"), entry.get("apiVersion")) != ("hashedrekord", "0.0.1") or not isinstance(spec, dict):
        raise FlawError("the log's entry is of an unknown kind")
    hashed = part(spec, "data", "hash")
    verifier = unbase64(part(spec, "signature", "publicKey", "content"), "the certificate in the log's entry")
    if (
        hashed != {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()}
        or part(spec, "signature", "content") != layer.annotation(SIGNATURE)
        or x509.load_pem_x509_certificate(verifier) != certificate
    ):
        raise FlawError("the log's entry is of another signature")


def _check_certificate(certificate: x509.Certificate, time: dt.datetime, root: RootDocument) -> None:
    """It comes from an authority of the root, was valid, is for signing, and was logged."""
    extensions = certificate.extensions
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    purposes = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    if not usage.digital_signature or ExtendedKeyUsageOID.CODE_SIGNING not in purposes:
        raise FlawError("the certificate is not for signing")
    issuer = _issuer(certificate, time, root)
    stamps = list(extensions.get_extension_for_class(x509.PrecertificateSignedCertificateTimestamps).value)
    if len(stamps) != 1 or stamps[0].entry_type is not LogEntryType.PRE_CERTIFICATE:
        raise FlawError("the certificate does not bring exactly one timestamp of a certificate log")
    (stamp,) = stamps
    stamped = int(stamp.timestamp.replace(tzinfo=dt.UTC).timestamp() * 1000)
    tbs = certificate.tbs_precertificate_bytes
    message = (
        struct.pack(_DIGITALLY_SIGNED, stamp.version.value, 0, stamped, stamp.entry_type.value, _key_id(issuer))
        + len(tbs).to_bytes(3, "big")
        + tbs
        + struct.pack("!H", len(stamp.extension_bytes))
        + stamp.extension_bytes
    )
    if not isinstance(stamp.signature_hash_algorithm, hashes.SHA256) or not _signed(
        root.ctlogs, stamp.log_id, stamp.signature, message
    ):
        raise FlawError("the certificate's timestamp is not signed by a certificate log of the trusted root")


def _issuer(certificate: x509.Certificate, time: dt.datetime, root: RootDocument) -> x509.Certificate:
    """The authority that issued it, at the head of a chain that was valid at this time."""
    authorities = [
        x509.load_der_x509_certificate(one.raw_bytes)
        for authority in root.certificate_authorities
        for one in authority.cert_chain.certificates
    ]
    # Certificates for signing have a purpose of their own, which the caller looks at.
    for_authorities = ExtensionPolicy.webpki_defaults_ca().may_be_present(
        x509.ExtendedKeyUsage, Criticality.NON_CRITICAL, None
    )
    for_signers = ExtensionPolicy.webpki_defaults_ee().may_be_present(
        x509.ExtendedKeyUsage, Criticality.NON_CRITICAL, None
    )
    verifier = (
        PolicyBuilder()
        .store(Store(authorities))
        .time(time)
        .extension_policies(ca_policy=for_authorities, ee_policy=for_signers)
        .build_client_verifier()
    )
    try:
        return verifier.verify(certificate, []).chain[1]
    except VerificationError:
        raise FlawError("the certificate is not of an authority of the trusted root, or was not valid then") from None


def _check_signature(certificate: x509.Certificate, signature: bytes, payload: bytes) -> None:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FlawError("the certificate's key is not an ECDSA key")
    if not _holds(key, signature, payload):
        raise FlawError("the signature is not of the certificate's key")


def _signed(logs: Iterable[TransparencyLogInstance], log_id: bytes, signature: bytes, message: bytes) -> bool:
    """A log of the root with this id signed the message; ECDSA with SHA-256, as logs of this kind do."""
    for log in logs:
        raw = log.public_key.raw_bytes or b""
        if hashlib.sha256(raw).digest() == log_id:
            key = serialization.load_der_public_key(raw)
            return isinstance(key, ec.EllipticCurvePublicKey) and _holds(key, signature, message)
    return False


def _holds(key: ec.EllipticCurvePublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _key_id(certificate: x509.Certificate) -> bytes:
    spki = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(spki).digest()
