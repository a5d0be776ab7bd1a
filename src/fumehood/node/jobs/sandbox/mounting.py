"""A tree on its way into a sandbox: as one archive for the image's own `tar`, or file by file without one.

The archive is what makes it quick (a file operation of its own costs a gVisor sandbox tens of milliseconds) and what
makes links. `tar` runs inside, as the job's own user, like everything else of the image that a job relies on. An image
without it gets its files through the warden, which makes no links: a tree with links is then refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Final

from fumehood.errors import FileOperationError
from fumehood.node.jobs.sandbox.refused import RefusedError
from fumehood.node.jobs.sandbox.repo.git import Contents
from fumehood.node.jobs.sandbox.repo.tree import Entry, Kind, Tree
from fumehood.node.jobs.sandbox.time_left import TimeIsUpError, TimeLeft
from fumehood.sandbox.capture import Capture
from fumehood.sandbox.driver import Driver, Handle
from fumehood.sandbox.spec import KIB, Command, End, Outcome

PIECE: Final = 256 * KIB
BLOCK: Final = tarfile.BLOCKSIZE
FEED_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.05


class Mounting:
    """Of one tree, at one place of one sandbox."""

    def __init__(self, driver: Driver, handle: Handle, *, base: str, mount: str) -> None:
        self._driver = driver
        self._handle = handle
        self._base = base
        self._mount = mount

    async def folder(self, left: TimeLeft) -> None:
        """The place itself, also for an empty workspace."""
        below = posixpath.relpath(self._mount, self._base)
        if below != ".":
            with _in_time(left):
                await self._driver.files(self._handle, root=self._base).mkdir(below, parents=True)

    async def tree(self, tree: Tree, left: TimeLeft) -> None:
        if tree.entries and not await self._by_tar(tree, left):
            await self._by_files(tree, left)

    # --- with tar ------------------------------------------------------------------------------------------

    async def _by_tar(self, tree: Tree, left: TimeLeft) -> bool:
        """False: the image has none."""
        driver, handle = self._driver, self._handle
        command = Command(
            ("tar", "-x", "-p", "-f", "-", "-C", self._mount), cwd=self._base, timeout_ms=left.ms, open_stdin=True
        )
        command_id = await driver.next_id(handle)
        running = asyncio.create_task(driver.run(handle, command, Capture(0), command_id=command_id), name="tar")
        try:
            await self._feed(tree, command_id, running)
            outcome = await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await driver.settle(handle, command_id)
        return _unpacked(outcome)

    async def _feed(self, tree: Tree, command_id: int, running: asyncio.Task[Outcome]) -> None:
        """As quickly as it reads; when it has ended, there is nobody to feed any more."""
        offset = 0
        async with tree.git.contents() as contents, contextlib.aclosing(archive(tree, contents)) as parts:
            async for piece in _gathered(parts):
                while piece and not running.done():
                    had = await self._driver.feed(self._handle, command_id, offset, piece, seconds=FEED_SECONDS)
                    if had <= offset:  # it reads nothing, or has ended, which is about to be told
                        await asyncio.wait({running}, timeout=PAUSE_SECONDS)
                    piece, offset = piece[max(0, had - offset) :], max(had, offset)
        if not running.done():
            await self._driver.end_input(self._handle, command_id)

    # --- without -------------------------------------------------------------------------------------------

    async def _by_files(self, tree: Tree, left: TimeLeft) -> None:
        if tree.has_links:
            raise RefusedError("the repository has links, and the image has no tar, which could make them")
        files = self._driver.files(self._handle, root=self._mount)
        async with tree.git.contents() as contents:
            for entry in tree.entries:
                with _in_time(left):
                    async with asyncio.timeout(left.seconds):
                        if entry.kind is Kind.MODULE:
                            await files.mkdir(entry.path, parents=True)
                        else:
                            pieces = contents.of(entry.object_id, entry.size)
                            await files.write_stream(entry.path, pieces, mode=entry.mode, parents=True)


def _unpacked(outcome: Outcome) -> bool:
    match outcome.end:
        case End.NOT_STARTED:
            return False
        case End.TIMED_OUT:
            raise TimeIsUpError
        case End.OOM:
            raise RefusedError("the repository needs more memory than the sandbox may have: a workspace counts as such")
    if outcome.exit_code != 0:
        raise RefusedError(f"the image's tar could not unpack the repository (it ended with {outcome.exit_code})")
    return True


async def archive(tree: Tree, contents: Contents) -> AsyncGenerator[bytes, None]:
    """In the form that every tar reads, with the same bytes wherever it is made."""
    for entry in tree.entries:
        if entry.kind is Kind.LINK:
            yield _header(entry, tree.time, await tree.target(contents, entry))
        else:
            yield _header(entry, tree.time)
        if entry.kind in (Kind.FILE, Kind.EXECUTABLE):
            async with contextlib.aclosing(contents.of(entry.object_id, entry.size)) as pieces:
                async for piece in pieces:
                    yield piece
            if padding := -entry.size % BLOCK:
                yield bytes(padding)
    yield bytes(2 * BLOCK)


async def _gathered(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pieces that are worth a round trip each."""
    held = bytearray()
    async for part in parts:
        held += part
        if len(held) >= PIECE:
            yield bytes(held)
            held.clear()
    yield bytes(held)


def _header(entry: Entry, time: int, target: bytes = b"") -> bytes:
    info = tarfile.TarInfo(entry.path)
    info.mtime, info.mode = time, entry.mode
    if entry.kind is Kind.LINK:
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, target.decode("utf-8", "surrogateescape")
    elif entry.kind is Kind.MODULE:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    else:
        info.size = entry.size
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


@contextlib.contextmanager
def _in_time(left: TimeLeft) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise TimeIsUpError from None
    except FileOperationError as error:
        left.seconds  # noqa: B018 - if the time is up, that is what happened
        raise RefusedError(f"the repository could not be written: {error.detail}") from error
