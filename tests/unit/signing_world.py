"""Signatures as cosign makes them, written here: with keys, and keyless under an authority that lives for one test.

The real cosign agrees with these (tests/integration/test_signatures_keyless.py), so that unit tests may twist them.
"""

from __future__ import annotations

import base64
import copy
import datetime as dt
import hashlib
import json
import struct
from dataclasses import dataclass, field
from typing import Any

import rfc8785
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fumehood.images.bundle import BUNDLE_TYPE, SIGNED, STATEMENT_TYPE
from fumehood.images.simple_signing import CERTIFICATE, LOG_PROMISE, PAYLOAD_TYPE, SIGNATURE

SUBJECT = "https://ci.example/build@main"
ISSUER = "https://login.example"
SHA256 = ec.ECDSA(hashes.SHA256())
PEM = serialization.Encoding.PEM
DER = serialization.Encoding.DER
ISSUER_OID = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
OLD_ISSUER_OID = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
SCT_OID = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def spki(key: Any) -> bytes:
    found: bytes = key.public_bytes(DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return found


def public_pem(key: Any) -> str:
    text: bytes = key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return text.decode()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def digest_of(data: bytes) -> str:
    return "sha256:" + sha256(data).hex()


def compact(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def pae(payload: bytes, kind: str = STATEMENT_TYPE) -> bytes:
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)


def payload_of(digest: str, kind: str = PAYLOAD_TYPE) -> bytes:
    critical = {"identity": {"docker-reference": "x"}, "image": {"docker-manifest-digest": digest}, "type": kind}
    return compact({"critical": critical, "optional": None})


def statement_of(digest: str, predicate: str = SIGNED) -> bytes:
    subject = [{"digest": {"sha256": digest.removeprefix("sha256:")}}]
    kind = "https://in-toto.io/Statement/v1"
    return compact({"_type": kind, "subject": subject, "predicateType": predicate, "predicate": {}})


def key_bundle(digest: str, key: ec.EllipticCurvePrivateKey, predicate: str = SIGNED) -> dict[str, Any]:
    """As `cosign sign --key` makes it."""
    statement = statement_of(digest, predicate)
    hint = b64(sha256(spki(key.public_key())))
    return bundle_of(statement, key.sign(pae(statement), SHA256), {"publicKey": {"hint": hint}})


def bundle_of(
    statement: bytes, signature: bytes, material: dict[str, Any], kind: str = STATEMENT_TYPE
) -> dict[str, Any]:
    envelope = {"payload": b64(statement), "payloadType": kind, "signatures": [{"sig": b64(signature)}]}
    return {"mediaType": BUNDLE_TYPE, "verificationMaterial": material, "dsseEnvelope": envelope}


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC).replace(microsecond=0)


def _utf8(text: str) -> bytes:
    return b"\x0c" + bytes([len(text)]) + text.encode()


