"""Processes that a command starts, waits for, and takes with it when it ends, however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fumehood.cli.port_holder import holder
from fumehood.errors import ConfigurationError
from fumehood.settings import Settings, environment_for

HOST = "127.0.0.1"
PR_SET_PDEATHSIG = 1
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Child:
    """A process of ours, under the name that a person knows it by."""

    name: str
    process: subprocess.Popen[bytes]
    stop_seconds: float = 90.0
    log: Path | None = None
    """What it prints goes there. None: to where this process prints."""

    def stop(self) -> None:
        """Ask, ask again, insist."""
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is not None:
                return
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                self.process.wait(self.stop_seconds)


def start(
    name: str,
    command: Sequence[str],
    *,
    kind: type[Settings] | None = None,
    more: Mapping[str, str] | None = None,
    log: Path | None = None,
    keep: int | None = None,
    stop_seconds: float = 90.0,
) -> Child:
    """Start one. `kind` is whose settings it may find in its environment: none is for a program that is not ours;
    `more` are variables besides. `keep` is a descriptor that it holds open for as long as it lives."""
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(log.open("wb")) if log is not None else None
        # A session of its own: Ctrl-C reaches this process alone, which then stops the others in order.
        process = subprocess.Popen(
            list(command),
            env={**environment_for(kind), **(more or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            pass_fds=() if keep is None else (keep,),
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - this process has one thread
        )
    return Child(name, process, stop_seconds, log)


def _end_with_parent() -> None:
    """However this process ends, its children are told to stop: none is left that holds a port and the state."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Interrupts:
    """What asks this process to end. Python raises what a handler raises wherever it just is; where that is a
    destructor, it is printed and lost. So it is also remembered: whoever waits looks here."""

    def __init__(self) -> None:
        self.came = False

    def take(self, *numbers: signal.Signals) -> None:
        for number in numbers:
            signal.signal(number, self._handle)  # also where a shell started us with SIGINT ignored

    def _handle(self, _signal: int, _frame: object) -> None:
        self.came = True
        raise KeyboardInterrupt

    def check(self) -> None:
        if self.came:
            raise KeyboardInterrupt


def first_to_end(children: Sequence[Child], interrupts: Interrupts) -> Child:
    """Wait until one of them ends, or somebody asks this process to."""
    by_pid = {child.process.pid: child for child in children}
    while True:
        interrupts.check()
        for child in children:
            if child.process.poll() is not None:
                return child
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is None:
            time.sleep(LOOK_SECONDS)
        elif ended.si_pid not in by_pid:
            os.waitpid(ended.si_pid, 0)


def check_ports(ports: Mapping[str, int]) -> None:
    """By option. All that cannot be had are named in one sentence, before anything is started."""
    taken: dict[str, str] = {}
    for option, port in ports.items():
        if not 0 <= port <= 65_535:
            raise ConfigurationError(f"{option} must be between 0 and 65535")
        if not is_free(port):
            by = holder(port)
            taken[option] = f"port {port} is taken" + (f" by {by}" if by is not None else "")
    if taken:
        which = "another one" if len(taken) == 1 else "others"
        raise ConfigurationError(
            f"{', '.join(taken.values())}: end that, or choose {which} with {', '.join(taken)} (0: any)"
        )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except PermissionError:
            raise ConfigurationError(f"only root may listen on port {port}: choose one from 1024 on") from None
        except OSError:
            return False
    return True


def held_port() -> int:
    """One that the kernel gives to no other program while this one runs: it stays bound here. A child that is told its
    number can listen on it, since neither insists on being alone."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((HOST, 0))
    port: int = held.getsockname()[1]
    held.detach()
    return port


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
