"""The figures of sessions and of the workers' streams, as a document for machines and as tables for people."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from bench.figures import Ratio
from bench.junit import TestRun
from bench.report import ratio_cells, table, tests_table, time_cells
from bench.sessions_exec import BARE, PYTHON, TRUE, Live
from bench.sessions_load import AT_ONCE, Pace

HTTP, BELOW, STREAM, UNARY = "HTTP, two servers", "use case, two servers", "bare gRPC stream", "bare gRPC call"
HELD_AGAINST = UNARY
"""The bare round trip that an echo is held against: one call and its answer, as clients of gRPC make them. A frame
and its answer over a stream that is open already takes a third of that; it is measured, and printed beside."""
ECHO_BOUND = 6.0
"""An echo over HTTP, through two servers, over a bare round trip; one at a time."""
OVER_HTTP = "over HTTP"
QUICK_ROOM = 1.5
EXEC_BOUNDS = {shlex.join(TRUE): 0.35, shlex.join(PYTHON): 0.60}
"""A command in a live session over the engine's exec of it: by every way that is measured."""


@dataclass(frozen=True, slots=True)
class Crew:
    """Who answered."""

    connections: int
    processes: int
    with_containers: int


def room_of(kind: str) -> float:
    """Few measurements on a busy machine tell less: there, ways through several processes are given room; the full
    size, which is recorded, is not."""
    return 1.0 if kind == "full" else QUICK_ROOM


def bounds(live: Live, room: float = 1.0) -> dict[str, float]:
    """How long a command may take by each way; `room` is for those over HTTP."""
    return {way: EXEC_BOUNDS[live.command] * (room if OVER_HTTP in way else 1.0) for way in live.ratios}


def excess(live: Live, room: float = 1.0) -> dict[str, tuple[float, float]]:
    """Ways by which a command took longer than it may, and how long that is."""
    most = bounds(live, room)
    return {way: (held.value, most[way]) for way, held in live.ratios.items() if held.value > most[way]}


def strain(live: Live, room: float = 1.0) -> float:
    """How near to its bound the way is that is nearest; above 1 it does not hold."""
    most = bounds(live, room)
    return max(held.value / most[way] for way, held in live.ratios.items())


@dataclass(slots=True)
class SessionsReport:
    """Everything that one run found out."""

    part: ClassVar[str] = "sessions"
    kind: str
    machine: dict[str, Any]
    versions: dict[str, str]
    crew: Crew | None = None
    echoes: dict[str, Pace] = field(default_factory=dict)
    """By the way they took."""
    attempts: list[float] = field(default_factory=list)
    """The ratio of echoes of every attempt, failed ones included."""
    processor: dict[str, float] = field(default_factory=dict)
    """Milliseconds of processor time for each echo over HTTP, many at once, by kind of process."""
    live: list[Live] = field(default_factory=list)
    tests: list[TestRun] = field(default_factory=list)

    @property
    def echo_ratio(self) -> Ratio | None:
        if HTTP not in self.echoes or HELD_AGAINST not in self.echoes:
            return None
        return self.echoes[HTTP].over(self.echoes[HELD_AGAINST])

    def headline(self) -> str:
        echo = self.echo_ratio
        parts = [] if echo is None else [f"echo {echo.value:.2f}"]
        parts += [f"{one.command} by {way} {held.value:.3f}" for one in self.live for way, held in one.ratios.items()]
        return ", ".join(parts)

    @property
    def failures(self) -> list[str]:
        """What does not hold."""
        room = room_of(self.kind)
        found = []
        echo = self.echo_ratio
        if echo is not None and echo.value > ECHO_BOUND * room:
            found.append(f"an echo takes {echo.value:.2f} bare round trips, at most {ECHO_BOUND * room:g}")
        return found + [
            f"`{one.command}` by {way}: {value:.3f} of the engine's exec, at most {bound:g}"
            for one in self.live
            for way, (value, bound) in excess(one, room).items()
        ]

    def document(self) -> dict[str, Any]:
        echo = self.echo_ratio
        return {
            **asdict(self),
            "echo_ratio": None if echo is None else asdict(echo),
            "echo_bound": ECHO_BOUND,
            "exec_bounds": EXEC_BOUNDS,
            "failures": self.failures,
        }

    def text(self) -> str:
        parts = [self._crew(), self._alone(), self._crowd(), self._ratios(), self._processor(), self._live()]
        return "\n\n".join(part for part in [*parts, tests_table(self.tests)] if part) + "\n"

    # --- tables --------------------------------------------------------------------------------------------

    def _crew(self) -> str:
        if self.crew is None:
            return ""
        total = sum(pace.echoes for way, pace in self.echoes.items() if way in (HTTP, BELOW))
        return (
            f"{self.crew.connections} workers without containers in {self.crew.processes} processes and "
            f"{self.crew.with_containers} with containers answered {total:,} echoes, each compared byte for byte."
        )

    def _alone(self) -> str:
        rows = [(way, *time_cells(pace.alone)) for way, pace in self.echoes.items()]
        return table("Echoes, one at a time, ms", ("way", "n", "p50", "p95", "mean"), rows)

    def _crowd(self) -> str:
        rows = [(way, *time_cells(pace.crowd), f"{pace.per_second:.0f}") for way, pace in self.echoes.items()]
        return table(f"Echoes, {AT_ONCE} at once, ms", ("way", "n", "p50", "p95", "mean", "a second"), rows)

    def _ratios(self) -> str:
        rows = [
            (f"{way} / {bare}", kind, *ratio_cells(held))
            for way in (HTTP, BELOW)
            for bare in (STREAM, UNARY)
            if way in self.echoes and bare in self.echoes
            for kind, held in (
                ("one at a time", self.echoes[way].over(self.echoes[bare])),
                (f"{AT_ONCE} at once", self.echoes[way].crowd_over(self.echoes[bare])),
            )
        ]
        held = table("Echoes: ours / bare", ("ratio", "load", "of medians", "95 %", "median of rounds"), rows)
        attempts = ", ".join(f"{one:.2f}" for one in self.attempts)
        rule = f"{HTTP} / {HELD_AGAINST}, one at a time, is held to at most {ECHO_BOUND:g}"
        return f"{held}\n\n{rule}; attempts: {attempts}." if held else ""

    def _processor(self) -> str:
        rows = [(name, f"{value:.2f}") for name, value in self.processor.items()]
        return table(f"Processor time for each echo over HTTP, {AT_ONCE} at once, ms", ("process", "ms"), rows)

    def _live(self) -> str:
        rows = [(f"`{one.command}`", way, *time_cells(times)) for one in self.live for way, times in one.times.items()]
        ratios = [
            (f"`{one.command}`", f"{way} / {BARE}", *ratio_cells(held), f"{EXEC_BOUNDS[one.command]:.2f}")
            for one in self.live
            for way, held in one.ratios.items()
        ]
        times = table("A command in a live session, ms", ("command", "way", "n", "p50", "p95", "mean"), rows)
        header = ("command", "ratio", "of medians", "95 %", "median of pairs", "at most")
        held = table("A command in a live session: ours / bare", header, ratios)
        attempts = "; ".join(f"`{one.command}` {', '.join(f'{a:.3f}' for a in one.attempts)}" for one in self.live)
        return f"{times}\n\n{held}\n\nThe largest ratio of every attempt: {attempts}." if times else ""