@dataclass
class Authority:
    """A certificate authority, a certificate log and a transparency log, with the trusted root that names them."""

    now: dt.datetime = field(default_factory=_now)

    def __post_init__(self) -> None:
        self.root_key, self.key, self.certificate_log, self.log = (new_key() for _ in range(4))
        self.root = self._authority("root", self.root_key, "root", self.root_key)
        self.certificate = self._authority("intermediate", self.key, "root", self.root_key)

    def trusted_root(self, ended: str = "", **changes: Any) -> bytes:
        """With `ended`, one of the lists holds what was no longer valid a day ago."""
        start = self.now - dt.timedelta(days=30)

        def period(name: str) -> dict[str, str]:
            end = {"end": rfc3339(self.now - dt.timedelta(days=1))} if name == ended else {}
            return {"start": rfc3339(start), **end}

        def log(name: str, key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            raw = spki(key.public_key())
            public = {"rawBytes": b64(raw), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": period(name)}
            known = {"baseUrl": f"https://{name}.example", "hashAlgorithm": "SHA2_256", "publicKey": public}
            return {**known, "logId": {"keyId": b64(sha256(raw))}}

        chain = [{"rawBytes": b64(one.public_bytes(DER))} for one in (self.certificate, self.root)]
        authority = {
            "subject": {"organization": "example", "commonName": "intermediate"},
            "uri": "https://authority.example",
            "certChain": {"certificates": chain},
            "validFor": period("certificateAuthorities"),
        }
        document = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log("tlogs", self.log)],
            "certificateAuthorities": [authority],
            "ctlogs": [log("ctlogs", self.certificate_log)],
            "timestampAuthorities": [],
        }
        return compact({**document, **changes})

    def leaf(self, key: Any, subject: str = SUBJECT, issuer: str = ISSUER, *, sct: bool = True) -> x509.Certificate:
        """A signing certificate that is valid for ten minutes; several subjects stand apart by a space."""
        names: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(one) if "://" in one else x509.RFC822Name(one) for one in subject.split()
        ]
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now - dt.timedelta(minutes=1))
            .not_valid_after(self.now + dt.timedelta(minutes=9))
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .add_extension(x509.UnrecognizedExtension(OLD_ISSUER_OID, issuer.encode()), critical=False)
            .add_extension(x509.UnrecognizedExtension(ISSUER_OID, _utf8(issuer)), critical=False)
        )
        if sct:
            stamp = self._sct(builder.sign(self.key, hashes.SHA256()).tbs_certificate_bytes)
            builder = builder.add_extension(x509.UnrecognizedExtension(SCT_OID, stamp), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def bundle(
        self, digest: str, subject: str = SUBJECT, issuer: str = ISSUER, by: Any = None, **leaf: Any
    ) -> dict[str, Any]:
        """As keyless `cosign sign` makes it, with a log of one entry; with `by`, another key than the certificate's;
        with `kind`, another type of payload."""
        key, kind = new_key(), leaf.pop("kind", STATEMENT_TYPE)
        certificate = self.leaf(key, subject, issuer, **leaf)
        statement = statement_of(digest)
        signature = (by or key).sign(pae(statement, kind), SHA256)
        material = {"certificate": {"rawBytes": b64(certificate.public_bytes(DER))}}
        bundle = bundle_of(statement, signature, material, kind)
        signed = {"signature": b64(signature), "verifier": b64(certificate.public_bytes(PEM))}
        spec: Any = {
            "envelopeHash": _hash(compact(bundle["dsseEnvelope"])),
            "payloadHash": _hash(statement),
            "signatures": [signed],
        }
        body = rfc8785.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})
        bundle["verificationMaterial"]["tlogEntries"] = [self._entry("dsse", body)]
        return bundle

    def tagged(
        self, digest: str, subject: str = SUBJECT, issuer: str = ISSUER, *, key: Any = None, **odd: Any
    ) -> tuple[bytes, dict[str, str]]:
        """The payload and the annotations of a keyless signature in the older form.

        `odd` makes what an honest signer and an honest log would not: `by`, another key than the certificate's, or
        `logged`, another payload than the one that was signed.
        """
        key = key or new_key()
        pem = self.leaf(key, subject, issuer).public_bytes(PEM)
        payload = payload_of(digest)
        signature = b64(odd.get("by", key).sign(payload, SHA256))
        spec: Any = {
            "data": {"hash": _hash(odd.get("logged", payload))},
            "signature": {"content": signature, "publicKey": {"content": b64(pem)}},
        }
        body = rfc8785.dumps({"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": spec})
        promise = {"SignedEntryTimestamp": b64(self._promise(body)), "Payload": self._promised(body)}
        chain = b"".join(one.public_bytes(PEM) for one in (self.certificate, self.root)).decode()
        return payload, {
            SIGNATURE: signature,
            CERTIFICATE: pem.decode(),
            "dev.sigstore.cosign/chain": chain,
            LOG_PROMISE: compact(promise).decode(),
        }

    @property
    def log_id(self) -> bytes:
        return sha256(spki(self.log.public_key()))

    def _promised(self, body: bytes) -> dict[str, Any]:
        time = int(self.now.timestamp())
        return {"body": b64(body), "integratedTime": time, "logID": self.log_id.hex(), "logIndex": 0}

    def _promise(self, body: bytes) -> bytes:
        return self.log.sign(rfc8785.dumps(self._promised(body)), SHA256)

    def _entry(self, kind: str, body: bytes) -> dict[str, Any]:
        leaf_hash = sha256(b"\0" + body)
        note = f"log.example - 1\n1\n{b64(leaf_hash)}\n"
        signed = b64(self.log_id[:4] + self.log.sign(note.encode(), SHA256))
        return {
            "logIndex": "0",
            "logId": {"keyId": b64(self.log_id)},
            "kindVersion": {"kind": kind, "version": "0.0.1"},
            "integratedTime": str(int(self.now.timestamp())),
            "inclusionPromise": {"signedEntryTimestamp": b64(self._promise(body))},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": b64(leaf_hash),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n\u2014 log.example {signed}\n"},
            },
            "canonicalizedBody": b64(body),
        }

    def _sct(self, tbs: bytes) -> bytes:
        """The certificate log's signed timestamp, as the certificate's extension holds it (RFC 6962)."""
        time = int(self.now.timestamp() * 1000)
        issuer = sha256(spki(self.key.public_key()))
        entry = struct.pack("!BBQH32s", 0, 0, time, 1, issuer) + len(tbs).to_bytes(3, "big") + tbs + b"\0\0"
        signature = self.certificate_log.sign(entry, SHA256)
        log_id = sha256(spki(self.certificate_log.public_key()))
        stamp = struct.pack("!B32sQHBBH", 0, log_id, time, 0, 4, 3, len(signature)) + signature
        stamps = struct.pack("!HH", len(stamp) + 2, len(stamp)) + stamp
        length = bytes([len(stamps)]) if len(stamps) < 128 else b"\x81" + bytes([len(stamps)])
        return b"\x04" + length + stamps

    def _authority(self, name: str, key: Any, issuer: str, issuer_key: Any) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now - dt.timedelta(days=60))
            .not_valid_after(self.now + dt.timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=1 if name == "root" else 0), critical=True)
            .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        )
        if name != issuer:
            usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
            builder = builder.add_extension(usage, critical=False)
        return builder.sign(issuer_key, hashes.SHA256())


def words(value: object) -> str:
    """The name of a test's parameter: what is made anew in every process cannot be part of it."""
    return value if isinstance(value, str) else type(value).__name__


def rfc3339(time: dt.datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def changed(document: dict[str, Any], path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """A copy with one part replaced."""
    twisted = copy.deepcopy(document)
    place: Any = twisted
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return twisted


def _hash(data: bytes) -> dict[str, str]:
    return {"algorithm": "sha256", "value": sha256(data).hex()}


def _name(common: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "example"), x509.NameAttribute(NameOID.COMMON_NAME, common)]
    )


def _usage(**given: bool) -> x509.KeyUsage:
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: given.get(name, False) for name in names})
