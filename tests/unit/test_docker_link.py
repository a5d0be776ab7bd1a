"""A node's connection to the warden of one sandbox, which breaks and is made again."""

from __future__ import annotations

import asyncio

import pytest

from fumehood.sandbox.docker.link import Task
from fumehood.sandbox.spec import End
from fumehood.sandbox.warden.frames import Flag, Kind, WireCommand
from tests.unit.scripted_link import DiscardingSink, ScriptedLink
from tests.unit.scripted_warden import ScriptedWarden

COMMANDS = (1, 2, 3)
PLAIN = WireCommand(Kind.EXEC, Flag(0), 1, 1, b"/", [b"program"])


@pytest.mark.parametrize("turns", range(8))
async def test_settled_commands_give_up_their_slots_though_a_reconnection_is_cancelled(turns: int) -> None:
    """Whenever that happens: a slot that is kept is one command fewer for as long as the connection lasts."""
    warden = ScriptedWarden({})
    link = ScriptedLink(warden)
    for number in COMMANDS:
        assert (await link.run(Task(PLAIN, DiscardingSink()), command_id=number)).end is End.EXITED
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
