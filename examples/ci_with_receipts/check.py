"""Check what a CI run left behind, without asking any server: who ran which command, and is this what came out?

    python examples/ci_with_receipts/check.py build

Relied on is the root that you pinned, or that of your own `fumehood dev`, and the list of keys that it signed. Each
receipt must hold, and must name the hashes of the output that lies beside it; one changed byte in any of them is
refused. `fumehood verify build/test.receipt.json --against stderr=build/test.stderr` does the same for one of them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fumehood import FumehoodError, Receipt

END = ".receipt.json"


def check(file: Path) -> bool:
    """A receipt and the two outputs beside it."""
    name = file.name.removesuffix(END)
    outputs = {stream: file.with_name(f"{name}.{stream}") for stream in ("stdout", "stderr")}
    found = Receipt.load(file).verify(against=outputs)
    if not found:
        print(f"{name}: REFUSED, {found.detail} ({found.reason})")
        return False
    (claim,) = found.claims
    print(f"{name}: exit code {claim['outcome'].get('exit_code')}, signed by {found.worker}")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Verify the receipts of a CI run, offline.")
    parser.add_argument("folder", type=Path)
    files = sorted(parser.parse_args().folder.glob(f"*{END}"))
    if not files:
        print("there are no receipts", file=sys.stderr)
        return 1
    good = [check(file) for file in files]
    return 0 if all(good) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (FumehoodError, OSError) as error:
        sys.exit(f"fumehood: {error}")
