"""What files in a sandbox are to a caller: plain values, the same for both flavours of the SDK."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from fumehood.sdk.values import moment, understood


class FileKind(StrEnum):
    """What a path is.

    from fumehood import FileKind

    assert FileKind.FOLDER == "folder"
    """

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file in a sandbox, or whatever else has a name.

    sb.files.write("notes.txt", "hello")
    found = sb.files.stat("notes.txt")
    assert (found.name, found.kind, found.size_bytes, found.mode) == ("notes.txt", "file", 5, 0o644)
    """

    name: str
    path: str
    """Where it is, as it was asked for."""
    kind: FileKind
    size_bytes: int
    mode: int
    uid: int
    gid: int
    modified_at: dt.datetime | None

    @classmethod
    def of(cls, said: Mapping[str, Any], path: str) -> Self:
        """As a server says it."""
        with understood("a file"):
            return cls(
                name=str(said["name"]),
                path=path,
                kind=FileKind(said["kind"]),
                size_bytes=int(said["size_bytes"]),
                mode=int(str(said["mode"]), 8),
                uid=int(said["uid"]),
                gid=int(said["gid"]),
                modified_at=moment(said.get("modified_at")),
            )


class Listing(list[FileInfo]):
    """What is in a folder, by name.

    sb.files.write("a/b.txt", "hello")
    assert [one.path for one in sb.files.list("a")] == ["a/b.txt"]
    """

    def __init__(self, files: Iterable[FileInfo] = (), *, unnamed: int = 0) -> None:
        super().__init__(files)
        self.unnamed = unnamed
        """Entries beside these whose names are not UTF-8, and cannot be told."""


class FileChange(StrEnum):
    """What became of a file.

    from fumehood import FileChange

    assert FileChange.CREATED == "created"
    """

    CREATED = "created"
    CHANGED = "changed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class FileEvent:
    """A file that came, changed or went, as far as two looks at its folder tell.

    changes = sb.files.watch(interval=0.1)
    sb.files.write("new.txt", "")
    assert next(changes) == FileEvent(FileChange.CREATED, "new.txt")
    """

    kind: FileChange
    path: str


@dataclass(slots=True)
class Transfer:
    """What was copied.

    Path("hello.txt").write_text("hello")
    done = sb.files.upload("hello.txt", "hello.txt")
    assert (done.files, done.size_bytes, done.skipped) == (1, 5, [])
    """

    files: int = 0
    size_bytes: int = 0
    skipped: list[str] = field(default_factory=list)
    """What was left out, each with why: links, devices, names that cannot be told."""
    folders: int = 0
    """Those within the folder that was copied."""
