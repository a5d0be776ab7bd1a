"""`python -m bench.sessions_process ROLE`: workers without containers, many in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from bench.child import Answer, Begin, serve
from bench.sessions_grpc import answer_calls, answer_stream
from fumehood.node.console import duties
from fumehood.node.console.duties import Duties
from fumehood.node.console.duty_store import DutyStore
from fumehood.node.rpc.link import About, Identity, Link, route
from fumehood.wire.console.codes import Capability
from fumehood.wire.console.console_pb2 import Dispatch, HeldSession

CONNECT_SECONDS = 60.0


class _NoSessions:
    def sessions(self) -> Sequence[HeldSession]:
        return ()

    async def leases(self, known: Sequence[HeldSession]) -> None:
        return None


async def _echo(dispatch: Dispatch) -> duties.Answer:
    return duties.Answer(dispatch.payload_json)


async def _link(target: str, worker_id: str, secret: str, store: Path) -> Link:
    """A worker as it is, but for what it can do."""
    held = Duties(await DutyStore.open(store), {Capability.ECHO.value: _echo})
    await held.recover()
    about = About(Identity(worker_id, secret), software="bench")
    return Link(route((target,), None), about, held, _NoSessions())


async def echo(document: dict[str, Any]) -> Answer:
    """Worker connections, and as many bare streams beside them."""
    folder = Path(document["folder"])
    streams = [asyncio.create_task(answer_stream(document["bare"])) for _ in document["workers"]]
    calls, port = await answer_calls()
    links = [
        await _link(document["target"], worker_id, secret, folder / f"{worker_id}.db")
        for worker_id, secret in document["workers"].items()
    ]
    tasks = [*streams, *(asyncio.create_task(link.serve()) for link in links)]
    async with asyncio.timeout(CONNECT_SECONDS):
        for link in links:
            await link.connected.wait()

    def answer() -> dict[str, Any]:
        for task in tasks:
            if task.done():
                task.result()
        return {"port": port, "calls": calls is not None, "connected": sum(link.connected.is_set() for link in links)}

    return answer


ROLES: dict[str, Begin] = {"echo": echo}


if __name__ == "__main__":
    uvloop.run(serve(ROLES))
