"""What a folder is told to hold, whatever its sandbox says."""

from __future__ import annotations

import datetime as dt
import errno
import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import FileOperationError
from fumehood.node.console.file_calls import _listed
from fumehood.sandbox.capture import STDOUT
from fumehood.sandbox.driver import FileInfo, FileKind, Sink
from fumehood.sandbox.spec import End, Outcome, User
from fumehood.sandbox.warden import files as module
from fumehood.sandbox.warden import frames
from fumehood.sandbox.warden.files import Content, WardenFiles, Writes
from fumehood.sandbox.warden.frames import WireCommand

NAMES = st.binary(min_size=1, max_size=8).filter(lambda name: b"/" not in name and b"\0" not in name)


@given(st.lists(NAMES, unique=True, max_size=8))
def test_every_entry_is_listed_under_its_own_name_or_counted(names: list[bytes]) -> None:
    found = [FileInfo(name.decode("utf-8", "surrogateescape"), FileKind.FILE, 0o644, 1, 1, 0, 0) for name in names]
    said = json.loads(_listed(found))
    told = {one["name"].encode() for one in said["files"]}
    assert told <= set(names)
    assert len(told) + said["unnamed"] == len(names)
    assert all(name in told for name in names if name.isascii())


def listing(entries: bytes) -> WardenFiles:
    """Of a sandbox that answers every question with these."""

    async def run(command: WireCommand, sink: Sink, content: Content) -> Outcome:
        for place in range(0, len(entries), 65536):
            sink.write(STDOUT, place, entries[place : place + 65536])
        now = dt.datetime.now(dt.UTC)
        return Outcome(End.EXITED, started_at=now, ended_at=now, exit_code=0)

    return WardenFiles(run, root="/", user=User(1, 1), writes=Writes())


def record(name: bytes) -> bytes:
    return frames._RECORD.pack(1, 0o644, 1, 1, 0, 0, len(name)) + name


async def test_a_listing_has_a_bound_before_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    real = frames.parse_records

    def parse(data: bytes) -> list[frames.FileRecord]:
        looked.append(threading.get_ident())
        return real(data)

    monkeypatch.setattr(frames, "parse_records", parse)
    assert [one.name for one in await listing(record(b"a") + record(b"b")).list("x")] == ["a", "b"]
    assert looked[0] != threading.get_ident(), "the loop waited for it"
    with pytest.raises(FileOperationError, match="more entries than can be listed") as caught:
        await listing(record(b"x" * 255) * (module.LISTING_BYTES // 255)).list("x")
    assert (caught.value.errno, len(looked)) == (errno.E2BIG, 1)
