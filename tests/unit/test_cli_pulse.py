"""The line that says what is waited for: on a terminal alone, beneath everything else, and gone in the end."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fumehood.cli.pulse import ERASE, PATIENCE_SECONDS, TICK_SECONDS, Pulse, Transfer, on_terminal
from tests.unit.api_server import Answer, ApiServer, Asked, api_server
from tests.waiting import wait_until

SECONDS = 60.0
RUN_ID = "01a1df3651e61ed7089b7118ce08b8d6"
STREAM = f"GET /runs/{RUN_ID}/logs/stream"
GREETING = b"retry: 1000\n\n"


class Line:
    """A terminal of which we hold the other end."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self.seen = b""

    def close(self) -> None:
        for end in (self._ours, self.theirs):
            os.close(end)

    def look(self) -> str:
        while select.select([self._ours], [], [], 0)[0]:
            self.seen += os.read(self._ours, 65536)
        return self.seen.decode()

    def until(self, is_so: Callable[[str], object]) -> str:
        wait_until(lambda: is_so(self.look()), what=lambda: self.seen)
        return self.seen.decode()

    def left(self) -> str:
        """What stands there in the end, of what was drawn over and over."""
        return "\n".join(line.rpartition(ERASE)[2] for line in self.look().replace("\r\n", "\n").split("\n"))


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    monkeypatch.setenv("TERM", "xterm")
    made = Line()
    yield made
    made.close()


def test_it_tells_the_phase_and_how_long_and_is_gone_afterwards(line: Line) -> None:
    with open(line.theirs, "w", encoding="utf-8", closefd=False) as stream, Pulse("queued", stream=stream) as pulse:
        line.until(lambda seen: re.search(r"queued  [0-9.]+s", seen))
        pulse.phase("starting\x1b[31m")
        line.until(lambda seen: "starting [31m  " in seen)
    assert line.left() == ""


def test_what_others_write_comes_first(line: Line) -> None:
    lock, fresh, asked = threading.Lock(), [True], [0]

    def free() -> bool:
        asked[0] += 1
        return fresh[0]

    with (
        open(line.theirs, "w", encoding="utf-8", closefd=False) as stream,
        Pulse("running", stream=stream, lock=lock, free=free) as pulse,
    ):
        line.until(lambda seen: "running" in seen)
        with lock:
            pulse.clear()
            stream.write("half a line")
            stream.flush()
            fresh[0], before = False, asked[0]
        line.until(lambda _: asked[0] > before + 2 + PATIENCE_SECONDS / TICK_SECONDS)
        assert line.look().endswith("half a line"), "it could have drawn, and did not"
        with lock:
            stream.write(", whole\n")
            stream.flush()
            fresh[0] = True
        line.until(lambda seen: "running" in seen.rpartition("whole")[2])
    assert line.left() == "half a line, whole\n"


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_terminal_that_cannot_draw_gets_nothing(
    line: Line, monkeypatch: pytest.MonkeyPatch, term: str | None
) -> None:
    monkeypatch.delenv("TERM")
    if term is not None:
        monkeypatch.setenv("TERM", term)
    with open(line.theirs, "w", encoding="utf-8", closefd=False) as stream:
        assert not on_terminal(stream)


def test_elsewhere_than_on_a_terminal_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    with Pulse("queued", stream=stream) as pulse:
        assert not pulse.is_shown
    assert stream.getvalue() == ""


def test_bytes_are_told_with_their_rate(line: Line) -> None:
    now = [0.0]
    with open(line.theirs, "w", encoding="utf-8", closefd=False) as stream, Pulse(stream=stream) as pulse:
        going = Transfer(pulse, "sending", clock=lambda: now[0])
        pieces = going.pieces("a.bin", [b"x" * 1_000_000] * 3, 4_000_000)
        for number, _ in enumerate(pieces):
            now[0] = float(number + 1)
        line.until(lambda seen: "sending a.bin  3.0 MB of 4.0 MB  1.0 MB/s" in seen)
    assert line.left() == ""


# --- the whole command -------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[tuple[ApiServer, threading.Event]]:
    """Its run prints nothing until somebody lets it."""
    go = threading.Event()

    def stream(_: Asked) -> Answer:
        assert go.wait(SECONDS)
        event = {"offset": 0, "text": "one\n"}
        said = f"id: 1.4.0\nevent: stdout\ndata: {json.dumps(event)}\n\nevent: end\ndata: {{}}\n\n".encode()
        return Answer(headers={"content-type": "text/event-stream"}, pieces=(GREETING, said))

    def view(_: Asked) -> Answer:
        known = {"run_id": RUN_ID, "reason": "exit", "exit_code": 0, "detail": None}
        return Answer({**known, "status": "succeeded" if go.is_set() else "starting"})

    with api_server() as made:
        made.answers |= {
            "POST /runs": Answer({"run_id": RUN_ID, "status": "queued"}, 201),
            STREAM: stream,
            f"GET /runs/{RUN_ID}": view,
        }
        yield made, go


@pytest.mark.parametrize("both", [True, False], ids=["a terminal", "stdout in a pipe"])
def test_a_run_shows_its_phase_and_its_output_is_its_own(
    server: tuple[ApiServer, threading.Event], line: Line, tmp_path: Path, both: bool
) -> None:
    api, go = server
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "fumehood", "run", "image"],
        env=env | {"FUMEHOOD_URL": api.url},
        stdin=subprocess.DEVNULL,
        stdout=line.theirs if both else subprocess.PIPE,
        stderr=line.theirs,
    )
    line.until(lambda seen: "starting: a node fetches its image" in seen)
    go.set()
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert (out, line.left()) == ((None, "one\n") if both else (b"one\n", ""))
