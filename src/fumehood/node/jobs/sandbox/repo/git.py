"""The real git, in a folder of its own, and told nothing by anybody but us.

It reads no configuration but ours, runs no hook, no filter, no helper and no submodule, asks nobody for a password, and
never writes a file of a repository: trees and contents are read from its objects. What it may use of this machine is
bounded while it runs, not afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from fumehood.broker.shield import shielded
from fumehood.errors import JobFailedError
from fumehood.node.jobs.sandbox.refused import RefusedError
from fumehood.sandbox.spec import KIB, MIB

REPOSITORY: Final = "repo.git"
LOOK_SECONDS: Final = 0.2
SAID_BYTES: Final = 4096
SAID_SHOWN: Final = 200
ADDRESS_SPACE_KIB: Final = 4 * 1024 * 1024
PIECE: Final = 256 * KIB
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CONFIG: Final = """\
[safe]
	directory = *
[core]
	hooksPath = /dev/null
	fsmonitor = false
	untrackedCache = false
	commitGraph = false
	multiPackIndex = false
	attributesFile = /dev/null
	excludesFile = /dev/null
	askPass = /bin/false
	packedGitWindowSize = 32m
	packedGitLimit = 256m
	bigFileThreshold = 16m
[credential]
	helper =
[protocol]
	allow = never
[fetch]
	recurseSubmodules = false
	unpackLimit = 1
	writeCommitGraph = false
[submodule]
	recurse = false
[transfer]
	bundleURI = false
[gc]
	auto = 0
[maintenance]
	auto = false
[pack]
	threads = 1
	windowMemory = 128m
[index]
	threads = 1
[http]
	lowSpeedLimit = 1000
	lowSpeedTime = 30
	saveCookies = false
[init]
	defaultBranch = main
