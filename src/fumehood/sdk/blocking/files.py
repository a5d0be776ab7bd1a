# Made by scripts/derive-sync from sdk/aio/files.py; edit that, not this.
"""Files in a sandbox: read, written, listed, copied to and fro, and watched. Paths begin at `/workspace` unless they
begin with a slash."""

from __future__ import annotations

import builtins
import os
from collections.abc import Generator, Iterator
from io import FileIO
from pathlib import Path

from fumehood.errors import (
    FumehoodError,
    LimitExceededError,
    NoAnswerError,
    SandboxFileError,
    SandboxFileNotFoundError,
)
from fumehood.sdk import local_files
from fumehood.sdk.asking import TRIES
from fumehood.sdk.blocking import here
from fumehood.sdk.blocking.transport import PIECE_BYTES, Transport
from fumehood.sdk.file_values import FileChange, FileEvent, FileInfo, FileKind, Listing, Transfer
from fumehood.sdk.local_files import MOST_BYTES, MOST_FILES, Bounds, below, is_name

MOST_READ_BYTES = 64 * 1024 * 1024
"""Of a file that is read into memory, unless said otherwise."""
MOST_WATCHED = 10_000
Looked = dict[str, tuple[FileKind, int, object, int]]


class Files:
    """The files of a sandbox: `sandbox.files`.

    sb.files.write("greeting.txt", "hello")
    assert sb.files.read("greeting.txt") == "hello"
    """

    def __init__(self, transport: Transport, sandbox_path: str) -> None:
        """Made by a sandbox."""
        self._transport, self._path = transport, f"{sandbox_path}/files"

    # --- one file ------------------------------------------------------------------------------------------

    def read(self, path: str, *, max_bytes: int = MOST_READ_BYTES) -> str:
        """A text, in UTF-8.

        sb.files.write("a.txt", "grüße")
        assert sb.files.read("a.txt") == "grüße"
        """
        data = self.read_bytes(path, max_bytes=max_bytes)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise SandboxFileError(f"{path!r} is no text in UTF-8").advise("read_bytes() reads it as it is") from None

    def read_bytes(self, path: str, *, max_bytes: int = MOST_READ_BYTES) -> bytes:
        """A file as it is. `LimitExceededError` where it is longer than `max_bytes`.

        sb.files.write("a.bin", b"\\xff\\x00")
        assert sb.files.read_bytes("a.bin") == b"\\xff\\x00"
        """
        for tried in range(1, TRIES + 1):
            found = bytearray()
            try:
                with self._transport.download(f"{self._path}/content", {"path": path}) as pieces:
                    for piece in pieces:
                        found += piece
                        if len(found) > max_bytes:
                            raise LimitExceededError(f"{path!r} is longer than max_bytes={max_bytes}").advise()
                return bytes(found)
            except FumehoodError as error:
                _before_another(error, tried)
        raise AssertionError("unreachable")

    def write(self, path: str, data: str | bytes, *, mode: int | None = None, parents: bool = True) -> None:
        """Writes a file, whole or not at all; what was there is replaced. `mode`: who may do what with it, 0o644 unless
        said otherwise. `parents`: make the folders above it.

            sb.files.write("bin/hello", "#!/bin/sh\\necho hello\\n", mode=0o755)
            assert (sb.commands.run("bin/hello")).stdout == "hello\\n"
        """
        content = data.encode() if isinstance(data, str) else bytes(data)
        query = {"path": path, "mode": None if mode is None else f"{mode:04o}", "parents": _flag(parents)}
        for tried in range(1, TRIES + 1):
            try:
                self._transport.put(f"{self._path}/content", content=content, query=query)
                return
            except FumehoodError as error:
                _before_another(error, tried)

    def stat(self, path: str) -> FileInfo:
        """What a path is; links are not followed. `SandboxFileNotFoundError` where there is nothing.

        sb.files.write("a.txt", "hello")
        assert (sb.files.stat("a.txt")).size_bytes == 5
        """
        return FileInfo.of(self._transport.get(f"{self._path}/stat", {"path": path}), path)

    def exists(self, path: str) -> bool:
        """Whether there is something.

        assert sb.files.exists("/etc")
        assert not sb.files.exists("/no/such/thing")
        """
        try:
            self.stat(path)
        except SandboxFileNotFoundError:
            return False
        return True

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file or an empty folder; with `recursive`, a folder with all that is in it.

        sb.files.write("old/a.txt", "")
        sb.files.remove("old", recursive=True)
        assert not sb.files.exists("old")
        """
        self._transport.delete(self._path, {"path": path, "recursive": _flag(recursive)})

    # --- folders -------------------------------------------------------------------------------------------

    def list(self, path: str = ".") -> Listing:
        """What is in a folder, by name.

        sb.files.write("docs/a.txt", "hello")
        assert [one.name for one in sb.files.list("docs")] == ["a.txt"]
        """
        said = self._transport.get(f"{self._path}/list", {"path": path})
        found = (FileInfo.of(one, below(path, str(one["name"]))) for one in said["files"])
        return Listing(found, unnamed=int(said.get("unnamed", 0)))

    def make_folder(self, path: str, *, mode: int | None = None, parents: bool = True) -> None:
        """Makes a folder, and those above it.

        sb.files.make_folder("a/b/c")
        assert (sb.files.stat("a/b/c")).kind == "folder"
        """
        query = {"path": path, "mode": None if mode is None else f"{mode:04o}", "parents": _flag(parents)}
        self._transport.post(f"{self._path}/folders", query=query, again=parents)

    def watch(
        self, path: str = ".", *, recursive: bool = False, interval: float = 1.0, max_files: int = MOST_WATCHED
    ) -> Generator[FileEvent, None]:
        """What changes in a folder from now on, as two looks at it tell, `interval` seconds apart. So what comes and
        goes between two looks is not seen, and a change is one of size, time, mode or kind. Goes on until you stop, or
        the sandbox is gone (`SandboxGoneError`).

            changes = sb.files.watch(interval=0.1)
            sb.files.write("seen.txt", "hello")
            assert next(changes) == FileEvent(FileChange.CREATED, "seen.txt")
        """
        before = self._look(path, recursive, max_files)
        return self._changes(before, path, recursive, interval, max_files)

    def _changes(
        self, before: Looked, path: str, recursive: bool, interval: float, max_files: int
    ) -> Generator[FileEvent, None]:
        while True:
            here.sleep(interval)
            now = self._look(path, recursive, max_files)
            for name in sorted(before.keys() | now.keys()):
                if name not in before:
                    yield FileEvent(FileChange.CREATED, name)
                elif name not in now:
                    yield FileEvent(FileChange.REMOVED, name)
                elif now[name] != before[name]:
                    yield FileEvent(FileChange.CHANGED, name)
            before = now

    def _look(self, path: str, recursive: bool, max_files: int) -> Looked:
        found: Looked = {}
        folders = [(path, 0)]
        while folders:
            folder, depth = folders.pop()
            try:
                listed = self.list(folder)
            except SandboxFileNotFoundError:
                if depth == 0:
                    raise
                continue  # it went between two questions
            for one in listed:
                is_folder = one.kind is FileKind.FOLDER
                changed = None if is_folder else one.modified_at
                found[one.path] = (one.kind, 0 if is_folder else one.size_bytes, changed, one.mode)
                if recursive and is_folder and depth < local_files.DEEPEST:
                    folders.append((one.path, depth + 1))
            if len(found) > max_files:
                raise LimitExceededError(f"{path!r} has more than max_files={max_files}").advise()
        return found

    # --- copies --------------------------------------------------------------------------------------------

    def upload(self, local: str | os.PathLike[str], remote: str, *, max_files: int = MOST_FILES) -> Transfer:
        """Copies a file or a folder from here into the sandbox, to `remote`. Links in a folder are left out, and named
        in `skipped`.

            Path("src").mkdir()
            Path("src/main.py").write_text("print('hello')")
            sb.files.upload("src", "src")
            assert (sb.commands.run("python3 src/main.py")).stdout == "hello\\n"
        """
        source, done, bounds = Path(local), Transfer(), Bounds(max_files=max_files, max_bytes=2**62)
        try:
            if not here.in_thread(source.is_dir):
                self._send(local_files.Local(source, "file", remote), done)
                return done
            self.make_folder(remote or ".")
            for one in here.in_thread(lambda: builtins.list(local_files.to_send(source, remote))):
                if one.kind == "folder":
                    self.make_folder(one.target)
                    done.folders += 1
                elif one.kind == "file":
                    self._send(one, done)
                else:
                    done.skipped.append(f"{one.path}: {one.kind}")
                bounds.check(done)
        except OSError as error:
            raise SandboxFileError(f"{error.filename} cannot be read here: {error.strerror}").advise() from None
        return done

    def _send(self, one: local_files.Local, done: Transfer) -> None:
        query = {"path": one.target, "mode": one.mode}
        for tried in range(1, TRIES + 1):
            with one.path.open("rb", buffering=0) as file:
                try:
                    pieces = _read(file)
                    said = self._transport.put(f"{self._path}/content", content=pieces, query=query)
                    done.files, done.size_bytes = done.files + 1, done.size_bytes + int(said["size_bytes"])
                    return
                except FumehoodError as error:
                    _before_another(error, tried)

    def download(
        self,
        remote: str,
        local: str | os.PathLike[str],
        *,
        max_bytes: int = MOST_BYTES,
        max_files: int = MOST_FILES,
    ) -> Transfer:
        """Copies a file or a folder from the sandbox to `local`; into it, where that is a folder. It is there whole or
        not at all, and a folder never replaces or fills up what is there. What is neither a file nor a folder is left
        out, and named in `skipped`: no link is followed, there or here. `LimitExceededError` where there is more than
        the bounds say.

            sb.commands.run("mkdir -p out && echo 1 > out/a && echo 2 > out/b")
            sb.files.download("out", "results")
            assert Path("results/b").read_text() == "2\\n"
        """
        found, done = self.stat(remote), Transfer()
        target, bounds = local_files.target_of(local, remote), Bounds(max_bytes, max_files)
        try:
            if found.kind is FileKind.FOLDER:
                with local_files.draft_folder(target) as folder:
                    self._receive_folder(remote, folder, done, bounds, 0)
            else:
                self._receive_file(found, target, done, bounds)
        except OSError as error:
            raise SandboxFileError(f"{target} cannot be written here: {error.strerror}").advise() from None
        return done

    def _receive_folder(self, path: str, into: Path, done: Transfer, bounds: Bounds, depth: int) -> None:
        if depth >= local_files.DEEPEST:
            raise LimitExceededError(f"folders lie deeper than {local_files.DEEPEST}").advise("download a part of it")
        listed = self.list(path)
        if listed.unnamed:
            done.skipped.append(f"{path}: {listed.unnamed} whose names are not UTF-8")
        for one in listed:
            if not is_name(one.name):
                done.skipped.append(f"{one.path!r}: no name that a file can have here")
            elif one.kind is FileKind.FOLDER:
                (into / one.name).mkdir()
                done.folders += 1
                self._receive_folder(one.path, into / one.name, done, bounds, depth + 1)
            elif one.kind is FileKind.FILE:
                self._receive_file(one, into / one.name, done, bounds)
            else:
                done.skipped.append(f"{one.path}: neither a file nor a folder")
            bounds.check(done)

    def _receive_file(self, found: FileInfo, target: Path, done: Transfer, bounds: Bounds) -> None:
        before = done.size_bytes
        for tried in range(1, TRIES + 1):
            done.size_bytes = before
            try:
                with local_files.draft_file(target) as file:
                    with self._transport.download(f"{self._path}/content", {"path": found.path}) as pieces:
                        for piece in pieces:
                            done.size_bytes += len(piece)
                            bounds.check(done)
                            here.in_thread(local_files.write_all, file, piece)
                    local_files.permit(file, found.mode)
                done.files += 1
                return
            except FumehoodError as error:
                _before_another(error, tried)


def _read(file: FileIO) -> Iterator[bytes]:
    """A file here, in pieces, of which nobody holds all."""
    while piece := here.in_thread(file.read, PIECE_BYTES):
        yield piece


def _before_another(error: FumehoodError, tried: int) -> None:
    """A copy that was cut off begins again, some times."""
    cut = isinstance(error, NoAnswerError) or error.retry_after_seconds is not None
    if tried >= TRIES or not cut:
        raise error
    here.sleep(min(error.retry_after_seconds or 0.5 * tried, 10.0))


def _flag(value: bool) -> str:
    return "true" if value else "false"
