"""A worker in Python: three functions as task types of the engine.

    python3 examples/worker.py --url nats://worker-1@127.0.0.1:4222 --password-file worker-1.password

`greet` is a coroutine; `digest` is a plain function, runs in a thread and saves its progress, so that whoever takes it
up after a crash goes on where it stopped; `guess` is an agent loop. SIGTERM lets them end.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
from pathlib import Path
from typing import Any

from fumehood import SyncTask, Task, TaskFailed, Worker


async def greet(task: Task) -> dict[str, str]:
    """Input `{"name": …}`. An exception would be tried again as the step's `retry` says; this one never is."""
    name = task.input.get("name")
    if not name:
        raise TaskFailed("no_name", "whom shall I greet?", retryable=False)
    return {"greeting": f"Hello, {name}!"}


def digest(task: SyncTask) -> dict[str, Any]:
    """Input `{"words": […]}`, one after the other: what is done is done, even if this process is not there any more."""
    done: list[str] = list(task.checkpoint or [])
    for word in task.input["words"][len(done) :]:
        if task.cancelled:  # the run was cancelled, or this worker is going away: somebody else goes on
            break
        done.append(hashlib.sha256(word.encode()).hexdigest())
        task.save(done)
    return {"digests": done}


async def guess(task: Task) -> Any:
    """Input `{"secret": n}`, for a step with `agent_loop`: each call sees what the last one said as `previous`."""
    low, high = task.input.get("previous") or (0, 1024)
    middle = (low + high) // 2
    if middle == task.input["secret"]:
        return {"found": middle, "guesses": task.iteration + 1}
    return task.again([low, middle] if middle > task.input["secret"] else [middle, high])


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the task types greet, digest and guess.")
    parser.add_argument("--url", default="nats://worker-1@127.0.0.1:4222", help="with the user's name in it")
    parser.add_argument("--password-file", type=Path, help="a file, so that no secret is in a list of processes")
    parser.add_argument("--max-tasks", type=int, default=8, help="handlers that run at the same time")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    access = {"password_file": options.password_file} if options.password_file is not None else {}
    worker = Worker(options.url, max_tasks=options.max_tasks, **access)
    worker.task("greet")(greet)
    worker.task("digest")(digest)
    worker.task("guess")(guess)
    worker.run()


if __name__ == "__main__":
    main()
