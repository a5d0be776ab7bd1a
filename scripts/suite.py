"""Packages of another Debian suite than the machine's, unpacked beside the system: nothing is installed."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from machine import logged, write


@dataclass(frozen=True)
class Suite:
    """The machine's own apt sources under another suite's name, in a folder of our own. What apt says is in `log`."""

    name: str
    folder: Path
    log: Path

    def unpack(self, packages: list[str], into: Path) -> bool:
        """Whether all of them could be had."""
        archives = self.folder / "archives"
        shutil.rmtree(archives, ignore_errors=True)
        archives.mkdir()
        into.mkdir(parents=True, exist_ok=True)
        words = ["sh", "-c", 'cd "$0" && exec apt-get "$@"', str(archives), *self._options()]
        return logged(self.log, [*words, "download", "--quiet", *packages]) == 0 and all(
            logged(self.log, ["dpkg", "-x", str(archive), str(into)]) == 0 for archive in archives.glob("*.deb")
        )

    def libraries(self, packages: list[str]) -> list[str]:
        """All packages of libraries that these need, and those in turn."""
        left_out = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
        words = ["apt-cache", *self._options(), "depends", "--recurse", *(f"--no-{kind}" for kind in left_out)]
        said = subprocess.run([*words, *packages], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
        return [line for line in said.splitlines() if line.startswith("lib") and ":" not in line]

    def _options(self) -> list[str]:
        options = {
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": self.folder / "parts",
            "Dir::State": self.folder / "state",
            "Dir::State::status": "/var/lib/dpkg/status",
            "Dir::Cache": self.folder / "cache",
            "APT::Sandbox::User": "root",
            "Acquire::Retries": "3",
        }
        return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]

    def _update(self) -> bool:
        for name in ("parts", "state/lists/partial", "cache/archives/partial"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for source in [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]:
            if source.suffix in (".list", ".sources") and source.is_file():
                text = source.read_text(errors="replace").replace(os_codename(), self.name)
                write(self.folder / "parts" / source.name, text, mode=0o600)
        return logged(self.log, ["apt-get", *self._options(), "update", "--quiet"]) == 0


@contextlib.contextmanager
def suite(name: str, folder: Path, log: Path) -> Iterator[Suite | None]:
    """None where it cannot be had. The folder is gone afterwards."""
    made = Suite(name, folder, log)
    try:
        yield made if made._update() else None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def os_codename() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    return found.get("VERSION_CODENAME", "").strip('"')
