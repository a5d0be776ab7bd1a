"""Uploads: however their pieces come, a file is delivered once and whole."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fumehood.errors import CommandFailedError, FileOperationError
from fumehood.node.console import uploads as module
from fumehood.node.console.uploads import IDLE_SECONDS, MOST, MOST_OF_ONE, UploadName, Uploads
from fumehood.sandbox.sessions.values import SessionName
from tests.waiting import turns, until

SESSION = SessionName("acme", "s")
NAME = UploadName(SESSION, "u", "f")


class Target:
    def __init__(self) -> None:
        self.delivered: list[bytes] = []
        self.refuses = False

    async def __call__(self, pieces: AsyncIterator[bytes]) -> None:
        if self.refuses:
            raise FileOperationError("no space left", errno=28)
        self.delivered.append(b"".join([piece async for piece in pieces]))


def kept(folder: Path) -> int:
    return len(list(folder.iterdir()))


async def opened(folder: Path) -> Uploads:
    made = Uploads(folder)
    await made.open()
    return made


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=40), st.lists(st.tuples(st.integers(0, 45), st.integers(0, 20), st.booleans()), max_size=12))
def test_pieces_in_any_order(content: bytes, asked: list[tuple[int, int, bool]]) -> None:
    """Repeated, overlapping, too early, with a death in between: what is delivered is the content, and only once."""

    async def story(folder: Path) -> None:
        target, uploads = Target(), await opened(folder)
        received = 0
        for offset, length, dies in asked:
            if dies and not target.delivered:
                uploads = await opened(folder)
            data = content[offset : offset + length]
            last = offset <= len(content) <= offset + length
            told = await uploads.take(NAME, min(offset, len(content)), data, target if last else None)
            assert received <= told <= len(content)
            received = told
        while not target.delivered:
            received = await uploads.take(NAME, received, content[received:], target)
        assert target.delivered == [content]
        assert await uploads.take(NAME, 0, content, target) == len(content)
        assert target.delivered == [content]
        assert kept(folder) == 0

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder)))


async def test_the_same_piece_twice_at_once(tmp_path: Path) -> None:
    target, uploads = Target(), await opened(tmp_path)
    told = await asyncio.gather(*(uploads.take(NAME, 0, b"abc", target) for _ in range(5)))
    assert (told, target.delivered) == ([3] * 5, [b"abc"])


async def test_what_is_refused_begins_anew(tmp_path: Path) -> None:
    """Not half of it, nor an empty file, for those who waited."""
    target, uploads = Target(), await opened(tmp_path)
    await uploads.take(NAME, 0, b"abc", None)
    target.refuses = True

    async def last() -> int:
        return await uploads.take(NAME, 3, b"def", target)

    told = await asyncio.gather(last(), last(), return_exceptions=True)
    assert isinstance(told[0], FileOperationError)
    assert told[1] == 0
    target.refuses = False
    assert await uploads.take(NAME, 0, b"abcdef", target) == 6
    assert target.delivered == [b"abcdef"]


async def test_names_are_apart(tmp_path: Path) -> None:
    uploads = await opened(tmp_path)
    names = [
        NAME,
        UploadName(SessionName("other", "s"), "u", "f"),
        UploadName(SessionName("acme", "t"), "u", "f"),
        UploadName(SESSION, "v", "f"),
        UploadName(SESSION, "u", "g"),
    ]
    for number, name in enumerate(names):
        assert await uploads.take(name, 0, b"x" * (number + 1), None) == number + 1


async def test_there_is_an_end_to_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.01)
    now = 0.0
    uploads = Uploads(tmp_path, clock=lambda: now)
    await uploads.open()

    async def begin(number: int, size: int = 1) -> int:
        return await uploads.take(UploadName(SESSION, str(number), "f"), 0, b"x" * size, None)

    for number in range(MOST_OF_ONE):
        await begin(number)
    with pytest.raises(CommandFailedError, match="you have as many uploads"):
        await begin(MOST)
    assert await begin(0) == 1  # the one that it has goes on
    now = IDLE_SECONDS + 1
    await until(lambda: kept(tmp_path) == 0)
    assert await begin(MOST) == 1
    monkeypatch.setattr(module, "MOST_BYTES_OF_ONE", 10)
    with pytest.raises(CommandFailedError, match="you have as many uploads"):
        await begin(MOST + 1, 10)
    assert await begin(MOST + 1, 9) == 9
    await uploads.close()


async def test_one_owner_leaves_room_for_others(tmp_path: Path) -> None:
    """Also after this process died: a draft's name tells whose it is."""
    uploads = await opened(tmp_path)

    async def fill(owner: str) -> int:
        for number in range(MOST):
            try:
                await uploads.take(UploadName(SessionName(owner, "s"), str(number), "f"), 0, b"x", None)
            except CommandFailedError:
                return number
        return MOST

    assert await fill("mallory") == MOST_OF_ONE
    uploads = await opened(tmp_path)
    assert await fill("mallory") == MOST_OF_ONE
    assert [await fill(owner) for owner in ("a", "b", "c", "d")] == [MOST_OF_ONE] * 3 + [0]
    with pytest.raises(CommandFailedError, match="this worker has as many uploads"):
        await uploads.take(NAME, 0, b"x", None)


