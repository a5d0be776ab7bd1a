"""The screen of `fumehood runs watch`: a run's graph with the state of each step, and what happened last.

`render` is pure: the same view and the same width give the same text, whatever the terminal.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from fumehood.cli.runs_view import STEP_ENDED, EventLine, StepLine, View
from fumehood.cli.show import STYLES, aligned

WIDE = 140
"""Columns from which on there is room for kinds and workers in columns of their own."""
EVENTS = 6
"""Of the last events, so many are shown."""
LONGEST_TROUBLE = 4
"""Lines of what went wrong; all of it is in `runs show`."""
LONGEST_KIND, LONGEST_WORKER = 36, 24
"""Columns: behind them comes what is more important."""
LEAST_STEPS = 3
"""However low the screen is."""

SYMBOLS: Mapping[str, str] = {
    "pending": "○",
    "queued": "◔",
    "running": "●",
    "mapping": "●",
    "waiting": "↻",
    "paused": "‖",
    "sleeping": "z",
    "listening": "◇",
    "awaiting_approval": "◆",
    "calling": "◎",
    "blocked": "□",
    "completed": "✓",
    "failed": "✗",
    "skipped": "»",
    "cancelled": "■",
}
STRANGE = "?"
"""Of a status that a later version has."""

_WORDS = {"awaiting_approval": "approval"}


def render(view: View, width: int, height: int | None = None) -> RenderableType:
    """`height` is that of a screen that shall not scroll; None: all of it, however long."""
    parts: list[RenderableType] = [*_head(view, width)]
    events = view.events[-EVENTS:]
    room = None if height is None else height - len(parts) - len(events) - 3
    if view.steps:
        parts += [Text(), _steps(view.steps, width, room)]
    if events:
        parts += [Text(), _events(events, width)]
    return Group(*parts)


def _head(view: View, width: int) -> list[Text]:
    status = Text(view.status.replace("_", " "), STYLES.get(view.status, ""))
    lines = [Text("  ").join([Text(view.workflow, "bold"), status, Text(view.took)])]
    lines += [Text(line, "dim") for line in _facts([view.run_id, *view.facts], width)]
    lines += [Text(line, "red") for line in _wrapped(view.trouble, width)]
    if view.connection:
        lines += [Text(line, "yellow") for line in _wrapped(f"not up to date: {view.connection}", width)]
    return lines


def _facts(facts: Sequence[str], width: int) -> list[str]:
    """On as few lines as they need, none broken."""
    lines = [""]
    for fact in facts:
        longer = f"{lines[-1]} · {fact}" if lines[-1] else fact
        if lines[-1] and len(longer) > width:
            lines.append(fact)
        else:
            lines[-1] = longer
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, max_lines=LONGEST_TROUBLE, placeholder=" …")


# --- steps -------------------------------------------------------------------------------------------------


def _steps(lines: Sequence[StepLine], width: int, room: int | None) -> Text:
    shown, hidden = _chosen(lines, room)
    rows = [_wide(line) if width >= WIDE else _narrow(line) for line in shown]
    rail = rows[0][0].cell_len
    least = (rail, 16, 16, 9, 6, 12, 20) if width >= WIDE else (rail, 12, 9, 6, 10)
    made = aligned(rows, width, least)
    if hidden:
        made.append(f"\n… and {hidden} more", "dim")
    return made


def _chosen(lines: Sequence[StepLine], room: int | None) -> tuple[Sequence[StepLine], int]:
    """On a low screen: first what is under way or has failed, then what is to come, last what is over; in order."""
    if room is None or len(lines) <= room:
        return lines, 0
    most = max(LEAST_STEPS, room - 1)
    numbered = sorted(enumerate(lines), key=lambda item: (_rank(item[1]), item[0]))[:most]
    return [line for _, line in sorted(numbered, key=lambda item: item[0])], len(lines) - most


def _rank(line: StepLine) -> int:
    if line.status == "failed" or line.status not in STEP_ENDED | {"pending"}:
        return 0
    return 1 if line.status == "pending" else 2


def _common(line: StepLine) -> tuple[Text, Text, Text, Text]:
    style = STYLES.get(line.status, "")
    rail = Text.assemble((line.before, "dim"), (SYMBOLS.get(line.status, STRANGE), style), (line.after, "dim"))
    word = _WORDS.get(line.status, line.status.replace("_", " "))
    return rail, Text(line.name, "bold" if _rank(line) == 0 else ""), Text(word, style), Text(line.took)


def _note(line: StepLine, more: str = "") -> Text:
    style = "red" if line.status == "failed" else ""
    return Text("; ".join(part for part in (line.note, more) if part), style)


def _narrow(line: StepLine) -> list[Text]:
    rail, name, status, took = _common(line)
    return [
        rail,
        name,
        status,
        took,
        _note(line, f"on {line.worker}" if line.worker and line.status == "running" else ""),
    ]


def _wide(line: StepLine) -> list[Text]:
    rail, name, status, took = _common(line)
    kind, worker = Text(line.kind, "cyan"), Text(line.worker, "dim")
    kind.truncate(LONGEST_KIND, overflow="ellipsis")
    worker.truncate(LONGEST_WORKER, overflow="ellipsis")
    return [rail, name, kind, status, took, worker, _note(line)]


# --- events ------------------------------------------------------------------------------------------------


def _events(events: Sequence[EventLine], width: int) -> Text:
    rows = [[Text(event.at, "dim"), Text(event.step), Text(event.text, event.style)] for event in events]
    return aligned(rows, width, (rows[0][0].cell_len, 12, 20))
