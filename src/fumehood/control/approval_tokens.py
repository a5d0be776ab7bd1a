"""Approval tokens: a link in a mail that lets its reader decide about one step, and nothing else.

A token says what it is for and is sealed with a key that only servers of this cell can make, so that nothing is stored
for it, and any server can read it. It counts once, because a step is decided once; a step that is asked about again has
another number of its visit. Whatever is wrong with a token, the answer is the same.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import asdict, dataclass

from fumehood.broker.ports import Broker
from fumehood.errors import InvalidTokenError

LABEL = "approval token"
PREFIX = "fha_"
"""By which scanners for leaked secrets know one."""
LONGEST = 4096
"""Characters; what is longer was not made here, and is not looked at."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a token lets its bearer do."""

    run_id: str
    step: str
    visit: int
    """Which time the step is asked about."""
    who: str
    """Whom the token was made for: what stands in the history as who decided."""
    via: str
    """Who had it made."""
    tenant: str
    expires_ms: int


def key_of(broker: Broker) -> bytes:
    return broker.derived_key(LABEL)


def mint(key: bytes, claim: Claim) -> str:
    body = _text(json.dumps(asdict(claim), separators=(",", ":"), ensure_ascii=False).encode())
    return f"{PREFIX}{body}.{_seal(key, body)}"


def read(key: bytes, token: str, now_ms: int) -> Claim:
    """`InvalidTokenError` for one that is expired, changed, another cell's or none at all."""
    invalid = InvalidTokenError("the token is not valid, or not any more")
    if len(token) > LONGEST or not token.isascii() or not token.startswith(PREFIX):
        raise invalid
    body, _, seal = token.removeprefix(PREFIX).partition(".")
    if not hmac.compare_digest(seal, _seal(key, body)):  # as texts: there are several ways to write the same bytes
        raise invalid
    try:
        claim = Claim(**json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))
    except (binascii.Error, ValueError, TypeError):  # sealed by another version of us
        raise invalid from None
    if now_ms >= claim.expires_ms:
        raise invalid
    return claim


def _seal(key: bytes, body: str) -> str:
    return _text(hmac.new(key, body.encode(), hashlib.sha256).digest())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