async def test_a_draft_goes_with_its_session(tmp_path: Path) -> None:
    """And a session of the same name that comes later has nothing of it."""
    target, uploads = Target(), await opened(tmp_path)
    other = UploadName(SessionName("acme", "t"), "u", "f")
    await uploads.take(NAME, 0, b"abc", target)
    await uploads.take(UploadName(SESSION, "v", "f"), 0, b"abc", None)
    await uploads.take(other, 0, b"abc", None)
    uploads.session_changed(SESSION, None)
    assert kept(tmp_path) == 1
    assert await uploads.take(UploadName(SESSION, "v", "f"), 3, b"def", target) == 0
    assert await uploads.take(NAME, 0, b"new", target) == 3
    assert await uploads.take(other, 3, b"def", target) == 6
    assert target.delivered == [b"abc", b"new", b"abcdef"]


async def test_a_session_goes_while_a_piece_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = await opened(tmp_path)
    written, go_on, real = threading.Event(), threading.Event(), module._append

    def slow(path: Path, size: int, data: bytes) -> None:
        written.set()
        go_on.wait(120)
        real(path, size, data)

    monkeypatch.setattr(module, "_append", slow)
    taking = asyncio.create_task(uploads.take(NAME, 0, b"abc", None))
    await asyncio.to_thread(written.wait, 10)
    uploads.session_changed(SESSION, None)
    go_on.set()
    with pytest.raises(CommandFailedError, match="the session went"):
        await taking
    assert kept(tmp_path) == 0


async def test_a_last_piece_again_while_the_first_one_is_refused(tmp_path: Path) -> None:
    """The second one finds that the first one came to nothing, and delivers the file."""
    uploads, tries = await opened(tmp_path), itertools.count(1)
    delivered: list[bytes] = []

    async def deliver(pieces: AsyncIterator[bytes]) -> None:
        content = b"".join([piece async for piece in pieces])
        await turns()
        if next(tries) == 1:
            raise FileOperationError("no space left", errno=28)
        delivered.append(content)

    told = await asyncio.gather(*(uploads.take(NAME, 0, b"abc", deliver) for _ in range(3)), return_exceptions=True)
    assert isinstance(told[0], FileOperationError)
    assert (told[1:], delivered, kept(tmp_path)) == ([3, 3], [b"abc"], 0)


async def test_what_is_no_draft_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "0123").write_bytes(b"x")
    await opened(tmp_path)
    assert kept(tmp_path) == 0


async def test_a_file_is_the_workers_alone(tmp_path: Path) -> None:
    uploads = await opened(tmp_path / "uploads")
    await uploads.take(NAME, 0, b"secret", None)
    assert (tmp_path / "uploads").stat().st_mode & 0o777 == 0o700
    (file,) = (tmp_path / "uploads").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
