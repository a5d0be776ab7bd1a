"""Runs: started and seen, by any server and without a word between them.

A run exists once its start is in its inbox: the broker's ack is the promise, and whoever decides runs finds it there.
An idempotency key is one atomic create: it says which run the key means before the start is sent, and whoever comes
with the same key sends the same start again, so that a process that died between the two lost nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fumehood.broker import names, values
from fumehood.broker.ports import Broker, Bucket
from fumehood.control import loading, records
from fumehood.control.archived import Archives
from fumehood.control.callers import DEFAULT_TENANT, Caller
from fumehood.control.owners import Owners, no_such_run
from fumehood.control.quotas import Quotas
from fumehood.control.starting import ensure_started, send_start
from fumehood.control.workflows import Stored, Workflows
from fumehood.engine.events import Record
from fumehood.engine.state import RunState
from fumehood.errors import (
    BlobNotFoundError,
    ConflictError,
    IndexUnavailableError,
    InvalidRequestError,
    KeyConflictError,
    NotFoundError,
    PayloadTooLargeError,
)
from fumehood.wire import blobref, run_api, strict_json

SHOWN_BYTES = 4 * 1024 * 1024
"""Of values that are kept by reference: so much of them is shown in one answer, the rest as references."""
SEARCHED_BYTES = 4 * values.LARGEST
"""Of a run's large values: so much is looked through for a reference that stands inside of one of them."""
MOST_PINS = 256
"""Workflows that one run can reach: their names and hashes travel in its start and stay in its journal."""


@dataclass(frozen=True, slots=True)
class Start:
    """What somebody wants to be run."""

    workflow: str
    input: Any = None
    idempotency_key: str | None = None
    traceparent: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    schedule: Mapping[str, Any] | None = None
    """Which schedule starts it, and for which time."""


