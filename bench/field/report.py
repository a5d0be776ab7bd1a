"""The figures of one run, as a document for machines and as tables for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from bench.field import bounds
from bench.field.bounds import Held
from bench.field.burst import Burst
from bench.field.memory import Memory
from bench.field.rows import ROWS
from bench.field.samples import Measured, Times, written
from bench.report import table

HEADER = ("whose", "what", "n", "p50", "95 %", "p95", "p99", "of bare", "95 %", "at most")


@dataclass(slots=True)
class FieldReport:
    """Everything that one run found out; what was not measured is absent."""

    part: ClassVar[str] = "field"
    kind: str
    machine: dict[str, Any]
    versions: dict[str, str]
    label: str = ""
    """What is special about the engine of this run, in words."""
    runtimes: dict[str, dict[str, Measured]] = field(default_factory=dict)
    peers: dict[str, dict[str, Measured]] = field(default_factory=dict)
    """In rounds of their own, with the rows of ours and of the bare engine that they stand beside."""
    bursts: dict[str, Burst] = field(default_factory=dict)
    memory: dict[str, list[Memory]] = field(default_factory=dict)
    attempts: dict[str, list[float]] = field(default_factory=dict)
    """How near to its bound the nearest row was, of every attempt; above 1 it was missed."""
    notes: list[str] = field(default_factory=list)

    @property
    def quick(self) -> bool:
        return self.kind == "quick"

    def checks(self) -> dict[str, list[Held]]:
        """Every bound that was looked at, by runtime."""
        found = {name: bounds.held(name, one, quick=self.quick) for name, one in self.runtimes.items()}
        for name, burst in self.bursts.items():
            most = bounds.burst_most(name, quick=self.quick)
            if most is not None:
                which = "P95" if self.quick else "P99"
                found.setdefault(name, []).append(Held(f"{which} of a burst", burst.judged(quick=self.quick), most))
        for name, one in self.peers.items():
            found.setdefault(name, []).extend(bounds.ahead(one))
        return found

    @property
    def failures(self) -> list[str]:
        return [
            f"{runtime}: {one.row} {one.value:.3f}, at most {one.most:g}"
            for runtime, checks in self.checks().items()
            for one in checks
            if not one.holds
        ]

    def headline(self) -> str:
        return "; ".join(
            f"{runtime}: " + ", ".join(f"{one.row} {one.value:.3f}" for one in checks)
            for runtime, checks in self.checks().items()
            if checks
        )

    def document(self) -> dict[str, Any]:
        return {
            "part": self.part,
            **asdict(self),
            "runtimes": {name: written(one) for name, one in self.runtimes.items()},
            "peers": {name: written(one) for name, one in self.peers.items()},
            "bursts": {name: _burst(one) for name, one in self.bursts.items()},
            "memory": {
                name: [{**asdict(one), "total": one.total} for one in found] for name, found in self.memory.items()
            },
            "checks": {name: list(map(_check, found)) for name, found in self.checks().items()},
            "failures": self.failures,
        }

    def text(self) -> str:
        tables = [*self._rows(), *self._peers(), self._bursts(), self._memory(), self._attempts()]
        return "\n\n".join(part for part in [self.label, *tables, *self.notes] if part) + "\n"

    # --- tables --------------------------------------------------------------------------------------------

    def _rows(self) -> list[str]:
        return [
            table(f"One at a time on {runtime}, ms", HEADER, row_cells(measured, _most(self.checks()[runtime])))
            for runtime, measured in self.runtimes.items()
        ]

    def _peers(self) -> list[str]:
        found = []
        for runtime, measured in self.peers.items():
            found.append(table(f"Peers on {runtime}, in rounds of their own, ms", HEADER, row_cells(measured, {})))
            rows = [(one.row, f"{one.value:.3f}", _yes(one.holds)) for one in bounds.ahead(measured)]
            found.append(table(f"Ours over peers on {runtime}", ("rows", "of medians", "ahead"), rows))
        return found

    def _bursts(self) -> str:
        rows = []
        for runtime, burst in self.bursts.items():
            most = bounds.burst_most(runtime, quick=self.quick)
            rows += [
                (runtime, "ours", *_burst_cells(burst.ours, burst.ours_per_second), ""),
                (runtime, "bare engine", *_burst_cells(burst.bare, burst.bare_per_second), ""),
                (
                    *(runtime, "ours / bare", "", f"{burst.p50:.3f}", f"{burst.p95:.3f}", f"{burst.p99:.3f}"),
                    f"{burst.ours_per_second / burst.bare_per_second:.3f}",
                    "" if most is None else f"{most:g}",
                ),
            ]
        at_once = next((one.at_once for one in self.bursts.values()), 0)
        header = ("runtime", "side", "n", "p50", "p95", "p99", "a second", "at most")
        return table(f"A burst, {at_once} at once, every answer compared, ms", header, rows)

    def _memory(self) -> str:
        rows = [
            (runtime, memory.what, part, f"{mib:.1f}")
            for runtime, found in self.memory.items()
            for memory in found
            for part, mib in {**memory.parts, "together": memory.total}.items()
        ]
        return table("Memory, MiB", ("runtime", "of", "part", "MiB"), rows)

    def _attempts(self) -> str:
        tries = "; ".join(f"{name} {', '.join(f'{a:.2f}' for a in all_)}" for name, all_ in self.attempts.items())
        return f"The row nearest to its bound, as a share of that, in every attempt: {tries}." if tries else ""


def row_cells(measured: dict[str, Measured], most: dict[str, float]) -> list[tuple[object, ...]]:
    return [(ROWS[name].whose, ROWS[name].what, *_cells(one, most.get(name))) for name, one in measured.items()]


def _cells(one: Measured, most: float | None) -> tuple[object, ...]:
    times, ratio = one.times, one.ratio
    held = ("", "") if ratio is None else (f"{ratio.value:.3f}", f"{ratio.low:.3f}–{ratio.high:.3f}")
    return (
        *(times.n, f"{times.p50:.2f}", f"{times.low:.2f}–{times.high:.2f}", f"{times.p95:.2f}", f"{times.p99:.2f}"),
        *(*held, "" if most is None else f"{most:g}"),
    )


def _check(one: Held) -> dict[str, Any]:
    return {**asdict(one), "holds": one.holds}


def _most(checks: list[Held]) -> dict[str, float]:
    return {one.row: one.most for one in checks}


def _burst(burst: Burst) -> dict[str, Any]:
    return {**asdict(burst), "ratios": {"p50": burst.p50, "p95": burst.p95, "p99": burst.p99}}


def _burst_cells(times: Times, per_second: float) -> tuple[object, ...]:
    return times.n, f"{times.p50:.0f}", f"{times.p95:.0f}", f"{times.p99:.0f}", f"{per_second:.2f}"


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"
