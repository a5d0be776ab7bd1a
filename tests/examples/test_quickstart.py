"""The quickstart of the README, typed in as it stands: packages, services, images, an environment without a lock."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.dev_process import running_dev
from tests.examples.markdown import ROOT, blocks

SECONDS = 1800


@pytest.mark.record
@pytest.mark.timeout(2 * SECONDS)
def test_the_quickstart_works_as_written(tmp_path: Path) -> None:
    """All but its last line, which stays in the foreground, and gets ports that are free."""
    (block,) = [block for block in blocks("README.md") if block.mark == "install"]
    *lines, last = block.text.replace("<the address of this repository>", str(ROOT)).strip().splitlines()
    assert last == ".venv/bin/fumehood dev"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    environment |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_"))}
    subprocess.run(["bash", "-euc", "\n".join(lines)], cwd=tmp_path, env=environment, timeout=SECONDS, check=True)
    folder = tmp_path / "dev"
    folder.mkdir()
    with running_dev(folder, python=tmp_path / "fumehood/.venv/bin/python") as dev:
        fumehood = str(tmp_path / "fumehood/.venv/bin/fumehood")
        done = subprocess.run(
            [fumehood, "run", "127.0.0.1:5055/fumehood/base:1", "--", "echo", "hello"],
            env={**dev.env, "FUMEHOOD_URL": dev.server_url},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "hello\n"
