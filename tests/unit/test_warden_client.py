"""The owner's end of a warden's connection: many commands at paces of their own, over attachments that break."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fumehood.errors import CommandRefusedError, InvalidRequestError, SandboxLostError, WardenProtocolError
from fumehood.sandbox.docker.steering import Steering
from fumehood.sandbox.warden import ids
from fumehood.sandbox.warden.acks import ACK_EVERY, Acks
from fumehood.sandbox.warden.client import WardenClient
from fumehood.sandbox.warden.frames import Flag, Kind, WireCommand
from fumehood.sandbox.warden.once import run_once
from fumehood.sandbox.warden.transport import NotRunningError, TransportClosedError
from tests.unit.scripted_warden import STDIN_WINDOW, Script, ScriptedWarden, pattern
from tests.unit.warden_harness import EXIT, OUTPUT, STARTED, Frame

RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SOON = 60.0


PLAIN = WireCommand(Kind.EXEC, Flag(0), 1, 1, b"/", [b"program"])
READS = WireCommand(Kind.EXEC, Flag.STDIN, 1, 1, b"/", [b"program"])
WAITS = WireCommand(Kind.EXEC, Flag.STDIN | Flag.WAITS, 1, 1, b"/", [b"program"], timeout_ms=1)


def live(scenario: Coroutine[Any, Any, None]) -> None:
    """Nothing may hang, whatever the script."""
    asyncio.run(asyncio.wait_for(scenario, SOON))


async def attached(warden: ScriptedWarden, *, fresh: bool = False, bytes_in: int | None = None) -> WardenClient:
    client = WardenClient(warden.attach(bytes_in), orphan_ms=600_000)
    await client.connect(fresh=fresh, timeout=SOON)
    return client


class Kept:
    """A sink that remembers all, whichever attachment brought it, and refuses gaps."""

    def __init__(self) -> None:
        self.streams = {1: bytearray(), 2: bytearray()}

    def write(self, stream: int, offset: int, data: bytes) -> None:
        kept = self.streams[stream]
        assert offset <= len(kept), "a gap"
        kept += data[len(kept) - offset :]


class Doored(Kept):
    """A paced one: each piece needs a permit."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = asyncio.Semaphore(0)
        self.open = False

    async def room(self) -> None:
        if not self.open:
            await self.permits.acquire()

    def unlock(self) -> None:
        self.open = True
        self.permits.release()


# --- which frames may be acknowledged ------------------------------------------------------------------------


@given(
    commands=st.lists(st.integers(1, 4), min_size=1, max_size=40),
    kept=st.sets(st.integers(1, 30)),
    turns=st.lists(st.integers(1, 4), max_size=60),
)
def test_exactly_what_is_safe_is_acknowledged_whoever_waits(
    commands: list[int], kept: set[int], turns: list[int]
) -> None:
    """The frames before 31 that are left of an earlier attachment have gaps; those from 31 on have none."""
    acks, waiting = Acks(), dict[int, list[int]]()
    acks.welcomed(31)
    numbers = [*sorted(kept), *range(31, 31 + len(commands))]
    for index, number in enumerate(numbers):
        command = commands[index % len(commands)]
        assert acks.arrived(command, number, 100)
        assert not acks.arrived(command, number, 100), "a repetition"
        waiting.setdefault(command, []).append(number)
    with pytest.raises(WardenProtocolError):
        acks.arrived(1, numbers[-1] + 2, 100)
    safe, told, told_together = set[int](), set[int](), set[int]()
    for command in [*turns, *(command for command, left in waiting.items() for _ in left)]:
        if not waiting.get(command):
            continue
        acks.safe(waiting[command][0])
        safe.add(waiting[command].pop(0))
        for of, upto in acks.take():
            named = {n for i, n in enumerate(numbers) if n <= upto and of in (0, commands[i % len(commands)])}
            told |= named
            told_together |= named if of == 0 else set()
        assert acks.take() == []
        assert told == safe
        unsafe = min(set(numbers) - safe, default=1000)
        assert told_together == {number for number in numbers if number < unsafe}
    assert told_together == set(numbers)


