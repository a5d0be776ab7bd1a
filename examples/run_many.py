"""Run thirty jobs, a few at a time, and check that each gave its own answer.

    .venv/bin/python examples/run_many.py

It needs httpx, which is in the project's own environment.

What a good client of the Worker API does:

- It bounds its own concurrency.
- On 503 it waits for as long as `Retry-After` says, and sends the *same* `job_id` again.
- It does the same when the connection breaks: the node joins a job that is running, or replays one that has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx

TOKEN_FILE = Path("~/.local/state/fumehood/worker-api.token")
JOBS = 30
AT_ONCE = 6
TRIES = 20
SECONDS = 60


async def run_job(client: httpx.AsyncClient, sandbox: dict[str, Any]) -> dict[str, Any]:
    """One job, through as many tries as it takes. The ids are made once, outside the loop: that is the whole trick."""
    body = {"version": 1, "task_id": str(uuid.uuid4()), "job_id": str(uuid.uuid4()), "sandbox": sandbox}
    for _ in range(TRIES):
        try:
            answer = await client.post("/v1/worker/jobs:run", json=body)
        except httpx.TransportError:
            await asyncio.sleep(1)
            continue
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            await asyncio.sleep(int(answer.headers.get("Retry-After", "1")))
            continue
        answer.raise_for_status()
        result: dict[str, Any] = answer.json()
        return result
    raise RuntimeError(f"job {body['job_id']} was not taken in {TRIES} tries")


async def run_all(url: str, token: str, image: str) -> int:
    limit = asyncio.Semaphore(AT_ONCE)
    headers = {"Authorization": f"Bearer {token}"}
    timeout = httpx.Timeout(10, read=SECONDS + 60)

    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout) as client:

        async def square(number: int) -> bool:
            command = ["bash", "-c", f"echo $(({number} * {number}))"]
            async with limit:
                result = await run_job(client, {"image": image, "command": command, "timeout_seconds": SECONDS})
            right = (result["status"], result["stdout"]) == ("completed", f"{number * number}\n")
            print(f"{number:3} squared: {result['stdout'].strip() or result['status']}", flush=True)
            return right

        return sum(await asyncio.gather(*(square(number) for number in range(JOBS))))


def main() -> int:
    parser = argparse.ArgumentParser(description="Run thirty jobs, a few at a time.")
    parser.add_argument("--url", default="http://127.0.0.1:8090")
    parser.add_argument("--token-file", type=Path, default=TOKEN_FILE)
    parser.add_argument("--image", default="127.0.0.1:5055/fumehood/base:1")
    options = parser.parse_args()

    try:
        token = options.token_file.expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        print(f"no token in {options.token_file}: {error.strerror}. Does `fumehood dev` run?", file=sys.stderr)
        return 1
    right = asyncio.run(run_all(options.url, token, options.image))
    print(f"{right} of {JOBS} right")
    return 0 if right == JOBS else 1


if __name__ == "__main__":
    sys.exit(main())
