"""`python -m bench steps`: durable runs a second of this system and of its peers, at the same durability. README.md
says what is compared."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench import facts, record
from bench.attempts import attempts
from bench.field.peers import environment
from bench.steps import peers, plot, postgres
from bench.steps.load import Amount, Found, measure, warm_up
from bench.steps.ours import ours
from bench.steps.report import StepsReport, behind, lead
from bench.steps.rows import MODES, OURS, OURS_SDK, Mode
from bench.steps.side import Side
from bench.world import BenchError
from fumehood.cli.serving import calm_collector
from fumehood.door.logs import configure_logging

FULL = Amount(rounds=5, runs=256, at_once=128, alone=12)
QUICK = Amount(rounds=2, runs=128, at_once=128, alone=5)


@dataclass(frozen=True, slots=True)
class Options:
    """What whoever starts it may say."""

    quick: bool = False
    peers: bool = True


@contextlib.asynccontextmanager
async def everybody(mode: Mode, at_once: int, python: Path | None) -> AsyncIterator[list[Side]]:
    """All sides, each with servers of its own; `python` is the peers', if they take part."""
    async with contextlib.AsyncExitStack() as stack:
        sides: list[Side] = [
            await stack.enter_async_context(ours(OURS, mode, at_once)),
            await stack.enter_async_context(ours(OURS_SDK, mode, at_once)),
        ]
        if python is not None:
            sides.append(await stack.enter_async_context(peers.dbos(python, mode)))
            sides.append(await stack.enter_async_context(peers.taskiq(python, mode, at_once)))
        await warm_up(sides, at_once)
        calm_collector()
        yield sides


async def _mode(name: str, report: StepsReport, python: Path | None) -> None:
    amount = report.amount
    async with everybody(MODES[name], amount.at_once, python) as sides:

        async def once() -> dict[str, Found]:
            _say(f"{name}: {amount.rounds} rounds of {amount.runs} five-step runs, {amount.at_once} at once, of each")
            return await measure(sides, amount)

        tried = await attempts(once, lambda one: not behind(name, one))
    report.modes[name] = max(tried, key=lambda one: lead(one) or 0.0)
    report.attempts[name] = [found for one in tried if (found := lead(one)) is not None]


async def _measured(options: Options) -> StepsReport:
    """Whoever ends it, all that it started ends with it."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    report = StepsReport(
        "quick" if options.quick else "full",
        facts.machine(),
        facts.broker_versions(),
        QUICK if options.quick else FULL,
    )
    python = None
    if options.peers:
        programs = postgres.programs()
        python = await asyncio.to_thread(environment)
        report.versions |= {"postgresql": postgres.version(programs)} | peers.versions(python)
    for name in MODES:
        await _mode(name, report, python)
    return report


def _say(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


def main(options: Options, *, record_as: str | None) -> int:
    began = time.monotonic()
    configure_logging(level="error")
    try:
        report = uvloop.run(_measured(options))
    except asyncio.CancelledError:
        raise BenchError("told to end") from None
    print(report.text())
    if record_as is not None:
        page = record.write(report, record_as)
        plot.write(report, page.with_suffix(""))
        page.write_text(f"{page.read_text()}\n![The same as a picture]({page.stem}.svg)\n")
        _say(f"kept in {page}")
    verdict = f"BEHIND ({'; '.join(report.failures)})" if report.failures else "ahead" if options.peers else "no peers"
    print(f"bench: {verdict}: runs a second: {report.headline()}; {time.monotonic() - began:.0f} s")
    return 1 if report.failures else 0
