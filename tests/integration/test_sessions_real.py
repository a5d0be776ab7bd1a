"""Sessions on the real engine: kept, taken over, and really gone."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fumehood.errors import CommandFailedError
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from fumehood.sandbox.sessions.process import SIDE_EFFECT
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.values import (
    Captured,
    ProcessFacts,
    ProcessWish,
    SessionName,
    SessionOptions,
    SessionWish,
    now_ms,
)
from fumehood.sandbox.spec import End
from fumehood.wire.console.codes import Reason
from tests.conftest import TimeBounds
from tests.integration.session_life import NAME, life
from tests.integration.worker_world import Clock
from tests.noise import Watch
from tests.waiting import until

ROOT = Path(__file__).parents[2]
TREE = "setsid sh -c 'trap \"\" TERM INT HUP; echo $$ >/workspace/child; while :; do sleep 0.1; done' & sleep 60"
ALIVE = 'kill -0 "$(cat /workspace/child)" 2>/dev/null && echo alive || echo dead'


@dataclass
class Place:
    """A state folder and a name on the engine that no other test uses."""

    state: Path
    node_id: str
    image: str

    def wish(self, name: SessionName = NAME, lease_ms: int = 600_000) -> SessionWish:
        return SessionWish(name, self.image, lease_ms)

    async def containers(self) -> int:
        driver = DockerDriver(DockerOptions(node_id=self.node_id, state_dir=self.state))
        try:
            return len(await driver.list({}))
        finally:
            await driver.close()


@pytest.fixture
async def place(docker_socket: Path, base_image: str, tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path, f"sessions-{uuid.uuid4().hex[:12]}", base_image)
    yield place
    async with life(place.state, place.node_id) as sessions:
        await sessions.remove_all()
        await sessions.leases({})
    assert await place.containers() == 0


async def shell(sessions: Sessions, script: str, name: SessionName = NAME) -> Captured:
    """Run a script to its end."""
    begun = await sessions.start(name, ProcessWish(uuid.uuid4().hex, ("sh", "-c", script)))
    ended = await sessions.ended(begun.command_id, 120)
    assert ended.outcome is not None
    assert (ended.outcome.end, ended.outcome.exit_code) == (End.EXITED, 0), ended
    return await sessions.captured(begun.command_id)


async def printed(sessions: Sessions, command_id: str, text: bytes) -> None:
    async with asyncio.timeout(30):
        at, seen = 0, b""
        while text not in seen:
            pieces, ended = await sessions.output(command_id, at, 0, 65536, 5)
            for piece in pieces:
                seen, at = seen + piece.data, piece.offset + len(piece.data)
            assert ended is None or text in seen, seen


async def test_one_sandbox_serves_many_commands(place: Place, time_bounds: TimeBounds) -> None:
    """Its state is kept, what runs in the background lives on, and it takes input, terminals and files."""
    async with life(place.state, place.node_id) as sessions:
        made = await sessions.create(place.wish())
        await shell(sessions, "echo kept >/workspace/file; sleep 300 & echo $! >/workspace/child")
        assert (
            await shell(sessions, "cat file; pwd; echo $HOME; " + ALIVE)
        ).stdout == b"kept\n/workspace\n/workspace\nalive\n"
        assert sessions.get(NAME).sandbox_id == made.sandbox_id

        await sessions.start(NAME, ProcessWish("cat", ("cat",), stdin=True))
        data = bytes(range(256)) * 4096
        sent = 0
        while sent < len(data):
            sent = await sessions.send_input("cat", sent, data[sent : sent + 200_000])
        await sessions.send_input("cat", sent, b"", eof=True)
        assert (await sessions.ended("cat", 120)).stdin_bytes == len(data)
        assert (await sessions.captured("cat")).stdout == data

        # Without its own trap, bash ignores a SIGINT that arrives just as `sleep` exits by itself.
        script = "trap 'exit 130' INT; trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done"
        await sessions.start(NAME, ProcessWish("tty", ("bash", "-c", script), terminal=(24, 80), stdin=True))
        await printed(sessions, "tty", b"24 80\r\n")
        await sessions.resize("tty", 40, 132)
        await printed(sessions, "tty", b"40 132\r\n")
        await sessions.send_input("tty", 0, b"\x03")  # Ctrl-C
        ended = (await sessions.ended("tty", 120)).outcome
        assert ended is not None
        assert (ended.end, ended.exit_code) == (End.EXITED, 130)

        files = sessions.files(NAME)
        await files.write("workspace/deep/in", b"from outside", parents=True)
        assert (await shell(sessions, "cat deep/in; echo inside >deep/out")).stdout == b"from outside"
        assert await files.read_piece("workspace/deep/out", 2, 4) == (b"side", 7)

        before = Watch()
        await sessions.remove(NAME)
        time_bounds.check(before.seconds, 20)
        assert await place.containers() == 0


async def test_when_the_end_of_a_timeout_is_told_nothing_runs_any_more(place: Place) -> None:
    async with life(place.state, place.node_id) as sessions:
        await sessions.create(place.wish())
        await sessions.start(NAME, ProcessWish("beside", ("sleep", "60")))
        await sessions.start(NAME, ProcessWish("slow", ("sh", "-c", TREE), timeout_ms=700))
        ended = await sessions.ended("slow", 120)
        assert ended.outcome is not None
        assert ended.outcome.end is End.TIMED_OUT
        assert (await shell(sessions, "test -s child; " + ALIVE)).stdout == b"dead\n"
        beside = await sessions.ended("beside", 120)
        assert beside.outcome is not None
        assert (beside.outcome.end, beside.detail) == (End.SIGNALED, SIDE_EFFECT)


async def test_the_next_process_takes_over_what_a_killed_one_left(place: Place) -> None:
    argv = [sys.executable, "-m", "tests.integration.session_process", str(place.state), place.node_id, place.image]
    worker = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert worker.stdout is not None
        assert await asyncio.wait_for(worker.stdout.readline(), 120) == b"begun\n"
    finally:
        worker.kill()
        await worker.wait()
    async with life(place.state, place.node_id) as sessions:
        assert sessions.get(NAME).running >= 1
        assert (await sessions.captured("done")).stdout == b"done\n"
        await sessions.send_input("cat", 7, b"after", eof=True)
        ended = await sessions.ended("counting", 120)
        assert _exit_code(ended) == 0
        found = await sessions.captured("counting")
        assert found.stdout == b"".join(b"line %d\n" % number for number in range(150))
        assert found.stderr == b"".join(b"error %d\n" % number for number in range(150))
        assert _exit_code(await sessions.ended("cat", 120)) == 0
        assert (await sessions.captured("cat")).stdout == b"before after"
        assert (await shell(sessions, "echo goes on")).stdout == b"goes on\n"


async def test_the_next_process_ends_what_a_killed_one_began_to_remove(place: Place) -> None:
    """And says so only when it is gone."""
    async with life(place.state, place.node_id) as sessions:
        made = await sessions.create(place.wish())
        with sessions.exclusive(NAME, "c1"):
            await sessions.start(NAME, ProcessWish("c1", ("sh", "-c", TREE)))
        await sessions._lives._store.mark_going(made.sandbox_id, "it was in the way")  # the last thing that it did
    async with life(place.state, place.node_id) as sessions:
        with sessions.exclusive(NAME, "c1"):
            ended = await sessions.ended("c1", 120)
        assert await place.containers() == 0
        assert ended.outcome is not None
        assert (ended.outcome.end, ended.detail) == (End.SANDBOX_LOST, "it was in the way")


def _exit_code(facts: ProcessFacts) -> int | None:
    return facts.outcome.exit_code if facts.outcome is not None else None


async def test_a_slow_reader_loses_nothing_and_holds_up_nothing_else_in_its_session(place: Place) -> None:
    size, line = 12 * 1024 * 1024, b"0123456789abcde\n"
    async with life(place.state, place.node_id) as sessions:
        await sessions.create(place.wish())
        files = sessions.files(NAME)

        async def beside() -> None:
            async with asyncio.timeout(60):
                assert (await shell(sessions, "echo beside")).stdout == b"beside\n"
                await files.write("workspace/file", b"kept")
                assert await files.read_piece("workspace/file", 0, 10) == (b"kept", 4)

        await sessions.start(NAME, ProcessWish("flood", ("sh", "-c", f"yes {line.decode().strip()} | head -c {size}")))

        async def has_begun() -> bool:
            await sessions.output("flood", 0, 0, 1024, 0)  # a reader that does not get on
            return sessions.process("flood").stdout_bytes >= 1024 * 1024

        await until(has_begun)
        for _ in range(12):
            await sessions.output("flood", 0, 0, 1024, 0)
            await beside()
        assert sessions.process("flood").stdout_bytes < size // 2
        heard, seen = hashlib.sha256(), 0
        while seen < size:
            pieces, _ = await sessions.output("flood", seen, 0, 512 * 1024, 20)
            for piece in pieces:
                assert piece.offset == seen, "a gap"
                heard.update(piece.data)
                seen += len(piece.data)
            if seen % (4 * 1024 * 1024) == 0:
                await beside()
        outcome = (await sessions.ended("flood", 120)).outcome
        assert outcome is not None
        assert outcome.stdout is not None
        assert (outcome.stdout.total_bytes, outcome.stdout.sha256) == (size, heard.hexdigest())


async def test_a_session_goes_when_its_lease_is_over(place: Place) -> None:
    clock = Clock()
    options = SessionOptions(clock=clock, steady=clock.steady, janitor_seconds=0.1)
    async with life(place.state, place.node_id, options) as sessions:
        gone = asyncio.Event()
        sessions.on_change(lambda _name, facts: gone.set() if facts is None else None)
        made = await sessions.create(place.wish(lease_ms=60_000))
        begun = await sessions.start(NAME, ProcessWish("c1", ("sleep", "60")))
        assert begun.outcome is None
        clock.ahead_ms += made.lease_expires_ms - clock() + 1
        await asyncio.wait_for(gone.wait(), 120)
        with pytest.raises(CommandFailedError) as error:
            sessions.get(NAME)
        assert error.value.reason == Reason.SESSION_NOT_FOUND
        assert sessions.process("c1").outcome is not None
        assert await place.containers() == 0


async def test_a_process_that_lost_its_memory_finds_its_sandboxes_by_their_labels(place: Place) -> None:
    other = SessionName("acme", "unknown")
    async with life(place.state, place.node_id) as sessions:
        made = await sessions.create(place.wish())
        await sessions.create(place.wish(other))
        await shell(sessions, "echo kept >file")
        await sessions.start(NAME, ProcessWish("c1", ("sleep", "300")))
    for file in (place.state / "sessions").glob("sessions.db*"):
        file.unlink()
    async with life(place.state, place.node_id) as sessions:
        assert sessions.list() == []
        expires = now_ms() + 60_000
        await sessions.leases({NAME: expires})
        (adopted,) = sessions.list()
        seen = {"isolation": made.evidence["isolation"]}
        expected = replace(made, lease_expires_ms=expires, evidence=seen)
        assert adopted == expected, "what admission said is forgotten with the rest, and not made up"
        assert await place.containers() == 1
        assert (await shell(sessions, "cat file")).stdout == b"kept\n"
