"""Commands of workers, from their callers' side: submit, ask, cancel, read what they print.

A command has a record from the moment that a worker took it; one that was given a key, from the beginning. The server
that it was submitted to sees it through. Should that one die, the worker goes on, whoever holds its stream stores the
end, and any server can tell it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from typing import Any, Final

import structlog

from fumehood.control.callers import Caller
from fumehood.control.console.journey import Journey, JourneyParts
from fumehood.control.console.judge import SENTENCES
from fumehood.control.console.ports_http import CommandWish
from fumehood.control.console.record import Fate, Record, is_overdue
from fumehood.control.console.sandboxes import Sandboxes
from fumehood.errors import CommandFailedError, ConflictError, DrainingError, KeyConflictError, NotFoundError
from fumehood.wire import receipts
from fumehood.wire.command_api import CommandStatus
from fumehood.wire.console.codes import SESSION_CALL, Reason
from fumehood.wire.console.console_pb2 import Dispatch
from fumehood.wire.console.sessions import AskOutput, Output

CANCEL_SECONDS: Final = 5.0
"""That a cancelling waits for the end."""
POLL_SECONDS: Final = 0.1
MOST_RESULT: Final = 48 * 1024 * 1024
UNSIGNED: Final = "no worker signed how this command ended: it was lost, or is of a version that gives no receipts"
QUEUED_SECONDS: Final = 120.0
"""Longer than anybody waits for room."""
UNKNOWN: Final = "the server that had it went away, and nobody told how it ended; nothing of it runs any more"


class Commands:
    def __init__(self, parts: JourneyParts, sandboxes: Sandboxes) -> None:
        self._parts = parts
        self._sandboxes = sandboxes
        self._under_way: dict[str, tuple[Journey, asyncio.Task[Record]]] = {}
        parts.exchange.cancelling.append(self._cancelled)

    # --- submitting ----------------------------------------------------------------------------------------

    async def submit(self, wish: CommandWish, caller: Caller) -> Record:
        """Its record: ended, or running where it did not end in time. Raises `CommandFailedError` where no worker took
        it: nothing of it runs then."""
        if wish.capability.startswith(SESSION_CALL):
            raise CommandFailedError(Reason.UNSUPPORTED_CAPABILITY, "sessions are asked under /v1/sandboxes")
        record, revision = _record(wish, caller, self._parts.now_ms()), 0
        if wish.idempotency_key is not None:
            command_id = await self._parts.finisher.named(record.key, record.command_id)
            record = record.model_copy(update={"command_id": command_id})
            try:
                revision = await self._parts.finisher.create(record)
            except KeyConflictError:
                return await self._again(record, wish, caller)
        return await self._waited(self._began(wish, record, revision), wish.wait_ms / 1000)

    async def _again(self, record: Record, wish: CommandWish, caller: Caller) -> Record:
        """A key that was used before."""
        known, _ = await self._found(record.command_id, caller)
        if known.request_sha256 != record.request_sha256:
            raise ConflictError("this idempotency key was used before, for another command")
        return await self.get(known.command_id, caller, wait_ms=wish.wait_ms)

    def _began(self, wish: CommandWish, record: Record, revision: int) -> tuple[Journey, asyncio.Task[Record]]:
        dispatch = Dispatch(
            command_id=record.command_id,
            capability=wish.capability,
            payload_json=wish.payload_json,
            timeout_ms=wish.timeout_ms,
            owner=record.tenant,
            traceparent=wish.traceparent or "",
        )
        journey = Journey(self._parts, dispatch, record, revision, wish.wait_ms / 1000)
        task = asyncio.create_task(journey.run(), name=record.command_id)
        self._under_way[record.command_id] = journey, task
        task.add_done_callback(lambda done: self._over(record.command_id, done))
        return journey, task

    async def _waited(self, under_way: tuple[Journey, asyncio.Task[Record]], seconds: float) -> Record:
        """As it stands when it has ended, or when the time is over and somebody has it."""
        journey, task = under_way
        began = asyncio.get_running_loop().time()
        either: set[asyncio.Future[Any]] = {task, journey.placed}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            left = seconds - (asyncio.get_running_loop().time() - began)
            await asyncio.wait({task}, timeout=max(0.0, left))
        if task.cancelled():
            raise DrainingError("this server is shutting down: ask another one", retry_after_seconds=1)
        return await self._whole(task.result()) if task.done() else journey.record

    def _over(self, command_id: str, task: asyncio.Task[Record]) -> None:
        self._under_way.pop(command_id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            code = error.reason if isinstance(error, CommandFailedError) else type(error).__name__
            _log().info("command.not_done", command_id=command_id, code=code)

    def _cancelled(self, command_id: str) -> None:
        under_way = self._under_way.get(command_id)
        if under_way is not None:
            under_way[0].cancelled = True

    # --- asking --------------------------------------------------------------------------------------------

    async def get(self, command_id: str, caller: Caller, *, wait_ms: int = 0) -> Record:
        """How it stands; with `wait_ms`, as soon as it has ended or the time is over."""
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        while True:
            record = await self._judged(await self._found(command_id, caller))
            left = deadline - asyncio.get_running_loop().time()
            if record.status.ended or left <= 0:
                return await self._whole(record)
            under_way = self._under_way.get(command_id)
            if under_way is not None:
                await asyncio.wait({under_way[1]}, timeout=left)
            else:
                await asyncio.sleep(min(POLL_SECONDS, left))

    async def _found(self, command_id: str, caller: Caller) -> tuple[Record, int]:
        found = await self._parts.finisher.get(command_id)
        if found is None or found[0].tenant != caller.tenant:
            raise CommandFailedError(
                Reason.COMMAND_NOT_FOUND, "there is no such command: it may have been forgotten, an hour after its end"
            )
        return found

    async def _judged(self, found: tuple[Record, int]) -> Record:
        """The record of one that nobody sees through any more: what can be said of it is said when somebody asks."""
        record, revision = found
        if record.status.ended or record.command_id in self._under_way:
            return record
        if record.status is CommandStatus.QUEUED:
            if not is_overdue(record, self._parts.now_ms() - int(QUEUED_SECONDS * 1000)):
                return record  # a worker may have taken it whose name its server did not live to write down
            return await self._parts.finisher.fail(record, revision, Reason.WORKER_LOST, UNKNOWN)
        said = await self._parts.judge.fate(record)
        return record if said is Fate.WAIT else await self._parts.finisher.fail(record, revision, said, SENTENCES[said])

    async def _whole(self, record: Record) -> Record:
        """With its result, wherever that lies."""
        if record.result_ref is None:
            return record
        content = await self._parts.finisher.content(record, limit=MOST_RESULT)
        return record.model_copy(update={"result_json": content.decode() if content is not None else None})

    async def output(
        self, command_id: str, caller: Caller, stdout: int, stderr: int, wait_ms: int
    ) -> tuple[Output, bytes]:
        """What it prints, from its worker. `COMMAND_NOT_FOUND` where that has none of it (any more)."""
        record, _ = await self._found(command_id, caller)
        asked = AskOutput(command_id=command_id, stdout=stdout, stderr=stderr, wait_ms=wait_ms)
        return await self._sandboxes.output_at(caller, record.worker, asked)

    async def receipt(self, command_id: str, caller: Caller) -> dict[str, Any]:
        """What its worker signed. `NotFoundError` where nobody signed anything, or not yet."""
        record = await self._judged(await self._found(command_id, caller))
        if not record.status.ended:
            raise NotFoundError("this command has not ended, so that there is no receipt yet")
        found = receipts.decoded(record.receipt.encode())
        if found is None:
            raise NotFoundError(UNSIGNED)
        return found

    async def cancel(self, command_id: str, caller: Caller) -> Record:
        """Have it ended, and wait a while for that. One that has ended stays as it is."""
        record, revision = await self._found(command_id, caller)
        record, _ = await self._parts.finisher.change(
            record, revision, lambda one: None if one.cancelled else one.model_copy(update={"cancelled": True})
        )
        if record.status.ended:
            return await self._whole(record)
        self._parts.exchange.cancel(command_id)
        return await self.get(command_id, caller, wait_ms=int(CANCEL_SECONDS * 1000))

    async def close(self) -> None:
        """Let go. Workers go on with what they have."""
        tasks = [task for _, task in self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _record(wish: CommandWish, caller: Caller, now_ms: int) -> Record:
    return Record(
        command_id=f"cmd-{secrets.token_hex(16)}",
        tenant=caller.tenant,
        by=caller.name,
        capability=wish.capability,
        status=CommandStatus.QUEUED,
        created_ms=now_ms,
        timeout_ms=wish.timeout_ms,
        dispatched_ms=now_ms,
        key=_key(wish, caller),
        request_sha256=_request(wish) if wish.idempotency_key is not None else "",
    )


def _key(wish: CommandWish, caller: Caller) -> str:
    if wish.idempotency_key is None:
        return ""
    return "key-" + hashlib.sha256(json.dumps([caller.tenant, wish.idempotency_key]).encode()).hexdigest()


def _request(wish: CommandWish) -> str:
    said = json.dumps([wish.capability, wish.timeout_ms]).encode()
    return hashlib.sha256(said + b"\0" + wish.payload_json).hexdigest()


def _log() -> structlog.stdlib.BoundLogger:
    return structlog.get_logger()  # type: ignore[no-any-return]
