"""What goes into a command and what comes out of it: by offsets, at the pace of whoever reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fumehood.errors import CommandFailedError, FileOperationError
from fumehood.sandbox.sessions.readers import AHEAD_BYTES
from fumehood.sandbox.sessions.sessions import Sessions
from fumehood.sandbox.sessions.values import ProcessFacts
from fumehood.wire.console.codes import PIECE_BYTES, Reason
from tests.unit.session_world import NAME, World, command, wish
from tests.waiting import past, until

MIB = 1024 * 1024


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    async with World(tmp_path).life() as sessions:
        await sessions.create(wish())
        yield sessions


async def read_to_end(
    sessions: Sessions, command_id: str, *, begin: int = 0, limit: int = PIECE_BYTES
) -> tuple[bytes, list[int], ProcessFacts]:
    """All stdout there is from a place on, where its pieces began, and the end."""
    data, offsets, at = b"", [], begin
    while True:
        pieces, ended = await sessions.output(command_id, at, 0, limit, 5)
        for piece in pieces:
            data += piece.data
            offsets.append(piece.offset)
            at = piece.offset + len(piece.data)
        if ended is not None:
            return data, offsets, ended


async def test_output_comes_as_it_appears(sessions: Sessions) -> None:
    await sessions.start(NAME, command("ticks", "3", "0.05", command_id="c1"))
    pieces, ended = await sessions.output("c1", 0, 0, 100, 5)
    assert ([piece.data for piece in pieces], ended) == ([b"tick 0\n"], None)
    data, _, last = await read_to_end(sessions, "c1", begin=7)
    assert data == b"tick 1\ntick 2\n"
    assert last.outcome is not None
    assert await sessions.output("c1", 21, 0, 100, 5) == ([], last)


async def test_a_question_without_news_is_answered_in_time(sessions: Sessions) -> None:
    await sessions.start(NAME, command("sleep", "60", command_id="c1"))
    assert await sessions.output("c1", 6, 0, 100, 0.02) == ([], None)
    assert (await sessions.ended("c1", 0.02)).outcome is None


async def test_whoever_waits_is_told_of_the_end(sessions: Sessions) -> None:
    await sessions.start(NAME, command("cat", command_id="c1", stdin=True))
    waiting = asyncio.create_task(sessions.output("c1", 0, 0, 100, 5))
    await asyncio.sleep(0)
    await sessions.send_input("c1", 0, b"", eof=True)
    pieces, ended = await waiting
    assert pieces == []
    assert ended is not None


async def test_an_attached_reader_loses_nothing(sessions: Sessions) -> None:
    """More than is kept is printed, and read slowly: the program waits for its reader."""
    size = 24 * MIB
    await sessions.start(NAME, command("cat", command_id="c1", stdin=True))
    reading = asyncio.create_task(read_to_end(sessions, "c1"))
    sent, piece = 0, b"0123456789abcdef" * 16384
    while sent < size:
        sent = await sessions.send_input("c1", sent, piece[sent % len(piece) :])
    await sessions.send_input("c1", sent, b"", eof=True)
    data, _, ended = await reading
    assert ended.stdout_bytes == size
    assert data == piece * (size // len(piece))


async def test_output_waits_for_a_slow_reader(sessions: Sessions) -> None:
    await sessions.start(NAME, command("cat", command_id="c1", stdin=True))
    await sessions.output("c1", 0, 0, 1, 0)  # somebody reads, and has nothing yet
    feeding = asyncio.create_task(feed(sessions, "c1", 4 * MIB))
    await until(lambda: sessions.process("c1").stdout_bytes >= AHEAD_BYTES)
    await past(0.1)
    assert sessions.process("c1").stdout_bytes < 2 * AHEAD_BYTES
    data, offsets, _ = await read_to_end(sessions, "c1")
    await feeding
    assert (len(data), offsets[0]) == (4 * MIB, 0)


async def feed(sessions: Sessions, command_id: str, size: int) -> None:
    sent = 0
    while sent < size:
        sent = await sessions.send_input(command_id, sent, bytes(min(64 * 1024, size - sent)))
    await sessions.send_input(command_id, sent, b"", eof=True)


async def test_without_a_reader_the_middle_goes_and_the_offset_tells(sessions: Sessions) -> None:
    size = 16 * MIB
    await sessions.start(NAME, command("flood", str(size), command_id="c1"))
    ended = await sessions.ended("c1", 120)
    assert ended.outcome is not None
    assert ended.stdout_bytes == size
    data, offsets, _ = await read_to_end(sessions, "c1")
    gaps = [offset for offset in offsets if offset % PIECE_BYTES == 0]
    assert offsets[0] == 0
    assert 9 * MIB <= len(data) <= 11 * MIB
    assert offsets[-1] + PIECE_BYTES == size
    assert gaps == offsets
    captured = await sessions.captured("c1")
    assert (len(captured.stdout), captured.stdout_total) == (MIB, size)


async def test_a_command_whose_time_is_over_waits_for_nobody(sessions: Sessions) -> None:
    await sessions.start(NAME, command("flood", str(16 * MIB), command_id="c1", timeout_ms=200))
    await sessions.output("c1", 0, 0, 1, 0)
    ended = await sessions.ended("c1", 120)
    assert ended.outcome is not None


async def test_input_goes_on_where_it_was(sessions: Sessions) -> None:
    await sessions.start(NAME, command("cat", command_id="c1", stdin=True))
    assert await sessions.send_input("c1", 0, b"hello ") == 6
    assert await sessions.send_input("c1", 0, b"hello world") == 11  # repeated, and more
    assert sessions.process("c1").stdin_bytes == 11
    with pytest.raises(CommandFailedError) as error:
        await sessions.send_input("c1", 20, b"gap")
    assert error.value.reason == Reason.INVALID_PAYLOAD
    assert await sessions.send_input("c1", 11, b"", eof=True) == 11
    data, _, ended = await read_to_end(sessions, "c1")
    assert (data, ended.stdin_bytes) == (b"hello world", 11)
    assert await sessions.send_input("c1", 11, b"nobody reads this") == 28


async def test_input_is_for_those_who_have_it_open(sessions: Sessions) -> None:
    await sessions.start(NAME, command("sleep", "60", command_id="c1"))
    with pytest.raises(CommandFailedError) as error:
        await sessions.send_input("c1", 0, b"x")
    assert error.value.reason == Reason.INVALID_PAYLOAD


async def test_a_terminal_can_be_resized(sessions: Sessions) -> None:
    await sessions.start(NAME, command("size", command_id="c1", terminal=(24, 80)))
    await sessions.output("c1", 0, 0, 100, 5)
    await sessions.resize("c1", 50, 120)
    pieces, _ = await sessions.output("c1", 6, 0, 100, 5)
    assert b"".join(piece.data for piece in pieces) == b"50 120\n"
    assert sessions.process("c1").terminal
    await sessions.start(NAME, command("sleep", "60", command_id="c2"))
    with pytest.raises(CommandFailedError) as error:
        await sessions.resize("c2", 50, 120)
    assert error.value.reason == Reason.INVALID_PAYLOAD


async def test_files_lie_beneath_the_root(sessions: Sessions) -> None:
    files = sessions.files(NAME)
    await files.write("workspace/a/b.txt", b"hello", parents=True)
    assert await files.read_piece("workspace/a/b.txt", 1, 3) == (b"ell", 5)
    assert [info.name for info in await files.list("workspace/a")] == ["b.txt"]
    await files.mkdir("workspace/c")
    assert (await files.stat("workspace/c")).name == "c"
    await files.remove("workspace/a", recursive=True)
    with pytest.raises(FileOperationError):
        await files.read("workspace/a/b.txt", limit=10)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two"

    await files.write_stream("workspace/d", pieces())
    assert await files.read("workspace/d", limit=10) == b"one two"
