"""One picture of a run, as PNG and as SVG, in the manner of the field's: runs a second, and one run alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.field.plot import COLOURS, ROW_INCHES, WIDTH, short
from bench.steps.report import StepsReport
from bench.steps.rows import MODES, ROWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Bar(NamedTuple):
    """A median with its interval."""

    words: str
    whose: str
    value: float
    low: float
    high: float


def write(report: StepsReport, stem: Path) -> list[Path]:
    """`STEM.png` and `STEM.svg`; the same figures make the same files."""
    import matplotlib as mpl  # a second that nobody waits who draws nothing

    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "fumehood", "svg.fonttype": "none", "font.size": 8})
    import matplotlib.pyplot as plt

    shown = panels(report)
    heights = [max(2, len(bars)) for _, bars in shown]
    figure, axes = plt.subplots(
        len(shown), 1, figsize=(WIDTH, ROW_INCHES * sum(heights) + 1.0 * len(shown)),
        gridspec_kw={"height_ratios": heights}, squeeze=False,
    )  # fmt: skip
    for axis, (title, bars) in zip(axes[:, 0], shown, strict=True):
        _panel(axis, title, bars)
    figure.tight_layout()
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    figure.savefig(paths[0], dpi=130, metadata={"Software": None})
    figure.savefig(paths[1], metadata={"Date": None})
    plt.close(figure)
    return paths


def panels(report: StepsReport) -> list[tuple[str, list[Bar]]]:
    shown = []
    for mode, found in report.modes.items():
        rates = [
            Bar(ROWS[name].what, ROWS[name].whose, one.per_second, one.low, one.high) for name, one in found.items()
        ]
        title = f"Five-step runs a second, {report.amount.at_once} at once; writes {MODES[mode].what}"
        shown.append((f"{title}: median with 95 % interval, more is better", rates))
        alone = [
            Bar(ROWS[name].what, ROWS[name].whose, one.alone.p50, one.alone.low, one.alone.high)
            for name, one in found.items()
        ]
        shown.append((f"The same ({mode}), one run alone, ms: less is better", alone))
    return shown


def _panel(axis: Axes, title: str, bars: list[Bar]) -> None:
    for place, bar in enumerate(bars):
        axis.barh(place, bar.value, color=COLOURS[bar.whose], height=0.62)
        spread = [[max(0.0, bar.value - bar.low)], [max(0.0, bar.high - bar.value)]]
        axis.errorbar(bar.value, place, xerr=spread, color="black", linewidth=1)
        axis.annotate(f" {short(bar.value)}", (bar.high, place), va="center", fontsize=7, annotation_clip=False)
    axis.set_yticks(range(len(bars)), [bar.words for bar in bars])
    axis.invert_yaxis()
    axis.margins(x=0.09, y=0.02)
    axis.set_title(title, loc="left", fontsize=9)
    axis.grid(axis="x", alpha=0.25)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
