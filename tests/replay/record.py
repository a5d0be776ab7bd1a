"""Record the journals of this release: `python -m tests.replay.record RELEASE`.

Every case of `tests/integration/engine_cases.py` and `engine_people_cases.py` that no release has recorded yet is run
by two deciders on a real broker, and what is in its journal, and in those of the runs that follow from it, is kept
under `histories/RELEASE/`, with the states that they fold to today. Look at those before you commit them: from then on
they are the truth.

What exists is never written over: a recording that no longer folds to its states means that the engine broke runs which
are under way somewhere, and the engine is what has to change. A new event or a new kind of step needs a new case, and a
recording of it under the release that brings it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.integration.engine_cases import Case
from tests.integration.engine_people_cases import ALL_CASES
from tests.integration.engine_world import World, world
from tests.replay.golden import HISTORIES, JOURNAL, fields_now, journals, run_id_of, states, states_of, written


def file_of(case: Case, number: int = 0) -> str:
    """Of the run that was begun, or of the n-th that follows from it."""
    return f"{case.name.replace(' ', '_')}{f'--{number}' if number else ''}{JOURNAL}"


async def record(here: World, case: Case, directory: Path) -> str:
    run_id = await here.play(case)
    events, relatives = await here.over(run_id)
    problems = case.problems(events, here.workers.seen[run_id], [*relatives.values()])
    if problems:
        raise SystemExit(f"{case.name} did not end as it should: {problems}")
    paths = {one: directory / file_of(case, number) for number, one in enumerate([run_id, *relatives])}
    for one, path in paths.items():
        keep(path, [renamed(entry.data, paths) for entry in await here.read(one)])
    return f"{case.name}: {len(paths)} journals"


def renamed(line: bytes, paths: Mapping[str, Path]) -> bytes:
    """With the names that recorded runs have."""
    for run_id, path in paths.items():
        line = line.replace(run_id.encode(), run_id_of(path).encode())
    return line


def keep(path: Path, lines: list[bytes]) -> None:
    assert all(json.loads(line) for line in lines)
    with path.open("xb") as journal:
        journal.writelines(line + b"\n" for line in lines)
    with states_of(path).open("x") as expected:
        known = fields_now()
        expected.write(json.dumps(known) + "\n")
        expected.writelines(written(state, known) + "\n" for state in states(run_id_of(path), lines))


async def record_all(release: str) -> None:
    directory = HISTORIES / release
    directory.mkdir(parents=True, exist_ok=True)
    recorded = {path.name for path in journals()}
    missing = [case for case in ALL_CASES if file_of(case) not in recorded]
    with tempfile.TemporaryDirectory() as place:
        async with world(Path(place), 1) as here, here.workers.at_work():
            for line in await asyncio.gather(*(record(here, case, directory) for case in missing)):
                print(line)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    asyncio.run(record_all(sys.argv[1]))
