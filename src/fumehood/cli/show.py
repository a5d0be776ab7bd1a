"""How the commands show things: tables, times and JSON; the same in all groups.

What comes from a server may have been written by a worker, whose code nobody trusts. No character of it that a terminal
takes for a command gets through.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

UNBOUNDED = 10_000
"""Columns of an output that is no terminal: whoever reads it cuts for himself."""

LONGEST_VALUE, LONGEST_LINE = 40, 2000
"""Lines, and characters of each, of a value that a person is shown."""

Json = Annotated[bool, typer.Option("--json", help="For programs: JSON on stdout and nothing else.")]

STYLES: Mapping[str, str] = {
    "succeeded": "green",
    "completed": "green",
    "failed": "bold red",
    "timed_out": "bold red",
    "cancelled": "yellow",
    "running": "cyan",
    "mapping": "cyan",
    "calling": "cyan",
    "queued": "blue",
    "waiting": "yellow",
    "paused": "yellow",
    "blocked": "yellow",
    "listening": "magenta",
    "awaiting_approval": "bold magenta",
    "sleeping": "blue",
    "skipped": "dim",
    "pending": "dim",
}
"""Of a run's or a step's status."""


def console(*, stderr: bool = False) -> Console:
    """A terminal that wraps nothing in the middle of a name when it is none, and never fails for a character."""
    stream = sys.stderr if stderr else sys.stdout
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    terminal = stream.isatty()  # whatever the environment says: a log is no place for colours
    width = None if terminal else UNBOUNDED
    return Console(file=stream, width=width, force_terminal=terminal, highlight=False, markup=False, emoji=False)


def plain(text: str) -> str:
    """One line without anything that a terminal could obey."""
    return "".join(character if character.isprintable() else " " for character in text)


def pretty(value: object) -> str:
    """JSON for people: indented, and cut where it would fill the screen."""
    lines = json.dumps(value, indent=2, ensure_ascii=False).splitlines()
    more = [f"… {len(lines) - LONGEST_VALUE} more lines; --json shows all"] if len(lines) > LONGEST_VALUE else []
    return "\n".join([*(plain(line)[:LONGEST_LINE] for line in lines[:LONGEST_VALUE]), *more])


def value(name: str, given: object) -> None:
    """A value of a run or a schedule under its name; nothing where there is none."""
    if given is not None:
        console().print(f"\n{name}\n{pretty(given)}", soft_wrap=True)


def text(name: str, given: str) -> None:
    """The last lines of something that a program wrote."""
    lines = [plain(line)[:LONGEST_LINE] for line in given.splitlines()[-LONGEST_VALUE:]]
    console().print("\n".join(["", plain(name), *lines]), soft_wrap=True)


def document(value: object) -> None:
    """One JSON document."""
    typer.echo(json.dumps(value, indent=2))


def line(value: object) -> None:
    """One of several JSON lines, there at once for whoever reads them from a pipe."""
    typer.echo(json.dumps(value, separators=(",", ":")))
    sys.stdout.flush()


# --- tables ------------------------------------------------------------------------------------------------

Cell = str | Text | None


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], *, whole: Sequence[str] = ()) -> None:
    """Columns side by side; those in `whole` are never cut, since somebody will copy them."""
    names = [Text(name.upper(), "bold") for name in head]
    filled = [names, *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(row[number].cell_len for row in filled) for number in range(len(head))]
    least = [wide if name in whole else min(wide, LEAST) for name, wide in zip(head, widths, strict=True)]
    out = console()
    out.print(aligned(filled, out.width, least), no_wrap=True, overflow="ignore", crop=False)


def pairs(values: Mapping[str, Cell]) -> None:
    """What is known of one thing, a line for each; what says nothing is left out."""
    rows = [[Text(name, "bold"), _cell(value)] for name, value in values.items() if value]
    out = console()
    out.print(aligned(rows, UNBOUNDED, (0, 0)), soft_wrap=True)


def _cell(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(plain(cell or ""))


GAP, LEAST = 2, 8
"""Columns between two cells, and of a cell that had to be cut."""
STEP_COLUMN = 16
"""Of lines that are written one by one, before anybody knows how long the names will be."""


def aligned(rows: Sequence[Sequence[Text]], width: int, least: Sequence[int]) -> Text:
    """Cells in columns that fit the width: what is too much is cut off, from the last column to the first, but none is
    made narrower than its `least`."""
    widths = [max((row[number].cell_len for row in rows), default=0) for number in range(len(least))]
    excess = sum(found + GAP for found in widths if found) - GAP - width
    for number in reversed(range(len(widths))):
        cut = max(0, min(excess, widths[number] - least[number]))
        widths[number] -= cut
        excess -= cut
    return Text("\n").join(_padded(row, widths) for row in rows)


def _padded(row: Sequence[Text], widths: Sequence[int]) -> Text:
    made = Text(no_wrap=True, overflow="crop")
    for cell, wide in zip(row, widths, strict=True):
        fitting = cell.copy()
        fitting.truncate(wide, overflow="ellipsis", pad=True)
        made.append_text(fitting)
        made.append(" " * GAP if wide else "")
    made.rstrip()
    return made


def status(word: str) -> Text:
    return Text(plain(word).replace("_", " "), style=STYLES.get(word, ""))


def labels(given: Mapping[str, str] | None) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted((given or {}).items()))


def log_line(at: str, step: str, text: str, style: str = "") -> Text:
    """One line of a run's history."""
    return Text("  ").join([Text(at, "dim"), Text(f"{step or '-':<{STEP_COLUMN}}"), Text(text, style)])


def failure(error: Mapping[str, Any] | None) -> str:
    """Why something failed. The code of a worker that named none says nothing beside a message."""
    code, message = str((error or {}).get("code", "")), str((error or {}).get("message", ""))
    return plain(": ".join(part for part in ("" if code == "failed" and message else code, message) if part))


# --- times -------------------------------------------------------------------------------------------------


def moment(text: str | int | None) -> dt.datetime | None:
    """A time of the API: RFC 3339, or milliseconds since 1970 inside of events."""
    if text is None:
        return None
    if isinstance(text, int):
        return dt.datetime.fromtimestamp(text / 1000, dt.UTC)
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        return None


def local(text: str | int | None, *, exact: bool = False) -> str:
    """A time on the reader's clock, to the second or to the millisecond."""
    at = moment(text)
    precision = "milliseconds" if exact else "seconds"
    return "" if at is None else at.astimezone().replace(tzinfo=None).isoformat(" ", precision)


def clock(at: dt.datetime, today: dt.date, zone: dt.tzinfo | None = None) -> str:
    """The time of the day; with the day, where that is another one."""
    here = at.astimezone(zone)
    return here.strftime("%H:%M:%S" if here.date() == today else "%Y-%m-%d %H:%M:%S")


def lasted(seconds: float) -> str:
    """How long, in the two units that matter."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    for unit, name, small, small_name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit:
            rest = whole % unit // small
            return f"{whole // unit}{name}" + (f" {rest}{small_name}" if rest else "")
    return f"{whole}s"


def between(began: str | int | None, ended: str | int | None, now: dt.datetime) -> str:
    start = moment(began)
    if start is None:
        return ""
    return lasted(((moment(ended) or now) - start).total_seconds())


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
