"""Sessions, from their callers' side. Every call goes to the worker that keeps the session, and can be made again: that
is what happens, for a while, when a stream breaks under it."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from fumehood.control.callers import Caller
from fumehood.control.console.directory import SessionDirectory
from fumehood.control.console.exchange import Asked, Exchange
from fumehood.control.console.places import Found, Kept, Place, bounded
from fumehood.control.console.placing import AGAIN_SECONDS, Choose, Placing
from fumehood.control.console.presence import Entry, Presence
from fumehood.control.console.routing import Routing
from fumehood.errors import CommandFailedError, NotFoundError
from fumehood.wire import receipts
from fumehood.wire.console import sessions as wire
from fumehood.wire.console.codes import Reason
from fumehood.wire.console.console_pb2 import Dispatch, Result
from fumehood.wire.console.sessions import CallModel, Method
from fumehood.wire.sandbox import NetworkProfile

CALL_SECONDS: Final = 30.0
"""For one call that does not wait for news; a worker does most of them in milliseconds."""
CREATE_SECONDS: Final = 180.0
"""An image may have to be fetched first."""
RETRIES_SECONDS: Final = 10.0
"""That a call is made again for, after its stream broke: a worker is back within 5."""
PAUSE_SECONDS: Final = 0.1

FULL_PAUSE_SECONDS: Final = 0.5
"""Between two tries of a call that waits for news, at a worker where too many wait."""
UNPRINTED_SECONDS: Final = 0.5
"""Before it is said that nothing was printed by a command that no worker has yet."""

_TRANSIENT: Final = frozenset({Reason.WORKER_LOST, Reason.WORKER_REPLACED})

_MAKING: Final = frozenset({Method.START, Method.CREATE})
"""Calls that make something: a refusal of the second try does not undo the first."""

_ONLY_WAIT: Final = frozenset({Method.OUTPUT, Method.COMMAND})
"""Calls that wait for news. Workers share their places for these out, so that there may be one soon."""

A = TypeVar("A", bound=CallModel)


@dataclass(frozen=True, slots=True)
class SandboxParts:
    presence: Presence
    exchange: Exchange
    placing: Placing
    directory: SessionDirectory
    now_ms: Callable[[], int]


@dataclass(frozen=True, slots=True)
class _Ask:
    """A call, whoever it goes to."""

    caller: Caller
    method: Method
    request: CallModel
    data: bytes = b""
    seconds: float = CALL_SECONDS
    for_receipt: bool = False
    """What comes with the answer is the receipt, and not its data."""


class Sandboxes:
    def __init__(self, parts: SandboxParts) -> None:
        self._parts = parts
        self._routing = Routing(parts.directory, parts.placing, parts.presence, now_ms=parts.now_ms)

    # --- sessions ------------------------------------------------------------------------------------------

    async def create(self, caller: Caller, request: wire.CreateSession) -> wire.SessionView:
        """On any worker that has room. The same name again is the same session."""
        found = await self._routing.place(caller.tenant, request.session_id)
        ask = _Ask(caller, Method.CREATE, request, seconds=CREATE_SECONDS)
        if found is None or found.place.is_claim:
            return await self._create(ask, request.session_id)
        view, _ = await self._at(found.place.worker, ask, wire.SessionView)
        return await self._noted(caller.tenant, found.place.worker, view)

    async def _create(self, ask: _Ask, session_id: str) -> wire.SessionView:
        """One worker after the other, while they say that they are full. Where others make it, at theirs: then one lets
        go of it, and comes back to wherever they have moved on to."""
        tenant, token, full = ask.caller.tenant, secrets.token_hex(8), set[str]()
        give_up = asyncio.get_running_loop().time() + RETRIES_SECONDS
        while (worker := self._roomiest(full)) is not None and asyncio.get_running_loop().time() < give_up:
            place = await self._parts.directory.claim(
                tenant, session_id, worker.worker_id, token=token, is_stale=self._routing.is_stale
            )
            if place.worker in full:
                await self._parts.directory.release(tenant, session_id, token)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            try:
                view, _ = await self._at(place.worker, ask, wire.SessionView)
            except CommandFailedError as error:
                if error.reason == Reason.NO_CAPACITY:
                    full.add(place.worker)
                    continue
                await self._parts.directory.release(tenant, session_id, token, sure=error.reason not in _TRANSIENT)
                raise
            return await self._noted(tenant, place.worker, view)
        await self._parts.directory.release(tenant, session_id, token)
        raise _no_room(any_there=bool(full))

    def _roomiest(self, full: set[str]) -> Entry | None:
        """Whoever keeps the fewest, of those that did not say that they are full."""
        able = [one for one in self._parts.placing.able_workers(Method.CREATE) if one.worker_id not in full]
        random.shuffle(able)
        return min(able, key=lambda one: self._parts.directory.count_of(one.worker_id), default=None)

    async def list(self, caller: Caller) -> Sequence[wire.SessionView]:
        """What is known of them without asking their workers, oldest first."""
        kept = await self._parts.directory.list(caller.tenant)
        return sorted((_listed(one) for one in kept), key=lambda one: (one.created_unix_ms, one.session_id))

    async def get(self, caller: Caller, request: wire.SessionRef) -> wire.SessionView:
        view, _, worker = await self._ask_worker(
            _Ask(caller, Method.SHOW, request), request.session_id, wire.SessionView
        )
        return _viewed(view, _place_of(worker, view, self._parts.now_ms()))

    async def extend(self, caller: Caller, request: wire.ExtendSession) -> wire.SessionView:
        ask = _Ask(caller, Method.EXTEND, request)
        view, _, worker = await self._ask_worker(ask, request.session_id, wire.SessionView)
        return await self._noted(caller.tenant, worker, view)

    async def remove(self, caller: Caller, request: wire.RemoveSession) -> wire.Done:
        """Nothing of it is left when this returns."""
        found = await self._found(caller, request.session_id)
        done, _ = await self._at(found.place.worker, _Ask(caller, Method.REMOVE, request), wire.Done)
        if not found.place.is_claim:
            await self._parts.directory.drop(caller.tenant, request.session_id, found)
        return done

    # --- commands ------------------------------------------------------------------------------------------

    async def start(self, caller: Caller, request: wire.StartCommand) -> tuple[wire.CommandView, bytes]:
        """With what it printed, if it ended within `request.wait_ms` and printed little."""
        ask = _Ask(caller, Method.START, request, seconds=CALL_SECONDS + request.wait_ms / 1000)
        return await self._ask_data(ask, request.session_id, wire.CommandView)

    async def command(self, caller: Caller, request: wire.AskCommand) -> wire.CommandView:
        ask = _Ask(caller, Method.COMMAND, request, seconds=CALL_SECONDS + request.wait_ms / 1000)
        return await self._ask(ask, request.session_id, wire.CommandView)

    async def receipt(self, caller: Caller, request: wire.CommandRef) -> dict[str, Any]:
        """What its worker signed about the end of a command."""
        asked = wire.AskCommand(session_id=request.session_id, command_id=request.command_id)
        ask = _Ask(caller, Method.COMMAND, asked, for_receipt=True)
        view, signed = await self._ask_data(ask, request.session_id, wire.CommandView)
        if view.status is wire.CommandStatus.RUNNING:
            raise NotFoundError("this command has not ended, so that there is no receipt yet")
        found = receipts.decoded(signed)
        if found is None:
            raise NotFoundError("its worker signed nothing about this command: it is of a version without receipts")
        return found

    async def commands(self, caller: Caller, request: wire.SessionRef) -> wire.CommandViews:
        return await self._ask(_Ask(caller, Method.COMMANDS, request), request.session_id, wire.CommandViews)

    async def output(self, caller: Caller, request: wire.AskOutput) -> tuple[wire.Output, bytes]:
        assert request.session_id is not None
        ask = _Ask(caller, Method.OUTPUT, request, seconds=CALL_SECONDS + request.wait_ms / 1000)
        return await self._ask_data(ask, request.session_id, wire.Output)

    async def output_at(self, caller: Caller, worker: str, request: wire.AskOutput) -> tuple[wire.Output, bytes]:
        """Of a command that belongs to no session that the caller could name. One that no worker has prints nothing."""
        if not worker:
            await asyncio.sleep(min(request.wait_ms / 1000, UNPRINTED_SECONDS))
            return wire.Output(), b""
        ask = _Ask(caller, Method.OUTPUT, request, seconds=CALL_SECONDS + request.wait_ms / 1000)
        return await self._at(worker, ask, wire.Output)

    async def input(self, caller: Caller, request: wire.SendInput, data: bytes) -> wire.InputTaken:
        return await self._ask(_Ask(caller, Method.INPUT, request, data), request.session_id, wire.InputTaken)

    async def resize(self, caller: Caller, request: wire.ResizeTerminal) -> wire.Done:
        return await self._ask(_Ask(caller, Method.RESIZE, request), request.session_id, wire.Done)

    async def signal(self, caller: Caller, request: wire.SendSignal) -> wire.Done:
        return await self._ask(_Ask(caller, Method.SIGNAL, request), request.session_id, wire.Done)

    # --- files ---------------------------------------------------------------------------------------------

    async def read_file(self, caller: Caller, request: wire.ReadFile) -> tuple[wire.FilePiece, bytes]:
        return await self._ask_data(_Ask(caller, Method.READ_FILE, request), request.session_id, wire.FilePiece)

    async def write_file(self, caller: Caller, request: wire.WriteFile, data: bytes) -> wire.Written:
        return await self._ask(_Ask(caller, Method.WRITE_FILE, request, data), request.session_id, wire.Written)

    async def list_files(self, caller: Caller, request: wire.FileRef) -> wire.FileViews:
        return await self._ask(_Ask(caller, Method.LIST_FILES, request), request.session_id, wire.FileViews)

    async def stat_file(self, caller: Caller, request: wire.FileRef) -> wire.FileView:
        return await self._ask(_Ask(caller, Method.STAT_FILE, request), request.session_id, wire.FileView)

    async def remove_file(self, caller: Caller, request: wire.RemoveFile) -> wire.Done:
        return await self._ask(_Ask(caller, Method.REMOVE_FILE, request), request.session_id, wire.Done)

    async def make_folder(self, caller: Caller, request: wire.MakeFolder) -> wire.Done:
        return await self._ask(_Ask(caller, Method.MAKE_FOLDER, request), request.session_id, wire.Done)

    # --- calls ---------------------------------------------------------------------------------------------

    async def _ask(self, ask: _Ask, session_id: str, answer: type[A]) -> A:
        return (await self._ask_data(ask, session_id, answer))[0]

    async def _ask_data(self, ask: _Ask, session_id: str, answer: type[A]) -> tuple[A, bytes]:
        said, data, _ = await self._ask_worker(ask, session_id, answer)
        return said, data

    async def _ask_worker(self, ask: _Ask, session_id: str, answer: type[A]) -> tuple[A, bytes, str]:
        """Also who said it: the worker that keeps the session."""
        found = await self._found(ask.caller, session_id)
        try:
            said, data = await self._at(found.place.worker, ask, answer)
        except CommandFailedError as error:
            if error.reason == Reason.SESSION_NOT_FOUND and not found.place.is_claim:
                await self._parts.directory.drop(ask.caller.tenant, session_id, found)
            raise
        return said, data, found.place.worker

    async def _found(self, caller: Caller, session_id: str) -> Found:
        found = await self._routing.place(caller.tenant, session_id)
        if found is None:
            raise CommandFailedError(Reason.SESSION_NOT_FOUND, "there is no such session: it may have run out")
        return found

    async def _at(self, worker: str, ask: _Ask, answer: type[A]) -> tuple[A, bytes]:
        """Ask the worker that has it, through as many streams as that takes in a while. What may have been made when a
        stream broke is not refused afterwards: the answer is that the worker was lost."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + RETRIES_SECONDS
        lost: CommandFailedError | None = None
        while True:
            try:
                result = await self._once(self._parts.placing.only(worker), ask)
                return _read(result, answer), (result.receipt if ask.for_receipt else result.data)
            except CommandFailedError as error:
                has_turn_soon = error.reason == Reason.NO_CAPACITY and ask.method in _ONLY_WAIT
                if not (error.reason in _TRANSIENT or has_turn_soon) or loop.time() > give_up:
                    raise (lost or error) from None
                if ask.method in _MAKING:
                    lost = lost or error
                pause = FULL_PAUSE_SECONDS if has_turn_soon else PAUSE_SECONDS
            await asyncio.sleep(pause)

    async def _once(self, choose: Choose, ask: _Ask) -> Result:
        """One call over one stream. Its end is its result, or the end of the stream."""
        dispatch = Dispatch(
            command_id=f"call-{secrets.token_hex(12)}",
            capability=ask.method,
            payload_json=ask.request.model_dump_json(exclude_unset=True).encode(),
            data=ask.data,
            timeout_ms=int(ask.seconds * 1000),
            owner=ask.caller.tenant,
        )
        with self._parts.exchange.asking(dispatch) as asked:
            try:
                return await self._answer(asked, await self._placed(asked, choose), ask.seconds)
            except asyncio.CancelledError:  # who asked is gone: a worker that has it need not go on
                if asked.worker_id:
                    self._parts.exchange.cancel(dispatch.command_id)
                raise

    async def _placed(self, asked: Asked, choose: Choose) -> Entry:
        try:
            return await self._parts.placing.place(asked, choose, RETRIES_SECONDS)
        except CommandFailedError as error:
            if error.reason != Reason.NO_WORKER:
                raise
            raise CommandFailedError(
                Reason.WORKER_LOST, "the worker that keeps this session is away: try again later"
            ) from None

    async def _answer(self, asked: Asked, entry: Entry, seconds: float) -> Result:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not asked.answer.done():
            now = self._parts.presence.of(entry.worker_id)
            if asked.refused or now is None or now.epoch != entry.epoch:
                raise CommandFailedError(Reason.WORKER_LOST, "the worker's connection broke")
            if loop.time() > deadline:
                self._parts.exchange.cancel(asked.dispatch.command_id)
                raise CommandFailedError(Reason.WORKER_LOST, "the worker does not answer")
            asked.news.clear()
            try:
                async with asyncio.timeout(min(AGAIN_SECONDS, seconds)):
                    await asked.news.wait()
            except TimeoutError:
                continue
        answer = asked.answer.result()
        result = answer if isinstance(answer, Result) else await self._parts.exchange.result(answer)
        if result.WhichOneof("end") == "error":
            raise CommandFailedError(result.error.code, result.error.message)
        return result

    async def _noted(self, tenant: str, worker: str, view: wire.SessionView) -> wire.SessionView:
        """In the directory, before anybody is told."""
        place = _place_of(worker, view, self._parts.now_ms())
        stands = await self._parts.directory.note(tenant, view.session_id, place)
        if stands.worker != worker:
            raise CommandFailedError(
                Reason.WORKER_REPLACED, "its worker was away for long, and another one makes this session: try again"
            )
        return _viewed(view, place)


