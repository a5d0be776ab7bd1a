"""Files on their way into a session, piece by piece, on this machine's disk until the last piece is here.

So a piece may come twice, from another server, or after this process died: what there is of a file is the length of its
draft. A file appears in the session whole or not at all. A draft goes with its session, and when nobody adds to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from fumehood.errors import CommandFailedError, FileOperationError, LedgerError
from fumehood.sandbox.sessions.values import SessionFacts, SessionName
from fumehood.wire.console.codes import PIECE_BYTES, Reason
from fumehood.wire.console.sessions import MAX_WRITE_BYTES

MOST: Final = 64
MOST_BYTES: Final = 4 * MAX_WRITE_BYTES
"""Of all drafts together."""
MOST_OF_ONE: Final = MOST // 4
MOST_BYTES_OF_ONE: Final = MOST_BYTES // 2
"""Of one owner's drafts."""
IDLE_SECONDS: Final = 600.0
"""A draft that nobody adds to for so long is thrown away."""
SWEEP_SECONDS: Final = 60.0
"""Between looks for such drafts."""
REMEMBERED: Final = 1024
"""Uploads that came to their end: their last piece may come again."""

Deliver: TypeAlias = Callable[[AsyncIterator[bytes]], Awaitable[None]]
_FILE: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{32}-[0-9a-f]{64}")
_OWNER_LENGTH: Final = 16
"""Of what a file's name tells of its owner."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class UploadName:
    session: SessionName
    upload_id: str
    path: str

    @property
    def file(self) -> str:
        """It tells, also after this process died, whose it is, and of which session."""
        name = self.session
        return f"{_of(name)}-{_digest(name.owner, name.session_id, self.upload_id, self.path)}"


@dataclass(slots=True, eq=False)
class _Draft:
    path: Path
    size: int
    touched: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Uploads:
    """Belongs to one event loop. `open` first, `close` at the end. The folder is this process's own."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._drafts: dict[str, _Draft] = {}
        self._ended: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Take up what an earlier process left."""
        self._drafts = await asyncio.to_thread(self._found)
        self._sweep_later()

    async def close(self) -> None:
        """Leave the drafts to the next process."""
        if self._timer is not None:
            self._timer.cancel()
        if self._sweeping is not None:
            await asyncio.wait({self._sweeping})

    async def take(self, name: UploadName, offset: int, data: bytes, deliver: Deliver | None) -> int:
        """Add what is new of a piece; `deliver`: it is the last one, and this brings the file to where it belongs.
        Returns how much of the file there is. A piece beyond that is not taken: go on from there."""
        if offset + len(data) > MAX_WRITE_BYTES:
            raise CommandFailedError(
                Reason.FILE_TOO_LARGE, f"a file of more than {MAX_WRITE_BYTES} bytes cannot be written"
            )
        file = name.file
        while file not in self._ended:
            if offset and file not in self._drafts:
                return 0
            draft = self._draft(file, offset + len(data))
            async with draft.lock:
                if self._drafts.get(file) is not draft:
                    continue  # it came to its end, or was thrown away, before it was our turn
                await self._add(draft, offset, data)
                if deliver is None or draft.size != offset + len(data):
                    return draft.size
                await self._deliver(draft, deliver)
                self._remember(file, draft.size)
                await self._drop(draft)
        return self._ended[file]

    def session_changed(self, name: SessionName, facts: SessionFacts | None) -> None:
        """For `Sessions.on_change`: what was on its way into a session that is gone goes nowhere."""
        if facts is not None:
            return
        for file in [file for file in self._ended if file.startswith(_of(name))]:
            del self._ended[file]
        for file in [file for file in self._drafts if file.startswith(_of(name))]:
            _unlink(self._drafts.pop(file).path)

    async def _deliver(self, draft: _Draft, deliver: Deliver) -> None:
        """What the sandbox refuses, it would refuse again: the draft goes."""
        try:
            async with contextlib.aclosing(_pieces(draft.path)) as pieces:
                await deliver(pieces)
        except FileOperationError:
            await self._drop(draft)
            raise

    def _draft(self, file: str, size: int) -> _Draft:
        others = [draft for name, draft in self._drafts.items() if name != file]
        own = [draft for draft in others if draft.path.name[:_OWNER_LENGTH] == file[:_OWNER_LENGTH]]
        if _is_full(own, size, MOST_OF_ONE, MOST_BYTES_OF_ONE):
            raise CommandFailedError(Reason.NO_CAPACITY, "you have as many uploads as this worker takes: end one first")
        if _is_full(others, size, MOST, MOST_BYTES):
            raise CommandFailedError(Reason.NO_CAPACITY, "this worker has as many uploads as it takes: try again later")
        return self._drafts.setdefault(file, _Draft(self._folder / file, 0, self._clock()))

    async def _add(self, draft: _Draft, offset: int, data: bytes) -> None:
        new = data[max(0, draft.size - offset) :]
        if offset > draft.size or not new:
            return
        try:
            await asyncio.to_thread(_append, draft.path, draft.size, new)
        except OSError as error:
            raise LedgerError(f"an upload could not be kept: {error.strerror}") from error
        draft.size += len(new)
        draft.touched = self._clock()
        if self._drafts.get(draft.path.name) is not draft:
            await asyncio.to_thread(_unlink, draft.path)
            raise CommandFailedError(Reason.SESSION_NOT_FOUND, "the session went while the file was on its way")

    def _remember(self, file: str, size: int) -> None:
        self._ended[file] = size
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

    async def _drop(self, draft: _Draft) -> None:
        """Whoever waits for it begins anew."""
        if self._drafts.get(draft.path.name) is draft:
            del self._drafts[draft.path.name]
            await asyncio.to_thread(_unlink, draft.path)

    # --- sweeping ------------------------------------------------------------------------------------------

    def _sweep_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._begin_sweep)

    def _begin_sweep(self) -> None:
        self._sweeping = asyncio.create_task(self._sweep())
        self._sweep_later()

    async def _sweep(self) -> None:
        before = self._clock() - IDLE_SECONDS
        for draft in list(self._drafts.values()):
            if draft.touched < before and not draft.lock.locked():
                await self._drop(draft)

    def _found(self) -> dict[str, _Draft]:
        """What is none of ours has no owner, and goes."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = {}
        for path in list(self._folder.iterdir()):
            if _FILE.fullmatch(path.name):
                status = path.stat()
                found[path.name] = _Draft(path, status.st_size, status.st_mtime)
            else:
                _unlink(path)
        return found


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogatepass")).hexdigest()


def _of(name: SessionName) -> str:
    """What the names of a session's drafts begin with."""
    return f"{_digest(name.owner)[:_OWNER_LENGTH]}-{_digest(name.owner, name.session_id)[:32]}"


def _is_full(others: Sequence[_Draft], size: int, most: int, most_bytes: int) -> bool:
    """Whether there is no room for a draft of this size beside others."""
    return len(others) >= most or sum(draft.size for draft in others) + size > most_bytes


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("upload.not_removed", file=path.name, reason=error.strerror)


def _append(path: Path, size: int, data: bytes) -> None:
    """Behind the first `size` bytes; half of a piece that an earlier try left behind them is written over."""
    with contextlib.closing(os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb")) as file:
        file.seek(size)
        file.write(data)
        file.truncate()


async def _pieces(path: Path) -> AsyncGenerator[bytes, None]:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb") as file:  # an empty one is new
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            yield piece
