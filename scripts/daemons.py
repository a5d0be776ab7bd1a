"""Daemons that a script starts, asks and ends, without systemd.

A pid is believed only together with its start time, so that nobody else's process is ever ended.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from machine import STATE, SetupError, say, search_path, tail, write

START_SECONDS = 90.0
STOP_SECONDS = 40.0  # dockerd gives each container 15 s to end before it ends itself


@dataclass(frozen=True)
class Process:
    """A process that `up` started; its start time tells it from a later one with the same pid."""

    pid: int
    started: int

    def alive(self) -> bool:
        return start_time(self.pid) == self.started


def start_time(pid: int) -> int | None:
    """Ticks between boot and the start of `pid`; None when it is gone, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def record_of(name: str) -> Path:
    return STATE / "run" / f"{name}.json"


def started_by_us(name: str) -> Process | None:
    try:
        process = Process(**json.loads(record_of(name).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return process if process.alive() else None


def start(name: str, command: list[str], path: str = "") -> None:
    """Start a daemon that keeps nothing of ours: its own session, no descriptor but its log, a small environment.
    `path`: where it looks for programs, if not where everybody does."""
    kept = {k: v for k, v in os.environ.items() if k == "HOME" or k.lower().endswith("_proxy")}
    with (STATE / "log" / f"{name}.log").open("wb") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**kept, "PATH": path or search_path()},
            start_new_session=True,
        )
    write(record_of(name), json.dumps({"pid": child.pid, "started": start_time(child.pid)}))
    say(f"{name}: started, pid {child.pid}")


def stop(name: str) -> None:
    process = started_by_us(name)
    if process is None:
        say(f"{name}: not started by us, or already gone")
    else:
        os.kill(process.pid, signal.SIGTERM)
        if not eventually(lambda: not process.alive(), STOP_SECONDS):
            say(f"{name}: did not end within {STOP_SECONDS:.0f} s, killing it")
            os.kill(process.pid, signal.SIGKILL)
            eventually(lambda: not process.alive(), 5)
        say(f"{name}: stopped")
    record_of(name).unlink(missing_ok=True)


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)  # a daemon that died at once must not look alive as our zombie
        time.sleep(0.05)
    return True


@dataclass(frozen=True)
class Service:
    """A check returns None when the service is usable, else what is wrong with it."""

    name: str
    address: str
    port: int | None
    command: Callable[[], list[str]]  # writes its configuration, returns the argv
    check: Callable[[], str | None]

    def trouble(self) -> str | None:
        try:
            return self.check()
        except (OSError, http.client.HTTPException, ValueError) as error:
            return str(error) or type(error).__name__


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, seconds: float = 10) -> None:
        super().__init__("daemon", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def get(connection: http.client.HTTPConnection, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()


def forget_stale(pidfile: Path, program: str) -> None:
    """After a kill or a reboot it names a zombie, or anybody by now, and the daemon would believe it."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(pidfile.read_text())
        if start_time(pid) is None or Path(f"/proc/{pid}/comm").read_text().strip() != program:
            pidfile.unlink()


def wait_for(service: Service) -> None:
    process = started_by_us(service.name)
    ends_early = False

    def settled() -> bool:
        nonlocal ends_early
        if service.trouble() is None:
            return True
        ends_early = process is not None and not process.alive()
        return ends_early

    if not eventually(settled, START_SECONDS) or ends_early:
        how = "ended at once" if ends_early else f"is not usable after {START_SECONDS:.0f} s: {service.trouble()}"
        raise SetupError(f"{service.name} {how}\n{tail(STATE / 'log' / f'{service.name}.log')}")


def show(services: tuple[Service, ...]) -> int:
    """A line for each; an exit code."""
    troubles = {service.name: service.trouble() for service in services}
    for service in services:
        process, trouble = started_by_us(service.name), troubles[service.name]
        who = f"pid {process.pid}" if process else ("started elsewhere" if trouble is None else "-")
        state = "down" if trouble else "up"
        print(f"{service.name:<13} {state:<5} {service.address:<28} {who:<18} {trouble or ''}".rstrip())
    return 1 if any(troubles.values()) else 0