def test_a_gap_in_what_comes_for_the_first_time_is_an_error() -> None:
    acks = Acks()
    acks.welcomed(10)
    assert acks.arrived(1, 4, 100)
    with pytest.raises(WardenProtocolError):
        acks.arrived(1, 11, 100)
    assert acks.arrived(1, 10, 100)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 33_000)), min_size=1, max_size=200), st.booleans())
def test_an_acknowledgement_is_due_long_before_a_window_is_full(sizes: list[tuple[int, int]], stuck: bool) -> None:
    acks, waiting = Acks(), 0
    if stuck:
        acks.arrived(9, 1, 100)
    for number, (command, size) in enumerate(sizes, start=2 if stuck else 1):
        acks.arrived(command, number, size)
        acks.safe(number)
        waiting += size + 28
        assert acks.due == (waiting >= ACK_EVERY)
        if acks.due:
            assert acks.take()
            waiting = 0
    if stuck:  # a warden that heard nothing of the others may be out of room: it is told now
        acks.take()
        acks.safe(1)
        assert acks.due == (sum(size + 28 for _, size in sizes) + 128 >= ACK_EVERY)
        assert acks.take() == [(0, len(sizes) + 1)]


# --- ids -----------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=400), st.integers(0, 2**31))
def test_ids_only_grow_and_ours_leave_room_for_a_callers(starts: list[bool], highest: int) -> None:
    for ours in starts:
        number = ids.our_id(highest) if ours else ids.caller_id(highest)
        assert number > highest
        assert ids.is_ours(number) == ours
        highest = number
    reserved = ids.caller_id(highest)
    for _ in range(128):
        highest = ids.our_id(highest)
        assert highest < reserved


def test_small_numbers_are_callers() -> None:
    assert not any(ids.is_ours(number) for number in range(128))


# --- many commands at paces of their own ---------------------------------------------------------------------

outputs = st.lists(st.tuples(st.sampled_from([1, 1, 2]), st.sampled_from([1, 100, 5000, 32_768])), max_size=60)
steps = st.one_of(
    st.tuples(st.just("permit"), st.integers(0, 4), st.integers(1, 40)),
    st.tuples(st.just("leave"), st.integers(0, 4), st.just(0)),
    st.tuples(st.just("break"), st.just(0), st.just(0)),
    st.tuples(st.just("turns"), st.integers(1, 30), st.just(0)),
)


class Owner:
    """Runs commands as a driver does: through as many attachments as it takes, each settled when it ended."""

    def __init__(self, scripts: list[list[tuple[int, int]]], paced: list[bool], *, old: bool) -> None:
        self.sinks: dict[int, Kept] = {
            number: Doored() if paced[number - 1] else Kept() for number in range(1, len(scripts) + 1)
        }
        self.ended: set[int] = set()
        self.warden = ScriptedWarden(
            {number: Script(list(said)) for number, said in enumerate(scripts, start=1)}, self._is_safe, old=old
        )
        self._client: WardenClient | None = None
        self._lock = asyncio.Lock()
        self.tasks = {number: asyncio.create_task(self._run(number)) for number in self.sinks}

    def _is_safe(self, frame: Frame) -> bool:
        if frame.type == OUTPUT:
            stream, offset = frame.payload[0], int.from_bytes(frame.payload[1:9], "big")
            return len(self.sinks[frame.command].streams[stream]) >= offset + len(frame.payload) - 9
        return frame.type == STARTED or (frame.type == EXIT and frame.command in self.ended)

    async def _attached(self) -> WardenClient:
        async with self._lock:
            if self._client is None or self._client.closed:
                self._client = await attached(self.warden, fresh=self._client is None)
                await self._client.settle(*self.ended)
            return self._client

    async def _run(self, number: int) -> None:
        while True:
            with contextlib.suppress(TransportClosedError):
                client = await self._attached()
                if number not in self.ended:
                    await client.run(number, PLAIN, self.sinks[number])
                    self.ended.add(number)
                await (await self._attached()).settle(number)
                return

    async def leave(self, number: int) -> None:
        """Give a command up, and join it again."""
        self.tasks[number].cancel()
        await asyncio.gather(self.tasks[number], return_exceptions=True)
        self.tasks[number] = asyncio.create_task(self._run(number))

    async def started(self) -> None:
        for _ in range(50):
            await (await self._attached()).ping(SOON)
        assert self.warden.highest == len(self.sinks)

    async def act(self, step: tuple[str, int, int]) -> None:
        name, what, count = step
        number = what % len(self.sinks) + 1
        sink = self.sinks[number]
        if name == "permit" and isinstance(sink, Doored):
            for _ in range(count):
                sink.permits.release()
        elif name == "leave":
            await self.leave(number)
        elif name == "break" and self.warden.attachment is not None:
            self.warden.attachment.abort()
        for _ in range(what if name == "turns" else 1):
            await asyncio.sleep(0)

    async def finish(self) -> None:
        for sink in self.sinks.values():
            if isinstance(sink, Doored):
                sink.unlock()
        await asyncio.gather(*self.tasks.values())


