"""All commands that this machine remembers, and the room that they take: on disk, and in number.

Running commands stay. Of ended ones those go that were not used for longest, and none that was used a moment ago: their
output first (who asks for it is told that it is gone), then how they ended.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from fumehood.errors import CommandFailedError
from fumehood.sandbox.sessions.process import Process
from fumehood.sandbox.sessions.retention import excess, surplus
from fumehood.sandbox.sessions.session import Session
from fumehood.sandbox.sessions.spool import Bounds
from fumehood.sandbox.sessions.store import SessionStore
from fumehood.sandbox.sessions.values import SessionOptions
from fumehood.wire.console.codes import Reason


class Known:
    def __init__(self, store: SessionStore, options: SessionOptions) -> None:
        self._store = store
        self._options = options
        self._processes: dict[str, Process] = {}
        self._running: dict[str, Process] = {}
        self._sessions: dict[str, Session | None] = {}
        """By command id; None once the session is gone."""
        self._ended_bytes = 0
        """Of output on disk, of all ended commands. A start must not take longer the more commands are remembered."""

    def all(self) -> Iterator[Process]:
        return iter(self._processes.values())

    def find(self, command_id: str) -> Process | None:
        return self._processes.get(command_id)

    def add(self, process: Process, session: Session | None) -> None:
        command_id = process.record.command_id
        self._processes[command_id] = process
        self._sessions[command_id] = session
        if session is not None:
            session.processes[command_id] = process
        if not process.running:
            self._ended_bytes += process.kept
            return
        self._running[command_id] = process
        if session is not None:
            session.running[command_id] = process

    def ended(self, process: Process) -> None:
        """Calling it again does nothing: a command that starts while its session ends is ended by both."""
        command_id = process.record.command_id
        if self._running.pop(command_id, None) is None:
            return
        self._ended_bytes += process.kept
        session = self._sessions[command_id]
        if session is not None:
            del session.running[command_id]

    def session_gone(self, processes: Iterable[Process]) -> None:
        """Its commands stay known for a while: whoever asked for one may have lost its answer."""
        for process in processes:
            process.touch()
            self._sessions[process.record.command_id] = None

    # --- room ----------------------------------------------------------------------------------------------

    async def make_room(self) -> None:
        """For one command more, or say that there is none."""
        most = self._options.most_known
        if self._shortage(1) > 0 or len(self._processes) >= most:
            await self.tidy(more=1)
        if self._shortage(1) > 0:
            raise CommandFailedError(
                Reason.NO_CAPACITY, "this worker's disk has no room for the output of another command: try again later"
            )
        if len(self._processes) >= most:
            raise CommandFailedError(
                Reason.NO_CAPACITY, f"this worker remembers {most} commands, and takes no more: try again later"
            )

    def _shortage(self, more: int) -> int:
        """Bytes that are missing if every running command, and so many more, print as much as is kept of them."""
        most = Bounds(self._options.output_limit).most
        running = [process.kept for process in self._running.values()]
        kept = self._ended_bytes + sum(running)
        to_come = more * most + sum(max(0, most - size) for size in running)
        disk = os.statvfs(self._store.folder)
        free = disk.f_bavail * disk.f_frsize - self._options.disk_reserve
        return max(kept + to_come - self._options.most_output, to_come - free)

    # --- forgetting ----------------------------------------------------------------------------------------

    async def tidy(self, more: int = 0) -> None:
        """Let go of what is too much, so that there is room for so many commands more. Output comes first: that needs
        no store, which on a full disk fails."""
        idle = _now() - self._options.pressed_seconds
        for group in self._groups():
            over = sum(process.kept for process in group) - self._options.kept_output
            await self._discard(excess(group, over, idle))
        await self._discard(excess(self._ended(), self._shortage(more), idle))
        await self._forget(self._forgettable())

    def _ended(self) -> Iterator[Process]:
        return (process for process in self.all() if not process.running)

    def _is_past(self, process: Process) -> bool:
        return self._sessions[process.record.command_id] is None

    def _groups(self) -> list[list[Process]]:
        """Ended commands: those of each session, and those whose session is gone."""
        groups: dict[str, list[Process]] = defaultdict(list)
        for process in self._ended():
            groups["" if self._is_past(process) else process.record.sandbox_id].append(process)
        return list(groups.values())

    def _forgettable(self) -> list[Process]:
        options, now = self._options, _now()
        idle = now - options.kept_seconds
        old = [one for group in self._groups() for one in surplus(group, options.remembered, idle)]
        old += [one for one in self._ended() if self._is_past(one) and one.used <= idle]
        names = {one.record.command_id for one in old}
        left = [one for one in self._ended() if one.record.command_id not in names]
        crowd = max(0, len(self._processes) - len(names) - options.most_known // 2)
        return [*old, *surplus(left, max(0, len(left) - crowd), now - options.pressed_seconds)]

    async def _forget(self, processes: Collection[Process]) -> None:
        """They stay known until the store has forgotten them."""
        if not processes:
            return
        await self._discard(processes)
        await self._store.forget_processes([process.record.serial for process in processes])
        for command_id in [process.record.command_id for process in processes]:
            self._processes.pop(command_id, None)
            session = self._sessions.pop(command_id, None)
            if session is not None:
                session.processes.pop(command_id, None)

    async def _discard(self, processes: Iterable[Process]) -> None:
        """Drop the output of ended commands: it cannot be found from now on, and its files are removed in a thread."""
        folders = []
        for process in processes:
            self._ended_bytes -= process.kept
            folders.append(process.output.spool.emptied())
        if folders:
            await asyncio.to_thread(_remove, folders)


def _remove(folders: list[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _now() -> float:
    return asyncio.get_running_loop().time()
