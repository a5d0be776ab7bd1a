"""`python -m bench sessions`: echoes beside a bare gRPC round trip, and commands in live sessions beside the engine's
exec. README.md says what is compared."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import uvloop

from bench import facts, junit, record, sessions_exec, sessions_load
from bench.attempts import attempts
from bench.bare import Bare
from bench.child import Child
from bench.sessions_below import Below
from bench.sessions_exec import BARE, PYTHON, TRUE, Live, Way
from bench.sessions_grpc import BareCalls, BareConsole
from bench.sessions_http import Caller
from bench.sessions_inside import in_process
from bench.sessions_load import Amount, Echo, Turn, paces, payloads
from bench.sessions_report import (
    BELOW,
    ECHO_BOUND,
    HELD_AGAINST,
    HTTP,
    STREAM,
    UNARY,
    Crew,
    SessionsReport,
    room_of,
    strain,
)
from bench.sessions_world import Place, light_workers, place
from bench.world import BenchError
from fumehood.cli.serving import calm_collector
from fumehood.door.logs import configure_logging
from fumehood.wire.command_api import COMMANDS_PATH
from fumehood.wire.console.codes import Capability

IN_PROCESS, TERMINAL, SANDBOX = "in process", "terminalExec over HTTP", "sandbox over HTTP"
WAIT_MS = 60_000


@dataclass(frozen=True, slots=True)
class Size:
    kind: str
    echoes: Amount
    directions: int
    """1: callers at one server, workers at the other; 2: then the other way round, too."""
    connections: int
    processes: int
    with_containers: int
    pairs: int
    pair_seconds: float


FULL = Size(
    kind="full",
    echoes=Amount(rounds=10, each=100, many=900),
    directions=2,
    connections=64,
    processes=4,
    with_containers=8,
    pairs=100,
    pair_seconds=120,
)
QUICK = Size(
    kind="quick",
    echoes=Amount(rounds=4, each=100, many=400),
    directions=1,
    connections=64,
    processes=4,
    with_containers=1,
    pairs=12,
    pair_seconds=6,
)


class Bench:
    def __init__(self, size: Size, report: SessionsReport) -> None:
        self._size = size
        self._report = report
        self._room = room_of(size.kind)

    async def run(self) -> None:
        size = self._size
        self._report.crew = Crew(size.connections, size.processes, size.with_containers)
        async with place() as where:
            say(f"{size.with_containers} workers with containers")
            await where.docker_workers(size.with_containers)
            sandbox_ids = [await _sandbox(where, number) for number in range(size.with_containers)]
            await self._live(where, sandbox_ids[0])
            await self._echoes(where)

    # --- echoes --------------------------------------------------------------------------------------------

    async def _echoes(self, where: Place) -> None:
        size = self._size
        hired = await where.hire(size.connections)
        turns: dict[str, list[Turn]] = {}
        async with BareConsole.open() as bare, Below.open(where.cell.nats.options()) as below:
            for server in range(size.directions):
                say(f"{size.connections} workers at server {server}, callers at the other")
                caller = where.callers[1 - server]
                async with light_workers(where, server, bare, hired, size.processes) as children:
                    await below.seen(size.connections + size.with_containers)
                    async with BareCalls([(await child.figures())["port"] for child in children]) as calls:
                        ways = {HTTP: caller.echo, BELOW: below.echo, STREAM: bare.echo, UNARY: calls.echo}
                        for way, found in (await self._measured(ways)).items():
                            turns.setdefault(way, []).extend(found)
                    self._report.processor = await self._processor(where, caller, children)
                    await below.seen(size.connections + size.with_containers)
                bare.forget()
        self._report.echoes = paces(turns)

    async def _measured(self, ways: Mapping[str, Echo]) -> dict[str, list[Turn]]:
        """A noisy moment is measured again, and every attempt is reported; the best one counts."""
        calm_collector()

        async def measure() -> tuple[float, dict[str, list[Turn]]]:
            turns = await sessions_load.measure(ways, self._size.echoes, payloads(len(self._report.attempts)))
            found = paces(turns)
            self._report.attempts.append(found[HTTP].over(found[HELD_AGAINST]).value)
            return self._report.attempts[-1], turns

        found = await attempts(measure, lambda one: one[0] <= ECHO_BOUND * self._room)
        return min(found, key=lambda one: one[0])[1]

    async def _processor(self, where: Place, caller: Caller, children: list[Child]) -> dict[str, float]:
        amount, payload = self._size.echoes, payloads(-1)
        before = await _cpu_seconds(where, children)
        await sessions_load.many(caller.echo, amount.many, payload)
        after = await _cpu_seconds(where, children)
        return {name: 1000 * (after[name] - before[name]) / amount.many for name in before}

    # --- commands in a live session ------------------------------------------------------------------------

    async def _live(self, where: Place, sandbox_id: str) -> None:
        async with contextlib.AsyncExitStack() as stack:
            bare = await stack.enter_async_context(Bare("", "runc", where.path))
            container = await where.container(sandbox_id)
            ways = {
                IN_PROCESS: await stack.enter_async_context(in_process(where.path)),
                TERMINAL: _terminal(where.callers[1], sandbox_id),
                SANDBOX: _in_sandbox(where.callers[1], sandbox_id),
                BARE: lambda command: bare.execute(container, command),
            }
            for command in (TRUE, PYTHON):
                say(f"{self._size.pairs} × `{shlex.join(command)}` in a live session")
                self._report.live.append(await self._one_live(ways, command))

    async def _one_live(self, ways: Mapping[str, Way], command: tuple[str, ...]) -> Live:
        """As with echoes: what does not hold is measured again, and the best one counts."""
        size = self._size
        found = await attempts(
            lambda: sessions_exec.measure(ways, command, size.pairs, seconds=size.pair_seconds),
            lambda one: strain(one, self._room) <= 1,
        )
        worst = tuple(max(held.value for held in one.ratios.values()) for one in found)
        return replace(min(found, key=lambda one: strain(one, self._room)), attempts=worst)


async def _cpu_seconds(where: Place, children: list[Child]) -> dict[str, float]:
    workers = sum([(await child.figures())["cpu"] for child in children])
    return {**where.cpu_seconds(), "workers": workers}


async def _sandbox(where: Place, number: int) -> str:
    asked = {"sandbox_id": f"bench-{secrets.token_hex(4)}", "lease_seconds": 1800}
    made = await where.callers[number % len(where.callers)].json("POST", "/v1/sandboxes", asked)
    return str(made["sandbox_id"])


def _terminal(caller: Caller, session_id: str) -> Way:
    """The contract's command: through a shell, with a record, one at a time in a session."""

    async def run(command: tuple[str, ...]) -> bytes:
        payload = {"command": shlex.join(command), "session_id": session_id}
        asked = {"capability": Capability.TERMINAL_EXEC.value, "payload": payload, "wait_ms": WAIT_MS}
        answer = await caller.json("POST", COMMANDS_PATH, asked)
        if answer.get("status") != "succeeded" or answer["result"]["exit_code"] != 0:
            raise BenchError(f"{command} was answered with {answer}")
        return str(answer["result"]["stdout"]).encode()

    return run


def _in_sandbox(caller: Caller, sandbox_id: str) -> Way:
    async def run(command: tuple[str, ...]) -> bytes:
        asked = {"command": list(command), "wait_ms": WAIT_MS}
        answer = await caller.json("POST", f"/v1/sandboxes/{sandbox_id}/commands", asked)
        if answer.get("status") != "exited" or answer.get("exit_code") != 0:
            raise BenchError(f"{command} was answered with {answer}")
        return str(answer["stdout"]).encode()

    return run


def say(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


def main(*, quick: bool, record_as: str | None, tests: list[junit.TestRun]) -> int:
    began = time.monotonic()
    configure_logging(level="error")
    size = QUICK if quick else FULL
    report = SessionsReport(size.kind, facts.machine(), facts.broker_versions(facts.CONSOLE_PACKAGES))
    report.tests = tests
    uvloop.run(Bench(size, report).run())
    print(report.text())
    if record_as is not None:
        say(f"kept in {record.write(report, record_as)}")
    verdict = f"DOES NOT HOLD ({'; '.join(report.failures)})" if report.failures else "holds"
    print(f"bench: {verdict}: {report.headline()}; {time.monotonic() - began:.0f} s")
    return 1 if report.failures else 0
