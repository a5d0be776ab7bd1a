"""One run's figures, as a document for machines and as tables for people.

The same tables go to the terminal and into the record, so that nobody has to trust a second rendering.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from bench.cold import Cold
from bench.figures import Ratio, Summary
from bench.inside import Inside
from bench.junit import TestRun
from bench.load import Flood, Memory, Throughput

BOUND = 1.25
"""The full ratio on runc that must hold."""
AIM = 1.10


@dataclass(slots=True)
class Report:
    """Everything that one run found out; parts that were not measured are absent."""

    part: ClassVar[str] = "worker-api"
    kind: str
    machine: dict[str, Any]
    versions: dict[str, str]
    cold: dict[str, Cold] = field(default_factory=dict)
    attempts: dict[str, list[float]] = field(default_factory=dict)
    """The full ratio of every attempt, failed ones included."""
    inside: dict[str, Inside] = field(default_factory=dict)
    throughput: dict[str, list[Throughput]] = field(default_factory=dict)
    flood: dict[str, Flood] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)
    tests: list[TestRun] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Parts of a quick run for which there was no time."""

    @property
    def within_bound(self) -> bool:
        return "runc" in self.cold and self.cold["runc"].full_ratio.value <= BOUND

    def document(self) -> dict[str, Any]:
        found = asdict(self)
        for runtime, rates in self.throughput.items():
            for rate, row in zip(rates, found["throughput"][runtime], strict=True):
                row["ratio"] = rate.ratio
        for runtime, memory in self.memory.items():
            found["memory"][runtime]["growth_mib"] = memory.growth_mib
        return {**found, "bound": BOUND, "aim": AIM, "within_bound": self.within_bound}

    def text(self) -> str:
        tables = [self._cold(), self._stages(), self._inside(), self._throughput(), self._flood(), self._memory()]
        late = f"No time for: {', '.join(self.skipped)}." if self.skipped else ""
        return "\n\n".join(part for part in [*tables, tests_table(self.tests), late] if part) + "\n"

    # --- tables --------------------------------------------------------------------------------------------

    def _cold(self) -> str:
        rows, ratios = [], []
        for runtime, cold in self.cold.items():
            rows += [
                (runtime, "ours, to the answer", *time_cells(cold.ours_answered)),
                (runtime, "ours, until gone", *time_cells(cold.ours_gone)),
                (runtime, "bare, to the answer", *time_cells(cold.bare_answered)),
                (runtime, "bare, until gone", *time_cells(cold.bare_gone)),
            ]
            ratios += [
                (runtime, "**full**: ours until gone / bare until gone", *ratio_cells(cold.full_ratio)),
                (runtime, "answer: ours to the answer / bare until gone", *ratio_cells(cold.answer_ratio)),
                (runtime, "strict: ours to the answer / bare to the answer", *ratio_cells(cold.strict_ratio)),
            ]
        tries = "; ".join(f"{name}: {', '.join(f'{one:.3f}' for one in all_)}" for name, all_ in self.attempts.items())
        return "\n\n".join(
            [
                table("Cold job, ms", ("runtime", "what", "n", "p50", "p95", "mean"), rows),
                table(
                    "Cost above the bare engine",
                    ("runtime", "ratio of p50", "value", "95 %", "median of pairs"),
                    ratios,
                ),
                f"Full ratio on runc: at most {BOUND}, aim {AIM}. Attempts: {tries}.",
            ]
        )

    def _stages(self) -> str:
        rows = []
        for runtime, cold in self.cold.items():
            rows += [(runtime, "node, mean", name, f"{ms:.1f}") for name, ms in cold.stages.items()]
            rows += [(runtime, "bare, mean", name, f"{ms:.1f}") for name, ms in cold.bare_steps.items()]
            rows.append((runtime, "node, mean", "processor time", f"{cold.node_cpu_ms:.1f}"))
        return table("Where a cold job spends its time, ms", ("runtime", "whose", "stage", "ms"), rows)

    def _inside(self) -> str:
        rows = []
        for runtime, inside in self.inside.items():
            rows += [
                (runtime, "warden, round trip", *time_cells(inside.round_trip)),
                (runtime, "warden, `echo 1`", *time_cells(inside.warden)),
                (runtime, "engine's exec, `echo 1`", *time_cells(inside.exec)),
                (runtime, "ratio", "", f"{inside.ratio.value:.3f}", "", ""),
            ]
        return table("In a running sandbox, ms", ("runtime", "what", "n", "p50", "p95", "mean"), rows)

    def _throughput(self) -> str:
        rows = [
            (
                runtime,
                rate.concurrency,
                rate.jobs,
                f"{rate.ours_per_second:.2f}",
                f"{rate.bare_per_second:.2f}",
                f"{rate.ratio:.3f}",
            )
            for runtime, rates in self.throughput.items()
            for rate in rates
        ]
        return table("Whole lives a second", ("runtime", "at once", "jobs", "ours", "bare", "bare / ours"), rows)

    def _flood(self) -> str:
        rows = [
            (
                runtime,
                flood.mebibytes,
                f"{flood.ours_per_second:.0f}",
                f"{flood.bare_per_second:.0f}",
                f"{flood.node_rss_growth_mib:.1f}",
            )
            for runtime, flood in self.flood.items()
        ]
        header = ("runtime", "MiB", "ours, MiB/s", "bare attach, MiB/s", "node grew by, MiB")
        beside = [
            (runtime, whose, one.jobs, f"{one.beside_ms:.0f}", f"{one.alone_ms:.0f}")
            for runtime, flood in self.flood.items()
            for whose, one in (("ours", flood.ours_beside), ("bare", flood.bare_beside))
        ]
        columns = ("runtime", "whose", "jobs", "p50 beside it, ms", "p50 alone")
        return "\n\n".join(
            [
                table("Output, start included", header, rows),
                table("Cold jobs, one after another, beside such output", columns, beside),
            ]
        )

    def _memory(self) -> str:
        rows = [
            (runtime, memory.jobs, f"{memory.before_mib:.1f}", f"{memory.after_mib:.1f}", f"{memory.growth_mib:+.1f}")
            for runtime, memory in self.memory.items()
        ]
        return table("Resident memory of the node, MiB", ("runtime", "jobs", "before", "after", "growth"), rows)


def tests_table(tests: Iterable[TestRun]) -> str:
    rows = [
        (test.name, test.outcome, f"{test.seconds:.1f}", ", ".join(f"{k}={v}" for k, v in test.figures.items()))
        for test in tests
    ]
    return table("Tests marked `record`", ("test", "outcome", "seconds", "figures"), rows)


def time_cells(summary: Summary) -> tuple[object, ...]:
    return summary.n, f"{summary.p50:.2f}", f"{summary.p95:.2f}", f"{summary.mean:.2f}"


def ratio_cells(ratio: Ratio) -> tuple[object, ...]:
    return f"{ratio.value:.3f}", f"{ratio.low:.3f}–{ratio.high:.3f}", f"{ratio.pairwise:.3f}"


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = [tuple(map(str, row)) for row in rows]
    if not cells:
        return ""
    widths = [max(len(row[column]) for row in [tuple(header), *cells]) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([f"### {title}", "", line(header), rule, *map(line, cells)])
