"""How a process is served from the command line: one event loop, a door, a drain, and a word when it is ready."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from fumehood.door.server import Address, DoorServer, listen
from fumehood.errors import ConfigurationError
from fumehood.settings.token_file import write_private


def uvloop_runner() -> asyncio.Runner:
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def calm_collector() -> None:
    """Once everything is loaded: what is there now stays, and need not be looked through again; and young objects are
    looked through less often, since messages make few circles. Left alone, it takes a tenth of a decider's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


async def serve_until_drained(
    server: DoorServer,
    address: Address,
    *,
    ready: Callable[[str], Awaitable[None]],
    drain: Callable[[], Awaitable[None]],
) -> None:
    """Serve until a signal comes, drain, and only then close the door. `ready` is called with the door's URL once it
    is open; it may wait for whatever else must be there."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: _stop(server, stop))
    listener = listen(address)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    announcing = asyncio.create_task(_announce(server, listener, address, ready))
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            await drain()
    finally:
        announcing.cancel()
        stopping.cancel()
        server.should_exit = True
        await serving


def _stop(server: DoorServer, stop: asyncio.Event) -> None:
    """The first signal drains; the second does not wait."""
    if stop.is_set():
        server.force_exit = True
        os._exit(130)
    stop.set()


async def _announce(
    server: DoorServer, listener: socket.socket, address: Address, ready: Callable[[str], Awaitable[None]]
) -> None:
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.02)
    calm_collector()
    host = f"[{address.host}]" if ":" in address.host else address.host
    await ready(f"http://{host}:{listener.getsockname()[1]}")


def write_ready(path: Path | None, facts: dict[str, Any]) -> None:
    """Tell whoever waits for the ready file, if anybody does."""
    if path is not None:
        write_private(path, json.dumps(facts))


def clear_ready(path: Path | None) -> None:
    """Whoever waits must not find what an earlier process said. What could not be written later is said now."""
    if path is None:
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"the ready file {path} cannot be written: {error.strerror}") from error
    if not path.parent.is_dir():
        raise ConfigurationError(f"the ready file {path} cannot be written: there is no such folder")
