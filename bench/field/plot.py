"""One picture of a run, as PNG and as SVG: medians with their intervals, and how far the tail reaches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.field.bounds import kind_of
from bench.field.report import FieldReport
from bench.field.rows import BARE, FLOOR, OURS, PEER, ROWS
from bench.field.samples import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {BARE: "#7a7a7a", FLOOR: "#b9b9b9", OURS: "#3949ab", PEER: "#c77c2b"}
ROW_INCHES, WIDTH = 0.27, 11.0
MOST_LINEAR = 2
"""Rows of a panel whose axis begins at nothing; more differ by powers of ten."""


def write(report: FieldReport, stem: Path) -> list[Path]:
    """`STEM.png` and `STEM.svg`; the same figures make the same files."""
    import matplotlib as mpl  # a second that nobody waits who draws nothing

    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "fumehood", "svg.fonttype": "none", "font.size": 8})
    import matplotlib.pyplot as plt

    panels = lines(report)
    heights = [max(2, len(found)) for _, found in panels]
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(WIDTH, ROW_INCHES * sum(heights) + 1.0 * len(panels)),
        gridspec_kw={"height_ratios": heights}, squeeze=False,
    )  # fmt: skip
    for axis, (title, found) in zip(axes[:, 0], panels, strict=True):
        _panel(axis, title, found)
    figure.tight_layout()
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    figure.savefig(paths[0], dpi=130, metadata={"Software": None})
    figure.savefig(paths[1], metadata={"Date": None})
    plt.close(figure)
    return paths


def lines(report: FieldReport) -> list[tuple[str, list[tuple[str, str, Measured]]]]:
    """The panels: a title, and for each row its words, whose it is, and its figures."""
    panels = []
    for runtime, measured in report.runtimes.items():
        peers = {name: one for name, one in report.peers.get(runtime, {}).items() if ROWS[name].whose == PEER}
        found = [(ROWS[name].what.replace("`", ""), ROWS[name].whose, one) for name, one in (measured | peers).items()]
        kind = "gVisor" if kind_of(runtime) == "gvisor" else runtime
        panels.append((f"{kind}: one at a time, ms (median with 95 % interval; line to P99)", found))
    for runtime, burst in report.bursts.items():
        found = [
            ("fumehood, pool on", OURS, Measured(burst.ours)),
            ("bare engine", BARE, Measured(burst.bare)),
        ]
        kind = "gVisor" if kind_of(runtime) == "gvisor" else runtime
        panels.append((f"{kind}: {burst.requests} requests, {burst.at_once} at once, ms", found))
    return panels


def short(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def _panel(axis: Axes, title: str, found: list[tuple[str, str, Measured]]) -> None:
    for place, (_, whose, one) in enumerate(found):
        times, colour = one.times, COLOURS[whose]
        axis.barh(place, times.p50, color=colour, height=0.62)
        axis.plot([times.p50, times.p99], [place, place], color=colour, linewidth=1)
        axis.errorbar(
            times.p50, place, xerr=[[times.p50 - times.low], [times.high - times.p50]], color="black", linewidth=1
        )
        axis.annotate(
            f" {short(times.p50)}", (max(times.p99, times.high), place), va="center", fontsize=7, annotation_clip=False
        )
    axis.set_yticks(range(len(found)), [words for words, _, _ in found])
    axis.invert_yaxis()
    if len(found) > MOST_LINEAR:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:,g}")
    axis.margins(x=0.09, y=0.02)
    axis.set_title(title, loc="left", fontsize=9)
    axis.grid(axis="x", alpha=0.25)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
