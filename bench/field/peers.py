"""The peers, from the package index at the versions of `requirements/peers.txt`, each in a process of its own.

They live in a virtual environment that is made once for each version of that file, under the folder of
`scripts/services`. swe-rex needs its server inside the container, and llm-sandbox's pool a virtual environment: they
get the same image with both in one more layer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench.field import rows
from bench.field.engine import EngineFacts
from bench.world import BenchError

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements" / "peers.txt"
PROCESS = Path(__file__).with_name("peer_process.py")
PACKAGES = ("llm-sandbox", "swe-rex")
READY_SECONDS, LIFE_SECONDS, STOP_SECONDS = 120.0, 180.0, 60.0
LAYERED = ("llm-sandbox-pool", "swe-rex")
"""Those that need the layer."""
NAMES = {
    "llm-sandbox": {"first": rows.LLM_FIRST, "next": rows.LLM_NEXT, "removal": rows.LLM_REMOVAL},
    "llm-sandbox-pool": {"first": rows.LLM_POOLED},
    "swe-rex": {"first": rows.REX_FIRST, "next": rows.REX_NEXT, "removal": rows.REX_REMOVAL},
}
VENV = ".sandbox-venv/bin/python"
DOCKERFILE = """\
FROM {image}
COPY peers /opt/peers
COPY swerex-remote /usr/local/bin/swerex-remote
COPY sandbox /sandbox
"""
REMOTE = """\
#!/usr/bin/python3
import sys

sys.path.insert(0, "/opt/peers")
from swerex.server import main

main()
"""


def environment() -> Path:
    """The peers' Python, made where it is not there yet."""
    folder = Path(os.environ.get("FUMEHOOD_SERVICES_DIR") or "/var/tmp/fumehood-services")
    venv = folder / "peers" / hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    python, done = venv / "bin" / "python", venv / "done"
    if not done.exists():
        uv = (sys.executable, "-m", "uv")
        _run(*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(venv))
        _run(*uv, "pip", "install", "--quiet", "--python", str(python), "--require-hashes", "-r", str(REQUIREMENTS))
        done.touch()
    return python


def versions(python: Path) -> dict[str, str]:
    code = "import importlib.metadata as m, sys; print(*(m.version(name) for name in sys.argv[1:]))"
    found = _run(str(python), "-c", code, *PACKAGES).split()
    return dict(zip(PACKAGES, found, strict=True))


def image_with_layer(python: Path, image: str, engine: EngineFacts) -> str:
    """The image with what peers need in it; its id."""
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    with tempfile.TemporaryDirectory(prefix="fumehood-bench-", dir="/var/tmp") as name:
        context = Path(name)
        shutil.copytree(packages, context / "peers")
        (context / "Dockerfile").write_text(DOCKERFILE.format(image=image))
        (context / "swerex-remote").write_text(REMOTE)
        (context / "swerex-remote").chmod(0o755)
        (context / "sandbox" / VENV).parent.mkdir(parents=True)
        (context / "sandbox" / VENV).symlink_to("/usr/bin/python3")
        return _run("docker", "--host", f"unix://{engine.socket}", "build", "--quiet", str(context)).strip()


class Peer:
    """One of them, in its process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    async def life(self) -> dict[str, float]:
        """By row."""
        found = await self._ask({}, LIFE_SECONDS)
        return {row: found[part] for part, row in NAMES[self.name].items()}

    async def _ask(self, document: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(document).encode() + b"\n")
        try:
            async with asyncio.timeout(seconds):
                line = await self._process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line:
            raise BenchError(f"{self.name} does not answer:\n{self._log.read_text()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def peer(
    name: str, python: Path, image: str, runtime: str, engine: EngineFacts, folder: Path
) -> AsyncIterator[Peer]:
    log = folder / f"{name}.log"
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(str(python), str(PROCESS), name),
            env={**kept, **engine.environment},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=output,
        )
    made = Peer(name, process, log)
    try:
        await made._ask({"image": image, "runtime": runtime}, READY_SECONDS)
        yield made
    finally:
        await made.stop()


def _run(*words: str) -> str:
    try:
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=900).stdout
    except subprocess.CalledProcessError as error:
        raise BenchError(f"{' '.join(words[:4])} …: {error.stderr[-2000:]}") from None
