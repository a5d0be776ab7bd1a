"""What becomes of a command that is cancelled, or begun again, at an unlucky moment; on a machine in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fumehood.errors import CommandFailedError, EngineUnavailableError
from fumehood.node.console import capabilities
from fumehood.node.console.capabilities import Programs, Rules
from fumehood.node.console.duty import Duty, Why
from fumehood.node.console.endings import in_any_case
from fumehood.sandbox.driver import Handle, Sink
from fumehood.sandbox.fake import FakeDriver
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.values import ProcessWish, SessionName, SessionWish
from fumehood.sandbox.spec import Command, Outcome, SandboxSpec
from fumehood.wire.console.console_pb2 import Dispatch, Result
from fumehood.wire.console.sessions import SESSION_PATTERN
from tests.unit.session_world import IMAGE, World, rounds
from tests.waiting import past, turns, until

RULES = Rules(python_image=IMAGE, terminal_image=IMAGE)
FOREVER, AT_ONCE = "ignores", "env"
"""Words that the fake machine knows; it has no shell."""


class Gated(FakeDriver):
    """A driver whose steps a test lets through, and whose engine may be away."""

    def __init__(self, world: World) -> None:
        super().__init__(world.engine)
        self.gates: dict[str, asyncio.Event] = {}
        self.failures = 0
        self.stopped_at: set[str] = set()

    async def _pass(self, step: str) -> None:
        if step in self.gates:
            self.stopped_at.add(step)
            await self.gates[step].wait()

    async def prepare(self, spec: SandboxSpec) -> Handle:
        await self._pass("prepare")
        return await super().prepare(spec)

    async def next_id(self, handle: Handle) -> int:
        await self._pass("next_id")
        return await super().next_id(handle)

    async def run(self, handle: Handle, command: Command, sink: Sink, *, command_id: int) -> Outcome:
        await self._pass("run")
        return await super().run(handle, command, sink, command_id=command_id)

    async def destroy(self, handle: Handle) -> None:
        await self._pass("destroy")
        if self.failures > 0:
            self.failures -= 1
            raise EngineUnavailableError("the engine is away")
        await super().destroy(handle)


class Bench:
    def __init__(self, world: World, driver: Gated, sessions: Sessions) -> None:
        self.world, self.driver, self.sessions = world, driver, sessions
        self.programs = Programs(sessions, RULES)

    def begin(self, capability: str, payload: dict[str, Any], command_id: str = "c", **more: Any) -> Duty:
        dispatch = Dispatch(
            command_id=command_id,
            capability=capability,
            owner="acme",
            payload_json=json.dumps(payload).encode(),
            **more,
        )
        return Duty(dispatch, self.programs.handlers()[capability], None)

    def terminal(self, command: str, command_id: str = "c", **payload: Any) -> Duty:
        return self.begin("terminalExec", {"command": command, **payload}, command_id)

    async def containers(self) -> int:
        return len(await self.driver.list({}))

    def runs(self, command_id: str = "c") -> bool:
        with contextlib.suppress(CommandFailedError):
            return self.sessions.process(command_id).stdout_bytes > 0
        return False


@pytest.fixture(autouse=True)
def no_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "SHELL", ())
    monkeypatch.setattr(capabilities, "PYTHON", ())


@contextlib.asynccontextmanager
async def life(world: World) -> AsyncIterator[Bench]:
    driver = Gated(world)
    async with world.life(driver) as sessions:
        yield Bench(world, driver, sessions)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with life(World(tmp_path)) as made:
        yield made


def code(result: Result | None) -> str:
    assert result is not None
    return result.error.code


@pytest.mark.parametrize("session_id", [None, "s"])
async def test_a_cancel_while_its_session_is_made(bench: Bench, session_id: str | None) -> None:
    """What is made for a command goes with it, also half made."""
    bench.driver.gates["prepare"] = asyncio.Event()
    payload: dict[str, Any] = {"session_id": session_id, "create_if_missing": True} if session_id else {}
    name = SessionName("acme", session_id or "terminal-c")
    duty = bench.terminal(AT_ONCE, **payload)
    running = asyncio.create_task(duty.run())
    await until(lambda: bench.sessions.made_by(name) == "c")
    duty.end(Why.CANCELLED)
    assert code(await running) == "deadline_exceeded"
    assert bench.sessions.made_by(name) is None
    assert await bench.containers() == 0


async def test_a_cancel_while_somebody_else_makes_the_session(bench: Bench) -> None:
    """It stays: another command waits for it."""
    bench.driver.gates["prepare"] = gate = asyncio.Event()
    asked = {"session_id": "s", "create_if_missing": True}
    first, second = bench.terminal(AT_ONCE, "first", **asked), bench.terminal(AT_ONCE, "second", **asked)
    running = [asyncio.create_task(duty.run()) for duty in (first, second)]
    await until(lambda: bench.sessions.made_by(SessionName("acme", "s")) == "first")
    await turns()
    second.end(Why.CANCELLED)
    assert code(await running[1]) == "deadline_exceeded"
    gate.set()
    result = await running[0]
    assert result is not None
    assert json.loads(result.payload_json)["created"] is True


@pytest.mark.parametrize("step", ["next_id", "run"])
async def test_a_cancel_while_the_command_is_sent(bench: Bench, step: str) -> None:
    """It may run a moment later: so its session goes, whoever made that."""
    made = await bench.terminal(AT_ONCE, "before", session_id="s", create_if_missing=True).run()
    assert made is not None
    bench.driver.gates[step] = gate = asyncio.Event()
    duty = bench.terminal(FOREVER, session_id="s")
    running = asyncio.create_task(duty.run())
    await until(lambda: step in bench.driver.stopped_at)
    duty.end(Why.DEADLINE)
    await turns()
    gate.set()
    assert code(await running) == "deadline_exceeded"
    assert await bench.containers() == 0


@pytest.mark.parametrize("capability", ["terminalExec", "pythonExec"])
async def test_a_slot_is_kept_until_the_sandbox_is_gone(
    bench: Bench, capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the engine fails to remove it."""
    monkeypatch.setattr("fumehood.sandbox.sessions.lives.GONE_ATTEMPTS", 1)
    monkeypatch.setattr(capabilities, "AGAIN_SECONDS", 0.01)
    payload = {"command": FOREVER} if capability == "terminalExec" else {"code": FOREVER}
    duty = bench.begin(capability, payload)
    running = asyncio.create_task(duty.run())
    await until(bench.runs)
    bench.driver.failures = 10**6
    duty.end(Why.CANCELLED)
    await until(lambda: bench.driver.failures < 10**6 - 3)
    assert not running.done()
    bench.driver.failures = 0
    assert code(await running) == "deadline_exceeded"
    assert await bench.containers() == 0


