"""`python -m bench analysis`: what the local analysis finds of the faults that are planted in `corpus/analysis/`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import uvloop

from bench import analysis_set, facts, record
from bench.analysis_set import Corpus, Labelled, Score
from bench.attempts import attempts
from bench.report import table
from bench.world import BenchError
from fumehood.errors import ConfigurationError
from fumehood.jobs.analysis.local import LocalAnalysis
from fumehood.jobs.types.code_chunk_analysis import ChunkAnalysisRequest, CodeChunk

TASK = "Find faults"
AT_ONCE = 2
SEEN, HELD = "seen", "held out"
FLOORS = {"precision": 0.88, "recall": 0.85}
"""Of what was held out."""


class Nobody:
    """A context for work that nobody asked for."""

    worker_id = task_id = tenant = "bench"

    def prove(self, name: str, sha256: str) -> None: ...

    def observe(self, **facts: Any) -> None: ...


async def measure(corpus: Corpus, provider: LocalAnalysis) -> Mapping[str, Score]:
    """By file, with the provider as a worker uses it."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(file: Labelled) -> Score:
        lines = file.content.count("\n")
        chunk = CodeChunk(path=file.path, start_line=1, end_line=lines, content=file.content)
        async with places:
            answer = await provider.run(ChunkAnalysisRequest(task=TASK, chunk=chunk), Nobody())
        faults = [(fault.line, fault.description) for fault in answer.suspected_faults]
        return analysis_set.score(corpus, file, faults, [(sym.line, sym.kind, sym.name) for sym in answer.symbols])

    found = await asyncio.gather(*map(one, corpus.files))
    return {file.path: score for file, score in zip(corpus.files, found, strict=True)}


@dataclass(slots=True)
class AnalysisReport:
    part: ClassVar[str] = "analysis"
    kind: str
    machine: dict[str, Any]
    versions: dict[str, str]
    parts: Mapping[str, Score]
    """Seen and held out."""
    languages: Mapping[str, Score]
    """Both together."""

    @property
    def holds(self) -> bool:
        held = self.parts[HELD]
        return held.precision >= FLOORS["precision"] and held.recall >= FLOORS["recall"]

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "floors": FLOORS}

    def text(self) -> str:
        header = ["", "planted", "found", "recall", "reported", "right", "precision", "symbols", "symbol recall"]
        whole = sum(self.parts.values(), Score())
        parts = [_row(name, one) for name, one in {**self.parts, "all": whole}.items()]
        languages = [_row(name, one) for name, one in self.languages.items()]
        titled = (table("Local analysis", header, parts), table("Seen and held out, by language", header, languages))
        return "\n\n".join(one.strip() for one in titled) + "\n"


def _row(name: str, one: Score) -> list[str]:
    faults = [one.planted, one.found, f"{one.recall:.2f}", one.reported, one.right, f"{one.precision:.2f}"]
    return [name, *map(str, faults), str(one.symbols), f"{one.symbol_recall:.2f}"]


async def _reported(corpus: Corpus, provider: LocalAnalysis) -> AnalysisReport:
    """The tools have deadlines, so that a machine which stands still loses findings: that is looked for again."""
    by_file = await measure(corpus, provider)
    parts, languages = {SEEN: Score(), HELD: Score()}, dict[str, Score]()
    for file in corpus.files:
        parts[HELD if file.held_out else SEEN] += by_file[file.path]
        languages[file.language] = languages.get(file.language, Score()) + by_file[file.path]
    return AnalysisReport("full", facts.machine(), {"provider": provider.model_id}, parts, languages)


def main(*, record_as: str | None) -> int:
    try:
        provider = LocalAnalysis()
    except ConfigurationError as error:
        raise BenchError(error.detail) from None
    began = time.monotonic()
    corpus = analysis_set.load()
    *_, report = uvloop.run(attempts(lambda: _reported(corpus, provider), lambda one: one.holds))
    print(report.text())
    if record_as is not None:
        print(f"… kept in {record.write(report, record_as)}", file=sys.stderr, flush=True)
    held, verdict = report.parts[HELD], "holds" if report.holds else "DOES NOT HOLD"
    floors = f"at least {FLOORS['precision']} and {FLOORS['recall']}"
    figures = f"precision {held.precision:.2f} and recall {held.recall:.2f} on what was held out"
    print(f"bench: {verdict}: {figures}, {floors}; {time.monotonic() - began:.0f} s")
    return 0 if report.holds else 1
