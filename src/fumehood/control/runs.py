"""Runs: started, seen and cancelled, by any server and without a word between them.

A run exists once its start is in its inbox: the broker's ack is the promise, and whoever decides runs finds it there.
An idempotency key is one atomic create: it says which run the key means before the start is sent, and whoever comes
with the same key sends the same start again, so that a process that died between the two lost nothing.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fumehood.broker import names, values
from fumehood.broker.ports import Broker, Bucket
from fumehood.control import intake, loading, records
from fumehood.control.workflows import Stored, Workflows
from fumehood.engine.events import Record
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunState
from fumehood.errors import (
    BlobNotFoundError,
    ConflictError,
    InvalidRequestError,
    KeyConflictError,
    NotFoundError,
    PayloadTooLargeError,
)
from fumehood.wire import blobref, strict_json

SHOWN_BYTES = 4 * 1024 * 1024
"""Of values that are kept by reference: so much of them is shown in one answer, the rest as references."""
SEARCHED_BYTES = 4 * values.LARGEST
"""Of a run's large values: so much is looked through for a reference that stands inside of one of them."""


@dataclass(frozen=True, slots=True)
class Start:
    """What somebody wants to be run."""

    workflow: str
    input: Any = None
    idempotency_key: str | None = None
    traceparent: str | None = None
    by: str = ""


@dataclass(frozen=True, slots=True)
class Queued:
    """A run whose start waits for a decider."""

    run_id: str
    workflow: str | None
    digest: str | None


@dataclass(frozen=True, slots=True)
class _Claim:
    """What an idempotency key means."""

    run_id: str
    body: str
    digest: str

    def encode(self) -> bytes:
        return json.dumps({"run_id": self.run_id, "body": self.body, "digest": self.digest}).encode()

    @classmethod
    def decode(cls, data: bytes) -> _Claim:
        return cls(**json.loads(data))