@dataclass(frozen=True, slots=True)
class Queued:
    """A run whose start waits for a decider."""

    run_id: str
    workflow: str | None
    digest: str | None
    definition: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Empty if the newest message that waits is not the start."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """What an idempotency key means."""

    run_id: str
    body: str
    digest: str
    pins: dict[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        said = {"run_id": self.run_id, "body": self.body, "digest": self.digest}
        return json.dumps(said | ({"pins": self.pins} if self.pins else {})).encode()

    @classmethod
    def decode(cls, data: bytes) -> _Claim:
        return cls(**json.loads(data))


class Runs:
    def __init__(
        self, broker: Broker, workflows: Workflows, *, now_ms: Callable[[], int], quotas: Quotas | None = None
    ) -> None:
        """Without `quotas` every tenant may have as many runs as it likes."""
        self._broker = broker
        self._workflows = workflows
        self._now_ms = now_ms
        self._quotas = quotas
        self._owners = Owners(broker)
        self._archives = Archives(broker)

    # --- starting ------------------------------------------------------------------------------------------

    async def start(self, wish: Start, caller: Caller) -> tuple[str, bool]:
        """The run's id, and whether it is a new one. Once this returns, the run will be run."""
        _check(wish)
        if wish.idempotency_key is None:
            stored, pins = await self._checked(wish, caller)
            run_id, body = self._new_id(), await self._body(stored, pins, wish, caller)
            await self._admit(run_id, caller)
            await send_start(self._broker, run_id, body, wish.traceparent)
            return run_id, True
        claim, created = await self._claim(wish, caller)
        if claim.body != _fingerprint(wish):
            raise ConflictError("this idempotency key was used before, with another input or other labels")
        stored = await self._workflows.definition(claim.digest)
        body = await self._body(stored, claim.pins, wish, caller)
        send = send_start if created else ensure_started
        await send(self._broker, claim.run_id, body, wish.traceparent)
        return claim.run_id, created

    async def start_as(self, run_id: str, wish: Start, caller: Caller) -> None:
        """As `start`, under an id that is known beforehand: however often it is said, by whoever, it is one run. One
        that is there already is not held against what has changed since."""
        if await self._broker.mailboxes.last(run_id) is not None:
            return
        _check(wish)
        stored, pins = await self._checked(wish, caller)
        body = await self._body(stored, pins, wish, caller)
        with contextlib.suppress(IndexUnavailableError):  # its time does not come again
            await self._admit(run_id, caller)
        await ensure_started(self._broker, run_id, body, wish.traceparent)

    async def _admit(self, run_id: str, caller: Caller) -> None:
        if self._quotas is not None:
            await self._quotas.admit(caller.tenant, run_id)

    async def _checked(self, wish: Start, caller: Caller) -> tuple[Stored, dict[str, str]]:
        """What is to be run, with all that it calls."""
        stored, _ = await self._workflows.show(wish.workflow, tenant=caller.tenant)
        if stored.input_schema is not None:
            stored.input_schema.check(wish.input)
        return stored, await self._pins(stored, caller.tenant)

    async def _pins(self, stored: Stored, tenant: str) -> dict[str, str]:
        """Every workflow that a definition can reach by calling others, as each is now: a run stays what it was when
        it started, also in the runs that it will start."""
        pins: dict[str, str] = {}
        waiting = [stored]
        while waiting:
            for name in _calls(waiting.pop().document):
                if name in pins:
                    continue
                if len(pins) >= MOST_PINS:
                    raise InvalidRequestError(f"the workflow reaches more than {MOST_PINS} others")
                called = stored if name == stored.name else await self._called(name, tenant)
                pins[name] = called.digest
                waiting.append(called)
        return pins

    async def _called(self, name: str, tenant: str) -> Stored:
        try:
            found, _ = await self._workflows.show(name, tenant=tenant)
        except NotFoundError:
            raise InvalidRequestError(f"the workflow calls {name!r}, which does not exist") from None
        return found

    async def _claim(self, wish: Start, caller: Caller) -> tuple[_Claim, bool]:
        """One atomic create decides which run a key means."""
        bucket, key = self._broker.bucket(Bucket.IDEMPOTENCY), _claim_key(wish, caller.tenant)
        entry = await bucket.get(key)
        if entry is None:
            stored, pins = await self._checked(wish, caller)
            claim = _Claim(self._new_id(), _fingerprint(wish), stored.digest, pins)
            await self._admit(claim.run_id, caller)
            try:
                await bucket.create(key, claim.encode())
            except KeyConflictError:
                if self._quotas is not None:
                    self._quotas.release(caller.tenant, claim.run_id)
                entry = await bucket.get(key)
            else:
                return claim, True
        if entry is None:
            raise ConflictError("this idempotency key ran out just now; use another one")
        return _Claim.decode(entry.value), False

    async def _body(self, stored: Stored, pins: Mapping[str, str], wish: Start, caller: Caller) -> dict[str, Any]:
        meta = {
            "traceparent": wish.traceparent,
            "idempotency_key": wish.idempotency_key,
            "by": caller.name,
            "tenant": caller.tenant if caller.tenant != DEFAULT_TENANT else None,
            "labels": dict(wish.labels),
            "schedule": wish.schedule,
        }
        body: dict[str, Any] = {
            "definition": stored.document,
            "digest": stored.digest,
            "input": await values.outline(wish.input, self._broker.blobs()),
            "meta": {name: value for name, value in meta.items() if value},
        }
        return body | ({"pins": dict(pins)} if pins else {})

    def _new_id(self) -> str:
        """Sorts by time, as UUIDs of version 7 do; eighty random bits make it nobody's guess."""
        return f"run-{self._now_ms():012x}{secrets.token_hex(10)}"

    # --- seeing --------------------------------------------------------------------------------------------

    async def check(self, run_id: str, caller: Caller) -> None:
        """Whether the run is the caller's to see: `NotFoundError` for another tenant's, as for none."""
        await self._owners.check(run_id, caller)

    async def get(self, run_id: str, caller: Caller) -> RunState | Queued:
        """The run as the leader of its journal knows it."""
        await self.check(run_id, caller)
        state, _ = await loading.load(self._broker, run_id)
        return state if state is not None else await self._queued(run_id)

    async def _queued(self, run_id: str) -> Queued:
        told = await self._broker.mailboxes.last(run_id)
        if told is None:
            raise no_such_run()
        message = json.loads(told)
        definition = message.get("definition") or {}
        return Queued(run_id, definition.get("name"), message.get("digest"), definition)

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

    async def content(self, run_id: str, ref: str, caller: Caller) -> bytes:
        """The JSON that a reference of this run stands for. One that is not the run's own is nobody's: a hash alone
        opens nothing."""
        state = await self.get(run_id, caller)
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

    async def history(
        self, run_id: str, caller: Caller, *, after: int, limit: int
    ) -> tuple[Sequence[tuple[int, Record]], int | None]:
        """Records behind `after`; and where to go on, if there are more."""
        await self.check(run_id, caller)
        found = await loading.history(self._broker, run_id, after=after, limit=limit + 1, archives=self._archives)
        if not found.entries and not found.archived and await self._broker.journal.last(run_id) is None:
            await self._queued(run_id)
        blobs = self._broker.blobs()
        page = [(entry.seq, await records.decode(entry, blobs)) for entry in found.entries[:limit]]
        return page, page[-1][0] if len(found.entries) > limit else None


def _said(state: RunState) -> list[Any]:
    """Every value of a run."""
    steps = [(step.input, step.output, step.previous) for step in state.steps.values()]
    parts = [part for step in steps for part in step] + [signal.data for signal in state.signals]
    return [state.input, state.output, *parts]


def _check(wish: Start) -> None:
    if not names.is_token(wish.workflow):
        raise NotFoundError("there is no such workflow")
    if not strict_json.is_flat(wish.input):
        raise InvalidRequestError("input: it is nested too deeply")
    if blobref.mentions_blob(wish.input):
        raise InvalidRequestError(f"input: the key {blobref.KEY} is not for callers")
    run_api.check_labels(wish.labels)


def _calls(document: Mapping[str, Any]) -> list[str]:
    """The workflows that a definition's steps call, each once, in order."""
    called = [step["sub_workflow"]["workflow"] for step in document["steps"] if "sub_workflow" in step]
    return list(dict.fromkeys(called))


def _fingerprint(wish: Start) -> str:
    """What must be the same for a key to mean the same run. Without labels it is what it was before there were any."""
    said = {"input": wish.input} | ({"labels": dict(wish.labels)} if wish.labels else {})
    return hashlib.sha256(blobref.encode(said)).hexdigest()


def _claim_key(wish: Start, tenant: str) -> str:
    """A tenant's keys are its own. The default one's lie where they did before there were others."""
    key = hashlib.sha256(f"{wish.workflow}\n{wish.idempotency_key}".encode()).hexdigest()
    return key if tenant == DEFAULT_TENANT else f"{tenant}.{key}"
