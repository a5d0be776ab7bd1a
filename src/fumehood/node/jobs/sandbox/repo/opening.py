"""A repository, opened: fetched, copied or unpacked, and read as one tree."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Final

from fumehood.broker.shield import shielded
from fumehood.errors import BlobCorruptError, BlobNotFoundError, BrokerError, JobFailedError, PayloadTooLargeError
from fumehood.images.egress import EgressRules
from fumehood.jobs.types.sandbox_run import RepoMount
from fumehood.node.jobs.sandbox.options import SandboxJobOptions
from fumehood.node.jobs.sandbox.refused import RefusedError
from fumehood.node.jobs.sandbox.repo import importing, local, tars
from fumehood.node.jobs.sandbox.repo.bounds import Bounds, StoppedError
from fumehood.node.jobs.sandbox.repo.egress import way_to
from fumehood.node.jobs.sandbox.repo.fetching import fetch, fetch_bundle
from fumehood.node.jobs.sandbox.repo.git import Git, GitFailedError
from fumehood.node.jobs.sandbox.repo.importing import Import
from fumehood.node.jobs.sandbox.repo.tree import Tree, read_tree
from fumehood.node.jobs.sandbox.sources import Bundle, GitUrl, LocalPath, Source, check_ref, parse_source
from fumehood.sandbox.network.upstream import Upstream

BUNDLE_MAGIC: Final = (b"# v2 git bundle\n", b"# v3 git bundle\n")


class Repositories:
    """Of one worker: each is opened in a folder of its own, of which nothing stays."""

    def __init__(self, options: SandboxJobOptions) -> None:
        self._options = options

    @contextlib.asynccontextmanager
    async def opened(self, asked: RepoMount, rules: Callable[[], EgressRules], room: int) -> AsyncIterator[Tree | None]:
        """`None`: nothing is to be mounted. `room`: bytes that there are for it."""
        source = parse_source(asked.source)
        if source is None:
            if asked.git_ref is not None:
                raise RefusedError("there is a git_ref, and no repository")
            yield None
            return
        ref = check_ref(asked.git_ref) if asked.git_ref is not None else None
        folder = self._options.folder / uuid.uuid4().hex
        await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True)
        try:
            yield await self._in_time(_Opening(self._options, folder, rules, room).tree(source, ref))
        finally:
            await shielded(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))

    async def _in_time(self, opening: Coroutine[object, object, Tree]) -> Tree:
        seconds = self._options.fetch_seconds
        watch = asyncio.timeout(seconds)
        try:
            async with watch:
                return await opening
        except TimeoutError:
            if not watch.expired():
                raise
            raise JobFailedError(
                "repo_unavailable", f"the repository did not come within {seconds:g} seconds", again=True
            ) from None


class _Opening:
    """One repository in one folder."""

    def __init__(self, options: SandboxJobOptions, folder: Path, rules: Callable[[], EgressRules], room: int) -> None:
        self._options = options
        self._folder = folder
        self._rules = rules
        self._room = room

    async def tree(self, source: Source, ref: str | None) -> Tree:
        options = self._options
        git = await Git.begun(self._folder, most_bytes=options.repo_bytes, seconds=options.fetch_seconds)
        try:
            match source:
                case GitUrl():
                    return await self._from_server(git, source, ref)
                case LocalPath(path):
                    return await self._from_path(git, path, ref)
                case Bundle(blob):
                    return await self._from_bundle(git, blob, ref)
        except GitFailedError as error:
            raise RefusedError(f"git could not read the repository: {error.line}") from error

    async def _from_server(self, git: Git, url: GitUrl, ref: str | None) -> Tree:
        if self._rules().allows(url.host, url.port) is None:
            raise RefusedError(
                f"{url.host}:{url.port} is not among the names that this worker's policy allows (egress.allow)"
            )
        upstream = Upstream(self._options.dns_upstreams)
        config = [f"http.sslCAInfo={self._options.ca_file}"] if self._options.ca_file is not None else []
        async with way_to(url, self._rules, upstream) as way:
            config.append(f"http.proxy={way.proxy}")
            try:
                commit = await fetch(git, str(url), ref, protocol=url.scheme, config=config)
            except GitFailedError as error:
                if way.denial is not None:
                    raise RefusedError(f"the repository cannot be fetched: {way.denial}") from error
                raise JobFailedError("repo_unavailable", f"git: {error.line}", again=True) from error
        return await self._read(git, commit, is_commit=True)

    async def _from_path(self, git: Git, path: str, ref: str | None) -> Tree:
        copied = self._folder / "source.git"
        with local.opened_beneath(path, self._options.repo_roots) as descriptor:
            below = local.git_folder(descriptor, path)
            if below is None:
                _no_ref(ref, "a folder that is no repository")
                return await self._imported(git, lambda into: local.import_folder(descriptor, into))
            await git.run("init", "--quiet", "--bare", "--template=", str(copied))
            bounds = Bounds(self._options.repo_bytes, local.MOST_GIT_FILES)
            await _threaded(bounds, lambda: local.copy_repository(descriptor, below, copied, bounds))
        return await self._read(git, await fetch(git, f"file://{copied}", ref, protocol="file"), is_commit=True)

    async def _from_bundle(self, git: Git, blob: str, ref: str | None) -> Tree:
        file = self._folder / "bundle"
        await self._download(blob, file)
        head = await asyncio.to_thread(_head, file)
        if head.startswith(BUNDLE_MAGIC):
            return await self._read(git, await fetch_bundle(git, file, ref), is_commit=True)
        if not tars.is_archive(head):
            raise RefusedError("what was uploaded is neither a git bundle nor a tar archive")
        _no_ref(ref, "an archive")

        def taken(into: Import) -> None:
            with file.open("rb") as archive:
                tars.import_archive(archive, into)

        return await self._imported(git, taken)

    async def _download(self, blob: str, file: Path) -> None:
        options = self._options
        if options.blobs is None:
            raise JobFailedError("bundle_unavailable", "this worker has no way to what was uploaded", again=True)
        try:
            with file.open("wb") as target:
                await options.blobs.get_into(blob, target, limit=options.bundle_bytes)
        except (BlobNotFoundError, BlobCorruptError, PayloadTooLargeError) as error:
            raise RefusedError(f"the bundle {blob} cannot be had: {error.detail}; upload it again") from error
        except BrokerError as error:
            raise JobFailedError("bundle_unavailable", error.detail, again=True) from error

    async def _imported(self, git: Git, taken: Callable[[Import], None]) -> Tree:
        stream = self._folder / "import"
        bounds = Bounds(min(self._room, self._options.repo_bytes), self._options.repo_files)

        def write() -> None:
            with stream.open("wb") as file:
                into = Import(file, bounds)
                taken(into)
                into.finish()

        await _threaded(bounds, write)
        await git.run("fast-import", "--quiet", "--done", stdin=stream)
        return await self._read(git, importing.BRANCH, is_commit=False)

    async def _read(self, git: Git, revision: str, *, is_commit: bool) -> Tree:
        tree = await read_tree(git, revision, is_commit=is_commit, most_files=self._options.repo_files)
        if tree.room > self._room:
            raise RefusedError(
                f"the repository takes {tree.room} bytes, and there is room for {self._room} where it is to be "
                "mounted: ask for more (disk_mb)"
            )
        return tree


def _no_ref(ref: str | None, what: str) -> None:
    if ref is not None:
        raise RefusedError(f"{what} has no branches, tags or commits: leave git_ref out")


def _head(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(512)


async def _threaded(bounds: Bounds, work: Callable[[], None]) -> None:
    """In a thread, which is told when nobody waits any more, and then waited for: it uses what goes with us."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        bounds.stop.set()
        await asyncio.wait({task})
        with contextlib.suppress(StoppedError, RefusedError, OSError):
            task.result()
        raise
    except OSError as error:
        raise RefusedError(f"the repository cannot be read: {error.strerror}") from error
