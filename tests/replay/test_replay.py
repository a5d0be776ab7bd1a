"""Journals that were written once must mean the same for ever.

Each file `histories/{release}/{case}.journal.jsonl` is the journal of a real run, one record a line. The file
`….states.jsonl` beside it first names the fields that states had then, and then has the state behind each record, with
the tasks and timers that should be out at that moment.

They are recorded by `python -m tests.replay.record RELEASE`, which never writes over what exists; no test does either.
If one of these tests fails, runs that are under way at a user's place would go wrong after an upgrade: change the
engine, not the recording.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fumehood.engine import snapshot
from fumehood.engine.definition import _KINDS, Definition
from fumehood.engine.events import KINDS, Record
from fumehood.engine.fold import fold
from tests.replay.golden import journals, run_id_of, states, states_of, written

every_journal = pytest.mark.parametrize("journal", journals(), ids=lambda path: f"{path.parent.name}/{path.stem}")


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


@every_journal
def test_a_recorded_journal_folds_to_the_recorded_states(journal: Path) -> None:
    fields, *expected = lines_of(states_of(journal))
    known = json.loads(fields)
    found = [written(state, known).encode() for state in states(run_id_of(journal), lines_of(journal))]
    assert found == expected


@every_journal
def test_a_recorded_record_keeps_its_meaning_when_it_is_written_again(journal: Path) -> None:
    for line in lines_of(journal):
        assert Record.decode(Record.decode(line).encode()) == Record.decode(line)


@every_journal
def test_a_snapshot_anywhere_in_a_recorded_journal_changes_nothing(journal: Path) -> None:
    run_id, lines = run_id_of(journal), lines_of(journal)
    *_, last = states(run_id, lines)
    for number, state in enumerate(states(run_id, lines), 1):
        kept = snapshot.decode(snapshot.encode(state))
        rest = [Record.decode(line) for line in lines[number:]]
        assert fold(run_id, rest, kept) == last


@every_journal
def test_a_recorded_definition_has_the_digest_that_it_had(journal: Path) -> None:
    """A part that is added later is not said in it, and so changes nothing."""
    started = json.loads(lines_of(journal)[0])["events"][0]
    assert Definition.model_validate(started["definition"]).digest == started["digest"]


def test_there_is_a_recording_of_every_event_and_of_every_kind_of_step() -> None:
    events = [event for journal in journals() for line in lines_of(journal) for event in json.loads(line)["events"]]
    assert {event["type"] for event in events} == set(KINDS)
    steps = [step for event in events if event["type"] == "run.started" for step in event["definition"]["steps"]]
    assert {kind for step in steps for kind in _KINDS if kind in step} == set(_KINDS)
