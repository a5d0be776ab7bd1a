"""DSSE envelopes, signed with Ed25519: https://github.com/secure-systems-lab/dsse, version 1.0.2.

What is signed is the payload's own bytes, so that no reader has to agree with a writer about JSON.

A file of ours is one line: the canonical form of what it holds, so that no byte of it can be another one and mean the
same. `test_every_byte_of_a_receipt_counts`
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fumehood.errors import InvalidRequestError, PayloadTooLargeError, UnverifiedError
from fumehood.wire import strict_json
from fumehood.wire.canonical import canonical_json

LARGEST_PAYLOAD = 1024 * 1024
LARGEST_FILE = 64 * 1024 * 1024
"""Bytes of a file with envelopes in it: a job has several, and what they are about."""
DEEPEST = 64

_FIELD = 2**255 - 19
_EIGHTH = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = frozenset({0, 1, _FIELD - 1, _EIGHTH, _FIELD - _EIGHTH})
"""The ordinates of the eight points of small order, of which two share one, three times."""


def key_id(public_key: bytes) -> str:
    """SHA-256 of the raw public key, in hex."""
    return hashlib.sha256(public_key).hexdigest()


def is_binding(public_key: bytes) -> bool:
    """Whether a signature of this key is on one text only. Under a point of small order one signature fits many, so
    that whoever has such a key can deny all that it signed. `test_a_key_of_small_order_signs_anything`"""
    ordinate = int.from_bytes(public_key, "little") & (2**255 - 1)
    return len(public_key) == 32 and ordinate < _FIELD and ordinate not in _SMALL_ORDER


@dataclass(frozen=True)
class SigningKey:
    """An Ed25519 key. Its private half never leaves the object but to be stored."""

    private: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def generate(cls) -> SigningKey:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> SigningKey:
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @property
    def seed(self) -> bytes:
        return self.private.private_bytes_raw()

    @cached_property
    def public_key(self) -> bytes:
        return self.private.public_key().public_bytes_raw()

    @cached_property
    def key_id(self) -> str:
        return key_id(self.public_key)

    def sign(self, payload_type: str, payload: bytes) -> dict[str, Any]:
        """The envelope, as JSON has it."""
        if len(payload) > LARGEST_PAYLOAD:
            raise PayloadTooLargeError(f"what is signed has at most {LARGEST_PAYLOAD} bytes")
        signature = self.private.sign(_authenticated(payload_type, payload))
        return {
            "payloadType": payload_type,
            "payload": base64.b64encode(payload).decode(),
            "signatures": [{"keyid": self.key_id, "sig": base64.b64encode(signature).decode()}],
        }


@dataclass(frozen=True, slots=True)
class Envelope:
    """An envelope that was read and has not been believed yet."""

    payload_type: str
    payload: bytes
    key_id: str
    """Who claims to have signed: a hint, until `verify`."""
    signature: bytes

    @classmethod
    def read(cls, said: Any, payload_type: str) -> Envelope:
        """`UnverifiedError` for anything but one payload of this type with one signature."""
        if not isinstance(said, Mapping) or set(said) != {"payloadType", "payload", "signatures"}:
            raise UnverifiedError("malformed", "this is no DSSE envelope")
        if said["payloadType"] != payload_type:
            raise UnverifiedError("malformed", f"the envelope does not hold {payload_type}")
        signatures = said["signatures"]
        if not isinstance(signatures, list) or len(signatures) != 1:
            raise UnverifiedError("malformed", "the envelope must have exactly one signature")
        one = signatures[0]
        if not isinstance(one, Mapping) or set(one) != {"keyid", "sig"} or not isinstance(one["keyid"], str):
            raise UnverifiedError("malformed", "the signature has no key and value")
        return cls(payload_type, _decoded(said["payload"]), one["keyid"], _decoded(one["sig"]))

    def verify(self, public_key: bytes) -> bytes:
        """The payload, now known to be of this key's owner."""
        if key_id(public_key) != self.key_id:
            raise UnverifiedError("signature_invalid", "the envelope names another key")
        if not is_binding(public_key):
            raise UnverifiedError("weak_key", "a signature of this key would fit other texts too")
        try:
            Ed25519PublicKey.from_public_bytes(public_key).verify(
                self.signature, _authenticated(self.payload_type, self.payload)
            )
        except (InvalidSignature, ValueError):
            raise UnverifiedError("signature_invalid", "the signature does not match the content") from None
        return self.payload


# --- files -------------------------------------------------------------------------------------------------


def to_file(value: Any) -> bytes:
    """An envelope, or a document that holds some, as it is written to a file."""
    return canonical_json(value) + b"\n"


def from_file(data: bytes) -> Any:
    """What a file holds: one JSON value, indented or not, and at most the end of a line behind it."""
    if len(data) > LARGEST_FILE:
        raise UnverifiedError("malformed", f"the file has more than {LARGEST_FILE} bytes")
    text = data.removesuffix(b"\n").removesuffix(b"\r") if data.endswith(b"\n") else data
    if text != text.strip():
        raise UnverifiedError("malformed", "there is something before or behind the file's JSON value")
    return json_value(text)


def json_value(data: bytes) -> Any:
    """Decoded without ambiguity, or `UnverifiedError`."""
    try:
        return strict_json.loads(data, deepest=DEEPEST)
    except InvalidRequestError as error:
        raise UnverifiedError("malformed", f"this is not JSON as it should be: {error.detail}") from None


def _authenticated(payload_type: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _decoded(text: Any) -> bytes:
    """Standard base64 in its only form: another text for the same bytes would be a change that nobody sees."""
    if not isinstance(text, str) or len(text) > LARGEST_PAYLOAD * 4 // 3 + 4:
        raise UnverifiedError("malformed", "a part of the envelope is no base64, or too long")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UnverifiedError("malformed", "a part of the envelope is no base64") from None
    if base64.b64encode(data).decode() != text:
        raise UnverifiedError("malformed", "a part of the envelope is not in its only form")
    return data
