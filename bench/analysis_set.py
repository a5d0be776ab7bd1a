"""The labelled code of `corpus/analysis/`, and how findings are held against its labels.

Each file is kept with `.txt` behind its name, so that no tool of ours takes it for our code. `labels.json` names every
fault that was planted (line, kind, what) and every symbol; for each kind it has the words of which one must be in a
finding's description, so that a finding about something else in the same line does not count. A third of the files of
each language is held out: rules were not changed in the sight of what they do there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus" / "analysis"


@dataclass(frozen=True, slots=True)
class Fault:
    line: int
    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class Labelled:
    """One file."""

    path: str
    language: str
    held_out: bool
    content: str
    faults: tuple[Fault, ...]
    symbols: frozenset[tuple[int, str, str]]
    """Line, kind, and the last part of the name."""


@dataclass(frozen=True, slots=True)
class Corpus:
    files: tuple[Labelled, ...]
    words: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Score:
    """Counts; two of them add up."""

    planted: int = 0
    found: int = 0
    """Of the planted ones."""
    reported: int = 0
    right: int = 0
    """Of those that were reported: others may say the same of one line."""
    symbols: int = 0
    symbols_found: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(Score)))

    @property
    def recall(self) -> float:
        return self.found / self.planted if self.planted else 1.0

    @property
    def precision(self) -> float:
        return self.right / self.reported if self.reported else 1.0

    @property
    def symbol_recall(self) -> float:
        return self.symbols_found / self.symbols if self.symbols else 1.0


def load(folder: Path = FOLDER) -> Corpus:
    labels = json.loads((folder / "labels.json").read_text())
    return Corpus(tuple(_file(folder, one) for one in labels["files"]), labels["kinds"])


def _file(folder: Path, label: Mapping[str, object]) -> Labelled:
    faults, symbols = label["faults"], label["symbols"]
    if not isinstance(faults, list) or not isinstance(symbols, list):
        raise TypeError("labels.json: faults and symbols are lists")
    path = str(label["file"])
    return Labelled(
        path=path,
        language=str(label["language"]),
        held_out=bool(label["held_out"]),
        content=(folder / f"{path}.txt").read_text(),
        faults=tuple(Fault(one["line"], one["kind"], one["what"]) for one in faults),
        symbols=frozenset((one["line"], one["kind"], last_part(one["name"])) for one in symbols),
    )


def last_part(name: str) -> str:
    return name.replace("::", ".").rpartition(".")[2]


def score(
    corpus: Corpus,
    file: Labelled,
    faults: Iterable[tuple[int, str]],
    symbols: Iterable[tuple[int, str, str]],
) -> Score:
    """`faults` are lines and descriptions, `symbols` lines, kinds and names, as an answer has them."""
    hit: set[Fault] = set()
    reported = right = 0
    for line, description in faults:
        said = description.lower()
        matched = {
            one for one in file.faults if one.line == line and any(word in said for word in corpus.words[one.kind])
        }
        hit |= matched
        reported += 1
        right += bool(matched)
    seen = {(line, kind, last_part(name)) for line, kind, name in symbols}
    return Score(len(file.faults), len(hit), reported, right, len(file.symbols), len(file.symbols & seen))
