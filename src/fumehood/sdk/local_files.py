"""Files on this side of a copy. What comes out of a sandbox was written by code that nobody trusts: a name from there
never leads out of the folder that it is put into, no link from there is made here, and a file is here whole or not at
all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath

from fumehood.errors import InvalidRequestError, LimitExceededError
from fumehood.sdk.file_values import Transfer

DRAFT = ".fumehood-"
MOST_FILES = 100_000
DEEPEST = 64
"""Folders in folders: a sandbox could have some without an end."""
MOST_BYTES = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a copy may come to."""

    max_bytes: int = MOST_BYTES
    max_files: int = MOST_FILES
    """Folders and what is skipped count, too."""

    def check(self, done: Transfer) -> None:
        """`LimitExceededError` when it is more."""
        if done.size_bytes > self.max_bytes:
            raise LimitExceededError(f"there is more than max_bytes={self.max_bytes}").advise()
        if done.files + done.folders + len(done.skipped) > self.max_files:
            raise LimitExceededError(f"there is more than max_files={self.max_files}").advise()


def is_name(name: object) -> bool:
    """Whether it names something in a folder, and nothing outside of it."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\0"} & set(name) and is_text(name)


def is_text(name: str) -> bool:
    """Whether it can be said at all: the API speaks UTF-8, and a name of a file may be any bytes."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def below(folder: str, name: str) -> str:
    """A path in a sandbox."""
    return name if folder in ("", ".") else f"{folder.rstrip('/')}/{name}"


def target_of(local: str | os.PathLike[str], remote: str) -> Path:
    """A folder that is there gets what is copied into it, under its own name."""
    here = Path(local)
    if not here.is_dir():
        return here
    name = PurePosixPath(remote).name
    if not is_name(name):
        raise InvalidRequestError(f"{remote!r} has no name of its own: say what it is to be called here").advise()
    return here / name


@contextmanager
def draft_file(target: Path) -> Iterator[FileIO]:
    """A file that takes the target's place when the block ends well, and is gone when it does not. A link that is there
    is replaced, not followed."""
    descriptor, name = tempfile.mkstemp(prefix=DRAFT, dir=target.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            yield file
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def draft_folder(target: Path) -> Iterator[Path]:
    """A folder of ours alone, empty, so that a name can meet nothing but what came from there; it becomes the target
    when the block ends well. One that is there already is never filled up."""
    if os.path.lexists(target):
        raise InvalidRequestError(f"{target} is there already").advise("remove it, or say another name")
    draft = Path(tempfile.mkdtemp(prefix=DRAFT, dir=target.parent))
    try:
        whole = draft / "folder"
        whole.mkdir()
        yield whole
        whole.rename(target)
    finally:
        with suppress(OSError):
            shutil.rmtree(draft)


def write_all(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def permit(file: FileIO, mode: int) -> None:
    """As a new file here has it; of the one there, only whether it is a program."""
    os.fchmod(file.fileno(), (0o777 if mode & 0o100 else 0o666) & ~_umask())


def _umask() -> int:
    """Without changing it for a moment, as `os.umask` would, for all threads of the process; ours alone where the
    kernel does not tell."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077


@dataclass(frozen=True, slots=True)
class Local:
    """Something here that is to be copied into a sandbox."""

    path: Path
    kind: str
    """`file`, `folder`, or why it is left out."""
    target: str

    @property
    def mode(self) -> str:
        return "0755" if self.path.stat().st_mode & 0o100 else "0644"


def to_send(source: Path, target: str) -> Iterator[Local]:
    """What is in a folder: files, and folders before what is in them. Links are not followed."""
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        path, there = Path(entry.path), below(target, entry.name)
        if not is_text(entry.name):
            yield Local(path, "its name is no UTF-8", there)
        elif entry.is_dir(follow_symlinks=False):
            yield Local(path, "folder", there)
            yield from to_send(path, there)
        elif entry.is_file(follow_symlinks=False):
            yield Local(path, "file", there)
        else:
            yield Local(path, "neither a file nor a folder", there)
