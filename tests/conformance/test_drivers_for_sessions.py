"""What every driver does for sessions: input that goes on, terminals, output at a reader's pace, many commands."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fumehood.errors import CommandRefusedError, FileOperationError, InvalidRequestError, SandboxError
from fumehood.sandbox.capture import STDOUT, Capture
from fumehood.sandbox.docker.backstop import BACKSTOP_SECONDS
from fumehood.sandbox.driver import Handle, Phase, State
from fumehood.sandbox.spec import WORKSPACE, Command, End, Outcome
from tests.conformance.conftest import Bench
from tests.conformance.test_drivers import LIMIT, Waiting
from tests.conformance.test_drivers_for_runs import said
from tests.waiting import past, wait_past

MIB = 1024 * 1024
SOON = 180.0


class Heard(Waiting):
    """A capture that tells when something certain was said."""

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(SOON):
            while text not in self.kept(STDOUT):
                self.spoke.clear()
                await self.spoke.wait()


class Paced:
    """A sink with a door: what it wrote down is what was let in."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked = asyncio.Event()
        self.hash = hashlib.sha256()
        self.size = 0

    async def room(self) -> None:
        self.asked.set()
        await self.open.wait()

    def write(self, stream: int, offset: int, data: bytes) -> None:
        new = data[max(0, self.size - offset) :]
        self.hash.update(new)
        self.size += len(new)


def begin(bench: Bench, handle: Handle, number: int, sink: Any, *program: str, **options: Any) -> asyncio.Task[Outcome]:
    command = Command(bench.programs(*program), **{"sweep": False, **options})
    return asyncio.create_task(bench.driver.run(handle, command, sink, command_id=number))


def stand_still(seconds: float) -> None:
    """Nothing in this process moves, its clocks excepted."""
    wait_past(seconds)


