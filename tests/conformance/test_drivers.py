"""What every driver does, whatever lies below it. The names read as the driver contract's specification."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import signal
from typing import Any

import pytest

from fumehood.errors import FileOperationError, SandboxError, SandboxLostError, WardenProtocolError
from fumehood.sandbox.capture import STDERR, STDOUT, Capture
from fumehood.sandbox.driver import FileKind, Handle, State
from fumehood.sandbox.spec import WARDEN_UID, WORKSPACE, Command, End, Outcome, Stage, User
from tests.conformance.conftest import Bench

LIMIT = 256 * 1024


class Waiting(Capture):
    """A capture that tells when the program has said something."""

    def __init__(self) -> None:
        super().__init__(LIMIT)
        self.spoke = asyncio.Event()

    def write(self, stream: int, offset: int, data: bytes) -> None:
        super().write(stream, offset, data)
        self.spoke.set()


async def run(bench: Bench, *program: str, **options: Any) -> tuple[Outcome, Capture]:
    """One program in a sandbox of its own."""
    capture = Capture(LIMIT)
    async with bench.sandbox() as handle:
        command = Command(bench.programs(*program), **options)
        return await bench.driver.run(handle, command, capture, command_id=1), capture


def begin(bench: Bench, handle: Handle, capture: Capture, *program: str, **options: Any) -> asyncio.Task[Outcome]:
    command = Command(bench.programs(*program), **options)
    return asyncio.create_task(bench.driver.run(handle, command, capture, command_id=1))


# --- ends --------------------------------------------------------------------------------------------------


async def test_output_and_exit_code_are_the_programs_own(bench: Bench) -> None:
    outcome, capture = await run(bench, "echo", "hello", "world")
    assert (outcome.end, outcome.exit_code) == (End.EXITED, 0)
    assert capture.kept(STDOUT) == b"hello world\n"
    assert outcome.started_at <= outcome.ended_at


async def test_streams_stay_apart(bench: Bench) -> None:
    _, capture = await run(bench, "both", "to out", "to err")
    assert (capture.kept(STDOUT), capture.kept(STDERR)) == (b"to out", b"to err")


@pytest.mark.parametrize("code", [1, 77, 255])
async def test_a_failure_keeps_its_code(bench: Bench, code: int) -> None:
    outcome, _ = await run(bench, "exit", str(code))
    assert (outcome.end, outcome.exit_code) == (End.EXITED, code)


async def test_a_signal_is_no_exit_code(bench: Bench) -> None:
    outcome, _ = await run(bench, "raise", str(int(signal.SIGTERM)))
    assert (outcome.end, outcome.signal, outcome.exit_code) == (End.SIGNALED, signal.SIGTERM, None)


async def test_a_timeout_is_a_state_of_its_own_and_keeps_the_output_until_then(bench: Bench) -> None:
    outcome, capture = await run(bench, "sleep", "60", timeout_ms=5000)
    assert (outcome.end, outcome.exit_code, outcome.signal) == (End.TIMED_OUT, None, None)
    assert capture.kept(STDOUT) == b"begun\n"


async def test_a_program_that_does_not_exist_never_started(bench: Bench) -> None:
    outcome, _ = await run(bench, "no-such-program")
    assert (outcome.end, outcome.stage, outcome.errno) == (End.NOT_STARTED, Stage.EXEC, errno.ENOENT)


async def test_running_out_of_memory_is_told_apart(bench: Bench) -> None:
    outcome, _ = await run(bench, "hog", timeout_ms=60_000)
    assert (outcome.end, outcome.exit_code) == (End.OOM, 137)


async def test_a_sandbox_that_is_killed_is_lost_not_successful(bench: Bench) -> None:
    capture = Waiting()
    async with bench.sandbox() as handle:
        task = begin(bench, handle, capture, "sleep", "60")
        await capture.spoke.wait()
        await bench.driver.kill(handle)
        with pytest.raises(SandboxLostError):
            await task
        assert (await bench.driver.inspect(handle)).state is State.ENDED


async def test_a_signal_from_the_owner_reaches_the_program(bench: Bench) -> None:
    capture = Waiting()
    async with bench.sandbox() as handle:
        task = begin(bench, handle, capture, "sleep", "60")
        await capture.spoke.wait()
        await bench.driver.signal(handle, 1, signal.SIGKILL, everything=True)
        outcome = await task
    assert (outcome.end, outcome.signal, outcome.killed_by_owner) == (End.SIGNALED, signal.SIGKILL, True)


# --- input, environment, user ------------------------------------------------------------------------------


async def test_stdin_arrives_whole(bench: Bench) -> None:
    data = bytes(range(256)) * 4096
    outcome, _ = await run(bench, "cat", stdin=data)
    assert outcome.stdout is not None
    assert outcome.stdout.sha256 == hashlib.sha256(data).hexdigest()


async def test_the_environment_is_the_commands_and_the_images(bench: Bench) -> None:
    _, capture = await run(bench, "env", env={"KEY": "VALUE with = and \n newline", "EMPTY": ""})
    text = capture.text(STDOUT, None)
    assert "KEY=VALUE with = and \n newline\n" in text
    assert "EMPTY=\n" in text
    assert "FUMEHOOD" not in text


async def test_programs_do_not_run_as_root(bench: Bench) -> None:
    _, capture = await run(bench, "whoami")
    assert capture.kept(STDOUT) == b"65532:65532\n"


async def test_a_command_may_name_another_user(bench: Bench) -> None:
    _, capture = await run(bench, "whoami", user=User(1234, 4321))
    assert capture.kept(STDOUT) == b"1234:4321\n"


async def test_no_program_runs_under_the_wardens_own_user(bench: Bench) -> None:
    outcome, _ = await run(bench, "whoami", user=User(WARDEN_UID, WARDEN_UID))
    assert (outcome.end, outcome.stage) == (End.NOT_STARTED, Stage.USER)


# --- output ------------------------------------------------------------------------------------------------


async def test_a_flood_is_bounded_but_counted_and_hashed_whole(bench: Bench) -> None:
    size = 20_000_000
    outcome, capture = await run(bench, "flood", str(size), timeout_ms=100_000)
    assert outcome.end is End.EXITED
    assert outcome.stdout is not None
    assert outcome.stdout.total_bytes == size
    assert outcome.stdout.sha256 == hashlib.sha256(b"x" * size).hexdigest()
    assert capture.kept(STDOUT) == b"x" * LIMIT
    assert capture.truncated(STDOUT, outcome.stdout.total_bytes)


async def test_output_appears_while_the_program_runs(bench: Bench) -> None:
    capture = Waiting()
    async with bench.sandbox() as handle:
        task = begin(bench, handle, capture, "sleep", "60")
        await asyncio.wait_for(capture.spoke.wait(), 120)
        assert not task.done()
        await bench.driver.kill(handle)
        await asyncio.gather(task, return_exceptions=True)


# --- coming back -------------------------------------------------------------------------------------------


async def test_another_owner_goes_on_where_the_first_stopped(bench: Bench) -> None:
    capture = Waiting()
    async with bench.sandbox() as handle:
        task = begin(bench, handle, capture, "ticks", "20", "0.2")
        await capture.spoke.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await bench.restart()
        (found,) = await bench.driver.list({"fumehood.sandbox": handle.sandbox_id})
        assert found == handle
        await bench.driver.attach(found)
        command = Command(bench.programs("ticks", "20", "0.2"))
        outcome = await bench.driver.run(found, command, capture, command_id=1)
    assert outcome.end is End.EXITED
    assert capture.text(STDOUT, None) == "".join(f"tick {number}\n" for number in range(20))


async def test_a_command_that_ended_meanwhile_is_not_run_again(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        command = Command(bench.programs("echo", "once"))
        first = await bench.driver.run(handle, command, Capture(LIMIT), command_id=1)
        await bench.restart()
        capture = Capture(LIMIT)
        again = await bench.driver.run(handle, command, capture, command_id=1)
        assert (again.end, again.exit_code, again.started_at) == (first.end, first.exit_code, first.started_at)
        assert capture.kept(STDOUT) == b"once\n"


async def test_a_settled_command_cannot_be_had_again(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        command = Command(bench.programs("echo", "once"))
        await bench.driver.run(handle, command, Capture(LIMIT), command_id=1)
        await bench.driver.settle(handle, 1)
        await bench.restart()
        with pytest.raises(WardenProtocolError):
            await bench.driver.run(handle, command, Capture(LIMIT), command_id=1)


async def test_several_commands_in_one_sandbox(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        for number in range(1, 6):
            capture = Capture(LIMIT)
            command = Command(bench.programs("echo", str(number)), sweep=False)
            outcome = await bench.driver.run(handle, command, capture, command_id=number)
            await bench.driver.settle(handle, number)
            assert (outcome.exit_code, capture.kept(STDOUT)) == (0, f"{number}\n".encode())


# --- life --------------------------------------------------------------------------------------------------


async def test_destroy_leaves_nothing_and_may_be_repeated(bench: Bench) -> None:
    handle = await bench.driver.prepare(bench.spec())
    fresh = State.RUNNING if bench.kind.endswith("-warm") else State.CREATED
    assert (await bench.driver.inspect(handle)).state is fresh
    await bench.driver.start(handle)
    assert (await bench.driver.inspect(handle)).state is State.RUNNING
    await asyncio.gather(*(bench.driver.destroy(handle) for _ in range(5)))
    await bench.driver.destroy(handle)
    await bench.driver.kill(handle)
    assert (await bench.driver.inspect(handle)).state is State.GONE
    assert await bench.driver.list({}) == []


async def test_a_destroyed_sandbox_ends_what_runs_in_it(bench: Bench) -> None:
    capture = Waiting()
    handle = await bench.driver.prepare(bench.spec())
    await bench.driver.start(handle)
    task = begin(bench, handle, capture, "sleep", "60")
    await capture.spoke.wait()
    await bench.driver.destroy(handle)
    with pytest.raises(SandboxError):
        await task


async def test_labels_find_a_sandbox(bench: Bench) -> None:
    async with bench.sandbox(labels={"fumehood.job_id": "j1"}) as handle, bench.sandbox() as other:
        assert await bench.driver.list({"fumehood.job_id": "j1"}) == [handle]
        assert {found.sandbox_id for found in await bench.driver.list({})} == {handle.sandbox_id, other.sandbox_id}


async def test_isolation_is_observed(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        seen = (await bench.driver.inspect(handle)).isolation
    assert seen is not None
    assert seen.network == "none"
    assert seen.memory_bytes == 192 * 1024 * 1024
    assert seen.swap_bytes == 0
    assert seen.cpu_millis == 1000
    assert seen.pids >= 256
    assert seen.read_only_root
    assert seen.no_new_privileges
    assert seen.runtime == (bench.runtime or "fake")
    assert seen.seccomp in ("fumehood", "fake")


# --- files -------------------------------------------------------------------------------------------------


async def test_files_can_be_written_read_listed_and_removed(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        files = bench.driver.files(handle, root=WORKSPACE)
        await files.mkdir("a/b", parents=True)
        data = bytes(range(256)) * 2000
        await files.write("a/b/data.bin", data, mode=0o600)
        assert await files.read("a/b/data.bin", limit=len(data)) == data
        info = await files.stat("a/b/data.bin")
        assert (info.kind, info.size, info.mode & 0o777) == (FileKind.FILE, len(data), 0o600)
        assert [(entry.name, entry.kind) for entry in await files.list("a")] == [("b", FileKind.FOLDER)]
        await files.write("a/b/data.bin", b"short")
        assert await files.read("a/b/data.bin", limit=100) == b"short"
        await files.remove("a", recursive=True)
        assert await files.list(".") == []


@pytest.mark.parametrize(
    ("path", "number"), [("missing", errno.ENOENT), ("../etc/passwd", errno.EINVAL), ("/etc/passwd", errno.EINVAL)]
)
async def test_a_path_that_is_missing_or_escapes_is_refused(bench: Bench, path: str, number: int) -> None:
    async with bench.sandbox() as handle:
        with pytest.raises(FileOperationError) as caught:
            await bench.driver.files(handle, root=WORKSPACE).read(path, limit=100)
    assert caught.value.errno == number


async def test_a_file_above_the_limit_is_an_error_not_half_a_file(bench: Bench) -> None:
    async with bench.sandbox() as handle:
        files = bench.driver.files(handle, root=WORKSPACE)
        await files.write("big", b"x" * 1001)
        with pytest.raises(FileOperationError) as caught:
            await files.read("big", limit=1000)
    assert caught.value.errno == errno.EFBIG