"""
"""All configuration that counts. The folders are all made by us, whoever owns what is in them."""

_LIMITED = (
    'ulimit -c 0; ulimit -f "$1"; ulimit -v "$2"; ulimit -t "$3"; shift 3; umask 077; exec git "$@"'  # blocks of 512
)


class GitFailedError(Exception):
    """It ended with an error; `said` is the end of what it had to say, without what servers say through it."""

    def __init__(self, said: str) -> None:
        self.said = "\n".join(line for line in said.splitlines() if line.startswith(("fatal:", "error:")))
        super().__init__(self.said)

    @property
    def line(self) -> str:
        """Its last word, for people."""
        text = self.said.rpartition("\n")[2].partition(":")[2].strip() or "git gave no reason"
        return "".join(c if " " <= c <= "~" else "?" for c in text)[:SAID_SHOWN]


class Git:
    """One bare repository in one folder, for one job. Make it with `Git.begun`."""

    def __init__(self, folder: Path, *, most_bytes: int, seconds: float) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        self._seconds = max(1, int(seconds))

    @classmethod
    async def begun(cls, folder: Path, *, most_bytes: int, seconds: float) -> Git:
        made = cls(folder, most_bytes=most_bytes, seconds=seconds)
        made._config.write_text(CONFIG, encoding="ascii")
        try:
            await made.run("init", "--quiet", "--bare", "--template=", str(made.repository))
        except GitFailedError as error:
            raise JobFailedError("git_unavailable", "git cannot be run on this worker", again=True) from error
        return made

    @property
    def repository(self) -> Path:
        return self.folder / REPOSITORY

    @property
    def _config(self) -> Path:
        return self.folder / "config"

    async def run(
        self,
        *args: str,
        protocol: str = "",
        config: Sequence[str] = (),
        stdin: Path | None = None,
        most_output: int = MIB,
    ) -> bytes:
        """What it printed. `GitFailedError` where it failed, `RefusedError` where it took or said too much."""
        async with self._process(args, protocol, config, stdin) as (process, said):
            assert process.stdout is not None
            watching = asyncio.create_task(self._too_large(), name="git.size")
            working = asyncio.create_task(_output(process, most_output), name="git.output")
            try:
                await asyncio.wait({watching, working}, return_when=asyncio.FIRST_COMPLETED)
                if not working.done():
                    raise self._refusal()
                output = working.result()
            finally:
                watching.cancel()
                working.cancel()
                await asyncio.gather(watching, working, return_exceptions=True)
            if process.returncode == -signal.SIGXFSZ or await self._is_too_large():
                raise self._refusal()
            if process.returncode != 0:
                raise GitFailedError(self._without_place(_tail(said)))
            return output

    @contextlib.asynccontextmanager
    async def contents(self) -> AsyncIterator[Contents]:
        """The contents of objects, one after the other."""
        async with self._process(("cat-file", "--batch"), "", (), None, talks=True) as (process, _):
            yield Contents(process)

    @contextlib.asynccontextmanager
    async def _process(
        self, args: Sequence[str], protocol: str, config: Sequence[str], stdin: Path | None, *, talks: bool = False
    ) -> AsyncIterator[tuple[asyncio.subprocess.Process, Path]]:
        """Nothing of it runs any more when this ends, however it ends."""
        said = self.folder / "said"
        blocks, options = self._most_bytes // 512 + 1, [word for one in config for word in ("-c", one)]
        limits = (str(blocks), str(ADDRESS_SPACE_KIB), str(self._seconds))
        git = ("--no-replace-objects", *options, *args)
        with contextlib.ExitStack() as files:
            taken = files.enter_context(stdin.open("rb")) if stdin is not None else asyncio.subprocess.DEVNULL
            process = await asyncio.create_subprocess_exec(
                "/bin/sh",
                "-c",
                _LIMITED,
                "git",
                *limits,
                *git,
                stdin=asyncio.subprocess.PIPE if talks else taken,
                stdout=asyncio.subprocess.PIPE,
                stderr=files.enter_context(said.open("wb")),
                cwd=self.repository if self.repository.exists() else self.folder,
                env=self._env(protocol),
                start_new_session=True,
                limit=PIECE,
            )
        try:
            yield process, said
        finally:
            await shielded(_ended(process))

    def _env(self, protocol: str) -> dict[str, str]:
        return {
            "PATH": PATH,
            "HOME": str(self.folder),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(self._config),
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": protocol or "none",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "SSH_ASKPASS": "/bin/false",
        }

    async def _too_large(self) -> None:
        """Returns when its folder takes more than it may."""
        while not await self._is_too_large():  # noqa: ASYNC110 - git tells nobody
            await asyncio.sleep(LOOK_SECONDS)

    async def _is_too_large(self) -> bool:
        return await asyncio.to_thread(folder_bytes, self.folder) > self._most_bytes

    def _without_place(self, said: str) -> str:
        """Where this machine keeps it is nobody's business, and elsewhere another place."""
        for place in (self.folder, self.folder.resolve()):
            said = said.replace(f"{place}/", "")
        return said

    def _refusal(self) -> RefusedError:
        return RefusedError(f"the repository takes more than the {self._most_bytes} bytes that one may take here")


class Contents:
    """Of objects, in the order in which they are asked for; each must be read to its end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._asks, self._reads = process.stdin, process.stdout

    async def of(self, object_id: str, size: int) -> AsyncGenerator[bytes, None]:
        self._asks.write(f"{object_id}\n".encode())
        await self._asks.drain()
        head = (await self._reads.readline()).split()
        if not head:
            raise JobFailedError("repo_unreadable", "git ended instead of giving an object", again=True)
        if head[1:] != [b"blob", b"%d" % size]:
            raise RefusedError(f"the repository has a file or a link, {object_id}, that is something else")
        left = size + 1  # a line feed follows
        while left:
            piece = await self._reads.read(min(left, PIECE))
            if not piece:
                raise JobFailedError("repo_unreadable", "git ended in the middle of an object", again=True)
            left -= len(piece)
            yield piece if left else piece[:-1]


def folder_bytes(folder: Path) -> int:
    """What a folder takes; what goes away meanwhile takes nothing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(path) / name).lstat().st_size
    return total


async def _output(process: asyncio.subprocess.Process, most: int) -> bytes:
    assert process.stdout is not None
    found = bytearray()
    while piece := await process.stdout.read(PIECE):
        found += piece
        if len(found) > most:
            raise RefusedError("the repository's list of files is longer than one may be here")
    await process.wait()
    return bytes(found)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Itself, and whatever it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.communicate()


def _tail(said: Path) -> str:
    with said.open("rb") as file:
        file.seek(max(0, said.stat().st_size - SAID_BYTES))
        return file.read().decode("utf-8", "replace")
