"""The figures of one run, as a document for machines and as tables for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from bench.field.rows import PEER
from bench.report import ratio_cells, table
from bench.steps.load import Amount, Found
from bench.steps.rows import MODES, OURS, ROWS


@dataclass(slots=True)
class StepsReport:
    """Everything that one run found out; what was not measured is absent."""

    part: ClassVar[str] = "steps"
    kind: str
    machine: dict[str, Any]
    versions: dict[str, str]
    amount: Amount
    modes: dict[str, dict[str, Found]] = field(default_factory=dict)
    """By mode, then by side."""
    attempts: dict[str, list[float]] = field(default_factory=dict)
    """Our runs a second over those of the quickest peer, of every attempt."""
    notes: list[str] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """Where a peer has as many runs a second as we, or more."""
        return [reason for mode, found in self.modes.items() for reason in behind(mode, found)]

    def headline(self) -> str:
        return "; ".join(
            f"{mode}: " + ", ".join(f"{name} {one.per_second:.0f}" for name, one in found.items())
            for mode, found in self.modes.items()
        )

    def document(self) -> dict[str, Any]:
        words = {
            "rows": {name: asdict(row) for name, row in ROWS.items()},
            "words": {name: mode.what for name, mode in MODES.items()},
        }
        return {"part": self.part, **asdict(self), **words, "failures": self.failures}

    def text(self) -> str:
        parts = [self._promises()]
        for mode, found in self.modes.items():
            parts += [self._rates(mode, found), self._alone(mode, found), self._processor(mode, found)]
        tries = "; ".join(f"{name} {', '.join(f'{a:.2f}' for a in all_)}" for name, all_ in self.attempts.items())
        parts.append(f"Our runs a second over those of the quickest peer, in every attempt: {tries}." if tries else "")
        return "\n\n".join(part for part in [*parts, *self.notes] if part) + "\n"

    # --- tables --------------------------------------------------------------------------------------------

    def _promises(self) -> str:
        measured = {name for found in self.modes.values() for name in found}
        rows = [(row.what, row.promise) for name, row in ROWS.items() if name in measured]
        return table("What each side promises", ("who", "what"), rows)

    def _rates(self, mode: str, found: dict[str, Found]) -> str:
        amount = self.amount
        title = f"Five-step runs a second, {amount.at_once} at once, every write {MODES[mode].what}"
        rows = [
            (
                ROWS[name].what,
                f"{amount.rounds} × {amount.runs}",
                f"{one.per_second:.0f}",
                f"{one.low:.0f}–{one.high:.0f}",
                f"{one.least:.0f}–{one.most:.0f}",
                *(("", "", "") if one.ahead is None else ratio_cells(one.ahead)),
            )
            for name, one in found.items()
        ]
        header = ("who", "runs", "a second", "95 %", "least–most", "**ours over it**", "95 %", "of pairs")
        return table(title, header, rows)

    def _alone(self, mode: str, found: dict[str, Found]) -> str:
        rows = []
        for name, one in found.items():
            alone = one.alone
            tail = (f"{alone.p50:.2f}", f"{alone.low:.2f}–{alone.high:.2f}", f"{alone.p95:.2f}", f"{alone.p99:.2f}")
            rows.append((ROWS[name].what, alone.n, *tail))
        return table(f"One run alone, {mode}, ms", ("who", "n", "p50", "95 %", "p95", "p99"), rows)

    def _processor(self, mode: str, found: dict[str, Found]) -> str:
        rows = [
            (
                ROWS[name].what,
                ", ".join(f"{what} {ms:.2f}" for what, ms in one.cpu_ms.items()),
                f"{sum(one.cpu_ms.values()):.2f}",
            )
            for name, one in found.items()
        ]
        return table(f"Processor time for each run, {mode}, ms", ("who", "of it", "together"), rows)


def lead(found: dict[str, Found]) -> float | None:
    """Our runs a second over those of the quickest peer."""
    ratios = [one.ahead.value for name, one in found.items() if ROWS[name].whose == PEER and one.ahead is not None]
    return min(ratios, default=None)


def behind(mode: str, found: dict[str, Found]) -> list[str]:
    """Which peers are not slower than we are, and by how much."""
    return [
        f"{mode}: {name} {one.per_second:.0f} runs a second, ours {found[OURS].per_second:.0f} ({one.ahead.value:.3f})"
        for name, one in found.items()
        if ROWS[name].whose == PEER and one.ahead is not None and one.ahead.value <= 1
    ]
