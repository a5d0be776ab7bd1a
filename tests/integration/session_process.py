"""A worker's process with one session, for a test that kills it.

`python -m tests.integration.session_process STATE NODE IMAGE` begins some commands, says so, and waits.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fumehood.sandbox.sessions.values import ProcessWish, SessionWish
from tests.integration.session_life import NAME, life

COUNTING = "i=0; while [ $i -lt 150 ]; do echo line $i; echo error $i >&2; i=$((i+1)); sleep 0.01; done"


async def main(state: Path, node_id: str, image: str) -> None:
    async with life(state, node_id) as sessions:
        await sessions.create(SessionWish(NAME, image, 600_000))
        await sessions.start(NAME, ProcessWish("counting", ("sh", "-c", COUNTING)))
        await sessions.start(NAME, ProcessWish("cat", ("cat",), stdin=True))
        await sessions.start(NAME, ProcessWish("done", ("echo", "done")))
        await sessions.ended("done", 120)
        await sessions.send_input("cat", 0, b"before ")
        await sessions.output("counting", 0, 0, 100, 30)
        print("begun", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
