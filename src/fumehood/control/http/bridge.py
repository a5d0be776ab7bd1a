"""Contract 3's HTTP door: connect, poll, resolve, and what we added to them.

A long poll and a stream are watched from both ends. A worker that hangs up while it waits, or while its answer is being
written, gets nothing: what was found for it goes back to the queue at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fumehood.broker.handout import Leased
from fumehood.broker.shield import shielded
from fumehood.control.bridge import Bridge
from fumehood.control.bridge_workers import Connection
from fumehood.control.console.dialled import Dialled
from fumehood.control.http import bridge_schema as schema
from fumehood.control.http.callers import caller_of
from fumehood.control.http.streams import PIECE_BYTES, EventStream, cancelled, disconnected, send_piece
from fumehood.door.bodies import check_media_type
from fumehood.door.telemetry import current_traceparent
from fumehood.wire.bridge import (
    BridgeModel,
    CheckpointResponse,
    DrainResponse,
    PollRequest,
    parse_connect,
    parse_poll,
    parse_resolve,
)

CONNECT_PATH, WORKER_PATH = "/v1/workers/connect", "/v1/workers/{worker_id}"
POLL_PATH, RESOLVE_PATH = "/v1/tasks/poll", "/v1/tasks/{task_id}/resolve"
CHECKPOINT_PATH = "/v1/tasks/{task_id}/checkpoint"
PATHS = (CONNECT_PATH, WORKER_PATH, POLL_PATH, RESOLVE_PATH, CHECKPOINT_PATH)
MODELS = schema.MODELS


def bridge_router(bridge: Bridge, dialled: Dialled | None = None) -> APIRouter:
    """The routes, and the bridge's end with the application's. `dialled`: workers that came another way."""

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with bridge:
            yield

    router = APIRouter(tags=["bridge"], lifespan=lifespan)
    _add_worker_routes(router, bridge, dialled)
    _add_task_routes(router, bridge)
    return router


def _add_worker_routes(router: APIRouter, bridge: Bridge, dialled: Dialled | None) -> None:
    @router.post(CONNECT_PATH, operation_id="connect_worker", response_class=Response, **schema.CONNECT)
    async def connect(request: Request) -> Response:
        check_media_type(request)
        connection = await bridge.connect(parse_connect(await request.body()))
        return EventStream(_encoded(connection), connection.close)

    @router.delete(WORKER_PATH, operation_id="drain_worker", response_class=Response, **schema.DRAIN)
    async def drain(request: Request) -> Response:
        worker_id = request.path_params["worker_id"]
        if dialled is None or not dialled.drain(worker_id, caller_of(request)):
            await bridge.drain(worker_id)
        return _json(DrainResponse())


def _add_task_routes(router: APIRouter, bridge: Bridge) -> None:
    @router.post(POLL_PATH, operation_id="poll_tasks", response_class=Response, **schema.POLL)
    async def poll(request: Request) -> Response:
        check_media_type(request)
        asked = parse_poll(await request.body())
        return TaskAnswer(bridge, await _while_connected(request, bridge, asked))

    @router.post(RESOLVE_PATH, operation_id="resolve_task", response_class=Response, **schema.RESOLVE)
    async def resolve(request: Request) -> Response:
        check_media_type(request)
        answer = parse_resolve(await request.body())
        traceparent = current_traceparent() if "traceparent" in request.headers else None
        return _json(await bridge.resolve(request.path_params["task_id"], answer, traceparent=traceparent))

    @router.get(CHECKPOINT_PATH, operation_id="read_checkpoint", response_class=Response, **schema.CHECKPOINT)
    async def checkpoint(request: Request) -> Response:
        return _json(CheckpointResponse(checkpoint=await bridge.checkpoint(request.path_params["task_id"])))


def _json(model: BridgeModel) -> Response:
    return Response(model.model_dump_json(exclude_none=True), media_type="application/json")


async def _encoded(connection: Connection) -> AsyncGenerator[bytes, None]:
    async with aclosing(connection.events()) as events:
        async for event in events:
            yield event.encode()


# --- both ends ---------------------------------------------------------------------------------------------


async def _while_connected(request: Request, bridge: Bridge, asked: PollRequest) -> list[Leased]:
    """Poll for as long as somebody is there to be answered."""
    polling = asyncio.create_task(bridge.poll(asked))
    gone = asyncio.create_task(disconnected(request.receive))
    try:
        await asyncio.wait({polling, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise ClientDisconnect
        return polling.result()
    except (asyncio.CancelledError, ClientDisconnect):
        await shielded(_take_back(bridge, polling))
        raise
    finally:
        gone.cancel()


async def _take_back(bridge: Bridge, polling: asyncio.Task[list[Leased]]) -> None:
    polling.cancel()
    await asyncio.wait({polling})
    if not polling.cancelled() and polling.exception() is None:
        await bridge.give_back(polling.result())


class TaskAnswer(Response):
    """The tasks of a poll, which are the client's once it has taken all of the answer but the last byte. Whoever goes
    away or stops reading before that cannot have understood it."""

    media_type = "application/json"

    def __init__(self, bridge: Bridge, tasks: Sequence[Leased]) -> None:
        super().__init__(b"[" + b",".join(one.task.encode() for one in tasks) + b"]")
        self._bridge = bridge
        self._tasks = tasks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(disconnected(receive))
        taking = asyncio.create_task(self._tell_most(send))
        taken = False
        try:
            await asyncio.wait({taking, gone}, return_when=asyncio.FIRST_COMPLETED)
            taken = not gone.done() and taking.exception() is None
        finally:
            await shielded(cancelled(taking, gone))
            if not taken:
                await shielded(self._bridge.give_back(self._tasks))
        if not taken:
            raise (None if taking.cancelled() else taking.exception()) or ClientDisconnect
        await send({"type": "http.response.body", "body": bytes(self.body[-1:]), "more_body": False})

    async def _tell_most(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        most = bytes(self.body[:-1])
        for begin in range(0, len(most), PIECE_BYTES):
            await send_piece(send, most[begin : begin + PIECE_BYTES])
        await send_piece(send, b"")  # the server waits before it writes, not after: this is for the piece before
