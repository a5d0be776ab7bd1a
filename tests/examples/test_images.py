"""The images of `scripts/images`, in a sandbox: nothing that is in them is compiled again each time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import unavailable
from tests.dev_process import Dev
from tests.examples.person import Person, good

PROGRAMS = {
    "python": "import argparse, asyncio, compileall, json, sqlite3, unittest",
    "data": "from matplotlib import pyplot",
}
LOOK = """
import json, subprocess, sys
said = subprocess.run([sys.executable, "-v", "-c", sys.argv[1]], capture_output=True, text=True)
lines = said.stderr.splitlines()
print(json.dumps({
    "ended": said.returncode,
    "taken": sum(" matches /usr/lib/python3" in line for line in lines),
    "stale": [line for line in lines if "bytecode is stale" in line or "could not create" in line or "# wrote" in line],
}))
"""


@pytest.mark.example
@pytest.mark.parametrize("name", PROGRAMS)
def test_bytecode_in_an_image_counts(name: str, dev: Dev, images: dict[str, str]) -> None:
    """A sandbox cannot write it down: what is stale once is stale for every command."""
    if name not in images:
        unavailable(f"no image {name}: run scripts/images")
    words = (
        Path("examples/run_job.py"),
        "--url",
        dev.node_url,
        "--token-file",
        dev.token_file,
        "--image",
        images[name],
    )
    done = Person(dev).runs(sys.executable, *words, "--", "python3", "-c", LOOK, PROGRAMS[name])
    found = json.loads(good(done))
    assert found["ended"] == 0
    assert found["taken"] > 50
    assert found["stale"] == []