@RELAXED
@given(
    scripts=st.lists(outputs, min_size=1, max_size=5),
    paced=st.lists(st.booleans(), min_size=5, max_size=5),
    plan=st.lists(steps, max_size=25),
    old=st.booleans(),
)
def test_every_command_says_all_it_has_to_say_whoever_waits(
    scripts: list[list[tuple[int, int]]], paced: list[bool], plan: list[tuple[str, int, int]], old: bool
) -> None:
    async def scenario() -> None:
        owner = Owner(scripts, paced, old=old)
        await owner.started()
        for step in plan:
            await owner.act(step)
        await owner.finish()
        for number, said in enumerate(scripts, start=1):
            for stream in (1, 2):
                total = sum(size for which, size in said if which == stream)
                assert owner.sinks[number].streams[stream] == pattern(number, stream, 0, total)
        client = await owner._attached()
        await client.ping(SOON)
        assert owner.warden.commands == {}, "a command that was settled keeps its slot"

    live(scenario())


@RELAXED
@given(
    scripts=st.lists(outputs, min_size=2, max_size=5),
    stuck=st.sets(st.integers(1, 4), min_size=1, max_size=4),
    breaks=st.lists(st.integers(0, 30), max_size=3),
)
def test_those_whose_readers_wait_hold_up_nobody_else(
    scripts: list[list[tuple[int, int]]], stuck: set[int], breaks: list[int]
) -> None:
    """However much they print, and however often the connection breaks: all others end, and their slots are free."""
    flood = [(1, 32_768)] * 60

    async def scenario() -> None:
        said = [flood if number in stuck else script for number, script in enumerate(scripts, start=1)]
        owner = Owner(said, [number in stuck for number in range(1, len(said) + 1)], old=False)
        await owner.started()
        for turns in breaks:
            await owner.act(("break", 0, 0))
            await owner.act(("turns", turns, 0))
        others = [task for number, task in owner.tasks.items() if number not in stuck]
        await asyncio.gather(*others)
        await (await owner._attached()).ping(SOON)
        assert set(owner.warden.commands) == stuck & set(owner.tasks)
        assert all(not owner.sinks[number].streams[1] for number in owner.warden.commands)
        await owner.finish()
        for number in owner.tasks:
            total = sum(size for which, size in said[number - 1] if which == 1)
            assert owner.sinks[number].streams[1] == pattern(number, 1, 0, total)

    live(scenario())


