"""`fumehood session cp`: files and folders between here and a session, in pieces, of which nobody holds all.

What comes out of a sandbox was written by code that nobody trusts: a name from there never leads out of the folder that
it is put into, no link from there is made here, and a file is here whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any

import typer

from fumehood.cli import run_request, show
from fumehood.cli.client import TRIES, ApiError
from fumehood.cli.exits import UNREAD, CommandError, NoAnswerError, UsageError
from fumehood.cli.leaving import give_up_stdout
from fumehood.cli.options import Remote, grouped
from fumehood.cli.output import Screen
from fumehood.cli.pulse import Pulse, Transfer
from fumehood.cli.session_calls import Session
from fumehood.cli.show import plain

PIECE = 256 * 1024
MOST_FILES, DEEPEST = 100_000, 64
"""Of a folder that is copied from a sandbox, which could have a folder without an end."""
STANDARD = "-"
DRAFT = ".fumehood-"

Source = Annotated[str, typer.Argument(metavar="FROM", help="A file or folder: here, or SESSION:PATH; - for stdin.")]
Target = Annotated[str, typer.Argument(metavar="TO", help="Where to: here, or SESSION:PATH; - for stdout.")]
Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="A folder, with all that is in it.")]
MaxSize = Annotated[
    str, typer.Option("--max-size", metavar="MIB", help="The most that is taken from a session: MiB, or GiB (2g).")
]


@dataclass(frozen=True, slots=True)
class There:
    """A place in a session."""

    session_id: str
    path: str

    @property
    def name(self) -> str:
        found = PurePosixPath(self.path).name
        return found if is_name(found) else self.session_id


def placed(text: str) -> There | str:
    """`SESSION:PATH` is there; what has a slash before the colon is here."""
    session_id, colon, path = text.partition(":")
    return There(session_id, path or ".") if colon and session_id and "/" not in session_id else text


def is_name(name: object) -> bool:
    """Whether it names something in a folder, and nothing outside of it."""
    return (
        isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name and is_text(name)
    )


def is_text(name: str) -> bool:
    """Whether it can be said at all: the API speaks UTF-8, and a name of a file may be any bytes."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


@grouped
def cp(
    source: Source, target: Target, *, recursive: Recursive = False, max_size: MaxSize = "1g", remote: Remote
) -> None:
    """Copy files into a session or out of it.

    SESSION:PATH begins in /workspace, unless it begins with a slash. A folder that is there gets the file into it.
    """
    most = run_request.memory_mib(max_size, "--max-size") * 1024 * 1024
    match placed(source), placed(target):
        case str(here), There() as there:
            with remote.opened() as api, Pulse("sending") as pulse:
                copy = Copy(Session(api, there.session_id), recursive, most, Transfer(pulse, "sending"))
                copy.into(here, there)
        case There() as there, str(here):
            with remote.opened() as api, Pulse("fetching") as pulse:
                if here == STANDARD and sys.stdout.isatty():
                    pulse.stop()  # the screen shows what comes
                copy = Copy(Session(api, there.session_id), recursive, most, Transfer(pulse, "fetching"))
                _unless_unread(lambda: copy.out(there, here))
        case _:
            raise UsageError(
                "one of the two is here and the other one there: SESSION:PATH; a name with a colon is ./a:b"
            )
    for words in copy.skipped:
        show.console(stderr=True).print(f"fumehood: left out {words}", soft_wrap=True)
    if remote.as_json and target != STANDARD:
        show.document({"files": copy.files, "bytes": copy.size, "skipped": copy.skipped})


def _unless_unread(copy: Callable[[], None]) -> None:
    try:
        copy()
    except BrokenPipeError:
        give_up_stdout()
        raise typer.Exit(UNREAD) from None


