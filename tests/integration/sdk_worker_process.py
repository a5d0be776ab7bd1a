"""A worker in a process of its own: `python sdk_worker_process.py URL TASK_TYPE NOTES [OPTIONS as JSON]`.

Its handler writes a line to NOTES when it begins. It hangs until there is a file NOTES.go, and answers with its pid.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from fumehood import Task, Worker
from tests.waiting import until


def main(url: str, kind: str, notes: Path, options: dict[str, Any]) -> None:
    worker = Worker(url, **options)
    go = notes.with_suffix(".go")

    @worker.task(kind)
    async def hang(task: Task) -> dict[str, Any]:
        with notes.open("a") as file:
            file.write(f"begun {os.getpid()}\n")
        await until(go.exists)
        return {"pid": os.getpid(), "attempt": task.attempt}

    worker.run()
    with notes.open("a") as file:
        file.write(f"left {os.getpid()}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]))