def test_many_more_commands_than_there_are_slots_end_beside_one_that_waits() -> None:
    async def scenario() -> None:
        warden = ScriptedWarden(
            {number: Script([(1, 32_768)] * (40 if number == 1 else 1)) for number in range(1, 101)}
        )
        client = await attached(warden, fresh=True)
        slow = Doored()
        held = asyncio.create_task(client.run(1, PLAIN, slow))
        await client.ping(SOON)
        for number in range(2, 101):
            assert (await client.run(number, PLAIN, Kept())).stdout_total == 32_768
            await client.settle(number)
        assert (held.done(), len(slow.streams[1])) == (False, 0)
        slow.unlock()
        assert (await held).stdout_total == 40 * 32_768

    live(scenario())


def test_one_that_waits_does_not_hold_up_input_pings_refusals_and_ends_of_others() -> None:
    async def scenario() -> None:
        warden = ScriptedWarden({1: Script([(1, 100)], lives=True), 2: Script(reads=True), 3: Script([(1, 10)])})
        client = await attached(warden, fresh=True)
        slow, other = Doored(), Kept()
        held = asyncio.create_task(client.run(1, PLAIN, slow))
        reading = asyncio.create_task(client.run(2, READS, Kept(), more_stdin=True))
        assert await client.feed(2, 0, b"x" * (3 * STDIN_WINDOW)) == 3 * STDIN_WINDOW
        assert (await client.run(3, PLAIN, other)).stdout_total == 10
        await client.settle(3)
        with pytest.raises(InvalidRequestError):
            await client.feed(1, 0, b"it takes none")
        await client.end_input(2)
        await reading
        await client.signal(1, 9, everything=False)
        await client.ping(SOON)
        assert (held.done(), len(slow.streams[1])) == (False, 0)
        slow.unlock()
        assert (await held).stdout_total == 100
        assert slow.streams[1] == pattern(1, 1, 0, 100)

    live(scenario())


def test_an_end_that_is_here_is_told_even_if_the_attachment_breaks_meanwhile() -> None:
    async def scenario() -> None:
        warden = ScriptedWarden({1: Script([(1, 10), (2, 10)]), 2: Script(reads=True)})
        client = await attached(warden, fresh=True)
        sink = Doored()
        here = asyncio.create_task(client.run(1, PLAIN, sink))
        not_here = asyncio.create_task(client.run(2, READS, Doored(), more_stdin=True))
        await client.ping(SOON)
        assert warden.attachment is not None
        warden.attachment.abort()
        with pytest.raises(TransportClosedError):
            await not_here
        sink.unlock()
        assert (await here).stdout_total == 10
        assert sink.streams[2] == pattern(1, 2, 0, 10)

    live(scenario())


def test_a_refused_command_never_was() -> None:
    async def scenario() -> None:
        warden = ScriptedWarden({number: Script(reads=True) for number in range(1, 33)})
        client = await attached(warden, fresh=True)
        tasks = [asyncio.create_task(client.run(number, READS, Kept(), more_stdin=True)) for number in range(1, 33)]
        await client.ping(SOON)
        for _ in range(2):
            with pytest.raises(CommandRefusedError, match="code 2"):
                await client.run(40, PLAIN, Kept())
        await client.end_input(1)
        await tasks[0]
        await client.settle(1)
        assert (await client.run(40, PLAIN, Kept())).state == 1, "its id was not used up"
        with pytest.raises(WardenProtocolError):
            await client.run(39, PLAIN, Kept())
        client.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    live(scenario())


def test_operations_that_were_given_up_leave_nothing_behind() -> None:
    async def scenario() -> None:
        warden = ScriptedWarden({number: Script(reads=True) for number in range(128, 300)})
        client = await attached(warden, fresh=True)
        for _ in range(50):
            task = asyncio.create_task(run_once(client, READS, Kept(), _endless()))
            await asyncio.sleep(0)
            await client.ping(SOON)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await client.ping(SOON)
        assert warden.commands == {}
        assert len(warden.signals) == 50

    live(scenario())


