"""How a worker proves who it is: it signs its hello with a key that follows from its secret.

The server keeps the public half only, so that whoever reads its store can let nobody in. The signature covers all that
is sent: a changed declaration is a wrong signature. A hello counts for a minute; that it counts once is the server's to
remember, by its nonce.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from google.protobuf.message import DecodeError

from fumehood.errors import InvalidRequestError, UnauthenticatedError
from fumehood.wire.console.console_pb2 import Declaration, Hello

WINDOW_MS: Final = 60_000
"""How far a worker's clock may be from the server's, both ways."""
NONCE_BYTES: Final = 16
SECRET_BYTES: Final = 32
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
MAX_DECLARATION_BYTES: Final = 4 * 1024 * 1024
"""With ten thousand sessions it has about one."""
_INFO = b"fumehood.console.v1 worker key\x00"
_CONTEXT = b"fumehood.console.v1.Hello\x00"
_WORKER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REFUSED = "the worker's credentials were refused: no such worker, a wrong secret, or a clock that is a minute off"
"""One text for all reasons: it tells a stranger nothing."""


def new_secret() -> str:
    return _text(secrets.token_bytes(SECRET_BYTES))


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def derive_key(worker_id: str, secret: str) -> Ed25519PrivateKey:
    """Two workers with one secret have two keys. `InvalidRequestError` for what is no secret of ours."""
    hkdf = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=_INFO + worker_id.encode())
    return Ed25519PrivateKey.from_private_bytes(hkdf.derive(_secret_bytes(secret)))


def public_key_of(worker_id: str, secret: str) -> bytes:
    return derive_key(worker_id, secret).public_key().public_bytes_raw()


def sign_hello(worker_id: str, secret: str, declaration: bytes, now_ms: int, nonce: bytes) -> Hello:
    hello = Hello(worker_id=worker_id, timestamp_unix_ms=now_ms, nonce=nonce, declaration=declaration)
    hello.signature = derive_key(worker_id, secret).sign(_signed(hello))
    return hello


def verify_hello(hello: Hello, public_key: bytes, now_ms: int) -> Declaration:
    """What the worker declares. `InvalidRequestError` for what is no hello at all, `UnauthenticatedError` for one that
    proves nothing. The signature is looked at in any case: that a clock is wrong only its owner is to learn."""
    check_shape(hello)
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(hello.signature, _signed(hello))
    except InvalidSignature:
        raise UnauthenticatedError(_REFUSED) from None
    if abs(hello.timestamp_unix_ms - now_ms) > WINDOW_MS:
        raise UnauthenticatedError(_REFUSED)
    return _declaration(hello.declaration)


def check_shape(hello: Hello) -> None:
    if _WORKER_ID.fullmatch(hello.worker_id) is None:
        raise InvalidRequestError("worker_id has 1 to 64 letters, digits, `-` and `_`")
    if len(hello.nonce) != NONCE_BYTES or len(hello.signature) != SIGNATURE_BYTES:
        raise InvalidRequestError(f"a nonce has {NONCE_BYTES} bytes, a signature {SIGNATURE_BYTES}")
    if hello.timestamp_unix_ms < 0:
        raise InvalidRequestError("timestamp_unix_ms lies before 1970")
    if len(hello.declaration) > MAX_DECLARATION_BYTES:
        raise InvalidRequestError(f"a declaration has at most {MAX_DECLARATION_BYTES} bytes")


def refusal() -> UnauthenticatedError:
    """What everybody is told whose hello does not count, whatever the reason."""
    return UnauthenticatedError(_REFUSED)


def _signed(hello: Hello) -> bytes:
    """Every part has a known length, so that no two hellos have the same text."""
    name = hello.worker_id.encode()
    head = _CONTEXT + len(name).to_bytes(4, "big") + name + hello.timestamp_unix_ms.to_bytes(8, "big")
    return head + hello.nonce + hashlib.sha256(hello.declaration).digest()


def _declaration(data: bytes) -> Declaration:
    try:
        return Declaration.FromString(data)
    except DecodeError:
        raise InvalidRequestError("the declaration is not a fumehood.console.v1.Declaration") from None


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _secret_bytes(secret: str) -> bytes:
    wrong = InvalidRequestError("the worker's secret is not one that `fumehood worker create` made")
    try:
        data = base64.b64decode(secret.strip() + "=", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise wrong from None
    if len(data) != SECRET_BYTES:
        raise wrong
    return data
