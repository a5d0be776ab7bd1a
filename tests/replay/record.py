"""Record the journals of this release: `python -m tests.replay.record RELEASE`.

Every case of `tests/integration/engine_cases.py` is run by two deciders on a real broker, and what is in its journal is
kept under `histories/RELEASE/`, with the states that it folds to today. Look at those before you commit them: from then
on they are the truth.

What exists is never written over: a recording that no longer folds to its states means that the engine broke runs which
are under way somewhere, and the engine is what has to change. A new event or a new kind of step needs a new case, and a
recording of it under the release that brings it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tests.integration.engine_cases import CASES, Case
from tests.integration.engine_world import World, world
from tests.replay.golden import HISTORIES, JOURNAL, fields_now, run_id_of, states, states_of, written


async def record(here: World, case: Case, directory: Path) -> str:
    path = directory / f"{case.name.replace(' ', '_')}{JOURNAL}"
    if path.exists() or states_of(path).exists():
        return f"{path}: is there already, and stays as it is"
    run_id = await here.play(case)
    events = await here.journals.until(run_id)
    problems = case.problems(events, here.workers.seen[run_id])
    if problems:
        raise SystemExit(f"{case.name} did not end as it should: {problems}")
    lines = [entry.data.replace(run_id.encode(), run_id_of(path).encode()) for entry in await here.read(run_id)]
    assert all(json.loads(line) for line in lines)
    with path.open("xb") as journal:
        journal.writelines(line + b"\n" for line in lines)
    with states_of(path).open("x") as expected:
        known = fields_now()
        expected.write(json.dumps(known) + "\n")
        expected.writelines(written(state, known) + "\n" for state in states(run_id_of(path), lines))
    return f"{path}: {len(lines)} records"


async def record_all(release: str) -> None:
    directory = HISTORIES / release
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        async with world(Path(place), 1) as here, here.workers.at_work():
            for line in await asyncio.gather(*(record(here, case, directory) for case in CASES)):
                print(line)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    asyncio.run(record_all(sys.argv[1]))