async def test_what_is_let_go_is_left_alone(tmp_path: Path) -> None:
    """The next process joins it, knows whose session it is in, and ends it as the first one would have."""
    world = World(tmp_path)
    async with life(world) as bench:
        duties = [bench.terminal(FOREVER, "t", session_id="s", create_if_missing=True),
                  bench.begin("pythonExec", {"code": FOREVER}, "p")]  # fmt: skip
        running = [asyncio.create_task(duty.run()) for duty in duties]
        await until(lambda: bench.runs("t") and bench.runs("p"))
        for duty in duties:
            duty.let_go()
        assert await asyncio.gather(*running) == [None, None]
        assert await bench.containers() == 2
    async with life(world) as bench:
        duties = [bench.terminal(FOREVER, "t", session_id="s", create_if_missing=True),
                  bench.begin("pythonExec", {"code": FOREVER}, "p")]  # fmt: skip
        running = [asyncio.create_task(duty.run()) for duty in duties]
        await turns()
        assert code(await bench.terminal(AT_ONCE, "other", session_id="s").run()) == "session_busy"
        await bench.sessions.signal("t", 9)
        result = await running[0]
        assert result is not None
        assert json.loads(result.payload_json).items() >= {("exit_code", 137), ("created", True), ("stdout", "begun\n")}
        duties[1].end(Why.CANCELLED)
        assert code(await running[1]) == "deadline_exceeded"
        assert await bench.containers() == 1


async def test_an_answer_that_was_not_stored_is_given_again(tmp_path: Path) -> None:
    """The process died between a command's end and its result's: it is not run twice, though its sandbox is gone."""
    world = World(tmp_path)
    answers = []
    for _ in range(2):
        async with life(world) as bench:
            python = await bench.begin("pythonExec", {"code": AT_ONCE}, "p").run()
            terminal = await bench.terminal(AT_ONCE, "t").run()
            assert python is not None
            assert terminal is not None
            answers.append((json.loads(python.payload_json), json.loads(terminal.payload_json)))
            await bench.sessions.remove(SessionName("acme", "terminal-t"))
    for one in answers:
        del one[1]["lease_expires_unix_ms"]
    assert answers[0] == answers[1]
    assert answers[0][1]["created"] is True


async def test_a_command_that_is_no_program(bench: Bench) -> None:
    """It could not be run: that is an error, and says why; its session stays."""
    result = await bench.terminal("nonsense", session_id="s", create_if_missing=True).run()
    assert code(result) == "execution_failed"
    assert result is not None
    assert "nonsense: No such file or directory" in result.error.message
    assert bench.sessions.get(SessionName("acme", "s")).running == 0


