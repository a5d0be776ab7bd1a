"""A map over files: one task for each, a bounded number at a time, each done once, whoever dies meanwhile.

    python examples/map_files/map_files.py            # 100 files that it makes itself
    python examples/map_files/map_files.py FOLDER     # your own

The workflow says what is to be done, and its history what has been; the worker here does it. Its handler lets a program
look at one file, in a sandbox that all tasks share: the files may come from anybody. What comes back is held against
what this machine counts itself.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fumehood import AsyncClient, AsyncSandbox, FumehoodError, Retry, Task, Worker, Workflow

IMAGE = "127.0.0.1:5055/fumehood/base:1"
STATE = Path("~/.local/state/fumehood")
FILES = 100
AT_ONCE = 8
SECONDS = 300


def make_files(folder: Path) -> None:
    dice = random.Random(1)
    for number in range(FILES):
        words = [dice.choice(("ash", "beech", "elm", "fir", "oak")) for _ in range(dice.randrange(1, 200))]
        (folder / f"{number:03}.txt").write_text(" ".join(words) + "\n", encoding="utf-8")


def workflow() -> Workflow:
    made = Workflow("count-files", deadline="10m")
    counted = made.map(
        "count",
        "count-file",
        over=made.input.files,
        at_once=AT_ONCE,
        with_={"file": made.item},
        retry=Retry(attempts=3, backoff="1s"),
        timeout="1m",
    )
    made.set_output(counted.output)
    return made


@dataclass
class Tally:
    """What the worker did, by its own account."""

    done: Counter[str] = field(default_factory=Counter)
    now: int = 0
    most: int = 0


def worker(sandbox: AsyncSandbox, url: str, password_file: Path, tally: Tally) -> Worker:
    made = Worker(url, password_file=password_file, max_tasks=AT_ONCE)

    @made.task("count-file")
    async def count(task: Task) -> dict[str, Any]:
        name = task.input["file"]
        tally.now += 1
        tally.most = max(tally.most, tally.now)
        try:
            result = await sandbox.commands.run(["wc", "-w", f"files/{name}"], timeout=30, check=True)
        finally:
            tally.now -= 1
        tally.done[name] += 1
        return {"file": name, "words": int(result.stdout.split()[0])}

    return made


async def count_all(words: Mapping[str, int], folder: Path, options: argparse.Namespace) -> bool:
    tally = Tally()
    async with AsyncClient() as client, await AsyncSandbox.create(options.image, client=client) as sandbox:
        await sandbox.files.upload(folder, "files")
        async with worker(sandbox, options.nats_url, options.password_file.expanduser(), tally):
            await client.workflows.apply(workflow())
            run = await client.workflows.run("count-files", {"files": list(words)})
            print(f"{run.id}: {len(words)} files, at most {AT_ONCE} at a time", flush=True)
            (await run.wait(timeout=SECONDS)).check()
    once = tally.done == Counter(words.keys()) and [one["file"] for one in run.output] == list(words)
    counts = {one["file"]: one["words"] for one in run.output}
    print(f"{len(counts)} files, {sum(counts.values())} words; each once: {once}; as counted here: {counts == words}")
    print(f"at most {tally.most} at the same time")
    return once and counts == words


def main() -> int:
    parser = argparse.ArgumentParser(description="Count the words of many files, in a sandbox, by a durable map.")
    parser.add_argument("folder", type=Path, nargs="?", help="100 files are made where there is none")
    parser.add_argument("--image", default=IMAGE)
    parser.add_argument("--nats-url", default="nats://worker@127.0.0.1:4222", help="where the worker takes its tasks")
    parser.add_argument("--password-file", type=Path, default=STATE / "nats" / "worker.password")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        if options.folder is None:
            make_files(folder)
        words = {path.name: len(path.read_text(encoding="utf-8").split()) for path in sorted(folder.iterdir())}
        return 0 if asyncio.run(count_all(words, folder, options)) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FumehoodError as error:
        sys.exit(f"fumehood: {error}")
