"""Which worker a command belongs to: the one that keeps the session it names, or any."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import structlog

from fumehood.broker import names
from fumehood.control.console.directory import SessionDirectory
from fumehood.control.console.places import Found, Place
from fumehood.control.console.placing import Choose, Offers, Placing
from fumehood.control.console.presence import Entry, Presence
from fumehood.control.console.record import Record
from fumehood.errors import BrokerError, CommandFailedError
from fumehood.wire.command_api import CommandStatus
from fumehood.wire.console.codes import Capability, Reason
from fumehood.wire.console.console_pb2 import Dispatch, Result

MOST_SEEN = 4096
"""Places that are remembered for commands under way. Beyond, a session that is no more is found out a little later."""
_PATIENCE_SECONDS = 10.0
"""For a worker that is away to come back: it does within five."""
_NOBODY = ""
_WITH_SESSIONS = frozenset({Capability.TERMINAL_EXEC, Capability.TERMINAL_RESOURCE})
_UNSURE = frozenset({Reason.EXECUTION_FAILED, Reason.WORKER_LOST})
"""Ends after which there may be a session all the same."""


@dataclass(frozen=True, slots=True)
class Away:
    """Who cannot be expected back any more."""

    presence: Presence
    now_ms: Callable[[], int]

    def is_stale(self, place: Place) -> bool:
        """Whether nothing can be there any more, nor come of it: its worker is away, and its lease is over, or was
        never told."""
        return place.lease_expires_ms <= self.now_ms() and self._is_away(place.worker)

    def _is_away(self, worker: str) -> bool:
        """For longer than it takes to come back; or for as long as this server can tell."""
        if not self.presence.whole or self.presence.of(worker) is not None:
            return False
        longest = self.presence.away_seconds(_NOBODY)
        return self.presence.away_seconds(worker) >= min(longest, _PATIENCE_SECONDS)


class Routing:
    def __init__(
        self, directory: SessionDirectory, placing: Placing, presence: Presence, *, now_ms: Callable[[], int]
    ) -> None:
        self._directory = directory
        self._placing = placing
        self._presence = presence
        self._now_ms = now_ms
        self._seen: dict[str, Found] = {}
        self.is_stale = Away(presence, now_ms).is_stale

    async def of(self, dispatch: Dispatch) -> Choose:
        """Whom to offer it to. Raises `session_not_found` where it names a session that the caller does not have."""
        session_id, creates = named_session(dispatch)
        if session_id is None or (creates and not names.is_token(session_id)):
            return self._placing.anyone(dispatch.capability)  # no session can have this name: the worker says so
        found = await self.place(dispatch.owner, session_id)
        if creates and (found is None or found.place.is_claim):
            return self._claiming(dispatch, session_id)
        if found is None:
            raise CommandFailedError(Reason.SESSION_NOT_FOUND, "there is no such session")
        self._remember(dispatch.command_id, found)
        return self._at(found.place.worker)

    async def place(self, tenant: str, session_id: str) -> Found | None:
        """Where it is; None, also where it can be nowhere any more."""
        found = await self._directory.find(tenant, session_id)
        return None if found is None or self.is_stale(found.place) else found

    def _remember(self, command_id: str, found: Found) -> None:
        self._seen[command_id] = found
        if len(self._seen) > MOST_SEEN:
            del self._seen[next(iter(self._seen))]

    def _at(self, worker: str) -> Choose:
        only = self._placing.only(worker)

        async def choose() -> Offers:
            if self._presence.away_seconds(worker) > _PATIENCE_SECONDS:
                raise CommandFailedError(
                    Reason.WORKER_LOST, "the worker that keeps this session is away: try again later"
                )
            return await only()

        return choose

    # --- sessions that are about to be made ----------------------------------------------------------------

    def _claiming(self, dispatch: Dispatch, session_id: str) -> Choose:
        """A worker for a new session, claimed before it is asked. Whoever comes second goes to the worker of the first,
        and waits for it."""

        async def choose() -> Offers:
            return self._claimed(dispatch, session_id)

        return choose

    async def _claimed(self, dispatch: Dispatch, session_id: str) -> AsyncIterator[Entry]:
        """The next one is asked for when the one before has refused, for certain: so the claim may move on. It goes
        nowhere for nothing: not to those that just said that they are full, unless all did."""
        able, asked = list(self._placing.spread(dispatch.capability)), set[str]()
        with_room = [one for one in able if self._placing.may_have_room(one, dispatch.capability)]
        for entry in with_room or able[:1]:
            if entry.worker_id in asked:
                continue
            place = await self._directory.claim(
                dispatch.owner, session_id, entry.worker_id, token=dispatch.command_id, is_stale=self.is_stale
            )
            at = self._presence.of(place.worker)
            if at is not None and place.worker not in asked:
                yield at
            asked.add(place.worker)
            if place.worker != entry.worker_id:  # others make it there, and move it if they are alone with it
                await self._directory.release(dispatch.owner, session_id, dispatch.command_id)
                return

    async def abandoned(self, dispatch: Dispatch) -> None:
        """No worker took it. Why not is told, also where the broker is away: a claim goes by itself."""
        self._seen.pop(dispatch.command_id, None)
        session_id, creates = named_session(dispatch)
        if creates and session_id is not None and names.is_token(session_id):
            with _logged(dispatch):
                await self._directory.release(dispatch.owner, session_id, dispatch.command_id)

    # --- ends ----------------------------------------------------------------------------------------------

    async def noted(self, dispatch: Dispatch, record: Record, result: Result | None) -> None:
        """What the end of a command says about its session, before its caller is told: the next command finds it. The
        end is stored, and told, also where the broker is away now: then the worker's heartbeat says where it is."""
        seen = self._seen.pop(dispatch.command_id, None)
        if dispatch.capability in _WITH_SESSIONS and record.worker:
            with _logged(dispatch):
                await self._note(dispatch, record, result, seen)

    async def _note(self, dispatch: Dispatch, record: Record, result: Result | None, seen: Found | None) -> None:
        session_id, creates = named_session(dispatch)
        if record.status is CommandStatus.SUCCEEDED:
            if result is not None and dispatch.capability == Capability.TERMINAL_EXEC:
                await self._kept(dispatch.owner, record.worker, session_id, result)
            return
        if session_id is None or not names.is_token(session_id):
            return
        if creates and seen is None:
            sure = record.reason not in _UNSURE
            await self._directory.release(dispatch.owner, session_id, dispatch.command_id, sure=sure)
        elif seen is not None and _has_no_session(dispatch, record):
            await self._directory.drop(dispatch.owner, session_id, seen)

    async def _kept(self, tenant: str, worker: str, named: str | None, result: Result) -> None:
        """A worker chooses a session's name where the command named none, and only there."""
        said = _document(result.payload_json)
        session_id, lease = said.get("session_id"), said.get("lease_expires_unix_ms")
        if not (isinstance(session_id, str) and names.is_token(session_id) and isinstance(lease, int)):
            return
        if named not in (None, session_id):
            return
        created = self._now_ms() if said.get("created") is True else 0
        said_place = Place(worker=worker, lease_expires_ms=lease, created_ms=created)
        stands = await self._directory.note(tenant, session_id, said_place)
        if stands.worker != worker:
            log = structlog.get_logger()
            log.warning("session.elsewhere", tenant=tenant, session_id=session_id, worker_id=worker)


@contextlib.contextmanager
def _logged(dispatch: Dispatch) -> Iterator[None]:
    try:
        yield
    except BrokerError as error:
        structlog.get_logger().warning("session.not_noted", command_id=dispatch.command_id, code=error.code)


def _has_no_session(dispatch: Dispatch, record: Record) -> bool:
    """A terminal command that ran out of time takes its session along."""
    if record.reason == Reason.SESSION_NOT_FOUND:
        return True
    return dispatch.capability == Capability.TERMINAL_EXEC and record.reason == Reason.DEADLINE_EXCEEDED


def named_session(dispatch: Dispatch) -> tuple[str | None, bool]:
    """The session that a command names, and whether it may be made. What makes no sense is the worker's to refuse."""
    if dispatch.capability not in _WITH_SESSIONS:
        return None, False
    said = _document(dispatch.payload_json)
    session_id = said.get("session_id")
    if not isinstance(session_id, str) or not session_id:
        return None, False
    return session_id, dispatch.capability == Capability.TERMINAL_EXEC and said.get("create_if_missing") is True


def _document(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
