"""A CI run over a small repository, with a signed receipt of each step.

    python examples/ci_with_receipts/ci.py --out build
    python examples/ci_with_receipts/check.py build

Every step is a command in one sandbox without a network. What it printed and what the worker signed about it are saved
side by side, for whoever wants to know later and trusts no log. The exit code is that of the first step that fails.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fumehood import CommandResult, FumehoodError, Sandbox

IMAGE = "127.0.0.1:5055/fumehood/python:1"
PROJECT = Path(__file__).parent / "project"
STEPS = {
    "compile": ["python3", "-m", "compileall", "-q", "."],
    "test": ["python3", "-m", "unittest", "-v"],
}
NO_EXIT_CODE = 70
"""Killed, out of memory, out of time: the status says which."""


def save(out: Path, name: str, result: CommandResult) -> None:
    (out / f"{name}.stdout").write_bytes(result.stdout.encode())
    (out / f"{name}.stderr").write_bytes(result.stderr.encode())
    result.receipt.save(out / f"{name}.receipt.json")


def main() -> int:
    parser = argparse.ArgumentParser(description="Test a repository in a sandbox, and keep the receipts.")
    parser.add_argument("--project", type=Path, default=PROJECT)
    parser.add_argument("--out", type=Path, default=Path("build"), help="where outputs and receipts go")
    parser.add_argument("--image", default=IMAGE)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with Sandbox.create(options.image) as sandbox:
        sandbox.files.upload(options.project, "project")
        print(f"{options.project.name} in {sandbox.image_digest}")
        for name, command in STEPS.items():
            result = sandbox.commands.run(command, cwd="/workspace/project", timeout=120)
            sys.stderr.write(result.stdout + result.stderr)
            save(options.out, name, result)
            ended = result.detail if result.exit_code is None else f"exit code {result.exit_code}"
            print(f"{name}: {result.status}, {ended}; {options.out / name}.receipt.json")
            if not result.ok:
                return NO_EXIT_CODE if result.exit_code is None else result.exit_code
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FumehoodError as error:
        sys.exit(f"fumehood: {error}")