async def give_up(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# --- input -------------------------------------------------------------------------------------------------


async def test_input_goes_on_until_it_is_ended(bench: Bench) -> None:
    heard = Heard()
    async with bench.sandbox() as handle:
        driver = bench.driver
        assert await asyncio.wait_for(driver.stdin_received(handle, 1), SOON / 2) == 0
        task = begin(bench, handle, 1, heard, "cat", stdin=b"first ", open_stdin=True)
        assert await driver.feed(handle, 1, 6, b"second ") == 13  # as soon as the command is there
        await heard.until(b"first second ")
        assert await driver.feed(handle, 1, 6, b"second third") == 18, "what was received is skipped"
        await heard.until(b"third")
        assert await driver.feed(handle, 1, 0, b"") == 18
        with pytest.raises(InvalidRequestError, match="18"):
            await driver.feed(handle, 1, 19, b"a gap")
        assert await driver.stdin_received(handle, 1) == 18
        assert not task.done()
        await driver.end_input(handle, 1)
        outcome = await asyncio.wait_for(task, SOON)
        await driver.end_input(handle, 1)
        assert await driver.feed(handle, 1, 18, b"too late") == 18
        assert (await driver.stdin_received(handle, 1), outcome.exit_code) == (18, 0)
        await driver.settle(handle, 1)
        assert await driver.feed(handle, 1, 18, b"far too late") == 0
    assert heard.kept(STDOUT) == b"first second third"


async def test_input_behind_its_end_or_for_a_command_without_any_is_refused(bench: Bench) -> None:
    heard = Heard()
    async with bench.sandbox() as handle:
        driver = bench.driver
        reading = begin(bench, handle, 1, heard, "sleep", "60", open_stdin=True)
        closed = begin(bench, handle, 2, Capture(LIMIT), "sleep", "60")
        assert await driver.feed(handle, 1, 0, b"all of it") == 9
        for _ in range(2):
            await driver.end_input(handle, 1)
        assert await driver.feed(handle, 1, 0, b"all of it") == 9, "repeating is harmless"
        with pytest.raises(InvalidRequestError):
            await driver.feed(handle, 1, 9, b"more")
        for _ in range(2):
            with pytest.raises(InvalidRequestError):
                await driver.feed(handle, 2, 0, b"x")
        assert await driver.stdin_received(handle, 2) == 0
        await driver.signal(handle, 1, signal.SIGKILL, everything=True)
        await asyncio.gather(reading, closed)


async def test_input_waits_for_a_program_that_does_not_read_but_not_for_ever(bench: Bench) -> None:
    data = bytes(range(256)) * 4 * 1024
    async with bench.sandbox() as handle:
        driver = bench.driver
        task = begin(bench, handle, 1, Capture(LIMIT), "sleep", "60", open_stdin=True)
        received = await driver.feed(handle, 1, 0, data, seconds=0.3)
        assert 256 * 1024 <= received < len(data)
        assert await driver.stdin_received(handle, 1) == received
        blocked = asyncio.create_task(driver.feed(handle, 1, received, data[received:], seconds=SOON))
        other = await asyncio.wait_for(begin(bench, handle, 2, Capture(LIMIT), "echo", "beside it"), SOON)
        assert (other.exit_code, blocked.done()) == (0, False)
        await driver.signal(handle, 1, signal.SIGKILL)
        await asyncio.gather(task, asyncio.wait_for(blocked, SOON))


async def test_input_goes_on_under_the_next_owner(bench: Bench) -> None:
    data = bytes(range(256)) * 8 * 1024
    half = len(data) // 2
    async with bench.sandbox() as handle:
        capture = Capture(len(data))
        task = begin(bench, handle, 1, capture, "cat", open_stdin=True)
        received = 0
        while received < half:
            received = await bench.driver.feed(handle, 1, received, data[received:half])
        await give_up(task)
        await bench.restart()
        assert await bench.driver.stdin_received(handle, 1) == half
        assert await bench.driver.feed(handle, 1, 0, data[:half]) == half
        assert await bench.driver.feed(handle, 1, half, data[half : half + 10]) == half + 10  # nobody joined it yet
        again = begin(bench, handle, 1, capture, "cat", open_stdin=True)
        received = half
        while received < len(data):
            received = await bench.driver.feed(handle, 1, received, data[received:])
        await bench.driver.end_input(handle, 1)
        outcome = await asyncio.wait_for(again, SOON)
    assert (outcome.exit_code, capture.kept(STDOUT) == data) == (0, True)


async def test_input_and_output_go_on_over_connections_that_break(bench: Bench) -> None:
    data = bytes(range(256)) * 8 * 1024
    async with bench.sandbox() as handle:
        capture = Capture(len(data))
        task = begin(bench, handle, 1, capture, "cat", open_stdin=True)
        received = 0
        for end in range(0, len(data) + 1, len(data) // 8):
            while received < end:
                feeding = asyncio.create_task(bench.driver.feed(handle, 1, received, data[received:end]))
                await past(0.01)
                bench.cut(handle)
                received = await feeding
        bench.cut(handle)
        await bench.driver.end_input(handle, 1)
        bench.cut(handle)
        outcome = await asyncio.wait_for(task, SOON)
        bench.cut(handle)
        await bench.driver.settle(handle, 1)  # nobody is attached: the next one tells the warden
        flood = begin(bench, handle, 2, Capture(LIMIT), "flood", str(2 * MIB))
        assert (await asyncio.wait_for(flood, SOON)).exit_code == 0
    assert (outcome.exit_code, capture.kept(STDOUT) == data) == (0, True)


async def test_a_command_that_was_given_up_can_be_joined_again(bench: Bench) -> None:
    heard = Heard()
    async with bench.sandbox() as handle:
        task = begin(bench, handle, 1, heard, "cat", open_stdin=True)
        await bench.driver.feed(handle, 1, 0, b"before ")
        await heard.until(b"before ")
        await give_up(task)
        again = begin(bench, handle, 1, heard, "cat", open_stdin=True)
        await bench.driver.feed(handle, 1, 7, b"after")
        await bench.driver.end_input(handle, 1)
        assert (await asyncio.wait_for(again, SOON)).exit_code == 0
        once_more = await begin(bench, handle, 1, heard, "cat", open_stdin=True)
        assert once_more.exit_code == 0, "an end is there until it is settled"
    assert heard.kept(STDOUT) == b"before after"


# --- kills -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("everything", [False, True])
async def test_a_kill_ends_children_that_are_being_forked(bench: Bench, everything: bool) -> None:
    mark = "4712"
    async with bench.sandbox() as handle:
        for number in range(1, 9, 2):
            heard = Waiting()
            task = begin(bench, handle, number, heard, "forks", mark)
            await heard.spoke.wait()
            await bench.driver.signal(handle, number, signal.SIGKILL, everything=everything)
            outcome = await task
            assert await said(bench, handle, number + 1, "left", mark) == "gone\n"
            assert (outcome.end, outcome.signal, outcome.killed_by_owner) == (End.SIGNALED, signal.SIGKILL, True)


# --- terminals ---------------------------------------------------------------------------------------------


async def test_a_terminal_has_a_size_that_can_change(bench: Bench) -> None:
    heard = Heard()
    async with bench.sandbox() as handle:
        task = begin(bench, handle, 1, heard, "size", pty=(24, 80), open_stdin=True)
        await heard.until(b"24 80")
        await bench.driver.resize(handle, 1, 50, 132)
        await heard.until(b"50 132")
        for rows, columns in ((0, 80), (24, 65_536)):
            with pytest.raises(InvalidRequestError):
                await bench.driver.resize(handle, 1, rows, columns)
        await bench.driver.signal(handle, 1, signal.SIGKILL)
        await task
        await bench.driver.resize(handle, 1, 10, 10)


async def test_an_end_of_input_on_a_terminal(bench: Bench) -> None:
    heard = Heard()
    async with bench.sandbox() as handle:
        task = begin(bench, handle, 1, heard, "cat", pty=(24, 80), open_stdin=True)
        await bench.driver.feed(handle, 1, 0, b"typed\n")
        await heard.until(b"typed")
        await bench.driver.end_input(handle, 1)
        assert (await asyncio.wait_for(task, SOON)).exit_code == 0


# --- output at a reader's pace -----------------------------------------------------------------------------


async def test_a_reader_that_waits_holds_its_own_command_and_no_other(bench: Bench) -> None:
    slow = Paced()
    async with bench.sandbox() as handle:
        held = begin(bench, handle, 1, slow, "echo", "for later")
        await asyncio.wait_for(slow.asked.wait(), SOON)
        for number in range(2, 6):
            quick = Paced()
            quick.open.set()
            outcome = await asyncio.wait_for(begin(bench, handle, number, quick, "both", "out", ""), SOON)
            await bench.driver.settle(handle, number)
            assert (outcome.exit_code, quick.size) == (0, 3)
        reading = begin(bench, handle, 6, Capture(LIMIT), "cat", open_stdin=True)
        assert await asyncio.wait_for(bench.driver.feed(handle, 6, 0, b"x" * (MIB // 2)), SOON) == MIB // 2
        assert (slow.size, held.done()) == (0, False)
        slow.open.set()
        assert (await asyncio.wait_for(held, SOON)).exit_code == 0
        await bench.driver.end_input(handle, 6)
        assert (await asyncio.wait_for(reading, SOON)).exit_code == 0
    assert slow.hash.hexdigest() == hashlib.sha256(b"for later\n").hexdigest()


async def test_floods_whose_readers_wait_hold_up_no_other_command_and_no_file(bench: Bench) -> None:
    """Each command has a window of its own, and more commands end behind them than a sandbox has room for at a time."""
    size, slow = 4 * MIB, [Paced() for _ in range(5)]
    async with bench.sandbox() as handle:
        floods = [begin(bench, handle, number, sink, "flood", str(size)) for number, sink in enumerate(slow, start=1)]
        for sink in slow:
            await asyncio.wait_for(sink.asked.wait(), SOON)
        files = bench.driver.files(handle, root=WORKSPACE)
        for number in range(6, 46):
            outcome = await asyncio.wait_for(begin(bench, handle, number, Capture(LIMIT), "echo", "beside"), SOON)
            await bench.driver.settle(handle, number)
            assert outcome.exit_code == 0
        loud = begin(bench, handle, 46, Capture(LIMIT), "flood", str(size))
        assert (await asyncio.wait_for(loud, SOON)).exit_code == 0
        await asyncio.wait_for(files.write("file", b"x" * MIB), SOON)
        assert await asyncio.wait_for(files.read("file", limit=2 * MIB), SOON) == b"x" * MIB
        assert [(sink.size, flood.done()) for sink, flood in zip(slow, floods, strict=True)] == [(0, False)] * 5
        for sink in slow:
            sink.open.set()
        outcomes = await asyncio.wait_for(asyncio.gather(*floods), 2 * SOON)
    for sink, outcome in zip(slow, outcomes, strict=True):
        assert outcome.stdout is not None
        assert (sink.size, sink.hash.hexdigest()) == (size, outcome.stdout.sha256)


async def test_a_reader_that_waits_stops_a_flood_and_loses_nothing_of_it(bench: Bench) -> None:
    size, sink = 8 * MIB, Paced()
    async with bench.sandbox() as handle:
        task = begin(bench, handle, 1, sink, "flood", str(size))
        await asyncio.wait_for(sink.asked.wait(), SOON)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 0.5)
        assert sink.size == 0
        sink.open.set()
        outcome = await asyncio.wait_for(task, 2 * SOON)
    assert outcome.stdout is not None
    assert (outcome.stdout.total_bytes, sink.size) == (size, size)
    assert outcome.stdout.sha256 == sink.hash.hexdigest()


async def test_a_deadline_is_kept_while_a_reader_waits_and_the_sandbox_lives_on(bench: Bench) -> None:
    sink = Paced()
    async with bench.sandbox() as handle:
        task = begin(bench, handle, 1, sink, "flood", str(MIB * MIB), timeout_ms=4000)
        await asyncio.wait_for(sink.asked.wait(), SOON)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 4 + 2 * BACKSTOP_SECONDS)
        sink.open.set()
        outcome = await asyncio.wait_for(task, SOON)
        other = await asyncio.wait_for(begin(bench, handle, 2, Capture(LIMIT), "echo"), SOON)
    assert (outcome.end, other.exit_code) == (End.TIMED_OUT, 0)
    assert (outcome.stdout and outcome.stdout.total_bytes) == sink.size


async def test_an_owner_that_stood_still_hears_how_its_command_ended(bench: Bench) -> None:
    """For longer than the command had, and in the middle of it: it ended in time, and its sandbox goes on."""
    if bench.kind.startswith("fake"):
        return  # its programs stand still with us
    capture = Waiting()
    async with bench.sandbox() as handle:
        task = begin(bench, handle, 1, capture, "ticks", "1", "0.3", timeout_ms=8000)
        await capture.spoke.wait()
        stand_still(8 + 2 * BACKSTOP_SECONDS)
        outcome = await asyncio.wait_for(task, SOON)
        other = await asyncio.wait_for(begin(bench, handle, 2, Capture(LIMIT), "echo"), SOON)
    assert (outcome.end, outcome.exit_code) == (End.EXITED, 0)
    assert (other.end, other.exit_code) == (End.EXITED, 0)


async def test_only_what_the_oom_killer_struck_is_called_so(bench: Bench) -> None:
    """It strikes once, and the session goes on: what ends with 137 after that ended by itself."""

    async def ended(number: int, *program: str) -> Outcome:
        task = begin(bench, handle, number * 256, Capture(LIMIT), *program, timeout_ms=60_000)
        return await asyncio.wait_for(task, 2 * SOON)

    async with bench.sandbox() as handle:
        assert (await ended(2, "hog")).end is End.OOM
        if (await bench.driver.inspect(handle)).state is State.ENDED:
            return  # gVisor's memory is one process for the kernel, and may go as a whole
        code = await ended(4, "exit", "137")
        signaled = await ended(6, "raise", str(int(signal.SIGKILL)))
        again = await ended(8, "hog")
    assert (code.end, code.exit_code) == (End.EXITED, 137)
    assert (signaled.end, signaled.signal) == (End.SIGNALED, signal.SIGKILL)
    assert (again.end, again.exit_code) == (End.OOM, 137)


async def test_the_next_owner_takes_more_than_a_window_that_waited_for_him(bench: Bench) -> None:
    size, sink = 4 * MIB, Paced()
    async with bench.sandbox() as handle:
        task = begin(bench, handle, 1, sink, "flood", str(size))
        await asyncio.wait_for(sink.asked.wait(), SOON)
        await give_up(task)
        await bench.restart()
        await bench.driver.attach(handle)
        assert await bench.driver.files(handle, root=WORKSPACE).list(".") == []  # all that waits has come before this
        capture = Capture(size)
        outcome = await asyncio.wait_for(begin(bench, handle, 1, capture, "flood", str(size)), 2 * SOON)
    assert outcome.stdout is not None
    assert outcome.stdout.sha256 == hashlib.sha256(capture.kept(STDOUT)).hexdigest()


async def test_a_sink_that_fails_fails_its_own_command(bench: Bench) -> None:
    class Full(Capture):
        def write(self, stream: int, offset: int, data: bytes) -> None:
            raise OSError(28, "no space left on device")

    heard = Heard()
    async with bench.sandbox() as handle:
        other = begin(bench, handle, 1, heard, "cat", open_stdin=True)
        await bench.driver.reached(handle, 1, Phase.SENT)
        with pytest.raises(OSError, match="no space"):
            await asyncio.wait_for(begin(bench, handle, 2, Full(LIMIT), "echo", "kept"), SOON)
        await bench.driver.feed(handle, 1, 0, b"still here")
        await heard.until(b"still here")
        capture = Capture(LIMIT)
        await asyncio.wait_for(begin(bench, handle, 2, capture, "echo", "kept"), SOON)
        assert capture.kept(STDOUT) == b"kept\n"
        await bench.driver.end_input(handle, 1)
        await other


# --- many commands -----------------------------------------------------------------------------------------


async def test_ids_of_commands_and_file_operations_do_not_get_in_each_others_way(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        files = bench.driver.files(handle, root=WORKSPACE)
        numbers = [await bench.driver.next_id(handle) for _ in range(3)]
        assert numbers == sorted(set(numbers))
        for number in numbers:
            await asyncio.gather(*(files.write(f"{number}-{index}", b"x") for index in range(8)))
            assert (await begin(bench, handle, number, Capture(LIMIT), "echo")).exit_code == 0
            await bench.driver.settle(handle, number)
        late, later = await bench.driver.next_id(handle), await bench.driver.next_id(handle)
        assert (await begin(bench, handle, later, Capture(LIMIT), "echo")).exit_code == 0
        with pytest.raises(SandboxError):
            await begin(bench, handle, late, Capture(LIMIT), "echo")
        assert await bench.driver.next_id(handle) > later
        await bench.restart()
        assert await bench.driver.next_id(handle) > later
        with pytest.raises(InvalidRequestError):
            await begin(bench, handle, 255, Capture(LIMIT), "echo")


async def test_a_command_that_is_waited_for_is_not_waited_for_twice(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        sink = Capture(LIMIT)
        task = begin(bench, handle, 1, sink, "cat", open_stdin=True)
        await bench.driver.reached(handle, 1, Phase.SENT)
        with pytest.raises(CommandRefusedError):
            await begin(bench, handle, 1, sink, "cat", open_stdin=True)
        await bench.driver.end_input(handle, 1)
        assert (await asyncio.wait_for(task, SOON)).exit_code == 0


async def test_the_next_owner_gets_rid_of_what_nobody_joins(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        heard, sink = Heard(), Paced()
        sleeping = begin(bench, handle, 1, heard, "sleep", "60")
        await heard.until(b"begun")
        await asyncio.wait_for(begin(bench, handle, 2, Capture(LIMIT), "echo", "never settled"), SOON)
        flooding = begin(bench, handle, 3, sink, "flood", str(4 * MIB))
        await asyncio.wait_for(sink.asked.wait(), SOON)
        for task in (sleeping, flooding):
            await give_up(task)
        await bench.restart()
        await bench.driver.attach(handle)
        await bench.driver.disown(handle, keep={1})
        kept, size = begin(bench, handle, 1, heard, "sleep", "60"), 2 * MIB
        outcome = await asyncio.wait_for(begin(bench, handle, 4, Capture(LIMIT), "flood", str(size)), SOON)
        assert (outcome.stdout and outcome.stdout.total_bytes) == size
        await bench.driver.signal(handle, 1, signal.SIGKILL)
        assert (await asyncio.wait_for(kept, SOON)).end is End.SIGNALED
        with pytest.raises(SandboxError):
            await begin(bench, handle, 3, Capture(LIMIT), "echo")


# --- files piece by piece ----------------------------------------------------------------------------------


async def pieces(count: int, size: int = 100_000, *, fail: bool = False) -> AsyncIterator[bytes]:
    for number in range(count):
        yield bytes([number % 256]) * size
    if fail:
        raise ConnectionResetError("the sender went away")


async def test_files_go_in_and_come_out_in_pieces(bench: Bench) -> None:
    count, size = 30, 100_000
    whole = b"".join([piece async for piece in pieces(count, size)])
    async with bench.sandbox() as handle:
        files = bench.driver.files(handle, root=WORKSPACE)
        await files.write_stream("a/big", pieces(count, size), mode=0o640, parents=True)
        info = await files.stat("a/big")
        assert (info.size, info.mode & 0o777) == (len(whole), 0o640)
        step, got = 700_000, b""
        while True:
            piece, told = await files.read_piece("a/big", len(got), step)
            assert told == len(whole)
            assert piece == whole[len(got) : len(got) + step]
            if not piece:
                break
            got += piece
        assert got == whole
        assert await files.read_piece("a/big", len(whole) + 5, 10) == (b"", len(whole))
        assert await files.read_piece("a/big", 3, 0) == (b"", len(whole))
        assert await files.read_piece("a/big", 0, len(whole)) == (whole, len(whole))
        everywhere = bench.driver.files(handle, root="/")
        assert await everywhere.read_piece("workspace/a/big", 100_000, 2) == (b"\1\1", len(whole))
        await files.write_stream("a/empty", pieces(0))
        assert await files.read_piece("a/empty", 0, 10) == (b"", 0)
        for wrong in ((-1, 1), (0, -1)):
            with pytest.raises(InvalidRequestError):
                await files.read_piece("a/big", *wrong)
        for path in ("a", "missing"):
            with pytest.raises(FileOperationError):
                await files.read_piece(path, 0, 0)
        with pytest.raises(FileOperationError):
            await files.write_stream("missing/big", pieces(count, size))


async def test_a_file_whose_sender_goes_away_is_not_there_and_leaves_nothing(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        files = bench.driver.files(handle, root=WORKSPACE)
        await files.write("old", b"as it was")
        for path in ("old", "new"):
            with pytest.raises(ConnectionResetError):
                await files.write_stream(path, pieces(20, fail=True))
        asked = asyncio.Event()

        async def never_ends() -> AsyncIterator[bytes]:
            yield b"x" * MIB
            asked.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(files.write_stream("new", never_ends()))
        await asyncio.wait_for(asked.wait(), SOON)
        await files.write("beside", b"another one")
        await give_up(task)
        assert task.cancelled()
        assert sorted(entry.name for entry in await files.list(".")) == ["beside", "old"]
        assert await files.read("old", limit=100) == b"as it was"