async def _endless() -> Any:
    yield b"x"
    await asyncio.Event().wait()


def test_the_next_owner_ends_our_own_operations_and_keeps_the_callers_commands() -> None:
    async def scenario() -> None:
        warden = ScriptedWarden({1: Script(reads=True), 128: Script(reads=True), 129: Script([(1, 5)])})
        first = await attached(warden, fresh=True)
        tasks = [asyncio.create_task(first.run(number, READS, Kept(), more_stdin=True)) for number in (1, 128, 129)]
        await first.ping(SOON)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        second = await attached(warden)
        joined = asyncio.create_task(second.run(1, READS, Kept(), more_stdin=True))
        for _ in range(3):
            await second.ping(SOON)
        assert (warden.signals, list(warden.commands)) == ([(128, 9)], [1])
        await second.end_input(1)
        assert (await joined).state == 1
        await second.settle(1)
        await second.ping(SOON)
        assert warden.commands == {}

    live(scenario())


# --- input over attachments that break -----------------------------------------------------------------------


class Feeding:
    """A steering over a scripted warden whose connections break after so many bytes."""

    def __init__(self, warden: ScriptedWarden, breaks: list[int]) -> None:
        self.warden = warden
        self._breaks = list(breaks)
        self._client: WardenClient | None = None
        self.steering = Steering(self.client)

    async def client(self) -> WardenClient:
        while self._client is None or self._client.closed:
            left = self._breaks.pop(0) if self._breaks else None
            fresh, client = self._client is None, WardenClient(self.warden.attach(left), orphan_ms=600_000)
            self._client = client
            with contextlib.suppress(TransportClosedError):
                await client.connect(fresh=fresh, timeout=SOON)
        return self._client


@RELAXED
@given(
    sizes=st.lists(st.integers(0, 300_000), min_size=1, max_size=6),
    breaks=st.lists(st.integers(0, 500_000), max_size=6),
    appetites=st.lists(st.booleans(), max_size=30),
    eager=st.booleans(),
)
def test_input_arrives_once_and_whole_and_is_never_said_to_have_arrived_before_it_did(
    sizes: list[int], breaks: list[int], appetites: list[bool], eager: bool
) -> None:
    data = b"".join(bytes([index % 251]) * size for index, size in enumerate(sizes, start=1))

    async def running(feeding: Feeding) -> None:
        while True:
            with contextlib.suppress(TransportClosedError):
                await (await feeding.client()).run(1, READS, Kept(), more_stdin=True)
                return

    async def eating(warden: ScriptedWarden) -> None:
        """A program that reads when it likes, and in the end all."""
        for appetite in [*appetites, True]:
            for command in warden.commands.values():
                command.hungry = appetite
            warden.go_on()
            await asyncio.sleep(0)

    async def scenario() -> None:
        warden = ScriptedWarden({1: Script(reads=True)})
        feeding = Feeding(warden, breaks)
        run = asyncio.create_task(running(feeding))
        eater = asyncio.create_task(eating(warden))
        offset = 0
        for size in sizes:
            offset = await _fed(feeding, offset, data[offset : offset + size], eager)
            assert len(warden.commands[1].input) >= offset
            assert offset <= await feeding.steering.stdin_received(1)
        assert bytes(warden.commands[1].input) == data
        await eater
        await feeding.steering.end_input(1)
        await run

    live(scenario())


async def _fed(feeding: Feeding, offset: int, piece: bytes, eager: bool) -> int:
    """One after the other, or twice at once: the second says nothing new."""
    end = offset + len(piece)
    while True:
        calls = [feeding.steering.feed(1, offset, piece, seconds=5.0) for _ in range(2 if eager else 1)]
        for received in await asyncio.gather(*calls):
            assert received <= len(feeding.warden.commands[1].input)
        if received >= end:
            return end


