"""What idle things take of the machine's memory, and what that is made of.

A container's own memory is its control group's. Processes that serve it and lie outside (the shim) are counted by their
proportional share (PSS): pages that many processes map are not counted for each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.field.console import Commands
from bench.field.engine import Watch
from bench.field.node import Jobs
from bench.field.runs import Runs
from bench.world import BenchError

MIB = 1024 * 1024
AT_ONCE = 32
WORKFLOW = {"name": "field-wait", "steps": [{"id": "wait", "wait_signal": {"name": "never"}}]}
ENGINE = ("dockerd", "containerd")
"""Serve all containers, and are nobody's share."""


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB, by what it is made of."""

    what: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


async def idle_sandbox(jobs: Jobs, watch: Watch) -> Memory:
    """One warm sandbox, and what the node grew by when it came to have it."""
    await jobs.warm()
    await watch.rest()
    found = watch.running(jobs.node.node_id)
    if not found:
        raise BenchError("no idle sandbox to look at")
    return Memory("an idle warm sandbox", container(found[0]))


async def sessions(commands: Commands, watch: Watch, count: int) -> Memory:
    """The worker beyond what it took before, and all containers."""
    before = pss(commands.worker.pid)
    names = [f"many-{number}" for number in range(count)]
    known = set(watch.running(commands.worker.worker_id))
    for name in names:
        await commands.session(name)
    await watch.rest()
    parts = {"worker, before": before / MIB, "worker, grown by": (pss(commands.worker.pid) - before) / MIB}
    for one in set(watch.running(commands.worker.worker_id)) - known:
        for part, mib in container(one).items():
            parts[f"containers: {part}"] = parts.get(f"containers: {part}", 0.0) + mib
    for name in names:
        await commands.remove(name)
    return Memory(f"a worker with {count} sessions", parts)


async def live_runs(runs: Runs, count: int) -> Memory:
    """A server, and its broker, while so many runs wait for a signal."""
    server, broker = runs.cell.servers[0].pid, _broker(runs)
    before = {"server": _family(server), "nats-server": pss(broker)}
    await runs.caller.json("PUT", "/v1/workflows/field-wait", WORKFLOW)
    started = await _start(runs, count)
    await _waiting(runs, started)
    after = {"server": _family(server), "nats-server": pss(broker)}
    parts = {f"{name}, before": value / MIB for name, value in before.items()}
    parts |= {f"{name}, grown by": (after[name] - before[name]) / MIB for name in before}
    return Memory(f"a server with {count:,} live runs", parts)


async def _start(runs: Runs, count: int) -> list[str]:
    left, started = iter(range(count)), []

    async def one_by_one() -> None:
        for _ in left:
            found = await runs.caller.json("POST", "/v1/workflows/field-wait/runs", {"input": {}})
            started.append(str(found["run_id"]))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_by_one())
    return started


async def _waiting(runs: Runs, started: Iterable[str]) -> None:
    """Until each of them stands where it waits."""
    async with asyncio.timeout(600):
        for run_id in started:
            while not await _listens(runs, run_id):  # noqa: ASYNC110 - it is another process that gets there
                await asyncio.sleep(0.05)


async def _listens(runs: Runs, run_id: str) -> bool:
    found = await runs.caller.json("GET", f"/v1/runs/{run_id}")
    return bool(found["steps"]["wait"]["status"] == "listening")


# --- what the kernel says ----------------------------------------------------------------------------------


def pss(pid: int) -> int:
    """Bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise BenchError(f"the kernel does not say how large the process {pid} is")


def container(container_id: str) -> dict[str, float]:
    """MiB: its control group, and each kind of process outside of it that serves nobody else."""
    parts: dict[str, float] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            group = (folder / "cgroup").read_text()
            words = (folder / "cmdline").read_bytes().split(b"\0")
            name = Path(words[0].decode(errors="replace")).name
            if container_id in group:
                parts.setdefault("control group", _group(group) / MIB)
            elif container_id.encode() in b" ".join(words) and name not in ENGINE:
                parts[name] = parts.get(name, 0.0) + pss(int(folder.name)) / MIB
    return parts


def _group(text: str) -> int:
    """Bytes that a control group uses, by the contents of a process's `/proc/PID/cgroup`."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return int(Path(f"/sys/fs/cgroup/memory{path}/memory.usage_in_bytes").read_text())
    path = text.rpartition("0::")[2].split("\n", 1)[0]
    return int(Path(f"/sys/fs/cgroup{path}/memory.current").read_text())


def _family(pid: int) -> int:
    """A process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return pss(pid) + sum(_family(int(child)) for child in children)


def _broker(runs: Runs) -> int:
    """The process that has the cell's configuration as an argument."""
    wanted = json.dumps(str(runs.cell.nats._config))[1:-1].encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (folder / "cmdline").read_bytes().split(b"\0"):
                    return int(folder.name)
    raise BenchError("the broker's process is not found")
