"""Who listens at a port of this machine, as far as /proc lets us see: "taken" alone leaves a person searching."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fumehood.cli.show import plain

PROCESSES = Path("/proc")
_LISTENS = "0A"
_LONGEST_NAME = 40


def holder(port: int, processes: Path = PROCESSES) -> str | None:
    """The process in words, like `nginx` (process 812); None where nobody may know, or it is in another namespace."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port, processes)}
    if not sockets:
        return None
    for folder in processes.iterdir():
        if folder.name.isdecimal() and _holds(folder, sockets):
            return f"`{_name(folder)}` (process {folder.name})"
    return None


def _inodes(port: int, processes: Path) -> set[str]:
    """Of the sockets that take connections there, at whatever address: any of them is in the way."""
    found = set[str]()
    for table in ("net/tcp", "net/tcp6"):
        with suppress(OSError, IndexError):
            for line in (processes / table).read_text(encoding="ascii").splitlines()[1:]:
                field = line.split()
                if field[3] == _LISTENS and field[1].endswith(f":{port:04X}"):
                    found.add(field[9])
    return found


def _holds(process: Path, sockets: set[str]) -> bool:
    try:
        for file in (process / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if str(file.readlink()) in sockets:
                    return True
    except OSError:  # of another user, or gone
        return False
    return False


def _name(process: Path) -> str:
    """The program that an interpreter runs, rather than the interpreter."""
    with suppress(OSError):
        words = (process / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
        names = [Path(word).name for word in words if word and not word.startswith("-")]
        if len(names) > 1 and names[0].startswith("python"):
            return plain(" ".join(names[1:3]))[:_LONGEST_NAME]
        if names:
            return plain(names[0])[:_LONGEST_NAME]
    return "another program"
