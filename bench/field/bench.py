"""`python -m bench field`: the engine bare, the floor, this system and its peers, in rounds that all of them take part
in. README.md says what is compared."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from bench import facts, record
from bench.attempts import attempts
from bench.bare import Bare
from bench.field import bounds, burst, engine, memory, peers, plot
from bench.field.bounds import GVISOR, PLAIN, kind_of
from bench.field.engine import EngineFacts, Watch
from bench.field.place import ALL, CELL, COLD, FLOOR, WORKER, Place, Take, place
from bench.field.report import FieldReport
from bench.field.samples import Figures, Measured
from bench.world import SOCKET, BenchError, image
from fumehood.cli.serving import calm_collector
from fumehood.door.logs import configure_logging
from tests.python_image import push_python

RUNTIMES = ("runc", "runsc")
AT_ONCE = 16
PEER_ROWS = ("bare python", "bare exec python", "warm python", "session python", "cold python")
"""What peers are put beside, in their rounds."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything, by the kind of runtime."""

    kind: str
    parts: Mapping[str, tuple[str, ...]]
    rounds: Mapping[str, int]
    seconds: float
    """For all rounds of one attempt on one runtime; never fewer than half of them."""
    burst: Mapping[str, tuple[int, int]]
    """Requests, and how often."""
    peer_rounds: int
    memory: bool
    sessions: int
    runs: int


FULL = Size(
    kind="full",
    parts={PLAIN: ALL, GVISOR: ALL},
    rounds={PLAIN: 60, GVISOR: 30},
    seconds=900,
    burst={PLAIN: (200, 2), GVISOR: (200, 1)},
    peer_rounds=8,
    memory=True,
    sessions=50,
    runs=10_000,
)
QUICK = Size(
    kind="quick",
    parts={PLAIN: (FLOOR, COLD, WORKER, CELL), GVISOR: (WORKER,)},
    rounds={PLAIN: 8, GVISOR: 4},
    seconds=40,
    burst={PLAIN: (48, 1)},
    peer_rounds=0,
    memory=True,
    sessions=0,
    runs=0,
)


@dataclass(frozen=True, slots=True)
class Options:
    """What whoever starts it may say."""

    quick: bool = False
    label: str = ""
    socket: Path = SOCKET
    peers: bool = True
    runtimes: tuple[str, ...] = ()
    """By the engine's names; none: those of `RUNTIMES` that it has."""


class Bench:
    def __init__(self, size: Size, options: Options, found: EngineFacts, report: FieldReport, scratch: Path) -> None:
        self._size = size
        self._options = options
        self._engine = found
        self._report = report
        self._scratch = scratch
        self._image = ""

    async def run(self) -> None:
        self._image = await asyncio.to_thread(_image, self._engine)
        async with Watch.open(self._engine.socket) as watch:
            for runtime in self._runtimes():
                await self._runtime(runtime, watch)

    def _runtimes(self) -> list[str]:
        asked = self._options.runtimes
        if missing := [name for name in asked if name not in self._engine.runtimes]:
            raise BenchError(f"the engine has no runtime {', '.join(missing)}")
        return list(asked) or [name for name in RUNTIMES if name in self._engine.runtimes]

    async def _runtime(self, runtime: str, watch: Watch) -> None:
        size, kind = self._size, kind_of(runtime)
        _say(f"{runtime}: bare engine, nodes{', '.join(('', *size.parts[kind]))}")
        async with place(self._engine, watch, self._image, runtime, size.parts[kind], self._scratch / runtime) as where:
            await self._one_at_a_time(where, runtime)
            await self._burst(where, runtime)
            if self._options.peers and size.peer_rounds:
                await self._peers(where, runtime)
            if size.memory:
                self._report.memory[runtime] = await self._memory(where, kind)

    # --- parts ---------------------------------------------------------------------------------------------

    async def _one_at_a_time(self, where: Place, runtime: str) -> None:
        size = self._size

        async def measure() -> dict[str, Measured]:
            count = size.rounds[kind_of(runtime)]
            _say(f"{runtime}: {count} rounds of {len(where.takes())} samples")
            return (await rounds(where, where.takes(), count, size.seconds)).measured()

        def strain(measured: Mapping[str, Measured]) -> float:
            return bounds.strain(bounds.held(runtime, measured, quick=self._report.quick))

        calm_collector()
        found = await attempts(measure, lambda one: strain(one) <= 1)
        self._report.runtimes[runtime] = min(found, key=strain)
        self._report.attempts[runtime] = [strain(one) for one in found]

    async def _burst(self, where: Place, runtime: str) -> None:
        if kind_of(runtime) not in self._size.burst:
            return
        requests, turns = self._size.burst[kind_of(runtime)]
        quick, most = self._report.quick, bounds.burst_most(runtime, quick=self._report.quick)

        async def measure() -> burst.Burst:
            _say(f"{runtime}: a burst of {requests} requests, {AT_ONCE} at once, {turns} × of each side")
            return await burst.measure(where.warm, where.bare, where.watch, requests, AT_ONCE, turns)

        found = await attempts(measure, lambda one: most is None or one.judged(quick=quick) <= most)
        best = min(found, key=lambda one: one.judged(quick=quick))
        judged = tuple(one.judged(quick=quick) for one in found)
        self._report.bursts[runtime] = replace(best, attempts=judged)

    async def _peers(self, where: Place, runtime: str) -> None:
        """A peer that cannot do something is named, and the others are measured."""
        python = await asyncio.to_thread(peers.environment)
        self._report.versions |= await asyncio.to_thread(peers.versions, python)
        layered = await asyncio.to_thread(peers.image_with_layer, python, self._image, self._engine)
        takes = {name: take for name, take in where.takes().items() if name in PEER_ROWS}
        async with contextlib.AsyncExitStack() as stack:
            for name in peers.NAMES:
                try:
                    if name == "swe-rex" and kind_of(runtime) == GVISOR:
                        raise BenchError("swe-rex needs a network, which this runtime is not given")
                    used = layered if name in peers.LAYERED else self._image
                    one = await stack.enter_async_context(
                        peers.peer(name, python, used, runtime, self._engine, self._scratch)
                    )
                    await one.life()
                    takes[name] = one.life
                except BenchError as error:
                    cause = str(error).rstrip().rpartition("\n")[2]  # behind it may stand a peer's traceback
                    self._report.notes.append(f"Not measured on {runtime}: {name}: {cause}")
            _say(f"{runtime}: {self._size.peer_rounds} rounds with {', '.join(set(takes) - set(PEER_ROWS))}")
            found = await rounds(where, takes, self._size.peer_rounds, self._size.seconds)
        self._report.peers[runtime] = found.measured()

    async def _memory(self, where: Place, kind: str) -> list[memory.Memory]:
        _say(f"{where.runtime}: memory")
        idle = len(where.watch.running(where.warm.node.node_id)) or 1
        sandbox = await memory.idle_sandbox(where.warm, where.watch)
        share = max(0, memory.pss(where.warm.node.pid) - where.node_before) / memory.MIB / idle
        found = [replace(sandbox, parts={**sandbox.parts, "node, grown since its start": share})]
        if kind == PLAIN and self._size.sessions and where.commands is not None:
            found.append(await memory.sessions(where.commands, where.watch, self._size.sessions))
        if kind == PLAIN and self._size.runs and where.runs is not None:
            found.append(await memory.live_runs(where.runs, self._size.runs))
        return found


