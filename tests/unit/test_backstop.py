"""Who loses his sandbox behind a deadline: whoever does not answer, or never tells the end, and nobody else."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import cast

import pytest

from fumehood.sandbox.docker import backstop as module
from fumehood.sandbox.docker.backstop import Clock, backstop
from fumehood.sandbox.docker.link import Task
from fumehood.sandbox.spec import End
from fumehood.sandbox.warden.client import WardenClient
from fumehood.sandbox.warden.frames import Flag, Kind, WireCommand
from fumehood.sandbox.warden.transport import TransportClosedError
from tests.unit.scripted_link import DiscardingSink, ScriptedLink
from tests.unit.scripted_warden import Script, ScriptedWarden
from tests.waiting import past

ENOUGH = 1000


class Warden:
    """Answers so many questions, and then none; `asked` when enough of them have come, or nobody is answered."""

    def __init__(self, answers: int, *, broken: bool = False) -> None:
        self.left = answers
        self.asked = asyncio.Event()
        self._broken = broken

    async def round_trip(self) -> None:
        if self._broken:
            self.asked.set()
            raise TransportClosedError("gone")
        if not self.left:
            self.asked.set()
            await asyncio.Event().wait()
        self.left -= 1
        if self.left == ENOUGH:
            self.asked.set()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKSTOP_SECONDS", 0.01)
    monkeypatch.setattr(module, "SILENT_SECONDS", 1)


@pytest.mark.parametrize("answers", [0, 3])
async def test_a_silent_warden_is_given_up(answers: int) -> None:
    warden, watch = Warden(answers), None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60), backstop(cast(WardenClient, warden), Clock(0.01)) as watch:
            await asyncio.Event().wait()
    assert watch is not None
    assert watch.expired()
    assert warden.left == 0


async def test_a_warden_that_answers_is_waited_for() -> None:
    warden = Warden(ENOUGH + 20)
    async with backstop(cast(WardenClient, warden), Clock(0.01)) as watch:
        await asyncio.wait_for(warden.asked.wait(), 120)
    assert not watch.expired()


async def test_a_warden_that_answers_and_never_tells_the_end_is_given_up() -> None:
    warden, watch = Warden(ENOUGH), None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60), backstop(cast(WardenClient, warden), Clock(0.01)) as watch:
            await asyncio.Event().wait()
    assert watch is not None
    assert watch.expired()
    assert ENOUGH - warden.left == module.ENOUGH_ANSWERS


async def test_where_the_attachment_broke_nobody_is_given_up() -> None:
    """Whoever waits for the command sees that, and attaches again."""
    warden = Warden(0, broken=True)
    async with backstop(cast(WardenClient, warden), Clock(0.01)) as watch:
        await asyncio.wait_for(warden.asked.wait(), 120)
        await past(0.05)
    assert not watch.expired()


async def test_without_a_deadline_nobody_is_asked() -> None:
    warden = Warden(0)
    async with backstop(cast(WardenClient, warden), Clock(0)) as watch:
        await past(0.05)
    assert not watch.expired()
    assert not warden.asked.is_set()


# --- commands that wait --------------------------------------------------------------------------------------


async def test_before_a_command_begins_nobody_is_asked_and_then_it_is_the_first_word_that_counts() -> None:
    warden, clock = Warden(0), Clock()
    async with backstop(cast(WardenClient, warden), clock) as watch:
        await past(0.05)
        assert not warden.asked.is_set()
        clock.begin(0.01)
        clock.begin(600)
        await asyncio.wait_for(warden.asked.wait(), 120)
    assert not watch.expired()


async def test_a_command_that_begins_without_a_deadline_has_no_backstop() -> None:
    warden, clock = Warden(0), Clock()
    async with backstop(cast(WardenClient, warden), clock) as watch:
        clock.begin(0)
        clock.begin(0.01)
        await past(0.05)
    assert not watch.expired()
    assert not warden.asked.is_set()


@pytest.mark.parametrize("joined_later", [False, True])
async def test_a_command_that_waited_and_never_tells_its_end_loses_its_sandbox_after_its_begin(
    joined_later: bool,
) -> None:
    """Its spec allows it a thousandth of a second: that is not what counts."""
    warden = ScriptedWarden({1: Script(lives=True)})
    link = ScriptedLink(warden)
    client = await link.client()
    task = Task(WireCommand(Kind.EXEC, Flag.WAITS, 1, 1, b"/", [b"program"], timeout_ms=1), DiscardingSink())
    run = asyncio.create_task(link.run(task, command_id=1))
    await client.ping(60)
    await past(0.1)
    assert not run.done()
    before = dt.datetime.now(dt.UTC)
    if joined_later:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await link.begin(1, 10)
        run = asyncio.create_task(link.run(task, command_id=1))
    else:
        await link.begin(1, 10)
    outcome = await asyncio.wait_for(run, 120)
    assert (outcome.end, link.engine.killed, warden.begun) == (End.TIMED_OUT, ["box"], [(1, 10)])
    assert outcome.started_at >= before
    link.close()
