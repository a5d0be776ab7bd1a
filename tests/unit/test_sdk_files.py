"""What comes out of a sandbox is a stranger's: put where it was asked for, whole or not at all, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fumehood import InvalidRequestError, LimitExceededError, NoAnswerError, Sandbox, SandboxFileError
from fumehood.sdk import asking
from tests.unit.session_server import Cut, SessionServer, session_server

FOLDER = {"kind": "folder"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SessionServer]:
    monkeypatch.setattr(asking, "SHORTEST_PAUSE_SECONDS", 0.01)
    with session_server() as made:
        yield made


@pytest.fixture
def sandbox(server: SessionServer) -> Iterator[Sandbox]:
    with Sandbox.connect("s-1", url=server.url) as found:
        yield found


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with nothing beside it, in which anything that strays would be seen."""
    made = tmp_path / "a" / "here"
    made.mkdir(parents=True)
    return made


def all_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def named(name: Any, **more: Any) -> dict[str, Any]:
    return {"kind": "file", "name": name, **more}


@pytest.mark.parametrize("name", ["..", ".", "", "../evil", "/etc/evil", "a/b", "a\0b", "..\0", "\udc80"])
def test_a_name_never_leads_out(server: SessionServer, sandbox: Sandbox, here: Path, tmp_path: Path, name: str) -> None:
    server.files |= {"out": FOLDER, "out/good": b"good", "out/evil": {"kind": "file", "name": name}}
    done = sandbox.files.download("out", here / "got")
    assert (done.files, len(done.skipped)) == (1, 1)
    assert all_of(tmp_path) == {"a", "a/here", "a/here/got", "a/here/got/good"}


def test_a_folder_with_a_wrong_name_is_not_entered(server: SessionServer, sandbox: Sandbox, here: Path) -> None:
    server.files |= {"out": FOLDER, "out/x": {"kind": "folder", "name": "../up"}, "out/../up/evil": b"x"}
    assert sandbox.files.download("out", here / "got").files == 0
    assert all_of(here) == {"got"}


def test_links_and_devices_are_left_out(server: SessionServer, sandbox: Sandbox, here: Path) -> None:
    server.files |= {"out": FOLDER, "out/link": {"kind": "link"}, "out/device": {"kind": "other"}, "out/a": b"a"}
    done = sandbox.files.download("out", here / "got")
    assert sorted(done.skipped) == ["out/device: neither a file nor a folder", "out/link: neither a file nor a folder"]
    assert all_of(here) == {"got", "got/a"}


def test_a_folder_is_not_put_over_what_is_there(server: SessionServer, sandbox: Sandbox, here: Path) -> None:
    """Where a link of somebody else's could lie in wait."""
    server.files |= {"out": FOLDER, "out/a": b"a"}
    (here / "out").mkdir()
    (here / "out" / "a").symlink_to(here / "elsewhere")
    for target in (here, here / "dangling"):
        (here / "dangling").unlink(missing_ok=True)
        (here / "dangling").symlink_to(here / "nowhere")
        with pytest.raises(InvalidRequestError, match="is there already"):
            sandbox.files.download("out", target)
    assert not (here / "elsewhere").exists()
    assert not (here / "nowhere").exists()


def test_a_link_in_the_files_place_is_replaced_and_not_followed(
    server: SessionServer, sandbox: Sandbox, here: Path
) -> None:
    server.files["a"] = b"new"
    (here / "secret").write_text("old")
    (here / "a").symlink_to(here / "secret")
    sandbox.files.download("a", here / "a")
    assert (here / "secret").read_text() == "old"
    assert not (here / "a").is_symlink()
    assert (here / "a").read_text() == "new"


def test_into_a_folder_it_goes_under_its_own_name(server: SessionServer, sandbox: Sandbox, here: Path) -> None:
    server.files |= {"deep/a.txt": b"x", "..": FOLDER}
    sandbox.files.download("deep/a.txt", here)
    assert all_of(here) == {"a.txt"}
    with pytest.raises(InvalidRequestError, match="has no name of its own"):
        sandbox.files.download("..", here)


@pytest.mark.parametrize(
    ("bounds", "kind"),
    [
        ({"max_bytes": 15}, b"x" * 10),
        ({"max_files": 1}, b"x"),
        ({"max_files": 1}, FOLDER),
        ({"max_files": 1}, {"kind": "link"}),
    ],
)
def test_more_than_is_wanted_leaves_nothing(
    server: SessionServer, sandbox: Sandbox, here: Path, bounds: dict[str, int], kind: bytes | dict[str, Any]
) -> None:
    server.files |= {"out": FOLDER, "out/a": kind, "out/b": kind}
    with pytest.raises(LimitExceededError, match=next(iter(bounds))):
        sandbox.files.download("out", here / "got", **bounds)
    assert all_of(here) == set()


def test_a_folder_without_an_end_is_given_up(server: SessionServer, sandbox: Sandbox, here: Path) -> None:
    path = "out"
    for _ in range(70):
        server.files[path] = FOLDER
        path += "/d"
    with pytest.raises(LimitExceededError, match="deeper than 64"):
        sandbox.files.download("out", here / "got")
    assert all_of(here) == set()


def test_what_is_cut_off_is_begun_again_and_never_left_half(
    server: SessionServer, sandbox: Sandbox, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = iter([True, True])

    def faults(when: str, method: str, path: str) -> int | None:
        if when == "after" and path.endswith("/content") and next(cuts, False):
            raise Cut
        return None

    monkeypatch.setattr("fumehood.sdk.blocking.files.here.sleep", lambda seconds: None)
    server.files["a"] = b"whole"
    server.faults = faults
    done = sandbox.files.download("a", here / "a")
    assert (done.files, done.size_bytes) == (1, 5)
    assert (here / "a").read_bytes() == b"whole"

    (here / "a").write_bytes(b"mine")
    cuts = iter([True] * 100)
    with pytest.raises(NoAnswerError):
        sandbox.files.download("a", here / "a")
    assert (here / "a").read_bytes() == b"mine"
    assert all_of(here) == {"a"}


def test_what_cannot_be_read_or_written_here_is_told(server: SessionServer, sandbox: Sandbox, here: Path) -> None:
    server.files["a"] = b"x"
    with pytest.raises(SandboxFileError, match="cannot be written here: No such file or directory"):
        sandbox.files.download("a", here / "no" / "folder")
    with pytest.raises(SandboxFileError, match="cannot be read here: No such file or directory"):
        sandbox.files.upload(here / "nothing", "x")


def test_an_upload_has_names_that_can_be_said_and_no_links(server: SessionServer, sandbox: Sandbox, here: Path) -> None:
    (here / "src" / "empty").mkdir(parents=True)
    (here / "src" / "a").write_bytes(b"a")
    (here / "src" / "up").symlink_to("..")
    (here / "src" / os.fsdecode(b"\xff")).write_bytes(b"x")
    done = sandbox.files.upload(here / "src", "to/")
    assert server.files == {"to/": FOLDER, "to/a": b"a", "to/empty": FOLDER}
    assert (done.files, done.folders, len(done.skipped)) == (1, 1, 2)
    with pytest.raises(LimitExceededError, match="max_files=0"):
        sandbox.files.upload(here / "src", "to", max_files=0)
    assert sandbox.files.upload(here / "src", "").folders == 1
