"""Commands in sandboxes over HTTP: run, waited for, left running, followed, fed, resized, signalled."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.callers import Caller
from fumehood.control.console import running
from fumehood.control.console.output_streams import STREAM_PIECE_BYTES
from fumehood.control.console.ports_http import SandboxesPort
from fumehood.control.http import sandbox_views, schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.asked import body_of
from fumehood.control.http.callers import caller_of, note
from fumehood.control.http.command_views import one_line
from fumehood.control.http.console_problems import (
    COMMAND,
    FROM_A_WORKER,
    SANDBOX,
    command_id_of,
    session_id_of,
    told,
)
from fumehood.control.http.output_following import FARTHEST, FOLLOWING, WAIT, Followers, accepted, followed, seen_in
from fumehood.control.http.queries import Query
from fumehood.control.http.receipts import DESCRIPTION, RECEIPT, answered
from fumehood.door.app import PlainRoute
from fumehood.door.bodies import check_media_type
from fumehood.door.schema import REQUEST_ID, Responses
from fumehood.errors import InvalidRequestError, PayloadTooLargeError
from fumehood.wire import command_api, sandbox_api
from fumehood.wire.command_api import OutputPosition
from fumehood.wire.console import sessions as wire
from fumehood.wire.console.sessions import CommandStatus, CommandView
from fumehood.wire.sandbox_api import RunCommandRequest, SandboxCommandView, SignalCommandRequest, TerminalSize

PATHS = (
    sandbox_api.COMMANDS_PATH,
    sandbox_api.COMMAND_PATH,
    sandbox_api.OUTPUT_PATH,
    sandbox_api.RECEIPT_PATH,
    sandbox_api.STDIN_PATH,
    sandbox_api.RESIZE_PATH,
    sandbox_api.SIGNAL_PATH,
)
MODELS: schema.Models = [
    (RunCommandRequest, "validation"),
    (TerminalSize, "validation"),
    (SignalCommandRequest, "validation"),
    (SandboxCommandView, "serialization"),
    (sandbox_api.SandboxCommandList, "serialization"),
    (sandbox_api.StdinView, "serialization"),
]
OCTETS = "application/octet-stream"

_HERE: Responses = {404: told("session-not-found")}
_THERE: Responses = {404: told("session-not-found", "command-not-found")}
_RUN: Responses = {
    200: schema.answer("SandboxCommandView", "It has ended: `status` and `exit_code` tell how"),
    202: accepted("SandboxCommandView"),
    **FROM_A_WORKER,
    **_HERE,
}
_LIST: Responses = {200: schema.answer("SandboxCommandList", "Its commands"), **FROM_A_WORKER, **_HERE}
_GET: Responses = {200: schema.answer("SandboxCommandView", "The command as it is now"), **FROM_A_WORKER, **_THERE}
_SIGNED: Responses = {
    200: RECEIPT,
    **FROM_A_WORKER,
    404: told("session-not-found", "command-not-found", "not-found"),
}
_FOLLOWED: Responses = {**FROM_A_WORKER, **followed("SandboxCommandView"), **_THERE}
_FED: Responses = {200: schema.answer("StdinView", "How much of it was taken"), **FROM_A_WORKER, **_THERE}
_DONE: Responses = {204: {"description": "It was done", "headers": REQUEST_ID}, **FROM_A_WORKER, **_THERE}


def sandbox_commands_router(sandboxes: SandboxesPort, followers: Followers) -> APIRouter:
    router = APIRouter(tags=["sandboxes"], route_class=PlainRoute)
    _running(router, sandboxes)
    _handling(router, sandboxes)
    _asking(router, sandboxes)
    _following(router, sandboxes, followers)
    return router


# --- running -----------------------------------------------------------------------------------------------


def _running(router: APIRouter, sandboxes: SandboxesPort) -> None:
    @router.post(
        sandbox_api.COMMANDS_PATH,
        **schema.operation(
            "run_in_sandbox",
            "Run a command in a sandbox",
            _RUN,
            SANDBOX,
            body="RunCommandRequest",
            description="The answer waits for its end, up to `wait_ms`; the command itself goes on, whoever waits. "
            "Input that was not taken by then is where `stdin_bytes` says. With a `command_id` it can be asked for "
            "again, and runs once.",
        ),
    )
    async def run(request: Request) -> Response:
        session_id, asked = session_id_of(request), await body_of(RunCommandRequest, request)
        start = _start(session_id, asked)
        note(request, command_id=start.command_id)
        wait_ms = 0 if asked.background else asked.wait_ms
        caller = caller_of(request)
        view, output = await running.run(sandboxes, caller, start, _input(asked), wait_ms)
        # After a start, nothing else may fail: that would pass for a refusal of the start.
        shown = sandbox_views.command(view) if asked.background else await _shown(sandboxes, caller, view, output)
        if view.status is not CommandStatus.RUNNING:
            return json_answer(shown)
        accepted_ = json_answer(shown, 202)
        accepted_.headers["location"] = f"/v1/sandboxes/{session_id}/commands/{view.command_id}"
        return accepted_

    @router.get(
        sandbox_api.COMMANDS_PATH,
        **schema.operation("list_sandbox_commands", "List the commands of a sandbox", _LIST, SANDBOX),
    )
    async def listed(request: Request) -> Response:
        Query(request)
        found = await sandboxes.commands(caller_of(request), wire.SessionRef(session_id=session_id_of(request)))
        shown = [sandbox_views.command(view) for view in found.commands]
        return json_answer(sandbox_api.SandboxCommandList(commands=shown))


def _start(session_id: str, asked: RunCommandRequest) -> wire.StartCommand:
    is_shell = isinstance(asked.command, str)
    size = asked.terminal
    return wire.StartCommand(
        session_id=session_id,
        command_id=asked.command_id or f"cmd-{secrets.token_hex(16)}",
        argv=None if is_shell else tuple(asked.command),
        shell=asked.command if isinstance(asked.command, str) else None,
        cwd=asked.cwd,
        env=asked.env,
        timeout_ms=asked.timeout_ms or 0,
        terminal=None if size is None else wire.Terminal(rows=size.rows, columns=size.columns),
        stdin=asked.stdin,
    )


def _input(asked: RunCommandRequest) -> bytes | None:
    return None if asked.input is None and asked.input_base64 is None else asked.input_bytes


async def _shown(
    sandboxes: SandboxesPort, caller: Caller, view: CommandView, output: bytes = b""
) -> SandboxCommandView:
    if view.status is CommandStatus.RUNNING:
        return sandbox_views.command(view)
    printed = await running.printed(sandboxes, caller, view, sandbox_api.MAX_TEXT_BYTES, output)
    return sandbox_views.command(view, printed)


# --- input, size, signals ----------------------------------------------------------------------------------


def _handling(router: APIRouter, sandboxes: SandboxesPort) -> None:
    @router.post(
        sandbox_api.STDIN_PATH,
        **schema.raw_operation(
            "feed_sandbox_command",
            "Give input to a command",
            _FED,
            SANDBOX,
            COMMAND,
            schema.query(
                "offset",
                "How many bytes of input came before; of what was taken already, nothing counts twice",
                {"type": "integer", "minimum": 0, "maximum": FARTHEST},
                required=True,
            ),
            schema.query("eof", "Nothing comes behind it", {"type": "boolean", "default": False}),
            media_type=OCTETS,
            description=f"At most {sandbox_api.MAX_INPUT_BYTES} bytes at once. What could not be taken in time is to "
            "be sent again, from `stdin_bytes` on.",
        ),
    )
    async def feed(request: Request) -> Response:
        query = Query(request, ("offset", "eof"))
        if query.text("offset", 18) is None:
            raise InvalidRequestError("offset: is missing")
        asked = wire.SendInput(
            session_id=session_id_of(request),
            command_id=command_id_of(request),
            offset=query.number("offset", 0, 0, FARTHEST),
            eof=query.flag("eof"),
        )
        check_media_type(request, (OCTETS,))
        data = await request.body()
        if len(data) > sandbox_api.MAX_INPUT_BYTES:
            raise PayloadTooLargeError(f"the body is longer than {sandbox_api.MAX_INPUT_BYTES} bytes")
        taken = await sandboxes.input(caller_of(request), asked, data)
        return json_answer(sandbox_api.StdinView(stdin_bytes=taken.stdin_bytes))

    @router.post(
        sandbox_api.RESIZE_PATH,
        **schema.operation(
            "resize_sandbox_command", "Give a terminal another size", _DONE, SANDBOX, COMMAND, body="TerminalSize"
        ),
    )
    async def resize(request: Request) -> Response:
        session_id, command_id = session_id_of(request), command_id_of(request)
        size = await body_of(TerminalSize, request)
        wish = wire.ResizeTerminal(session_id=session_id, command_id=command_id, rows=size.rows, columns=size.columns)
        await sandboxes.resize(caller_of(request), wish)
        return Response(status_code=204)

    @router.post(
        sandbox_api.SIGNAL_PATH,
        **schema.operation(
            "signal_sandbox_command", "Send a signal to a command", _DONE, SANDBOX, COMMAND, body="SignalCommandRequest"
        ),
    )
    async def signal(request: Request) -> Response:
        session_id, command_id = session_id_of(request), command_id_of(request)
        asked = await body_of(SignalCommandRequest, request)
        note(request, signal=str(asked.number))
        wish = wire.SendSignal(
            session_id=session_id, command_id=command_id, signal=asked.number, everything=asked.everything
        )
        await sandboxes.signal(caller_of(request), wish)
        return Response(status_code=204)


# --- asking ------------------------------------------------------------------------------------------------


def _asking(router: APIRouter, sandboxes: SandboxesPort) -> None:
    @router.get(
        sandbox_api.COMMAND_PATH,
        **schema.operation("get_sandbox_command", "Show a command of a sandbox", _GET, SANDBOX, COMMAND, WAIT),
    )
    async def get(request: Request) -> Response:
        wait_ms = Query(request, ("wait_ms",)).number("wait_ms", 0, 0, command_api.LONGEST_WAIT_MS)
        ref = wire.AskCommand(session_id=session_id_of(request), command_id=command_id_of(request))
        caller = caller_of(request)
        view = await sandboxes.command(caller, ref)
        view = await running.waited(sandboxes, caller, view, wait_ms)
        return json_answer(await _shown(sandboxes, caller, view))

    @router.get(
        sandbox_api.RECEIPT_PATH,
        **schema.operation(
            "get_sandbox_command_receipt",
            "Read what the worker signed",
            _SIGNED,
            SANDBOX,
            COMMAND,
            description=f"{DESCRIPTION} It is there as long as the sandbox's worker remembers the command.",
        ),
    )
    async def receipt(request: Request) -> Response:
        Query(request)
        ref = wire.CommandRef(session_id=session_id_of(request), command_id=command_id_of(request))
        return answered(await sandboxes.receipt(caller_of(request), ref))


def _following(router: APIRouter, sandboxes: SandboxesPort, followers: Followers) -> None:
    @router.get(
        sandbox_api.OUTPUT_PATH,
        **schema.operation(
            "follow_sandbox_command",
            "Follow what a command in a sandbox prints",
            _FOLLOWED,
            SANDBOX,
            COMMAND,
            *FOLLOWING,
            description="From its beginning, or behind what was seen. While somebody follows, what is printed waits "
            "for him; else only the beginning and the last of it are kept.",
        ),
    )
    async def follow(request: Request) -> Response:
        position = seen_in(request)
        source = _Source(sandboxes, session_id_of(request), command_id_of(request), caller_of(request))
        if position.ended and await source.has_ended():
            return Response(status_code=204)
        return await followers.answer(request, source, position)


@dataclass(frozen=True, slots=True)
class _Source:
    sandboxes: SandboxesPort
    session_id: str
    command_id: str
    caller: Caller

    async def output(self, position: OutputPosition, wait_ms: int) -> tuple[wire.Output, bytes]:
        asked = wire.AskOutput(
            session_id=self.session_id,
            command_id=self.command_id,
            stdout=position.stdout,
            stderr=position.stderr,
            limit=STREAM_PIECE_BYTES,
            wait_ms=wait_ms,
        )
        return await self.sandboxes.output(self.caller, asked)

    async def end(self, ended: CommandView | None) -> bytes | None:
        return None if ended is None else one_line(sandbox_views.command(ended).model_dump_json())

    async def has_ended(self) -> bool:
        asked = wire.AskCommand(session_id=self.session_id, command_id=self.command_id)
        return (await self.sandboxes.command(self.caller, asked)).status is not CommandStatus.RUNNING
