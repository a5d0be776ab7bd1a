"""How the door is served: uvicorn, with what an unfriendly network calls for.

Below the application there are still two things to answer for: bytes that are no HTTP, which get a problem like any
other error, and a caller that never finishes its headers, which is hung up on.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from fumehood.node.http.problems import problem
from fumehood.settings import NodeSettings

HEAD_SECONDS = 20.0
"""From a connection's start, or its next request's first byte, to the end of the headers: they fit in one packet."""

GOODBYE_SECONDS = 2
"""When the node has drained, or has waited long enough, callers that still wait are hung up on: they may ask again."""

_HEAD_BYTES = 64 * 1024


def make_server(app: FastAPI, settings: NodeSettings) -> uvicorn.Server:
    """A server for one node. Its logs go where `configure_logging` sends them; it believes no proxy's headers."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=DoorProtocol,
            lifespan="on",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=_HEAD_BYTES,
            timeout_graceful_shutdown=GOODBYE_SECONDS,
        )
    )


class DoorProtocol(H11Protocol):
    """One connection."""

    head_seconds = HEAD_SECONDS
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._between_requests():
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP. Where an answer has begun already, nothing can be said any more."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in _bad_request():
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _between_requests(self) -> bool:
        return self.conn.their_state is h11.IDLE and not self.transport.is_closing()

    def _wait_for_head(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(self.head_seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def _bad_request() -> tuple[h11.Event, ...]:
    request_id = uuid.uuid4().hex
    headers = {"x-request-id": request_id, "connection": "close"}
    answer = problem("invalid-request", "the request is not valid HTTP", request_id, headers)
    head = h11.Response(status_code=answer.status_code, headers=answer.raw_headers, reason=b"Bad Request")
    return head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()
