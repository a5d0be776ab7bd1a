"""A tree of git, as far as it can be put into a sandbox."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from fumehood.node.jobs.sandbox.refused import RefusedError, shown
from fumehood.node.jobs.sandbox.repo.git import Contents, Git
from fumehood.sandbox.spec import KIB, MIB

MAX_DEPTH: Final = 60
MAX_PATH: Final = 3072
MAX_NAME: Final = 255
MAX_LINK: Final = 4 * KIB
LISTING_BYTES: Final = 32 * MIB
PAGE: Final = 4 * KIB
"""What a file takes at least, and in multiples of, on a memory file system."""
OLDEST: Final = 315_532_800
"""1980: for what has no commit, and so no time. Some programs do not like 1970."""
NEWEST: Final = 2**33


class Kind(Enum):
    FILE = "100644"
    EXECUTABLE = "100755"
    LINK = "120000"
    MODULE = "160000"
    """A commit of another repository: an empty folder here."""


_OLD_FILE: Final = "100664"
"""What git wrote long ago, and still reads as a file."""


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    kind: Kind
    object_id: str
    size: int

    @property
    def mode(self) -> int:
        return 0o755 if self.kind is Kind.EXECUTABLE else 0o644


@dataclass(frozen=True, slots=True)
class Tree:
    """What is mounted. Its contents are read from the repository that it is in, while that is there."""

    git: Git
    tree: str
    commit: str | None
    time: int
    entries: tuple[Entry, ...]

    @property
    def room(self) -> int:
        """Bytes that it takes on a memory file system."""
        return sum(-(-entry.size // PAGE) * PAGE for entry in self.entries)

    @property
    def has_links(self) -> bool:
        return any(entry.kind is Kind.LINK for entry in self.entries)

    async def target(self, contents: Contents, entry: Entry) -> bytes:
        """Of a link."""
        return b"".join([piece async for piece in contents.of(entry.object_id, entry.size)])


def check_path(path: str) -> str:
    """No name in it leads anywhere but down, and none is git's own."""
    names = path.split("/")
    for name in names:
        if name in ("", ".", "..") or "\0" in path or name.lower() == ".git":
            raise RefusedError(f"the repository has a file that is called {shown(path)}, which cannot be written")
    if len(names) > MAX_DEPTH or len(path.encode("utf-8", "surrogateescape")) > MAX_PATH:
        raise RefusedError(f"the repository has a path that is too long: {shown(path)}")
    if any(len(name.encode("utf-8", "surrogateescape")) > MAX_NAME for name in names):
        raise RefusedError(f"the repository has a name that is too long: {shown(path)}")
    return path


def check_together(paths: Iterable[str]) -> None:
    """Nothing is both a file and a folder, or twice there: git's own trees are never like that, others' may be."""
    seen: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        if path in seen:
            raise RefusedError(f"the repository has {shown(path)} twice")
        seen.add(path)
        while (path := posixpath.dirname(path)) and path not in folders:
            folders.add(path)
    if twice := seen & folders:
        raise RefusedError(f"the repository has {shown(min(twice))} as a file and as a folder")


async def read_tree(git: Git, revision: str, *, is_commit: bool, most_files: int) -> Tree:
    """The tree of a commit; `is_commit`: the commit is somebody's, and not one that we made up."""
    said = await git.run("log", "-1", "--no-show-signature", "--format=%H %T %ct", revision, "--")
    commit, tree, time = said.decode("ascii").strip("\n").split(" ")
    listing = await git.run("ls-tree", "-r", "-z", "-l", "--full-tree", tree, most_output=LISTING_BYTES)
    lines = listing.split(b"\0")[:-1]
    if len(lines) > most_files:
        raise RefusedError(f"the repository has {len(lines)} files, and {most_files} are the most that is mounted")
    entries = tuple(map(_entry, lines))
    check_together(entry.path for entry in entries)
    when = min(max(int(time or 0), OLDEST), NEWEST) if is_commit else OLDEST  # git gives none for one that is no time
    return Tree(git, tree, commit if is_commit else None, when, entries)


def _entry(line: bytes) -> Entry:
    facts, _, name = line.partition(b"\t")
    mode, _, object_id, size = facts.decode("ascii").split()
    path = check_path(name.decode("utf-8", "surrogateescape"))
    try:
        kind = Kind(Kind.FILE.value if mode == _OLD_FILE else mode)
    except ValueError:
        raise RefusedError(f"{shown(path)} is of a kind that git does not know") from None
    if kind is not Kind.MODULE and not size.isdigit():
        raise RefusedError(f"the content of {shown(path)} is not in the repository")
    entry = Entry(path, kind, object_id, 0 if kind is Kind.MODULE else int(size))
    if kind is Kind.LINK and not 0 < entry.size < MAX_LINK:
        raise RefusedError(f"{shown(path)} is a link whose target is too long, or empty")
    return entry