def _place_of(worker: str, view: wire.SessionView, now_ms: int) -> Place:
    said = Place(
        worker=worker,
        lease_expires_ms=view.lease_expires_unix_ms,
        created_ms=view.created_unix_ms,
        image=view.image,
        image_digest=view.image_digest,
        network=view.network,
        runtime=view.runtime,
    )
    return bounded(said, now_ms)


def _viewed(view: wire.SessionView, place: Place) -> wire.SessionView:
    """What a worker said of a session, as far as that is believed."""
    return view.model_copy(update=_facts(place))


def _listed(kept: Kept) -> wire.SessionView:
    return wire.SessionView(session_id=kept.session_id, **_facts(kept.place))


def _facts(place: Place) -> dict[str, Any]:
    return {
        "image": place.image,
        "image_digest": place.image_digest,
        "created_unix_ms": place.created_ms,
        "lease_expires_unix_ms": place.lease_expires_ms,
        "network": NetworkProfile(place.network or NetworkProfile.DENY_ALL),
        "runtime": place.runtime,
        "worker": place.worker,
    }


def _no_room(*, any_there: bool) -> CommandFailedError:
    if any_there:
        return CommandFailedError(
            Reason.NO_CAPACITY, "every worker keeps as many sessions as it can: end one, or try again later"
        )
    return CommandFailedError(
        Reason.NO_WORKER, "no worker that keeps sessions is connected: start one (`fumehood worker docker`)"
    )


def _read(result: Result, answer: type[A]) -> A:
    try:
        return answer.model_validate_json(result.payload_json)
    except ValidationError as error:
        raise CommandFailedError(Reason.EXECUTION_FAILED, "the worker's answer is none that we know") from error
