"""Receipts: what a worker signed about a command or a step, and whether that holds."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fumehood.errors import CannotVerifyError, NotFoundError
from fumehood.mcp import limits
from fumehood.mcp.bounds import clipped, visible
from fumehood.mcp.following import Place
from fumehood.mcp.tool import Answer, Arguments, Call, Tool
from fumehood.sdk.aio.receipts import AsyncReceipt, AsyncReceipts
from fumehood.sdk.verification import Holding, Trust, Verification, verified
from fumehood.verify.keylist import KeyList, read_published, root_key
from fumehood.wire.receipt_api import RECEIPT_KEYS_PATH

MOST_CLAIM = 8 * 1024
MOST_ENVELOPE = 64 * 1024
Name = Annotated[str, Field(min_length=1, max_length=256)]


class GetReceipt(Arguments):
    session: Annotated[limits.SessionName | None, Field(description="Session of a command; with command_id")] = None
    command_id: Annotated[limits.CommandId | None, Field(description="A command of that session")] = None
    run_id: Annotated[Name | None, Field(description="A run, instead of a command")] = None
    step: Annotated[Name | None, Field(description="A sandbox step of that run, where it is one of a workflow")] = None

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        if (self.session is None) != (self.command_id is None):
            raise ValueError("session and command_id belong together")
        if (self.session is None) == (self.run_id is None):
            raise ValueError("name either session and command_id, or run_id")
        return self


class ReceiptAnswer(Answer):
    subject: Annotated[str, Field(description="What it is about")]
    verification: Annotated[
        Literal["verified", "refused", "not_checked"],
        Field(description="Whether the signature and what was signed hold"),
    ]
    reason: Annotated[str | None, Field(description="Why not, in a word")] = None
    detail: Annotated[str, Field(description="What that means, and what was not checked")] = ""
    relied_on: Annotated[str | None, Field(description="The root key that it was checked against, in hex")] = None
    worker: Annotated[str | None, Field(description="Who signed, where that is proven")] = None
    claim: Annotated[str | None, Field(description="What was signed, as JSON, where that is proven")] = None
    claim_truncated: Annotated[bool, Field(description="Whether claim is only the beginning; the envelope has all")] = (
        False
    )
    envelope: Annotated[
        dict[str, Any] | None,
        Field(description="The DSSE envelope, for `fumehood verify FILE`; null: too long"),
    ] = None

    def text(self) -> str:
        lines = [f"receipt of {self.subject}", f"verification: {self.verification}"]
        lines += [f"reason: {self.reason}"] if self.reason else []
        lines += [self.detail] if self.detail else []
        lines += [f"signed by: {self.worker}"] if self.worker else []
        cut = " (the beginning of it)" if self.claim_truncated else ""
        return "\n".join([*lines, *([f"claim{cut}: {self.claim}"] if self.claim else [])])


async def get_receipt(call: Call, asked: GetReceipt) -> ReceiptAnswer:
    receipt, holding, subject = _asked_for(call, asked)
    await receipt.fetch()
    envelope = receipt.envelope if len(json.dumps(receipt.envelope)) <= MOST_ENVELOPE else None
    answer = ReceiptAnswer(subject=subject, verification="not_checked", envelope=envelope)
    try:
        trust, note = await _trusted(call)
        found = await asyncio.to_thread(verified, receipt.envelope, (), holding, trust)
    except CannotVerifyError as error:
        return answer.model_copy(update={"reason": error.code, "detail": f"{error.detail}; {error.remedy}"})
    return answer.model_copy(update=_found(found, note))


def _asked_for(call: Call, asked: GetReceipt) -> tuple[AsyncReceipt, Holding, str]:
    if asked.session is not None and asked.command_id is not None:
        place = Place(asked.session, asked.command_id)
        holding = Holding(task={"command_id": asked.command_id})
        return AsyncReceipt(call.client.transport, f"{place.path}/receipt"), holding, f"the command {asked.command_id}"
    run_id = asked.run_id or ""
    holding = Holding(task={"run_id": run_id} | ({"step_id": asked.step} if asked.step is not None else {}))
    step = f", step {asked.step}" if asked.step is not None else ""
    return AsyncReceipts(call.client.transport).of_run(run_id, asked.step), holding, f"the run {run_id}{step}"


async def _trusted(call: Call) -> tuple[Trust, str]:
    """Whom to rely on, and what is to be said about that."""
    if call.pinned:
        trust = Trust()
        await asyncio.to_thread(trust.found)
        return trust, ""
    try:
        document = await call.client.transport.get(RECEIPT_KEYS_PATH)
    except NotFoundError:
        raise CannotVerifyError("the server publishes no list of receipt keys") from None
    note = (
        "checked by the server, against the list of keys that it publishes itself: compare relied_on with the root "
        "that you rely on, or check the envelope with `fumehood verify`"
    )
    return Published(document=document), note


@dataclass(frozen=True, slots=True)
class Published(Trust):
    """The list that the server publishes. It vouches for itself, which is said to whoever asks."""

    document: Any = None

    def found(self) -> tuple[bytes, KeyList, Path]:
        root = root_key(str(self.document["root"]))
        return root, read_published(self.document, root), Path(RECEIPT_KEYS_PATH)


def _found(found: Verification, note: str) -> dict[str, Any]:
    detail = "; ".join(part for part in (found.detail, *found.notes, note) if part)
    claim, cut = None, False
    if found.claims:
        claim, cut = clipped(visible(json.dumps(found.claims[0], ensure_ascii=False)), MOST_CLAIM)
    return {
        "verification": "verified" if found.ok else "refused",
        "reason": found.reason,
        "detail": visible(detail),
        "relied_on": found.root,
        "worker": None if found.worker is None else visible(found.worker),
        "claim": claim,
        "claim_truncated": cut,
    }


TOOLS = (
    Tool(
        "get_receipt",
        "Fetch a receipt",
        "Fetch what a worker signed about a command or a run (hashes of what was asked for and of what was printed, "
        "the image, how it ended), and tell whether it holds. Of a command it is there for as long as its session.",
        GetReceipt,
        ReceiptAnswer,
        get_receipt,
        read_only=True,
        idempotent=True,
    ),
)
