"""Commands of workers over HTTP: submitted, waited for, asked about, cancelled, followed."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.callers import Caller
from fumehood.control.console.ports_http import CommandsPort, CommandWish
from fumehood.control.console.record import Record
from fumehood.control.http import schema
from fumehood.control.http.asked import agreed_key
from fumehood.control.http.callers import caller_of, note, note_unchanged
from fumehood.control.http.command_views import command_json, one_line
from fumehood.control.http.console_problems import COMMAND, FROM_A_WORKER, UNAVAILABLE, told
from fumehood.control.http.output_following import FOLLOWING, WAIT, Followers, accepted, followed, seen_in
from fumehood.control.http.queries import Query
from fumehood.control.http.receipts import DESCRIPTION, RECEIPT, answered
from fumehood.door.app import PlainRoute
from fumehood.door.bodies import JSON, check_media_type
from fumehood.door.schema import Responses
from fumehood.door.telemetry import current_traceparent
from fumehood.errors import CommandFailedError, InvalidRequestError, PayloadTooLargeError
from fumehood.wire import command_api, run_api, strict_json
from fumehood.wire.base import validate
from fumehood.wire.command_api import OutputPosition, SubmitCommandRequest
from fumehood.wire.console.codes import Reason
from fumehood.wire.console.sessions import CommandView, Output

PATHS = (
    command_api.COMMANDS_PATH,
    command_api.COMMAND_PATH,
    command_api.CANCEL_PATH,
    command_api.STREAM_PATH,
    command_api.RECEIPT_PATH,
)
MODELS: schema.Models = [
    (SubmitCommandRequest, "validation"),
    (command_api.CommandView, "serialization"),
    (command_api.CommandProblem, "serialization"),
    (command_api.OutputEvent, "serialization"),
]
NOT_PLACED = frozenset({Reason.NO_WORKER, Reason.NO_CAPACITY})
"""Nothing has happened: that is no answer about a command, but that there is none."""

_KEY = schema.in_header(
    run_api.IDEMPOTENCY_HEADER,
    "The same key and command again is the same command",
    {"type": "string", "minLength": 1, "maxLength": run_api.LONGEST_KEY},
)
_ACCEPTED = accepted("CommandView")
_SUBMITTED: Responses = {
    200: schema.answer("CommandView", "It has ended, well or not: `status` tells"),
    202: _ACCEPTED,
    **FROM_A_WORKER,
    404: told("session-not-found"),
}
_GET: Responses = {
    200: schema.answer("CommandView", "The command as it is now"),
    404: told("command-not-found"),
    503: UNAVAILABLE,
}
_SIGNED: Responses = {200: RECEIPT, 404: told("command-not-found", "not-found"), 503: UNAVAILABLE}
_CANCELLED: Responses = {
    200: schema.answer("CommandView", "It has ended; one that had ended before stays as it was"),
    202: _ACCEPTED,
    404: told("command-not-found"),
    503: UNAVAILABLE,
}


def commands_router(commands: CommandsPort, followers: Followers) -> APIRouter:
    router = APIRouter(tags=["commands"], route_class=PlainRoute)
    _submitting(router, commands)
    _asking(router, commands)
    _following(router, commands, followers)
    return router


def _submitting(router: APIRouter, commands: CommandsPort) -> None:
    @router.post(
        command_api.COMMANDS_PATH,
        **schema.operation(
            "submit_command",
            "Have a command done by a worker",
            _SUBMITTED,
            _KEY,
            body="SubmitCommandRequest",
            description="It waits for a worker with room, and then for its end, both within `wait_ms`. Where no worker "
            "takes it in that time, nothing has happened.",
        ),
    )
    async def submit(request: Request) -> Response:
        wish = await _wish(request)
        try:
            record = await commands.submit(wish, caller_of(request))
        except CommandFailedError as error:
            _in_vain(request, error)
            raise
        note(request, target=record.command_id, capability=record.capability)
        if record.reason in NOT_PLACED:
            raise CommandFailedError(str(record.reason), record.message)
        return _answered(record)


def _in_vain(request: Request, error: CommandFailedError) -> None:
    """What no worker took is nobody's deed."""
    if error.reason in NOT_PLACED:
        note_unchanged(request)


