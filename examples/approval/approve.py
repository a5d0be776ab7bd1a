"""Decide about a run that waits, from another process and as somebody else.

    python examples/approval/approve.py RUN --key-file ada.key --comment "looks good"
    python examples/approval/approve.py RUN --key-file ada.key --reject --comment "not on a Friday"

Shows what it is about before it decides. Whose key it is goes into the run's history.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from fumehood import Client, FumehoodError, Run

STEP = "ask"
SECONDS = 120.0


def wait_until_asked(run: Run) -> dict[str, object]:
    """What it is about. The step before it may take its time."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        step = run.refresh().steps.get(STEP)
        if step is not None and step.status == "awaiting_approval":
            return dict(step.said["approval"])
        if run.has_ended:
            raise SystemExit(f"{run.id} is {run.status}: there is nothing to decide")
        time.sleep(0.5)
    raise SystemExit(f"{run.id} did not ask within {SECONDS:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description="Approve or reject a run that waits for it.")
    parser.add_argument("run")
    parser.add_argument("--key-file", type=Path, help="yours; without it, whom this machine is logged in as")
    parser.add_argument("--comment", default="")
    parser.add_argument("--reject", action="store_true")
    options = parser.parse_args()
    with Client(key_file=options.key_file) as client:
        run = client.runs.get(options.run)
        print(json.dumps(wait_until_asked(run)))
        decide = run.reject if options.reject else run.approve
        decide(STEP, comment=options.comment)
        print(f"{run.id} is {'rejected' if options.reject else 'approved'}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FumehoodError as error:
        sys.exit(f"fumehood: {error}")
