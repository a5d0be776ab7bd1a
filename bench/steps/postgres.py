"""A PostgreSQL of one's own for a peer: a fresh cluster in a folder, reached by a socket in it, gone at the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.engine_world import folder
from bench.sessions_world import cpu_seconds
from bench.world import BenchError

MISSING = "no PostgreSQL on this machine: `scripts/services peers` installs it (Debian's package `postgresql`)"
FOLDERS = "/usr/lib/postgresql"
"""Where Debian has the programs, one folder for each version."""
USER = "postgres"
CONNECTIONS = 200
READY_SECONDS, STOP_SECONDS = 60.0, 30.0


def newest(folders: Iterable[Path]) -> Path | None:
    """Of folders that are called by their version, the newest in which there is a server."""
    found = [path for path in folders if path.name.isdigit() and (path / "bin" / "postgres").exists()]
    return max(found, key=lambda path: int(path.name)) / "bin" if found else None


def programs(folders: Path = Path(FOLDERS)) -> Path:
    found = newest(folders.iterdir()) if folders.exists() else None
    beside = shutil.which("postgres")
    if found is None and beside is not None:
        found = Path(beside).resolve().parent
    if found is None or not (found / "initdb").exists():
        raise BenchError(MISSING)
    return found


def version(bin_: Path) -> str:
    """`postgres (PostgreSQL) 15.14 (Debian …)`: the number."""
    said = subprocess.run([bin_ / "postgres", "--version"], check=True, capture_output=True, text=True, timeout=10)
    return said.stdout.split(") ", 1)[1].split()[0]


def server_words(bin_: Path, data: Path, sockets: Path, synchronous_commit: str) -> list[str]:
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(sockets),
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": synchronous_commit,
        "max_connections": str(CONNECTIONS),
    }
    given = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return [str(bin_ / "postgres"), "-D", str(data), *given]


@dataclass(frozen=True, slots=True)
class Postgres:
    """One that runs."""

    pid: int
    sockets: Path

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@/{database}?host={self.sockets}"

    def cpu_seconds(self) -> float:
        """Of the server and all processes that it has started and that still run: connections stay open here."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        total = cpu_seconds(self.pid)
        for child in children:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                total += cpu_seconds(int(child))
        return total


@contextlib.asynccontextmanager
async def postgres(synchronous_commit: str) -> AsyncIterator[Postgres]:
    bin_ = programs()
    async with folder() as path:
        who = _somebody_else(path)
        data, sockets, log = path / "data", path / "sockets", path / "log"
        with log.open("wb") as output:
            await _initdb(bin_, data, who, log)
            sockets.mkdir(mode=0o700)
            shutil.chown(sockets, *_owner(path))
            process = await asyncio.create_subprocess_exec(
                *who, *server_words(bin_, data, sockets, synchronous_commit), stdout=output, stderr=output, cwd=path
            )
        try:
            await _ready(bin_, sockets, process, log)
            yield Postgres(process.pid, sockets)
        finally:
            await _stop(process)


def _somebody_else(path: Path) -> list[str]:
    """PostgreSQL refuses to run as root: then the folder is another user's, and so is what these words begin."""
    if os.geteuid() != 0:
        return []
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        user = pwd.getpwnam("nobody")
    os.chown(path, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _owner(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid


async def _initdb(bin_: Path, data: Path, who: list[str], log: Path) -> None:
    words = ("--pgdata", str(data), "--username", USER, "--auth", "trust", "--encoding", "UTF8", "--no-locale")
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *who, str(bin_ / "initdb"), *words, stdout=output, stderr=output, cwd=data.parent
        )
        if await process.wait() != 0:
            raise BenchError(f"initdb failed:\n{_end_of(log)}")


async def _ready(bin_: Path, sockets: Path, process: asyncio.subprocess.Process, log: Path) -> None:
    until = time.monotonic() + READY_SECONDS
    while True:
        asking = await asyncio.create_subprocess_exec(
            *(str(bin_ / "pg_isready"), "--quiet", "--host", str(sockets)), stderr=asyncio.subprocess.DEVNULL
        )
        if await asking.wait() == 0:
            return
        if process.returncode is not None or time.monotonic() > until:
            raise BenchError(f"PostgreSQL did not become ready:\n{_end_of(log)}")
        await asyncio.sleep(0.05)


def _end_of(log: Path) -> str:
    return log.read_text()[-2000:]


async def _stop(process: asyncio.subprocess.Process) -> None:
    """In order: it ends its connections and all its processes."""
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.send_signal(signal.SIGQUIT)
        await process.wait()
