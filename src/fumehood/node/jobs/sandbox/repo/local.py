"""Repositories and folders of this machine: read as they are on the disk, without following a single link.

A path is resolved once, must then be beneath a folder that the operator allows, and is walked down again name by name,
so that nobody can put a link in its way meanwhile. Of a repository only its objects and refs are copied: not its
configuration, its hooks, or what it borrows from others.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from fumehood.node.jobs.sandbox.refused import RefusedError, shown
from fumehood.node.jobs.sandbox.repo.bounds import Bounds
from fumehood.node.jobs.sandbox.repo.importing import PIECE, Import
from fumehood.node.jobs.sandbox.repo.tree import MAX_DEPTH

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_COPIED: Final = ("HEAD", "packed-refs", "shallow", "refs", "objects")
_ALTERNATES: Final = ("objects", "info", "alternates")
_LEFT: Final = frozenset({("objects", "info")})
"""What is found again without it, and could name other places: also if it says so only once we have looked."""
MOST_GIT_FILES: Final = 500_000
"""Objects and refs of a repository, each a file where nobody ever packed them."""


@contextlib.contextmanager
def opened_beneath(path: str, roots: Sequence[Path]) -> Iterator[int]:
    """A descriptor of a folder. What is not beneath a root is refused in the same words as what is not there."""
    real = os.path.realpath(path)
    for root in roots:
        top = os.path.realpath(root)
        if real == top or real.startswith(top.rstrip("/") + "/"):
            names = [name for name in real[len(top.rstrip("/")) :].split("/") if name]
            with _walked(top, names, path) as descriptor:
                yield descriptor
            return
    raise _no_such(path)


def _no_such(path: str) -> RefusedError:
    return RefusedError(f"{shown(path)} is no folder beneath one whose repositories this worker may use")


@contextlib.contextmanager
def _walked(top: str, names: Sequence[str], path: str) -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        try:
            here = os.open(top, _FOLDER)
            stack.callback(os.close, here)
            for name in names:
                here = os.open(name, _FOLDER, dir_fd=here)
                stack.callback(os.close, here)
        except OSError:
            raise _no_such(path) from None
        yield here


def git_folder(descriptor: int, path: str) -> tuple[str, ...] | None:
    """Where beneath a folder its repository is: `()` for a bare one, `None` for a plain folder."""
    names = set(_names(descriptor))
    if ".git" in names:
        if not stat.S_ISDIR(os.lstat(".git", dir_fd=descriptor).st_mode):
            raise RefusedError(f"{shown(path)} is a work tree of a repository that is elsewhere: name that one")
        return (".git",)
    return () if {"HEAD", "objects", "refs"} <= names else None


def _names(descriptor: int) -> list[str]:
    return os.listdir(descriptor)


# --- a repository ------------------------------------------------------------------------------------------


def copy_repository(descriptor: int, below: tuple[str, ...], target: Path, bounds: Bounds) -> None:
    """Objects and refs, into a folder that is a repository already."""
    with contextlib.ExitStack() as stack:
        for name in below:
            descriptor = os.open(name, _FOLDER, dir_fd=descriptor)
            stack.callback(os.close, descriptor)
        if "commondir" in _names(descriptor) or _is_there(descriptor, _ALTERNATES):
            raise RefusedError("the repository borrows objects from another one: clone it without `--shared`")
        for name in _COPIED:
            with contextlib.suppress(FileNotFoundError):
                _copy(descriptor, (name,), target, bounds)


def _is_there(descriptor: int, names: Sequence[str]) -> bool:
    try:
        os.lstat("/".join(names), dir_fd=descriptor)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _copy(above: int, names: tuple[str, ...], target: Path, bounds: Bounds) -> None:
    name = names[-1]
    mode = os.lstat(name, dir_fd=above).st_mode
    if names in _LEFT and stat.S_ISDIR(mode):
        return
    if stat.S_ISDIR(mode) and len(names) <= MAX_DEPTH:
        (target / name).mkdir(exist_ok=True)
        here = os.open(name, _FOLDER, dir_fd=above)
        try:
            for inner in _names(here):
                _copy(here, (*names, inner), target / name, bounds)
        finally:
            os.close(here)
    elif stat.S_ISREG(mode):
        bounds.take_file()
        with _file(above, name) as source, (target / name).open("wb") as copy:
            while piece := source.read(PIECE):
                bounds.take(len(piece))
                copy.write(piece)
    else:
        raise RefusedError("the repository is not made of files and folders alone")


@contextlib.contextmanager
def _file(above: int, name: str) -> Iterator[_Opened]:
    descriptor = os.open(name, _FILE, dir_fd=above)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError("a file became something else while it was read")
        yield _Opened(descriptor, status.st_size, executable=bool(status.st_mode & 0o100))
    finally:
        os.close(descriptor)


class _Opened:
    def __init__(self, descriptor: int, size: int, *, executable: bool) -> None:
        self._descriptor = descriptor
        self.size = size
        self.executable = executable

    def read(self, size: int, /) -> bytes:
        return os.read(self._descriptor, size)


# --- a plain folder ----------------------------------------------------------------------------------------


def import_folder(descriptor: int, into: Import, above: str = "", depth: int = 0) -> None:
    """Every file and link in it. Folders that hold none are in no tree of git."""
    if depth > MAX_DEPTH:
        raise RefusedError("the folder is too deep")
    for name in sorted(_names(descriptor)):
        path = f"{above}{name}"
        mode = os.lstat(name, dir_fd=descriptor).st_mode
        if stat.S_ISDIR(mode):
            into.bounds.take(0)
            here = os.open(name, _FOLDER, dir_fd=descriptor)
            try:
                import_folder(here, into, f"{path}/", depth + 1)
            finally:
                os.close(here)
        elif stat.S_ISLNK(mode):
            into.add_link(path, os.fsencode(os.readlink(name, dir_fd=descriptor)))
        elif stat.S_ISREG(mode):
            with _file(descriptor, name) as file:
                into.add(path, file, file.size, executable=file.executable)
        else:
            raise RefusedError(f"{shown(path)} is neither a file nor a folder nor a link")