async def _wish(request: Request) -> CommandWish:
    """The payload's text goes on as it was written; it is read here only to know that it is one."""
    check_media_type(request)
    Query(request)
    members, texts = strict_json.loads_object(await request.body())
    asked = validate(SubmitCommandRequest, members)
    payload = texts["payload"].encode()
    if len(payload) > command_api.MAX_PAYLOAD_BYTES:
        raise PayloadTooLargeError(f"payload: must have at most {command_api.MAX_PAYLOAD_BYTES} bytes")
    if not strict_json.is_flat(asked.payload, command_api.DEEPEST_PAYLOAD):
        raise InvalidRequestError(f"payload: must have at most {command_api.DEEPEST_PAYLOAD} levels")
    return CommandWish(
        capability=asked.capability.value,
        payload_json=payload,
        timeout_ms=asked.timeout_ms,
        wait_ms=asked.wait_ms,
        idempotency_key=agreed_key(request, asked.idempotency_key),
        traceparent=current_traceparent(),
    )


def _answered(record: Record) -> Response:
    return Response(
        command_json(record),
        200 if record.status.ended else 202,
        None if record.status.ended else {"location": f"{command_api.COMMANDS_PATH}/{record.command_id}"},
        JSON,
    )


def _asking(router: APIRouter, commands: CommandsPort) -> None:
    @router.post(
        command_api.CANCEL_PATH,
        **schema.operation(
            "cancel_command",
            "End a command",
            _CANCELLED,
            COMMAND,
            description="Everything that it started is killed before it counts as ended.",
        ),
    )
    async def cancel(request: Request) -> Response:
        Query(request)
        return _answered(await commands.cancel(request.path_params["command_id"], caller_of(request)))

    @router.get(command_api.COMMAND_PATH, **schema.operation("get_command", "Show a command", _GET, COMMAND, WAIT))
    async def get(request: Request) -> Response:
        wait_ms = Query(request, ("wait_ms",)).number("wait_ms", 0, 0, command_api.LONGEST_WAIT_MS)
        record = await commands.get(request.path_params["command_id"], caller_of(request), wait_ms=wait_ms)
        return Response(command_json(record), media_type=JSON)

    @router.get(
        command_api.RECEIPT_PATH,
        **schema.operation(
            "get_command_receipt", "Read what the worker signed", _SIGNED, COMMAND, description=DESCRIPTION
        ),
    )
    async def receipt(request: Request) -> Response:
        Query(request)
        return answered(await commands.receipt(request.path_params["command_id"], caller_of(request)))


def _following(router: APIRouter, commands: CommandsPort, followers: Followers) -> None:
    @router.get(
        command_api.STREAM_PATH,
        **schema.operation(
            "follow_command",
            "Follow what a command prints",
            {**followed("CommandView"), 404: told("command-not-found")},
            COMMAND,
            *FOLLOWING,
            description="From its beginning, or behind what was seen. Of a command that prints nothing only its end is "
            "told.",
        ),
    )
    async def stream(request: Request) -> Response:
        position = seen_in(request)
        source = _Source(commands, request.path_params["command_id"], caller_of(request))
        record = await commands.get(source.command_id, source.caller)
        if position.ended and record.status.ended:
            return Response(status_code=204)
        return await followers.answer(request, source, position)


@dataclass(frozen=True, slots=True)
class _Source:
    """A command's output, from its worker as long as that has it."""

    commands: CommandsPort
    command_id: str
    caller: Caller

    async def output(self, position: OutputPosition, wait_ms: int) -> tuple[Output, bytes]:
        try:
            return await self.commands.output(self.command_id, self.caller, position.stdout, position.stderr, wait_ms)
        except CommandFailedError as error:
            if error.reason != Reason.COMMAND_NOT_FOUND:
                raise
            return await self._none(wait_ms)

    async def _none(self, wait_ms: int) -> tuple[Output, bytes]:
        """Nothing is printed (any more), or not yet: its end may still be waited for."""
        await self.commands.get(self.command_id, self.caller, wait_ms=min(wait_ms, _UNPRINTED_MS))
        return Output(), b""

    async def end(self, ended: CommandView | None) -> bytes | None:
        wait_ms = 0 if ended is None else _UNPRINTED_MS
        record = await self.commands.get(self.command_id, self.caller, wait_ms=wait_ms)
        return one_line(command_json(record)) if record.status.ended else None


_UNPRINTED_MS = 500
"""Between two looks whether a command that had nothing to show has something now."""
