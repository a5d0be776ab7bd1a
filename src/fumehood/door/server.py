"""How the door is served: uvicorn, with what an unfriendly network calls for.

Below the application there are still two things to answer for: bytes that are no HTTP, which get a problem like any
other error, and a caller that never finishes its headers, which is hung up on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fumehood.door.problems import problem
from fumehood.errors import ConfigurationError

if TYPE_CHECKING:
    from fastapi import FastAPI

HEAD_SECONDS = 20.0
"""From a connection's start, or its next request's first byte, to the end of the headers: they fit in one packet."""

GOODBYE_SECONDS = 2
"""When a process has drained, or has waited long enough, callers that still wait are hung up on: they may ask again."""

STALL_SECONDS = 60.0
"""Without taking a single byte of what waits for him, after which a caller is cut off: a connection that was closed on
him would otherwise stay for as long as he likes, and what he was to be told with it."""

_HEAD_BYTES = 64 * 1024


class Address(Protocol):
    """Where to listen: the settings of any process that has a door."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class DoorServer(uvicorn.Server):
    """uvicorn without signal handlers of its own: a process drains before its door closes."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def settle(self, seconds: float) -> None:
        """Take no new connection, and give requests under way their time."""
        for server in self.servers:
            server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.server_state.tasks:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.02)


def make_server(app: FastAPI, address: Address) -> DoorServer:
    """A server for one door. Its logs go where `configure_logging` sends them; it believes no proxy's headers."""
    return DoorServer(
        uvicorn.Config(
            app,
            host=address.host,
            port=address.port,
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


def listen(address: Address) -> socket.socket:
    """Bound before anything is started, so that a taken port is one sentence."""
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        return socket.create_server((address.host, address.port), family=family, backlog=1024)
    except OSError as error:
        # Python adds the address to `strerror`, which stands in the sentence already.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise ConfigurationError(f"cannot listen on {address.host}, port {address.port}: {reason}") from error


class DoorProtocol(H11Protocol):
    """One connection."""

    head_seconds = HEAD_SECONDS
    stall_seconds = STALL_SECONDS
    _patience: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._between_requests():
            self._wait_for_head()
        else:
            self._stop_waiting()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_for_a_stall()

    def resume_writing(self) -> None:
        self._end_watch()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._end_watch()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP. Where an answer has begun already, nothing can be said any more."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in _bad_request():
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Anybody may ask for one and is answered as if he had not; the log is not his to write."""

    def _between_requests(self) -> bool:
        return self.conn.their_state is h11.IDLE and not self.transport.is_closing()

    def _wait_for_head(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(self.head_seconds, self.transport.close)

    def _watch_for_a_stall(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(self.stall_seconds, self._cut_off, left)

    def _cut_off(self, left: int) -> None:
        if self.transport.get_write_buffer_size() >= left:
            self.transport.abort()
        else:
            self._watch_for_a_stall()

    def _end_watch(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

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
