"""A node's connection to the warden of one sandbox, which breaks and is made again."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from fumehood.sandbox.docker.attach import AttachTransport
from fumehood.sandbox.docker.engine import Engine
from fumehood.sandbox.docker.link import Link, Task
from fumehood.sandbox.docker.oom import OomWatch
from fumehood.sandbox.spec import SANDBOX_USER, End
from fumehood.sandbox.warden.frames import Flag, Kind, WireCommand
from tests.unit.scripted_warden import ScriptedWarden

COMMANDS = (1, 2, 3)
PLAIN = WireCommand(Kind.EXEC, Flag(0), 1, 1, b"/", [b"program"])


class RunningEngine:
    async def inspect(self, container: str) -> dict[str, Any]:
        return {"State": {"Running": True}}


class NoOom:
    def mark(self, container: str) -> None:
        return None


class Ignoring:
    def write(self, stream: int, offset: int, data: bytes) -> None:
        pass


class ScriptedLink(Link):
    def __init__(self, warden: ScriptedWarden) -> None:
        super().__init__(
            engine=cast(Engine, RunningEngine()),
            oom=cast(OomWatch, NoOom()),
            container="box",
            user=SANDBOX_USER,
            image_env=(),
            orphan_seconds=600,
        )
        self._warden = warden

    async def _attach(self) -> AttachTransport:
        return cast(AttachTransport, self._warden.attach())


@pytest.mark.parametrize("turns", range(8))
async def test_settled_commands_give_up_their_slots_though_a_reconnection_is_cancelled(turns: int) -> None:
    """Whenever that happens: a slot that is kept is one command fewer for as long as the connection lasts."""
    warden = ScriptedWarden({})
    link = ScriptedLink(warden)
    for number in COMMANDS:
        assert (await link.run(Task(PLAIN, Ignoring()), command_id=number)).end is End.EXITED
    assert warden.attachment is not None
    warden.attachment.abort()
    for number in COMMANDS:
        await link.settle(number)
    assert set(warden.commands) == set(COMMANDS)
    connecting = asyncio.create_task(link.client())
    for _ in range(turns):
        await asyncio.sleep(0)
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    await (await link.client()).round_trip()
    assert warden.commands == {}
    link.close()
