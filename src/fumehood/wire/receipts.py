"""A receipt as it travels: a DSSE envelope, of a bounded size. What it says is for whoever checks it."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from pydantic import Field

from fumehood.errors import InvalidRequestError
from fumehood.wire import strict_json
from fumehood.wire.base import WireModel
from fumehood.wire.receipt_api import BASE64_FORM, EnvelopeSignature

LARGEST_RECEIPT: Final = 64 * 1024
"""Bytes, as JSON. A worker makes smaller ones; what is larger is none of ours."""
RECEIPT_KEY_HEADER: Final = "Fumehood-Receipt-Key"


class ReceiptEnvelope(WireModel):
    """A DSSE envelope with an in-toto statement in it: a worker's signed claim of what it ran, and what came of it."""

    payloadType: Annotated[str, Field(pattern=r"^application/vnd\.in-toto\+json$", max_length=64)]  # noqa: N815 - DSSE's name
    payload: Annotated[
        str, Field(pattern=BASE64_FORM, max_length=LARGEST_RECEIPT, description="The statement, as JSON in base64")
    ]
    signatures: Annotated[list[EnvelopeSignature], Field(min_length=1, max_length=1)]


def encoded(receipt: dict[str, Any] | None) -> bytes:
    """In its canonical form, which for texts without any escapes is this; nothing where there is none."""
    return b"" if receipt is None else json.dumps(receipt, sort_keys=True, separators=(",", ":")).encode()


def read(said: Any) -> dict[str, Any] | None:
    """What somebody gave for a receipt, if it has the form of one: who completes a step by hand may say anything."""
    try:
        return None if said is None else ReceiptEnvelope.model_validate(said).model_dump()
    except ValueError:
        return None


def decoded(data: bytes) -> dict[str, Any] | None:
    """What a worker sent for a receipt, if it has the form of one."""
    if not data or len(data) > LARGEST_RECEIPT:
        return None
    try:
        return read(strict_json.loads(data))
    except InvalidRequestError:
        return None