def test_input_that_was_given_up_half_way_goes_on_from_what_was_received() -> None:
    async def scenario() -> None:
        warden = ScriptedWarden({1: Script(reads=True)})
        client = await attached(warden, fresh=True)
        run = asyncio.create_task(client.run(1, READS, Kept(), more_stdin=True))
        await client.ping(SOON)
        warden.commands[1].hungry = False
        data = bytes(range(250)) * 4000
        feed = asyncio.create_task(client.feed(1, 0, data))
        for _ in range(20):
            await asyncio.sleep(0)
        feed.cancel()
        await asyncio.gather(feed, return_exceptions=True)
        received = await client.feed(1, await client.stdin_received(1), data, seconds=0.05)
        assert received == STDIN_WINDOW
        warden.commands[1].hungry = True
        warden.go_on()
        assert await client.feed(1, received, data[received:]) == len(data)
        assert bytes(warden.commands[1].input) == data
        await client.end_input(1)
        await run

    live(scenario())


def _gone() -> Callable[[], Awaitable[WardenClient]]:
    async def client() -> WardenClient:
        raise NotRunningError("the sandbox does not run")

    return client


def test_a_sandbox_that_has_ended_takes_no_input() -> None:
    async def scenario() -> None:
        with pytest.raises(SandboxLostError):
            await Steering(_gone()).feed(1, 0, b"x", seconds=1.0)

    live(scenario())


def test_a_size_arrives_over_a_connection_that_broke() -> None:
    async def scenario() -> None:
        warden = ScriptedWarden({1: Script(reads=True)})
        feeding = Feeding(warden, [])
        client = await feeding.client()
        run = asyncio.create_task(client.run(1, READS, Kept(), more_stdin=True))
        await client.ping(SOON)
        assert warden.attachment is not None
        warden.attachment.abort()
        await asyncio.gather(run, return_exceptions=True)
        await feeding.steering.resize(1, 50, 132)
        assert warden.sizes == [(1, 50, 132)]

    live(scenario())


# --- commands that wait --------------------------------------------------------------------------------------


def test_begin_arrives_over_a_connection_that_broke() -> None:
    async def scenario() -> None:
        warden = ScriptedWarden({1: Script(reads=True)})
        feeding = Feeding(warden, [])
        client = await feeding.client()
        run = asyncio.create_task(client.run(1, WAITS, Kept(), more_stdin=True))
        await client.ping(SOON)
        assert warden.attachment is not None
        warden.attachment.abort()
        await asyncio.gather(run, return_exceptions=True)
        assert await feeding.steering.begin(1, 500)
        assert warden.begun == [(1, 500)]

    live(scenario())


@RELAXED
@given(left=st.integers(0, 100))
def test_begin_has_arrived_when_it_returns_wherever_the_connection_breaks(left: int) -> None:
    """It may arrive twice: that is the warden's to pass over."""

    async def scenario() -> None:
        warden = ScriptedWarden({1: Script(reads=True)})
        feeding = Feeding(warden, [10_000])
        run = asyncio.create_task((await feeding.client()).run(1, WAITS, Kept(), more_stdin=True))
        await (await feeding.client()).ping(SOON)
        assert warden.attachment is not None
        warden.attachment.breaks_after(left)
        assert await feeding.steering.begin(1, 500)
        assert set(warden.begun) == {(1, 500)}
        assert len(warden.begun) <= 2
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    live(scenario())


def test_begin_waits_for_its_command_and_is_nothing_to_one_that_has_ended() -> None:
    async def scenario() -> None:
        warden = ScriptedWarden({1: Script(reads=True)})
        client = await attached(warden, fresh=True)
        begin = asyncio.create_task(client.begin(1, 500))
        await client.ping(SOON)
        assert not begin.done()
        run = asyncio.create_task(client.run(1, WAITS, Kept(), more_stdin=True))
        assert await begin
        await client.end_input(1)
        await run
        assert not await client.begin(1, 700)
        await client.settle(1)
        assert not await client.begin(1, 900)
        assert warden.begun == [(1, 500)]

    live(scenario())