@dataclass(slots=True)
class Copy:
    """One copy, and what it came to."""

    session: Session
    recursive: bool
    most: int
    """Bytes that are taken from a session."""
    progress: Transfer
    files: int = 0
    entries: int = 0
    """Files, folders and links that a folder of the session holds: at most MOST_FILES, copied or not."""
    size: int = 0
    skipped: list[str] = field(default_factory=list)

    # --- into the session --------------------------------------------------------------------------------------

    def into(self, here: str, there: There) -> None:
        name = Path(here).resolve().name if here != STANDARD else None
        if name is not None and not is_text(name):
            raise UsageError(f"{plain(here)}: its name is no UTF-8; give it another one")
        path = self._target(there, name)
        if here == STANDARD:
            self._send(path, lambda: sys.stdin.buffer, 0o644, tries=1)
            return
        source = Path(here)
        try:
            if source.is_dir():
                self._needs_recursive(here)
                self._send_folder(source, path)
            else:
                self._send_file(source, path)
        except OSError as error:
            raise CommandError(f"{plain(str(error.filename))} cannot be read: {error.strerror}") from None

    def _target(self, there: There, name: str | None) -> str:
        """A folder that is there gets what is copied into it, under its own name."""
        found = self._stat(there.path)
        is_folder = there.path.endswith("/") or (found is not None and found["kind"] == "folder")
        if not is_folder:
            return there.path
        if name is None:
            raise UsageError(f"{plain(there.path)} is a folder: say what the file in it is to be called")
        return f"{there.path.rstrip('/')}/{name}"

    def _send_folder(self, source: Path, path: str) -> None:
        entries = sorted(os.scandir(source), key=lambda entry: entry.name)
        if not entries:
            self.session.api.post(f"{self.session.path}/files/folders", query={"path": path})
        for entry in entries:
            below = f"{path}/{entry.name}"
            if not is_text(entry.name):
                self.skipped.append(f"{plain(entry.path)}: its name is no UTF-8")
            elif entry.is_dir(follow_symlinks=False):
                self._send_folder(Path(entry.path), below)
            elif entry.is_file(follow_symlinks=False):
                self._send_file(Path(entry.path), below)
            else:
                self.skipped.append(f"{plain(entry.path)}: neither a file nor a folder")

    def _send_file(self, source: Path, path: str) -> None:
        mode = 0o755 if source.stat().st_mode & 0o100 else 0o644
        self._send(path, lambda: source.open("rb"), mode, tries=TRIES if source.is_file() else 1)

    def _send(self, path: str, opened: Callable[[], IO[bytes]], mode: int, *, tries: int) -> None:
        query = {"path": path, "mode": f"{mode:04o}"}

        def attempt() -> None:
            with opened() as file:
                self.session.api.upload(f"{self.session.path}/files/content", query, self._counted(file, path))

        self._tried(attempt, tries)

    def _counted(self, file: IO[bytes], path: str) -> Iterator[bytes]:
        while piece := file.read(PIECE):
            yield piece
            self._moved(path, len(piece))

    def _moved(self, path: str, more: int) -> None:
        self.size += more
        self.progress.moved(PurePosixPath(path).name, self.size)

    # --- out of it ---------------------------------------------------------------------------------------------

    def out(self, there: There, here: str) -> None:
        found = self._stat(there.path)
        if found is None:
            raise CommandError(
                f"no such file in {self.session.session_id}: {plain(there.path)}; "
                f"`fumehood session exec {self.session.session_id} -- ls` shows what is there"
            )
        if found["kind"] == "folder":
            self._needs_recursive(there.path)
            if here == STANDARD:
                raise UsageError("a folder cannot go to stdout")
        try:
            if here == STANDARD:
                screen = Screen()
                self._tried(lambda: self._receive(there.path, lambda data: screen.show_bytes("stdout", data)), 1)
            elif found["kind"] == "folder":
                self._folder_out(there, Path(here))
            else:
                self._file_out(there, Path(here), found)
        except BrokenPipeError:
            raise
        except OSError as error:
            place = _not_the_draft(Path(error.filename or here))
            raise CommandError(f"{plain(str(place))} cannot be written: {error.strerror}") from None

    def _file_out(self, there: There, here: Path, found: dict[str, Any]) -> None:
        target = (here / there.name if here.is_dir() else here).resolve()
        if target.exists() and not target.is_file():  # a pipe or a device is written to, not replaced
            with target.open("wb", buffering=0) as device:
                self._tried(lambda: self._receive(there.path, lambda data: _all(device, data)), 1)
            return

        def attempt() -> None:
            with _draft(target) as file:
                self._receive(there.path, lambda data: _all(file, data))
                os.fchmod(file.fileno(), _mode(found))

        self._tried(attempt)

    def _folder_out(self, there: There, here: Path) -> None:
        target = (here / there.name if here.is_dir() else here).resolve()
        if target.exists():
            raise CommandError(f"{plain(str(target))} is there already: remove it, or say another name")
        draft = Path(tempfile.mkdtemp(prefix=DRAFT, dir=target.parent))
        try:
            whole = draft / "folder"
            whole.mkdir()
            self._receive_folder(there.path, whole, 0)
            whole.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _receive_folder(self, path: str, into: Path, depth: int) -> None:
        """`into` is ours alone and was empty, so that a name can meet nothing but what came from there."""
        if depth >= DEEPEST:
            raise CommandError(f"folders in {self.session.session_id} lie deeper than {DEEPEST}: {plain(path)[:200]}")
        found = self.session.api.get(f"{self.session.path}/files/list", {"path": path})
        if unnamed := found.get("unnamed"):
            self.skipped.append(f"{plain(path)}: {unnamed} whose names are not UTF-8")
        for one in found["files"]:
            self.entries += 1
            if self.entries > MOST_FILES:
                raise CommandError(f"there are more than {MOST_FILES} files and folders")
            name, kind = one.get("name"), one.get("kind")
            below = f"{path.rstrip('/')}/{name}"
            if not is_name(name):
                self.skipped.append(f"{plain(below)}: no name that a file can have here")
            elif kind == "folder":
                (into / name).mkdir()
                self._receive_folder(below, into / name, depth + 1)
            elif kind == "file":
                self._receive_file(below, into / name, one)
            else:
                self.skipped.append(f"{plain(below)}: neither a file nor a folder")

    def _receive_file(self, path: str, target: Path, found: dict[str, Any]) -> None:
        def attempt() -> None:
            target.unlink(missing_ok=True)
            with target.open("xb", buffering=0) as file:
                self._receive(path, lambda data: _all(file, data))
                os.fchmod(file.fileno(), _mode(found))

        self._tried(attempt)

    def _receive(self, path: str, take: Callable[[bytes], None]) -> None:
        with self.session.api.download(f"{self.session.path}/files/content", {"path": path}) as pieces:
            for piece in pieces:
                self._moved(path, len(piece))
                if self.size > self.most:
                    limit = f"{self.most // 1024 // 1024} MiB"
                    raise CommandError(f"{plain(path)} is more than --max-size, {limit}: say how much it may be")
                take(piece)

    # --- both --------------------------------------------------------------------------------------------------

    def _tried(self, attempt: Callable[[], None], tries: int = TRIES) -> None:
        """A copy that was cut off begins again."""
        before = self.size
        while True:
            try:
                attempt()
            except NoAnswerError:
                tries -= 1
                if tries <= 0:
                    raise
                self.size = before
            else:
                self.files += 1
                return

    def _stat(self, path: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self.session.api.get(f"{self.session.path}/files/stat", {"path": path})
        except ApiError as error:
            if error.status != 404:
                raise
            self.session.get()  # which says so where it is the session that is not there
            return None
        return found

    def _needs_recursive(self, what: str) -> None:
        if not self.recursive:
            raise UsageError(f"{plain(what)} is a folder: -r copies it")


def _all(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


@contextmanager
def _draft(target: Path) -> Iterator[FileIO]:
    """A file that takes the target's place when the block ends well, and is gone when it does not."""
    descriptor, name = tempfile.mkstemp(prefix=DRAFT, dir=target.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            yield file
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _not_the_draft(path: Path) -> Path:
    """Nobody knows the names of our drafts: the folder that one is in, or was to be."""
    return next((above.parent for above in (path, *path.parents) if above.name.startswith(DRAFT)), path)


def _mode(found: dict[str, Any]) -> int:
    """As a new file here has it; of the one there, only whether it is a program."""
    mask = os.umask(0)
    os.umask(mask)
    return (0o777 if int(str(found.get("mode", "0")), 8) & 0o100 else 0o666) & ~mask
