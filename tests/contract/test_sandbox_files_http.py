"""Files in sandboxes at the server's door: any bytes, long ones piece by piece, nothing by half."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import AsyncIterator

import httpx
import pytest

from fumehood.control.http import sandbox_files
from fumehood.door.app import Door
from fumehood.door.middleware import BodyLimits
from fumehood.wire.console import sessions as wire
from fumehood.wire.console.codes import PIECE_BYTES, Reason
from fumehood.wire.sandbox_api import CONTENT_PATH, MAX_FILE_BYTES
from tests.contract.console_harness import Desk, desk
from tests.contract.console_worker import MemoryWorker
from tests.contract.test_commands_http import problem
from tests.waiting import past, until

BYTES = {"content-type": "application/octet-stream"}
MIB = 1024 * 1024


@pytest.fixture
async def there() -> AsyncIterator[Desk]:
    async with desk() as made:
        yield made


def content(sandbox: str) -> str:
    return f"/v1/sandboxes/{sandbox}/files/content"


async def put(there: Desk, sandbox: str, path: str, data: bytes, **query: str) -> httpx.Response:
    return await there.client.put(content(sandbox), params={"path": path, **query}, content=data, headers=BYTES)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 7])
async def test_what_is_written_is_read_again(there: Desk, size: int) -> None:
    sandbox = await there.sandbox()
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    answer = await put(there, sandbox, "a/b.bin", data)
    assert (answer.status_code, answer.json()) == (200, {"path": "a/b.bin", "size_bytes": size})
    read = await there.client.get(content(sandbox), params={"path": "/workspace/a/b.bin"})
    assert (read.status_code, read.content) == (200, data)
    assert read.headers["content-length"] == str(size)
    assert read.headers["content-type"] == "application/octet-stream"
    assert there.worker.largest <= PIECE_BYTES


async def test_content_is_never_a_page_of_ours(there: Desk) -> None:
    sandbox = await there.sandbox()
    await put(there, sandbox, "x.html", b"<script>alert(1)</script>")
    read = await there.client.get(content(sandbox), params={"path": "x.html"})
    assert read.headers["content-type"] == "text/html"
    assert read.headers["content-disposition"] == "attachment"
    assert read.headers["x-content-type-options"] == "nosniff"


async def test_a_type_that_is_none_is_not_passed_on(there: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await there.sandbox()
    await put(there, sandbox, "f", b"x")
    read_file = there.worker.read_file

    async def lying(owner: str, asked: wire.ReadFile, _: bytes) -> tuple[wire.FilePiece, bytes]:
        piece, found = await read_file(owner, asked, b"")
        return piece.model_copy(update={"mime_type": "text/plain\r\nset-cookie: a=b"}), found

    monkeypatch.setattr(there.worker, "read_file", lying)
    read = await there.client.get(content(sandbox), params={"path": "f"})
    assert read.headers["content-type"] == "application/octet-stream"
    assert "set-cookie" not in read.headers


async def test_modes_and_folders(there: Desk) -> None:
    sandbox = await there.sandbox()
    files = f"/v1/sandboxes/{sandbox}/files"
    assert (await there.client.post(f"{files}/folders", params={"path": "d", "mode": "0700"})).status_code == 204
    await put(there, sandbox, "d/run", b"#!", mode="755")
    listed = (await there.client.get(f"{files}/list", params={"path": "d"})).json()
    assert listed == {
        "files": [
            {
                "name": "run",
                "kind": "file",
                "size_bytes": 2,
                "mode": "0755",
                "uid": 65532,
                "gid": 65532,
                "modified_at": "2026-02-16T12:00:00.000Z",
            }
        ],
        "unnamed": 0,
    }
    assert (await there.client.get(f"{files}/stat", params={"path": "d"})).json()["kind"] == "folder"
    assert (await there.client.get(f"{files}/stat", params={"path": "d/run"})).json() == listed["files"][0]
    problem(await there.client.delete(files, params={"path": "d"}), 409, "file-error", "file_error")
    done = await there.client.delete(files, params={"path": "d", "recursive": "true"})
    assert (done.status_code, done.content) == (204, b"")
    problem(await there.client.get(f"{files}/stat", params={"path": "d"}), 404, "file-not-found", "file_not_found")


async def test_a_folder_has_no_content(there: Desk) -> None:
    sandbox = await there.sandbox()
    answer = await there.client.get(content(sandbox), params={"path": "/workspace"})
    problem(answer, 409, "path-is-directory", "path_is_directory")
    problem(await put(there, sandbox, "/workspace", b"x"), 409, "path-is-directory", "path_is_directory")
    problem(await put(there, sandbox, "no/f", b"x", parents="false"), 404, "file-not-found", "file_not_found")


async def test_a_file_that_is_too_large_for_its_worker_is_413(there: Desk) -> None:
    sandbox = await there.sandbox()
    there.worker.failing = Reason.FILE_TOO_LARGE
    answer = await there.client.get(content(sandbox), params={"path": "f"})
    problem(answer, 413, "file-too-large", "file_too_large")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "content"),
        ("GET", "content?path="),
        ("GET", "content?path=%00"),
        ("GET", "content?path=a%00b"),
        ("GET", "content?path=" + "x" * 4097),
        ("GET", "content?path=a&path=b"),
        ("GET", "content?path=a&range=1"),
        ("PUT", "content?path=a&mode=9"),
        ("PUT", "content?path=a&mode=4755"),
        ("PUT", "content?path=a&mode=rwx"),
        ("PUT", "content?path=a&parents=1"),
        ("PUT", "content"),
        ("GET", "list"),
        ("GET", "stat"),
        ("POST", "folders"),
        ("POST", "folders?path=a&recursive=true"),
        ("DELETE", "?recursive=true"),
        ("DELETE", "?path=a&recursive=yes"),
    ],
)
async def test_other_questions_are_400(there: Desk, method: str, path: str) -> None:
    sandbox = await there.sandbox()
    url = f"/v1/sandboxes/{sandbox}/files/{path}".replace("/?", "?")
    problem(await there.client.request(method, url, headers=BYTES if method == "PUT" else {}), 400, "invalid-request")
    assert there.worker.calls == ["session.create"]


async def test_only_bytes_are_taken(there: Desk) -> None:
    sandbox = await there.sandbox()
    answer = await there.client.put(content(sandbox), params={"path": "f"}, json={})
    problem(answer, 415, "unsupported-media-type")


# --- long ones, over a socket ------------------------------------------------------------------------------


def test_the_bound_of_this_route_is_its_own() -> None:
    limits = sandbox_files.LONG_BODIES["PUT", CONTENT_PATH]
    assert (limits.limit, limits.streamed) == (MAX_FILE_BYTES, True)
    assert list(sandbox_files.LONG_BODIES) == [("PUT", CONTENT_PATH)]


async def test_a_long_file_passes_in_constant_memory() -> None:
    """Far more than other bodies may have, up and down; the double keeps it, nobody else does."""
    size = 24 * MIB
    seen = hashlib.sha256()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(size // MIB):
            yield b"0123456789abcdef" * (MIB // 16)

    class Forgetful(MemoryWorker):
        """Keeps a hash, and makes the same bytes again."""

        async def write_file(self, owner: str, asked: wire.WriteFile, data: bytes) -> wire.Written:
            seen.update(data)
            return wire.Written(received=asked.offset + len(data))

        async def read_file(self, owner: str, asked: wire.ReadFile, _: bytes) -> tuple[wire.FilePiece, bytes]:
            assert asked.offset % 16 == 0
            length = min(asked.limit, size - asked.offset)
            return wire.FilePiece(offset=asked.offset, size_bytes=size), b"0123456789abcdef" * (length // 16)

    async with desk(real=True) as there:
        there.worker.__class__ = Forgetful
        sandbox = await there.sandbox()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        answer = await there.client.put(content(sandbox), params={"path": "f"}, content=pieces(), headers=BYTES)
        assert answer.json()["size_bytes"] == size
        read = hashlib.sha256()
        async with there.client.stream("GET", content(sandbox), params={"path": "f"}) as answer:
            async for piece in answer.aiter_bytes():
                read.update(piece)
        peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        assert seen.hexdigest() == read.hexdigest()
        assert peak < 12 * MIB, peak


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller bound, so that a test can go beyond it."""
    guard = Door.guard

    def shorter(self: Door, **given: object) -> None:
        given["long_bodies"] = {("PUT", CONTENT_PATH): BodyLimits(16 * MIB, 5.0, stall_seconds=0.3, streamed=True)}
        guard(self, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(Door, "guard", shorter)


@pytest.mark.usefixtures("short")
async def test_what_is_too_long_is_413_and_nothing_of_it_is_there() -> None:
    async def unannounced() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield bytes(MIB)

    async with desk(real=True) as there:
        sandbox = await there.sandbox()
        for body in (unannounced(), bytes(16 * MIB + 1)):
            answer = await there.client.put(content(sandbox), params={"path": "f"}, content=body, headers=BYTES)
            problem(answer, 413, "payload-too-large")
            assert answer.headers["connection"] == "close"
        assert "/workspace/f" not in there.session(sandbox).files
        assert (await put(there, sandbox, "f", bytes(16 * MIB))).is_success


@pytest.mark.usefixtures("short")
async def test_what_stops_coming_is_given_up() -> None:
    async def stalling() -> AsyncIterator[bytes]:
        yield b"some"
        await past(1)
        yield b"more"

    async with desk(real=True) as there:
        sandbox = await there.sandbox()
        answer = await there.client.put(content(sandbox), params={"path": "f"}, content=stalling(), headers=BYTES)
        problem(answer, 408, "request-timeout")
        assert "/workspace/f" not in there.session(sandbox).files


async def test_an_upload_that_is_refused_early_hears_why() -> None:
    """It is still being written then: a connection that was only closed would lose the answer."""
    async with desk(real=True) as there:
        for _ in range(3):
            answer = await there.client.put(
                content("nobody"), params={"path": "f"}, content=bytes(8 * MIB), headers=BYTES
            )
            problem(answer, 404, "session-not-found", "session_not_found")


async def test_other_routes_keep_their_bound() -> None:
    async with desk(real=True) as there:
        sandbox = await there.sandbox()
        answer = await there.client.post("/v1/commands", content=bytes(11 * MIB))
        problem(answer, 413, "payload-too-large")
        path = f"/v1/sandboxes/{sandbox}/files/content?path=f"
        refused = await there.client.put(path, content=bytes(MIB), headers={"authorization": "Bearer wrong"})
        assert refused.status_code == 401
        assert there.worker.calls == ["session.create"]


@pytest.mark.parametrize("lost", [False, True])
async def test_a_file_that_shrinks_or_is_lost_while_it_is_read_is_not_whole(lost: bool) -> None:
    async with desk(real=True) as there:
        sandbox = await there.sandbox()
        files = there.session(sandbox).files
        files["/workspace/f"] = bytes(64 * PIECE_BYTES)

        async def read() -> None:
            async with there.client.stream("GET", content(sandbox), params={"path": "f"}) as answer:
                assert answer.headers["content-length"] == str(64 * PIECE_BYTES)
                files["/workspace/f"] = bytes(100)
                there.worker.failing = Reason.FILE_ERROR if lost else None
                await answer.aread()

        with pytest.raises(httpx.RemoteProtocolError):
            await read()


async def test_whoever_hangs_up_is_not_read_for() -> None:
    async with desk(real=True) as there:
        sandbox = await there.sandbox()
        there.session(sandbox).files["/workspace/f"] = bytes(64 * MIB)
        there.worker.calls.clear()
        async with there.client.stream("GET", content(sandbox), params={"path": "f"}) as answer:
            await anext(answer.aiter_bytes(1024))
        counts: list[int] = []

        async def quiet() -> bool:
            counts.append(len(there.worker.calls))
            return len(counts) > 3 and len(set(counts[-3:])) == 1

        await until(quiet, every=0.05)
        assert counts[-1] < 100