async def rounds(where: Place, takes: Mapping[str, Take], count: int, seconds: float) -> Figures:
    """In each of them every one has a turn, in a random order; none begins before the engine is at rest."""
    until, figures, names = time.monotonic() + seconds, Figures(), list(takes)
    for number in range(count):
        if number >= count / 2 and time.monotonic() > until:
            break
        for name in random.sample(names, len(names)):
            await where.ready()
            figures.add(await takes[name]())
    return figures


async def versions(found: EngineFacts, scratch: Path) -> dict[str, str]:
    async with Bare("", "runc", scratch, found.socket) as bare:
        said = await bare.versions()
    runtimes = {name: _version(one.path) for name, one in found.runtimes.items() if not name.startswith("io.")}
    return {**facts.broker_versions(facts.CONSOLE_PACKAGES), **said, **runtimes, "python": platform.python_version()}


def _version(path: str) -> str:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return said.split("\n", 1)[0].split(" version ")[-1]


def _image(found: EngineFacts) -> str:
    """One for all: the test image with the name `python`, which pythonExec and llm-sandbox call."""
    name = push_python(image("python"))
    words = ("docker", "--host", f"unix://{found.socket}", "pull", "--quiet", name)
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise BenchError(f"the engine cannot have the image: {done.stderr}")
    return name


def _say(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


async def _measured(size: Size, options: Options, scratch: Path) -> FieldReport:
    """Whoever ends it, all that it started ends with it."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    found = await engine.look(options.socket)
    report = FieldReport(size.kind, facts.machine(), await versions(found, scratch), options.label)
    await Bench(size, options, found, report, scratch).run()
    return report


def main(options: Options, *, record_as: str | None) -> int:
    began = time.monotonic()
    configure_logging(level="error")
    with tempfile.TemporaryDirectory(prefix="fumehood-bench-", dir="/var/tmp") as folder:
        try:
            report = uvloop.run(_measured(QUICK if options.quick else FULL, options, Path(folder)))
        except asyncio.CancelledError:
            raise BenchError("told to end") from None
    print(report.text())
    if record_as is not None:
        page = record.write(report, record_as)
        plot.write(report, page.with_suffix(""))
        page.write_text(f"{page.read_text()}\n![The same as a picture]({page.stem}.svg)\n")
        _say(f"kept in {page}")
    verdict = f"DOES NOT HOLD ({'; '.join(report.failures)})" if report.failures else "holds"
    print(f"bench: {verdict}: {report.headline()}; {time.monotonic() - began:.0f} s")
    return 1 if report.failures else 0
