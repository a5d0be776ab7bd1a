"""A workflow's graph as text for a terminal, for Mermaid and for Graphviz, from its canonical definition."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from rich.text import Text

from fumehood.cli.rails import Rail, order, rails
from fumehood.cli.show import aligned, plain

SYMBOL = "●"
RAILS_SHARE = 3
"""Rails may take a third of the width; a graph that is wider than that is told in words."""
LEAST_NAME, LEAST_KIND, LEAST_REMARKS = 16, 16, 16
"""Columns below which a name, a kind or a remark says nothing any more."""

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


class Format(StrEnum):
    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"


Document = Mapping[str, Any]


def duration(ms: int) -> str:
    """As it is written in a definition."""
    words, rest = "", ms
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        words += f"{count}{unit}" if count else ""
    return words


def needs(definition: Document) -> dict[str, list[str]]:
    return {step["id"]: list(step.get("needs", ())) for step in definition["steps"]}


_WORDS: Mapping[str, Callable[[Any], str]] = {
    "task": lambda it: f"task {it}",
    "sandbox": lambda it: f"sandbox {it['image']}",
    "agent_loop": lambda it: f"loop {it['task']}",
    "map": lambda it: f"map {it['task']}",
    "sleep": lambda it: f"sleep {duration(it)}",
    "wait_signal": lambda it: f"signal {it['name']}",
    "approval": lambda it: "approval",
    "sub_workflow": lambda it: f"workflow {it['workflow']}",
}


def kind(step: Document) -> str:
    """What a step is, in two words; one of a kind that a later version has is named by nothing."""
    found = next((name for name in _WORDS if name in step), None)
    return "" if found is None else plain(_WORDS[found](step[found]))


def attempts(step: Document) -> int:
    """How often it may be tried; a canonical definition leaves out what is a default, of a `retry` too."""
    retry = step.get("retry")
    return 1 if retry is None else int(retry.get("attempts", 3))


def remarks(step: Document) -> Iterator[str]:
    """What else its author said of when and how it is done."""
    if "when" in step:
        yield f"when {plain(step['when'])}"
    if "map" in step:
        yield f"over {plain(step['map']['over'])}"
    if attempts(step) > 1:
        yield f"{attempts(step)} attempts"
    patience = step.get("timeout") or (step.get("wait_signal") or step.get("approval") or {}).get("timeout")
    if patience:
        yield f"within {duration(patience)}"
    if step.get("on_failure") == "continue":
        yield "may fail"
    if "concurrency" in step:
        yield f"{step['concurrency'].get('limit', 1)} at once for each {plain(step['concurrency']['key'])}"
    if "compensate" in step:
        yield f"undone by {plain(step['compensate']['task'])}"


def fitting_rails(wanted: Mapping[str, list[str]], width: int) -> list[Rail]:
    """The graph, or where it is too wide for that the steps alone, in the same order."""
    made = rails(wanted)
    if made and len(made[0].before + made[0].after) + 1 > width // RAILS_SHARE:
        return [Rail(step, "", "") for step in order(wanted)]
    return made


# --- for a terminal ----------------------------------------------------------------------------------------


def text(definition: Document, width: int) -> Text:
    """One line a step: its place in the graph, its name, its kind, and what else is to be known. Where there are no
    lines beside the steps, because there is no branch or there are too many, words say what comes after what."""
    wanted = needs(definition)
    steps = {step["id"]: step for step in definition["steps"]}
    lines = fitting_rails(wanted, width)
    drawn = any(line.before or line.after for line in lines)
    rows = []
    for line in lines:
        said = list(remarks(steps[line.step]))
        if not drawn and wanted[line.step]:
            said.insert(0, f"after {', '.join(wanted[line.step])}")
        rail = Text(line.before + SYMBOL + line.after)
        about = Text(kind(steps[line.step]), "cyan")
        rows.append([rail, Text(line.step, "bold"), about, Text(", ".join(said), "dim")])
    return aligned(rows, width, (rows[0][0].cell_len, LEAST_NAME, LEAST_KIND, LEAST_REMARKS))


# --- for other programs ------------------------------------------------------------------------------------


def mermaid(definition: Document) -> str:
    """Nodes have numbers of their own: a step may be called `end`, which is a word of Mermaid's."""
    numbers = {step["id"]: f"s{number}" for number, step in enumerate(definition["steps"])}
    lines = ["flowchart TD"]
    for step in definition["steps"]:
        label = "<br/>".join(_for_mermaid(part) for part in (step["id"], kind(step)) if part)
        lines.append(f'  {numbers[step["id"]]}["{label}"]')
    lines += [f"  {numbers[need]} --> {numbers[step]}" for step, needed in needs(definition).items() for need in needed]
    return "\n".join(lines)


def _for_mermaid(text: str) -> str:
    return "".join(
        character if character.isalnum() or character in " _-.:/@" else f"#{ord(character)};" for character in text
    )


def dot(definition: Document) -> str:
    lines = [f"digraph {json.dumps(definition['name'])} {{", "  node [shape=box, style=rounded]"]
    for step in definition["steps"]:
        label = "\\n".join(_for_dot(part) for part in (step["id"], kind(step)) if part)
        lines.append(f'  "{step["id"]}" [label="{label}"]')
    lines += [f'  "{need}" -> "{step}"' for step, needed in needs(definition).items() for need in needed]
    return "\n".join([*lines, "}"])


def _for_dot(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