class Runs:
    def __init__(self, broker: Broker, workflows: Workflows, *, now_ms: Callable[[], int]) -> None:
        self._broker = broker
        self._workflows = workflows
        self._now_ms = now_ms

    # --- starting ------------------------------------------------------------------------------------------

    async def start(self, wish: Start) -> tuple[str, bool]:
        """The run's id, and whether it is a new one. Once this returns, the run will be run."""
        _check_input(wish.input)
        if wish.idempotency_key is None:
            stored = await self._checked(wish)
            run_id = self._new_id()
            await self._send(run_id, stored, wish)
            return run_id, True
        claim, created = await self._claim(wish)
        if claim.body != _body(wish.input):
            raise ConflictError("this idempotency key was used before, with another input")
        await self._send(claim.run_id, await self._workflows.definition(claim.digest), wish)
        return claim.run_id, created

    async def _checked(self, wish: Start) -> Stored:
        stored, _ = await self._workflows.show(wish.workflow)
        if stored.input_schema is not None:
            stored.input_schema.check(wish.input)
        return stored

    async def _claim(self, wish: Start) -> tuple[_Claim, bool]:
        """One atomic create decides which run a key means."""
        bucket = self._broker.bucket(Bucket.IDEMPOTENCY)
        key = hashlib.sha256(f"{wish.workflow}\n{wish.idempotency_key}".encode()).hexdigest()
        entry = await bucket.get(key)
        if entry is None:
            stored = await self._checked(wish)
            claim = _Claim(self._new_id(), _body(wish.input), stored.digest)
            try:
                await bucket.create(key, claim.encode())
            except KeyConflictError:
                entry = await bucket.get(key)
            else:
                return claim, True
        if entry is None:
            raise ConflictError("this idempotency key ran out just now; use another one")
        return _Claim.decode(entry.value), False

    async def _send(self, run_id: str, stored: Stored, wish: Start) -> None:
        meta = {"traceparent": wish.traceparent, "idempotency_key": wish.idempotency_key, "by": wish.by}
        body = {
            "definition": stored.document,
            "digest": stored.digest,
            "input": await values.outline(wish.input, self._broker.blobs()),
            "meta": {name: value for name, value in meta.items() if value},
        }
        headers = {"traceparent": wish.traceparent} if wish.traceparent else None
        data = intake.encode(MessageType.START, body)
        await self._broker.mailboxes.send(run_id, f"{run_id}.start", data, headers=headers)

    def _new_id(self) -> str:
        """Sorts by time, as UUIDs of version 7 do; eighty random bits make it nobody's guess."""
        return f"run-{self._now_ms():012x}{secrets.token_hex(10)}"

    # --- seeing --------------------------------------------------------------------------------------------

    async def get(self, run_id: str) -> RunState | Queued:
        """The run as the leader of its journal knows it."""
        state, _ = await loading.load(self._broker, _known_form(run_id))
        return state if state is not None else await self._queued(run_id)

    async def _queued(self, run_id: str) -> Queued:
        told = await self._broker.mailboxes.last(run_id)
        if told is None:
            raise NotFoundError("there is no such run")
        message = json.loads(told)
        definition = message.get("definition") or {}
        return Queued(run_id, definition.get("name"), message.get("digest"))

    async def shown(self, value: Any) -> Any:
        """A value for people: content in the place of its reference, as far as it goes."""
        blobs, room = self._broker.blobs(), SHOWN_BYTES
        contents: dict[str, Any] = {}
        for ref in blobref.refs(value):
            size = await blobs.size(ref)
            if size is None or size > room:
                continue
            try:
                contents[ref] = values.decode(await blobs.get(ref, limit=room))
            except BlobNotFoundError:
                continue
            room -= size
        return blobref.replaced(value, contents) if contents else value

    async def content(self, run_id: str, ref: str) -> bytes:
        """The JSON that a reference of this run stands for. One that is not the run's own is nobody's: a hash alone
        opens nothing."""
        state = await self.get(run_id)
        if not isinstance(state, RunState) or not await self._refers(state, ref):
            raise NotFoundError("this run has no such value")
        try:
            return await self._broker.blobs().get(ref, limit=values.LARGEST)
        except BlobNotFoundError:
            raise NotFoundError("this value is not kept any more") from None

    async def _refers(self, state: RunState, ref: str) -> bool:
        """Whether a reference stands in the state, or inside of what one there stands for, however deep."""
        known = blobref.refs(_said(state))
        seen, left = set(known), SEARCHED_BYTES
        for holder in known:  # grows while it is gone through
            if ref in seen:
                break
            inside, size = await self._inside(holder)
            left -= size
            if left < 0:
                raise PayloadTooLargeError("this run's values are too large to be searched for this one")
            new = [one for one in inside if one not in seen]
            seen.update(new)
            known += new
        return ref in seen

    async def _inside(self, ref: str) -> tuple[list[str], int]:
        """The references in the content of one, and its size."""
        try:
            data = await self._broker.blobs().get(ref, limit=values.LARGEST)
        except (BlobNotFoundError, PayloadTooLargeError):
            return [], 0
        return (blobref.refs(values.decode(data)) if blobref.KEY.encode() in data else []), len(data)

    async def history(self, run_id: str, *, after: int, limit: int) -> tuple[Sequence[tuple[int, Record]], int | None]:
        """Records behind `after`; and where to go on, if there are more."""
        entries = await self._broker.journal.read(_known_form(run_id), after=after)
        if not entries and await self._broker.journal.last(run_id) is None:
            await self._queued(run_id)
        blobs = self._broker.blobs()
        page = [(entry.seq, await records.decode(entry, blobs)) for entry in entries[:limit]]
        return page, page[-1][0] if len(entries) > limit else None

    # --- ending --------------------------------------------------------------------------------------------

    async def cancel(self, run_id: str, *, reason: str = "", by: str = "") -> None:
        """Ask a run to end. One that has ended stays as it is."""
        if await self._broker.journal.last(_known_form(run_id)) is None:
            await self._queued(run_id)
        data = intake.encode(MessageType.CANCEL, {"reason": reason, "by": by})
        await self._broker.mailboxes.send(run_id, f"{run_id}.cancel", data)


def _said(state: RunState) -> list[Any]:
    """Every value of a run."""
    steps = [(step.input, step.output, step.previous) for step in state.steps.values()]
    parts = [part for step in steps for part in step] + [signal.data for signal in state.signals]
    return [state.input, state.output, *parts]


def _check_input(given: Any) -> None:
    if not strict_json.is_flat(given):
        raise InvalidRequestError("input: it is nested too deeply")
    if blobref.mentions_blob(given):
        raise InvalidRequestError(f"input: the key {blobref.KEY} is not for callers")


def _body(given: Any) -> str:
    return hashlib.sha256(blobref.encode({"input": given})).hexdigest()


def _known_form(run_id: str) -> str:
    """What cannot be a run's id is nobody's."""
    if not names.is_token(run_id):
        raise NotFoundError("there is no such run")
    return run_id
