"""A release that waits for a person: a sandbox measures, somebody decides, and the history knows who.

    python examples/approval/release.py 1.4.0 --approver ada

It applies the workflow, starts a run and waits. Meanwhile, in another terminal and with a key of her own:

    fumehood key create ada --scope runs:approve --scope runs:read --out ada.key
    python examples/approval/approve.py RUN --key-file ada.key --comment "looks good"

The exit code is 0 if it was released, 1 if somebody said no or nobody said anything in time. The run waits on the
server: this program may be ended meanwhile, and `fumehood runs watch RUN` sees the rest.
"""

from __future__ import annotations

import argparse
import sys

from fumehood import Client, FumehoodError, Workflow

IMAGE = "127.0.0.1:5055/fumehood/python:1"
MEASURE = """
import json, sys, timeit
version = json.load(sys.stdin)["version"]
milliseconds = min(timeit.repeat("sorted(range(1000), key=lambda n: -n)", number=20, repeat=3)) * 50
json.dump({"version": version, "milliseconds": round(milliseconds, 3)}, sys.stdout)
"""


def workflow(image: str, approver: str) -> Workflow:
    """The same document as one that is written in YAML; `made.to_yaml()` shows it."""
    made = Workflow("release", description="Measure, ask, release.", deadline="1d")
    measure = made.sandbox(
        "measure", image, ["python3", "-c", MEASURE], with_={"version": made.input.version}, must_succeed=True
    )
    ask = made.approval(
        "ask",
        "Release it?",
        approvers=[approver],
        timeout="1h",
        with_={"version": made.input.version, "measured": measure.output.stdout},
    )
    made.sleep("release", "10ms", needs=[ask])  # a task for a worker of yours
    made.set_output({"version": made.input.version, "approved_by": ask.output.by, "comment": ask.output.comment})
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description="Start a release and wait until somebody has decided about it.")
    parser.add_argument("version")
    parser.add_argument("--approver", default="admin", help="the name of the key that may decide")
    parser.add_argument("--image", default=IMAGE)
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds")
    options = parser.parse_args()
    with Client() as client:
        client.workflows.apply(workflow(options.image, options.approver))
        run = client.workflows.run("release", {"version": options.version})
        print(f"{run.id} waits for {options.approver}", flush=True)
        run.wait(timeout=options.timeout)
        if run.error is not None:
            print(f"{options.version} is not released: {run.error.message}")
            return 1
        said = run.check().output
        print(f"{said['version']} is released: {said['approved_by']} said {said['comment']!r}")
        return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FumehoodError as error:
        sys.exit(f"fumehood: {error}")
