"""The warden's file commands, with openat2 and without, on the tricks that untrusted programs play with paths."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import TimeBounds, unavailable
from tests.noise import Watch
from tests.unit.warden_harness import (
    EXITED,
    LIST,
    MKDIR,
    READ,
    RECURSIVE,
    REMOVE,
    SIGNALED,
    STAT,
    STDIN,
    TIMED_OUT,
    USER,
    WRITE,
    Owner,
    Result,
    Sandbox,
    build,
    make_spec,
)
from tests.waiting import wait_past

VARIANTS = [
    "",
    "-no-openat2",
    *(pytest.param(name, marks=pytest.mark.variant) for name in ("-asan", "-asan-no-openat2")),
]
FILE, FOLDER, LINK, OTHER = 1, 2, 3, 4


@dataclass(frozen=True)
class Record:
    kind: int
    mode: int
    uid: int
    gid: int
    size: int
    modified_ms: int
    name: str


def records(data: bytes) -> dict[str, Record]:
    found = {}
    at = 0
    while at < len(data):
        kind, mode, uid, gid, size, modified, length = struct.unpack_from(">BIIIQQI", data, at)
        name = data[at + 33 : at + 33 + length].decode()
        found[name] = Record(kind, mode, uid, gid, size, modified, name)
        at += 33 + length
    return found


@dataclass
class Files:
    owner: Owner
    root: Path

    def do(self, kind: int, path: str, stdin: bytes | None = None, **options: int) -> Result:
        spec = make_spec([path], kind=kind, directory=str(self.root), env=(), **options)
        result = self.owner.run(spec, stdin)
        assert result.exit.state == EXITED
        assert result.pid
        return result

    def code(self, kind: int, path: str, stdin: bytes | None = None, **options: int) -> int:
        return self.do(kind, path, stdin, **options).exit.code


@pytest.fixture(scope="module", params=VARIANTS)
def owner(request: pytest.FixtureRequest) -> Iterator[Owner]:
    if os.geteuid() != 0:
        unavailable("namespaces for the warden need root")
    sandbox = Sandbox(build() / f"fumehood-warden{request.param}")
    attached = Owner(sandbox)
    attached.attach(fresh=True, orphan_ms=120_000)
    yield attached
    sandbox.close()


@pytest.fixture
def files(owner: Owner) -> Iterator[Files]:
    outside = Path(tempfile.mkdtemp(prefix="fumehood-files-"))
    outside.chmod(0o777)
    root = outside / "root"
    root.mkdir()
    (outside / "secret").write_text("secret")
    for path in (root, outside / "secret"):
        os.chown(path, USER, USER)
    yield Files(owner, root)
    shutil.rmtree(outside)


def make(path: Path, content: bytes = b"", mode: int = 0o644) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    os.chown(path, USER, USER)
    return path


def folder(path: Path) -> Path:
    path.mkdir()
    os.chown(path, USER, USER)
    return path


def test_read(files: Files) -> None:
    content = os.urandom(300_000)
    folder(files.root / "a")
    make(files.root / "a" / "f", content)
    assert files.do(READ, "a/f").stdout == content
    assert files.do(READ, "./a//f").stdout == content
    assert files.do(READ, "a/f", offset=1000).stdout == content[1000:]
    assert files.do(READ, "a/f", offset=1000, length=99).stdout == content[1000:1099]
    assert files.do(READ, "a/f", offset=299_999, length=99).stdout == content[-1:]
    assert files.do(READ, "a/f", offset=1 << 40).stdout == b""
    assert files.code(READ, "a/f", offset=1 << 63) == errno.EINVAL
    assert files.code(READ, "a/missing") == errno.ENOENT
    assert files.code(READ, "missing/f") == errno.ENOENT
    assert files.code(READ, "a/f/g") == errno.ENOTDIR
    assert files.code(READ, "a") == errno.EISDIR
    assert files.code(READ, "") == errno.EISDIR


def test_the_kernels_permissions_hold(files: Files) -> None:
    make(files.root / "private", b"x", 0o600)
    os.chown(files.root / "private", 0, 0)
    assert files.code(READ, "private") == errno.EACCES
    assert files.code(READ, "private", uid=0, gid=0) == 0
    os.chown(files.root, 0, 0)
    files.root.chmod(0o755)
    assert files.code(WRITE, "new", b"x") == errno.EACCES
    assert files.code(MKDIR, "new") == errno.EACCES
    assert files.code(REMOVE, "private") == errno.EACCES


@pytest.mark.parametrize("kind", [READ, WRITE, LIST, STAT, REMOVE, MKDIR])
@pytest.mark.parametrize(
    "path", ["/etc/passwd", "..", "../secret", "a/../../secret", "a/..", "./..", "a/b/../..", "/", "//"]
)
def test_paths_that_would_leave_the_root_are_refused(files: Files, kind: int, path: str) -> None:
    folder(files.root / "a")
    assert files.code(kind, path, b"overwritten" if kind == WRITE else None, flags=RECURSIVE) == errno.EINVAL
    assert (files.root.parent / "secret").read_text() == "secret"
    assert (files.root / "a").is_dir()


def test_links_are_never_followed(files: Files) -> None:
    secret = files.root.parent / "secret"
    (files.root / "file").symlink_to(secret)
    (files.root / "folder").symlink_to(files.root.parent)
    (files.root / "dangling").symlink_to("nowhere")
    inside = folder(files.root / "inside")
    make(inside / "f", b"f")
    (files.root / "friendly").symlink_to("inside")
    for path in ("file", "folder/secret", "folder", "dangling", "friendly/f", "friendly"):
        assert files.code(READ, path) == errno.ELOOP
        assert files.code(WRITE, path, b"x") == errno.ELOOP
        assert files.code(WRITE, path, b"x", flags=RECURSIVE) == errno.ELOOP
        assert files.code(LIST, path) == errno.ELOOP
    for path in ("folder/new", "friendly/new"):
        assert files.code(MKDIR, path) == errno.ELOOP
        assert files.code(MKDIR, path, flags=RECURSIVE) == errno.ELOOP
        assert files.code(REMOVE, path) == errno.ELOOP
    assert files.code(MKDIR, "folder", flags=RECURSIVE) == errno.EEXIST
    assert secret.read_text() == "secret"
    found = records(files.do(STAT, "file").stdout)
    assert found["file"].kind == LINK
    assert files.code(REMOVE, "file") == 0
    assert files.code(REMOVE, "folder", flags=RECURSIVE) == 0
    assert secret.read_text() == "secret"
    assert not (files.root / "folder").is_symlink()


def test_nothing_blocks_on_what_is_no_file(files: Files, time_bounds: TimeBounds) -> None:
    os.mkfifo(files.root / "fifo", 0o666)
    os.chown(files.root / "fifo", USER, USER)
    os.mknod(files.root / "zero", 0o020666, os.makedev(1, 5))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(files.root / "socket"))
        (files.root / "socket").chmod(0o777)
        begun = Watch()
        for name in ("fifo", "zero", "socket"):
            assert files.code(READ, name) == errno.EINVAL
            assert files.code(WRITE, name, b"x") == errno.EINVAL
            assert records(files.do(STAT, name).stdout)[name].kind == OTHER
            assert files.code(LIST, name) == errno.ENOTDIR
            assert files.code(REMOVE, name) == 0
    time_bounds.check(begun.seconds, 10)
    assert list(files.root.iterdir()) == []


def test_write(files: Files) -> None:
    content = os.urandom(700_000)
    assert files.code(WRITE, "new", content, mode=0o640) == 0
    made = (files.root / "new").stat()
    assert (files.root / "new").read_bytes() == content
    assert (made.st_mode & 0o7777, made.st_uid, made.st_gid) == (0o640, USER, USER)
    assert files.code(WRITE, "new", b"", mode=0o4777) == 0
    assert ((files.root / "new").stat().st_mode & 0o7777, (files.root / "new").stat().st_size) == (0o777, 0)
    assert files.code(WRITE, "a/b/c", b"deep") == errno.ENOENT
    assert files.code(WRITE, "a/b/c", b"deep", flags=RECURSIVE, mode=0o600) == 0
    assert (files.root / "a/b/c").read_bytes() == b"deep"
    assert (files.root / "a/b").stat().st_mode & 0o7777 == 0o755
    assert files.code(WRITE, "a", b"x") == errno.EISDIR
    assert files.code(WRITE, "", b"x") == errno.EISDIR
    assert files.code(WRITE, "x" * 256, b"x") == errno.ENAMETOOLONG
    assert sorted(path.name for path in files.root.iterdir()) == ["a", "new"]


def test_a_reader_never_sees_half_a_file(files: Files) -> None:
    make(files.root / "f", b"old")
    spec = make_spec(["f"], kind=WRITE, directory=str(files.root), timeout_ms=800)
    command = files.owner.start(spec)
    files.owner.send(STDIN, struct.pack(">Q", 0) + b"half", command)
    files.owner.started(command)
    wait_past(0.2)
    assert (files.root / "f").read_bytes() == b"old"
    assert files.owner.finish(command).exit.state in {TIMED_OUT, SIGNALED}
    assert (files.root / "f").read_bytes() == b"old"


def test_list_and_stat(files: Files) -> None:
    make(files.root / "file ü", b"12345", 0o600)
    folder(files.root / "folder")
    (files.root / "link").symlink_to("x" * 10)
    os.utime(files.root / "file ü", ns=(0, 1_234_567_890_123_000_000))
    found = records(files.do(LIST, ".").stdout)
    assert found == records(files.do(LIST, "").stdout)
    assert set(found) == {"file ü", "folder", "link"}
    assert found["file ü"] == Record(FILE, 0o600, USER, USER, 5, 1_234_567_890_123, "file ü")
    assert (found["folder"].kind, found["link"].kind, found["link"].size) == (FOLDER, LINK, 10)
    assert records(files.do(STAT, "file ü").stdout) == {"file ü": found["file ü"]}
    assert records(files.do(STAT, "folder/").stdout) == {"folder": found["folder"]}
    assert records(files.do(STAT, ".").stdout)["."].kind == FOLDER
    assert files.code(LIST, "file ü") == errno.ENOTDIR
    assert files.code(STAT, "missing") == errno.ENOENT
    assert files.do(LIST, "folder").stdout == b""


def test_list_of_very_many(files: Files) -> None:
    for n in range(3_000):
        (files.root / f"{n:0200}").touch()
    assert len(records(files.do(LIST, "").stdout)) == 3_000


def test_list_has_a_largest_size_and_says_so(files: Files) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:  # on a disk this would take a minute
        many = Files(files.owner, Path(name))
        many.root.chmod(0o755)
        for n in range(100_000):
            (many.root / str(n)).symlink_to("x")
        assert len(records(many.do(LIST, "").stdout)) == 100_000
        (many.root / "one more").touch()
        result = many.do(LIST, "")
        assert (result.exit.code, len(records(result.stdout))) == (errno.EOVERFLOW, 100_000)


def test_remove(files: Files) -> None:
    make(files.root / "f")
    tree = folder(files.root / "tree")
    folder(tree / "sub")
    make(tree / "sub" / "f")
    (tree / "sub" / "link").symlink_to(files.root.parent)
    assert files.code(REMOVE, "f") == 0
    assert files.code(REMOVE, "f") == errno.ENOENT
    assert files.code(REMOVE, "tree") == errno.ENOTEMPTY
    assert files.code(REMOVE, "tree", flags=RECURSIVE) == 0
    folder(files.root / "empty")
    assert files.code(REMOVE, "empty") == 0
    assert files.code(REMOVE, "") == errno.EBUSY
    assert files.code(REMOVE, ".", flags=RECURSIVE) == errno.EBUSY
    assert list(files.root.iterdir()) == []
    assert (files.root.parent / "secret").exists()


def test_remove_of_a_tree_deeper_than_any_stack(files: Files) -> None:
    script = "import os\nfor n in range(3000):\n os.mkdir('d'); open('f', 'w').close(); os.chdir('d')"
    spec = make_spec(["/usr/bin/env", "python3", "-c", script], directory=str(files.root))
    assert files.owner.run(spec).exit.code == 0
    assert files.code(REMOVE, "d", flags=RECURSIVE) == 0
    assert [path.name for path in files.root.iterdir()] == ["f"]


def test_mkdir(files: Files) -> None:
    assert files.code(MKDIR, "a", mode=0o700) == 0
    assert (files.root / "a").stat().st_mode & 0o7777 == 0o700
    assert files.code(MKDIR, "a", mode=0o700) == errno.EEXIST
    assert files.code(MKDIR, "a", mode=0o700, flags=RECURSIVE) == 0
    assert files.code(MKDIR, "a/b/c", mode=0o700) == errno.ENOENT
    assert files.code(MKDIR, "a/b/c", mode=0o777, flags=RECURSIVE) == 0
    assert (files.root / "a/b/c").stat().st_mode & 0o7777 == 0o777
    make(files.root / "f")
    assert files.code(MKDIR, "f", flags=RECURSIVE) == errno.EEXIST
    assert files.code(MKDIR, "f/g", flags=RECURSIVE) == errno.ENOTDIR


def test_a_root_that_is_not_there(files: Files) -> None:
    gone = Files(files.owner, files.root / "gone")
    assert gone.code(LIST, "") == errno.ENOENT
    not_a_folder = Files(files.owner, make(files.root / "f"))
    assert not_a_folder.code(LIST, "") == errno.ENOTDIR
