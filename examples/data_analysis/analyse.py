"""A session that analyses data: files go in, two programs work one after the other, a plot comes back.

    python examples/data_analysis/analyse.py --out plot.png

The programs may come from anybody, a model for instance: they see the files of their sandbox and no network. What one
of them leaves there is there for the next one. The image is one that `scripts/images` makes, with matplotlib.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from pathlib import Path

from fumehood import FumehoodError, Sandbox

IMAGE = "127.0.0.1:5055/fumehood/data:1"
HERE = Path(__file__).parent
PNG = b"\x89PNG\r\n\x1a\n"


def run(sandbox: Sandbox, program: str) -> object:
    """What it printed. `check` makes an error of every other end than exit code 0."""
    sandbox.files.upload(HERE / program, program)
    return json.loads(sandbox.commands.run(["python3", program], timeout=120, check=True).stdout)


def size_of(image: Path) -> tuple[int, int]:
    """Width and height. What comes out of a sandbox was written by code that nobody trusts: look before you use it."""
    head = image.read_bytes()[:24]
    if not head.startswith(PNG) or head[12:16] != b"IHDR":
        raise SystemExit(f"{image} is not a PNG")
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def main() -> int:
    parser = argparse.ArgumentParser(description="Analyse a CSV in a sandbox and bring back a plot.")
    parser.add_argument("--data", type=Path, default=HERE / "rides.csv")
    parser.add_argument("--out", type=Path, default=Path("plot.png"))
    parser.add_argument("--image", default=IMAGE)
    options = parser.parse_args()
    with Sandbox.create(options.image, memory_mib=512) as sandbox:
        sandbox.files.upload(options.data, "rides.csv")
        print("data:", json.dumps(run(sandbox, "clean.py")))
        print("found:", json.dumps(run(sandbox, "plot.py")))
        sandbox.files.download("plot.png", options.out)
    width, height = size_of(options.out)
    print(f"plot: {options.out}, {width} x {height} pixels")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FumehoodError as error:
        sys.exit(f"fumehood: {error}")
