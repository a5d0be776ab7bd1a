"""Run one job on a node, print what it printed, and end as it ended. Standard library only.

    python3 examples/run_job.py -- bash -lc 'echo hello'
    python3 examples/run_job.py --image 127.0.0.1:5055/fumehood/python:1 -- python3 -c 'print(6 * 7)'

It talks to the node that `fumehood dev` started, unless told otherwise. Exit codes: the job's own; 124 when the job ran
out of time; 70 when the node refused it or could not be reached, or there is no token.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

TOKEN_FILE = Path("~/.local/state/fumehood/worker-api.token")
GREETING = ["bash", "-lc", "echo hello"]
TIMED_OUT = 124
REFUSED = 70


def run_job(url: str, token: str, sandbox: dict[str, Any], *, job_id: str | None = None) -> tuple[dict[str, Any], str]:
    """The node's answer and the reason in its header. The same `job_id` again never runs anything twice."""
    body = {"version": 1, "task_id": str(uuid.uuid4()), "job_id": job_id or str(uuid.uuid4()), "sandbox": sandbox}
    request = Request(
        f"{url}/v1/worker/jobs:run",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    # The node answers when the job has ended: wait longer than the job may run, and for a slot before that.
    with urlopen(request, timeout=sandbox["timeout_seconds"] + 60) as answer:
        return json.load(answer), answer.headers.get("Fumehood-Exit-Reason", "")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run one job in a sandbox.")
    parser.add_argument("--url", default="http://127.0.0.1:8090")
    parser.add_argument("--token-file", type=Path, default=TOKEN_FILE)
    parser.add_argument("--image", default="127.0.0.1:5055/fumehood/base:1")
    parser.add_argument("--timeout", type=int, default=60, help="seconds")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="program and arguments, all as they stand")
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command

    try:
        token = options.token_file.expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        print(f"no token in {options.token_file}: {error.strerror}. Does `fumehood dev` run?", file=sys.stderr)
        return REFUSED
    sandbox = {"image": options.image, "command": command or GREETING, "timeout_seconds": options.timeout}
    try:
        answer, reason = run_job(options.url, token, sandbox)
    except HTTPError as error:
        problem = json.load(error)
        print(f"refused with {error.code}: {problem['detail']} (request {problem['instance']})", file=sys.stderr)
        return REFUSED
    except URLError as error:
        print(f"no node at {options.url}: {error.reason}", file=sys.stderr)
        return REFUSED

    sys.stdout.write(answer["stdout"])
    sys.stderr.write(answer["stderr"])
    summary = answer["status"] + (f" ({reason})" if reason else "")
    print(f"{summary}, from {answer['started_at']} to {answer['ended_at']}", file=sys.stderr)
    return TIMED_OUT if answer["status"] == "timeout" else int(answer["exit_code"])


if __name__ == "__main__":
    sys.exit(main())
