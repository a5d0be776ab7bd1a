"""The list of keys that receipts are checked with, over the server's own API.

Whoever relies on it pins the root and checks the signature: what a server says here proves nothing by itself.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fumehood.wire.base import WireModel

RECEIPT_KEYS_PATH = "/v1/receipt-keys"

KEY_LIST_TYPE = "application/vnd.fumehood.keys+json"
LARGEST_PAYLOAD = 1_400_000
"""Characters of a megabyte in base64."""
LONGEST_ROOT = 64
BASE64_FORM = r"^[A-Za-z0-9+/]*={0,2}$"
HEX_KEY_FORM = r"^[0-9a-f]{64}$"


class EnvelopeSignature(WireModel):
    """Who signed, and the signature."""

    keyid: Annotated[str, Field(pattern=HEX_KEY_FORM, description="SHA-256 of the signer's raw public key, in hex")]
    sig: Annotated[str, Field(pattern=BASE64_FORM, max_length=88, description="Ed25519, in base64")]


class KeyListEnvelope(WireModel):
    """A DSSE envelope with the list in it."""

    payloadType: Annotated[str, Field(pattern="^application/vnd\\.fumehood\\.keys\\+json$", max_length=64)]  # noqa: N815 - DSSE's name
    payload: Annotated[
        str, Field(pattern=BASE64_FORM, max_length=LARGEST_PAYLOAD, description="The list, as JSON in base64")
    ]
    signatures: Annotated[list[EnvelopeSignature], Field(min_length=1, max_length=1)]


class ReceiptKeys(WireModel):
    """The keys that receipts are checked with, as their root signed them."""

    root: Annotated[
        str,
        Field(
            pattern=HEX_KEY_FORM,
            description="The root's public key, in hex. Compare it with the one that you pinned: it is no proof",
        ),
    ]
    list: Annotated[KeyListEnvelope, Field(description="Signed by the root")]