async def test_work_in_any_case() -> None:
    """A cleanup is waited for, however often its caller is cancelled; what it raises is raised."""
    gate = asyncio.Event()

    async def work() -> int:
        await gate.wait()
        return 7

    async def fails() -> int:
        raise EngineUnavailableError("away")

    task = asyncio.create_task(in_any_case(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    assert await task == 7
    with pytest.raises(EngineUnavailableError):
        await in_any_case(fails())


# --- the sandbox of code -------------------------------------------------------------------------------------


async def test_the_sandbox_of_code_has_a_name_that_no_caller_can_say(bench: Bench) -> None:
    """Whoever came in could print beside the code, and its receipt would cover that, too."""
    duty = bench.begin("pythonExec", {"code": FOREVER})
    running = asyncio.create_task(duty.run())
    await until(bench.runs)
    name = bench.sessions.process("c").name
    assert name.owner == "acme"
    assert re.fullmatch(SESSION_PATTERN, name.session_id) is None
    intruder = bench.terminal(AT_ONCE, "other", session_id="python-c")
    assert code(await intruder.run()) == "session_not_found"
    refused = bench.terminal(AT_ONCE, "another", session_id=name.session_id)
    assert code(await refused.run()) == "invalid_payload"
    duty.end(Why.CANCELLED)
    await running
    assert await bench.containers() == 0


async def test_code_that_the_version_before_began_is_seen_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session has the name that such sessions had then, and is gone when its answer comes."""
    world = World(tmp_path)
    async with life(world) as before:
        with monkeypatch.context() as older:
            older.setattr(capabilities, "UNSPEAKABLE", "")
            duty = before.begin("pythonExec", {"code": FOREVER})
            running = asyncio.create_task(duty.run())
            await until(before.runs)
            assert before.sessions.process("c").name.session_id == "python-c"
            duty.let_go()
            assert await running is None
    async with life(world) as after:
        duty = after.begin("pythonExec", {"code": FOREVER})
        running = asyncio.create_task(duty.run())
        await past(0.05)
        assert not running.done(), "it is refused, as another command's id"
        duty.end(Why.CANCELLED)
        assert code(await running) == "deadline_exceeded"
        assert await after.containers() == 0


# --- the sandbox of a pythonExec ---------------------------------------------------------------------------


async def test_an_answer_does_not_wait_for_the_removal_of_its_sandbox(bench: Bench) -> None:
    bench.driver.gates["destroy"] = asyncio.Event()
    result = await bench.begin("pythonExec", {"code": AT_ONCE}).run()
    assert result is not None
    assert len(bench.world.engine.boxes) == 1
    bench.driver.gates["destroy"].set()
    await until(lambda: not bench.world.engine.boxes)


def has_ended(sessions: Sessions, command_id: str) -> bool:
    with contextlib.suppress(CommandFailedError):  # it is not there yet
        return sessions.process(command_id).outcome is not None
    return False


async def test_one_whose_time_was_over_is_gone_when_that_is_told(bench: Bench) -> None:
    bench.driver.gates["destroy"] = asyncio.Event()
    duty = asyncio.create_task(bench.begin("pythonExec", {"code": FOREVER}, timeout_ms=300).run())
    await until(lambda: has_ended(bench.sessions, "c"))
    assert not duty.done()
    bench.driver.gates["destroy"].set()
    assert await duty is not None
    assert not bench.world.engine.boxes


async def test_a_sandbox_that_nobody_lets_go_of_goes_when_its_command_has_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that died between its answer and the removal; its session has a lease for a day."""
    monkeypatch.setattr("fumehood.sandbox.sessions.janitor.SPENT_SECONDS", 0.2)
    name = SessionName("acme", ".python-c")
    async with world.life() as sessions:
        await sessions.create(SessionWish(name, IMAGE, 86_400_000, once=True))
        await sessions.start(name, ProcessWish("c", (AT_ONCE,)))
        await sessions.ended("c", 120)
    async with world.life():
        await until(lambda: not world.engine.boxes)


async def test_one_whose_command_has_not_begun_or_runs_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fumehood.sandbox.sessions.janitor.SPENT_SECONDS", 0.0)
    async with world.life() as sessions:
        waiting, busy = (SessionName("acme", name) for name in (".python-a", ".python-b"))
        for name in (waiting, busy):
            await sessions.create(SessionWish(name, IMAGE, 86_400_000, once=True))
        await sessions.start(busy, ProcessWish("b", (FOREVER,)))
        lasting = SessionName("acme", "lasting")
        await sessions.create(SessionWish(lasting, IMAGE, 86_400_000))
        await sessions.start(lasting, ProcessWish("l", (AT_ONCE,)))
        await sessions.ended("l", 120)
        await rounds(sessions)
        assert len(world.engine.boxes) == 3
