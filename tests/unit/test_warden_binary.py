"""The built warden, as PID 1 of real namespaces, over pipes: every promise of contracts/warden-protocol.md."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TimeBounds, unavailable
from tests.noise import Watch
from tests.unit.warden_harness import (
    ACK,
    ACK_COMMAND,
    BEGIN,
    EXIT,
    EXITED,
    HELLO,
    LIST,
    NOT_STARTED,
    OUTPUT,
    PING,
    PONG,
    PTY,
    RESIZE,
    SHUTDOWN,
    SIGNAL,
    SIGNALED,
    SPEC,
    START,
    STARTED,
    STDIN,
    STDIN_EOF,
    SWEEP_EXIT,
    SWEEP_TIMEOUT,
    TIMED_OUT,
    USER,
    WAITS,
    WARDEN_ID,
    WITH_STDIN,
    ZEROS,
    Frame,
    Owner,
    Result,
    Sandbox,
    build,
    cpu_ticks,
    decode,
    host_pid,
    make_spec,
    shell,
)
from tests.waiting import wait_past, wait_until

WINDOW = 524_288
VARIANTS = ["fumehood-warden", pytest.param("fumehood-warden-asan", marks=pytest.mark.variant)]
GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "contracts/golden/warden/frames.json").read_text()
)


@pytest.fixture(scope="session", params=VARIANTS)
def binary(request: pytest.FixtureRequest) -> Path:
    if os.geteuid() != 0:
        unavailable("namespaces for the warden need root")
    return build() / str(request.param)


@pytest.fixture
def sandbox(binary: Path) -> Iterator[Sandbox]:
    made = Sandbox(binary)
    yield made
    made.close()


@pytest.fixture
def owner(sandbox: Sandbox) -> Owner:
    attached = Owner(sandbox)
    attached.attach(fresh=True)
    return attached


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder everybody may use, as pytest's own are root's."""
    folder = Path(tempfile.mkdtemp(prefix="fumehood-warden-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def processes(owner: Owner) -> list[str]:
    """Everything alive in the sandbox but the warden and the command that looks, as `state name`."""
    script = "for f in /proc/[0-9]*/stat; do read -r p n s rest < $f && echo $p $s $n; done"
    rows = [line.split(" ", 1) for line in owner.run(shell(script)).stdout.decode().splitlines()]
    looking = str(owner.results[owner.next_id - 1].pid)
    return [rest for pid, rest in rows if pid not in {"1", looking}]


# -- attaching


def test_welcome_carries_the_nonce_and_the_state(sandbox: Sandbox) -> None:
    owner = Owner(sandbox)
    first = owner.attach(fresh=True)
    assert (first.version, first.next_seq, first.highest, first.commands) == (1, 1, 0, {})
    command = owner.start(shell("cat; exit 4", flags=WITH_STDIN), 7)
    owner.send(STDIN, struct.pack(">Q", 0) + b"abc", command)
    owner.started(command)
    second = owner.attach(fresh=True)  # a HELLO may come again at any time
    assert second.highest == 7
    assert second.commands == {7: (1, 3)}
    owner.auto_ack = False
    owner.send(STDIN_EOF, struct.pack(">Q", 3), command)
    assert owner.finish(command).exit.code == 4
    assert owner.attach(fresh=True).commands == {7: (2, 3)}
    owner.ack()
    assert owner.attach(fresh=True).commands == {}


def test_nothing_is_obeyed_or_said_before_the_first_hello(sandbox: Sandbox, public: Path) -> None:
    owner = Owner(sandbox)
    owner.start(shell(f"touch {public}/no"))
    owner.send(PING, bytes(8))
    owner.send(SHUTDOWN)
    assert sandbox.receive(0.3) == b""
    welcome = owner.attach(fresh=True)
    assert (welcome.highest, list(public.iterdir())) == (0, [])


def test_ping(owner: Owner) -> None:
    owner.settle()


@pytest.mark.parametrize("name", [row["name"] for row in GOLDEN])
def test_golden_frames_are_what_this_codec_makes(name: str) -> None:
    row = next(row for row in GOLDEN if row["name"] == name)
    raw = bytes.fromhex(row["hex"])
    found = decode(raw)
    assert found is not None
    assert found[1] == len(raw)
    assert (found[0].type, found[0].command, found[0].seq) == (row["type"], row["command"], row["seq"])
    assert found[0].encode() == raw
    if "spec" in row["fields"]:
        fields = dict(row["fields"]["spec"])
        spec = make_spec(fields.pop("argv"), env=fields.pop("environment"), **fields)
        assert found[0].payload[4:] == spec


def test_golden_frames_drive_the_warden(sandbox: Sandbox) -> None:
    rows = {row["name"]: bytes.fromhex(row["hex"]) for row in GOLDEN}
    owner = Owner(sandbox)
    sandbox.send(rows["hello"])
    assert owner.frame().encode() == rows["welcome_fresh"]
    sandbox.send(rows["ping"])
    assert owner.frame().encode() == rows["pong"]
    sandbox.send(rows["spec_exec"] + rows["start_exec"] + rows["stdin"] + rows["stdin_eof"])
    end = owner.finish(1).exit
    assert (end.state, end.stage, end.code) == (NOT_STARTED, 3, errno.ENOENT)  # there is no /workspace here
    sandbox.send(rows["start_exec"])
    owner.settle()
    assert (1, 1) in owner.refusals()
    sandbox.send(rows["shutdown"])
    assert sandbox.wait() == 0


# -- exec


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_exit_codes(owner: Owner, code: int) -> None:
    before = time.time_ns() // 1_000_000
    result = owner.run(shell(f"echo out; echo err >&2; exit {code}"))
    end = result.exit
    assert (end.state, end.code, end.flags) == (EXITED, code, 0)
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    assert before <= end.started <= end.ended  # gate: clock one clock, read in this order
    assert end.ended <= time.time_ns() // 1_000_000
    assert 0 < end.duration_us < 10_000_000
    assert end.max_rss > 0


def test_signals_of_its_own_and_of_ours(owner: Owner) -> None:
    end = owner.run(shell("kill -9 $$")).exit
    assert (end.state, end.code, end.flags) == (SIGNALED, 9, 0)
    for number, scope in ((15, 0), (9, 0), (9, 1)):
        command = owner.start(make_spec(["sleep", "100"]))
        owner.started(command)
        owner.send(SIGNAL, bytes([number, scope]), command)
        end = owner.finish(command).exit
        assert (end.state, end.code, end.flags) == (SIGNALED, number, 1)


def test_a_signal_reaches_the_whole_group_and_may_be_handled(owner: Owner) -> None:
    command = owner.start(shell("trap 'echo caught; exit 5' USR1; echo ready; sleep 100 & wait"))
    owner.until(lambda: command in owner.results and owner.results[command].stdout == b"ready\n")
    owner.send(SIGNAL, bytes([signal.SIGUSR1, 0]), command)
    result = owner.finish(command)
    assert (result.stdout, result.exit.state, result.exit.code) == (b"ready\ncaught\n", EXITED, 5)


@pytest.mark.parametrize(
    ("spec", "stage", "code"),
    [
        (make_spec(["no-such-program"]), 4, errno.ENOENT),
        (make_spec(["/no/such/program"]), 4, errno.ENOENT),
        (make_spec([""]), 4, errno.ENOENT),
        (make_spec(["/etc/passwd"]), 4, errno.EACCES),
        (make_spec(["true"], env=[]), 4, errno.ENOENT),
        (make_spec(["passwd"], env=["PATH=/etc:/nowhere"]), 4, errno.EACCES),
        (make_spec(["true"], env=["PATH=::"]), 4, errno.ENOENT),
        (make_spec(["true", "x" * 200_000]), 4, errno.E2BIG),
        (make_spec(["true"], directory="/no/such"), 3, errno.ENOENT),
        (make_spec(["true"], directory="/root"), 3, errno.EACCES),
        (make_spec(["true"], directory=""), 3, errno.ENOENT),
        (make_spec(["true"], uid=WARDEN_ID), 2, errno.EPERM),
        (make_spec(["true"], gid=WARDEN_ID), 2, errno.EPERM),
        (make_spec(["true"], uid=0xFFFFFFFF), 2, errno.EINVAL),
        (make_spec(["true"], gid=0xFFFFFFFF), 2, errno.EINVAL),
        (make_spec(["."], kind=LIST, uid=WARDEN_ID), 2, errno.EPERM),
    ],
)
def test_not_started(owner: Owner, spec: bytes, stage: int, code: int) -> None:
    result = owner.run(spec)
    assert (result.exit.state, result.exit.stage, result.exit.code) == (NOT_STARTED, stage, code)
    assert result.pid == 0  # no STARTED


def test_a_script_without_an_interpreter_is_not_guessed_at(owner: Owner, public: Path) -> None:
    script = public / "script"
    script.write_text("echo hello\n")
    script.chmod(0o755)
    end = owner.run(make_spec([str(script)])).exit
    assert (end.state, end.stage, end.code) == (NOT_STARTED, 4, errno.ENOEXEC)


def test_path_is_searched_in_order(owner: Owner, public: Path) -> None:
    for folder, mode in (("a", 0o644), ("b", 0o755), ("c", 0o755)):
        program = public / folder / "program"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho {folder} $0 $1\n")
        program.chmod(mode)
    path = ":".join(str(public / folder) for folder in "xabc")
    result = owner.run(make_spec(["program", "arg"], env=[f"PATH={path}"]))
    assert result.stdout.decode() == f"b {public}/b/program arg\n"


def test_the_environment_is_exactly_what_was_given(owner: Owner) -> None:
    env: list[bytes | str] = ["B=2", "A=", "C=x=y", "B=again", b"BYTES=\xff\xfe"]
    result = owner.run(make_spec(["/usr/bin/env", "-0"], env=env))
    expected = [item.encode() if isinstance(item, str) else item for item in env]
    assert result.stdout.split(b"\0")[:-1] == expected
    assert owner.run(make_spec(["/usr/bin/env"], env=[])).stdout == b""


def test_who_and_where_the_program_is(owner: Owner) -> None:
    script = "pwd; id -u; id -g; id -G; umask; cat /proc/self/stat; cat /proc/self/oom_score_adj; ls /proc/$$/fd"
    lines = owner.run(shell(script, uid=1234, gid=2345, directory="/usr/lib")).stdout.decode().splitlines()
    assert lines[:5] == ["/usr/lib", "1234", "2345", "2345", "0022"]
    assert lines[6:] == ["1000", "0", "1", "2"]
    result = owner.run(make_spec(["cat", "/proc/self/stat", "/proc/self/status"]))
    stat, _, status = result.stdout.decode().partition("\n")
    fields = stat.rpartition(")")[2].split()
    assert fields[1:4] == ["1", str(result.pid), str(result.pid)]  # parent, group, session
    found = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb", "SigBlk", "SigIgn", "SigCgt"):
        assert int(found[name], 16) == 0, name
    assert found["NoNewPrivs"] == "1"


def test_arguments_arrive_unchanged(owner: Owner) -> None:
    arguments = [b"plain", b"", b"two words", b"\xff\x80", "ü".encode(), b"x" * 100_000]
    result = owner.run(make_spec(["printf", "%s\\n", *arguments]))
    assert result.stdout.split(b"\n")[:-1] == arguments


def test_a_spec_of_many_pieces(owner: Owner) -> None:
    words = [str(n) for n in range(20_000)]
    command = owner.start(make_spec(["echo", *words]), piece=1000)
    assert owner.finish(command).stdout.decode().split() == words


# -- stdin


def test_stdin_in_any_amount(owner: Owner) -> None:
    data = os.urandom(3_000_000)
    result = owner.run(make_spec(["sha256sum"], flags=WITH_STDIN), data)
    assert result.stdout.decode().split()[0] == hashlib.sha256(data).hexdigest()
    command = owner.next_id - 1
    owner.settle()
    assert owner.stdin_acked[command] <= len(data)
    assert owner.run(make_spec(["cat"])).stdout == b""  # without the flag: /dev/null
    assert owner.run(make_spec(["cat"], flags=WITH_STDIN), b"").stdout == b""
    assert owner.refusals() == []


def test_stdin_repeated_and_overlapping_pieces_count_once(owner: Owner) -> None:
    command = owner.start(make_spec(["cat"], flags=WITH_STDIN))
    for offset, data in ((0, b"hello "), (0, b"hello "), (3, b"lo world"), (11, b""), (2, b"llo"), (11, b"!")):
        owner.send(STDIN, struct.pack(">Q", offset) + data, command)
    for _ in range(2):
        owner.send(STDIN_EOF, struct.pack(">Q", 12), command)
    assert owner.finish(command).stdout == b"hello world!"
    assert owner.refusals() == []


def test_stdin_outside_the_window_is_refused(owner: Owner) -> None:
    command = owner.start(make_spec(["sleep", "100"], flags=WITH_STDIN))
    data = bytes(65_000)
    sent = 0
    while sent + len(data) <= 262_144:
        owner.send(STDIN, struct.pack(">Q", sent) + data, command)
        sent += len(data)
    owner.settle()
    assert owner.stdin_acked[command] <= 65_536  # what a pipe takes
    assert owner.refusals() == []
    owner.send(STDIN, struct.pack(">Q", sent + 1) + b"gap", command)
    owner.send(STDIN_EOF, struct.pack(">Q", sent + 1), command)
    owner.send(STDIN_EOF, struct.pack(">Q", sent - 1), command)
    owner.settle()
    assert owner.refusals() == [(command, 5)] * 3
    while room := owner.stdin_acked[command] + 262_144 - sent:
        part = bytes(min(room, 65_000))
        owner.send(STDIN, struct.pack(">Q", sent) + part, command)
        sent += len(part)
        owner.settle()
    assert len(owner.refusals()) == 3
    owner.send(STDIN, struct.pack(">Q", sent) + b"x", command)
    owner.settle()
    assert owner.refusals()[3:] == [(command, 5)]


def test_stdin_after_its_end_or_without_any(owner: Owner) -> None:
    command = owner.start(shell("cat; sleep 100", flags=WITH_STDIN))
    owner.send(STDIN_EOF, struct.pack(">Q", 0), command)
    owner.send(STDIN, struct.pack(">Q", 0) + b"late", command)
    without = owner.start(make_spec(["sleep", "100"]))
    owner.send(STDIN, struct.pack(">Q", 0) + b"none", without)
    owner.settle()
    assert owner.refusals() == [(command, 5), (without, 5)]


def test_a_program_that_closes_its_stdin_holds_nothing_up(owner: Owner) -> None:
    command = owner.start(shell("exec <&-; echo closed; sleep 1; echo done", flags=WITH_STDIN))
    owner.until(lambda: command in owner.results and owner.results[command].stdout == b"closed\n")
    owner.feed(command, bytes(1_000_000))
    assert owner.finish(command).stdout == b"closed\ndone\n"


# -- output and the window


def test_fifty_megabytes(owner: Owner) -> None:
    result = owner.run(shell("yes 0123456789abcde | head -c 50000000"), timeout=60)
    expected = hashlib.sha256(b"0123456789abcde\n" * 3_125_000).digest()
    assert (result.exit.stdout_bytes, result.exit.stdout_sha) == (50_000_000, expected)


def test_without_acknowledgement_the_program_blocks_and_then_goes_on(owner: Owner) -> None:
    owner.auto_ack = False
    command = owner.start(shell("head -c 5000000 /dev/zero; echo finished >&2; exit 3"))
    result = owner.results.setdefault(command, Result())

    def collect(more_than: int) -> None:
        """So many bytes, and then whatever comes without a pause."""
        while len(result.stdout) <= more_than:
            owner.step()
        with contextlib.suppress(TimeoutError):
            while True:
                owner.step(0.5)

    collect(450_000)
    assert len(result.stdout) <= WINDOW
    assert result.end is None
    assert result.stderr == b""
    owner.settle()  # it still answers
    stuck = owner.start(make_spec(["true"]))  # STARTED and EXIT find room
    owner.finish(stuck)
    owner.ack(owner.last_seq // 2)
    before = len(result.stdout)
    collect(before)
    assert len(result.stdout) <= before + WINDOW
    owner.auto_ack = True
    owner.ack()
    assert owner.finish(command).exit.code == 3
    assert (len(result.stdout), result.stderr) == (5_000_000, b"finished\n")


def test_commands_that_nobody_takes_anything_of_hold_up_no_other(owner: Owner) -> None:
    owner.auto_ack = False
    loud = [owner.start(make_spec(["yes", str(n)])) for n in range(5)]
    owner.until(lambda: all(len(owner.results[command].stdout) > 400_000 for command in loud if owner.started(command)))
    for _ in range(40):  # more than there are slots
        other = owner.start(shell("head -c 600000 /dev/zero"))
        while other not in owner.results or owner.results[other].end is None:
            if owner.step().command == other:
                owner.ack_command(other)
    owner.ack_command(loud[1])
    owner.until(lambda: len(owner.results[loud[1]].stdout) > WINDOW)
    assert all(len(owner.results[command].stdout) <= WINDOW for command in loud if command != loud[1])
    welcome = owner.attach(fresh=True)
    assert welcome.commands == dict.fromkeys(loud, (1, 0))
    assert owner.refusals() == []
    owner.auto_ack = True
    owner.send(SIGNAL, bytes([9, 1]))
    for command in loud:
        assert owner.finish(command).exit.state == SIGNALED


def test_of_what_was_acknowledged_for_one_command_nothing_comes_again(owner: Owner) -> None:
    owner.auto_ack = False
    first, second = (owner.start(shell(f"echo {word}; read _", flags=WITH_STDIN)) for word in ("one", "two"))
    owner.until(lambda: all(owner.results[one].stdout for one in (first, second) if owner.started(one)))
    owner.ack_command(second)
    owner.ack_command(second, 1 << 40)
    owner.ack_command(12345)
    owner.send(ACK_COMMAND, b"short", first)
    owner.feed(second, b"")
    owner.finish(second)
    welcome = owner.attach(fresh=True)
    assert welcome.commands == {first: (1, 0), second: (2, 0)}
    again: list[Frame] = []
    while not again or again[-1].type != EXIT:
        again += [frame for frame in [owner.step()] if frame.seq]
    assert [(frame.command, frame.type) for frame in again] == [(first, STARTED), (first, OUTPUT), (second, EXIT)]
    owner.ack_command(second)
    assert owner.attach(fresh=True).commands == {first: (1, 0)}
    owner.feed(first, b"")
    assert owner.finish(first).stdout == b"one\n"


def test_loud_commands_take_turns(owner: Owner) -> None:
    commands = [owner.start(make_spec(["yes", str(n)])) for n in range(4)]
    for command in commands:
        owner.started(command)
    # None of them starves, however the machine schedules the programs: each gets a whole window's worth through.
    owner.until(lambda: all(len(owner.results[command].stdout) > 1024 * 1024 for command in commands), 30)
    owner.send(SIGNAL, bytes([9, 1]))
    for command in commands:
        assert owner.finish(command).exit.state == SIGNALED


def test_an_ack_of_the_future_is_ignored(owner: Owner) -> None:
    owner.auto_ack = False
    command = owner.start(shell("echo one"))
    owner.finish(command)
    owner.ack(1 << 40)
    owner.send(ACK, b"short")
    welcome = owner.attach(fresh=True)
    assert welcome.commands == {command: (2, 0)}
    for _ in range(3):
        owner.step()
    assert owner.repeated == 3


def test_when_nobody_reads_nothing_grows_and_nothing_hangs(sandbox: Sandbox, owner: Owner) -> None:
    owner.start(make_spec(["yes"]))
    for n in range(6_000):
        owner.send(SIGNAL, bytes([9, 0]), 1_000_000 + n)
        owner.send(PING, struct.pack(">Q", n))
    later = Owner(sandbox, owner)
    later.attach()
    later.send(SIGNAL, bytes([9, 1]))
    later.finish(1)
    assert later.refusals() == []


# -- torn and hostile streams


def evil_frames(public: Path) -> bytes:
    spec = shell(f"touch {public}/evil")
    return b"".join(
        frame.encode()
        for frame in (
            Frame(HELLO, bytes(16) + struct.pack(">HI", 1, 30_000)),
            Frame(SPEC, struct.pack(">I", 0) + spec, 900),
            Frame(START, struct.pack(">I", len(spec)), 900),
            Frame(SHUTDOWN),
        )
    )


def test_output_that_is_shaped_like_frames_is_only_output(owner: Owner, public: Path) -> None:
    evil = evil_frames(public)
    result = owner.run(make_spec(["cat"], flags=WITH_STDIN), evil)
    assert (result.stdout, result.exit.state, result.exit.code) == (evil, EXITED, 0)
    assert list(public.iterdir()) == []


@pytest.mark.parametrize("missing", [1, 2, 100, 5_000, 30_000])
def test_frames_inside_torn_data_are_never_obeyed(sandbox: Sandbox, owner: Owner, public: Path, missing: int) -> None:
    command = owner.start(make_spec(["sleep", "100"], flags=WITH_STDIN))
    owner.started(command)
    evil = evil_frames(public)
    payload = struct.pack(">Q", 0) + (evil * 200)[:60_000]
    sandbox.send(Frame(STDIN, payload, command).encode()[:-missing])
    later = Owner(sandbox, owner)
    welcome = later.attach()
    assert (welcome.highest, welcome.commands) == (command, {command: (1, 0)})
    later.settle()
    assert list(public.iterdir()) == []


def test_lost_it_obeys_only_a_hello_behind_a_frame_of_zeros(sandbox: Sandbox, owner: Owner, public: Path) -> None:
    sandbox.send(b"garbage of some length, longer than a header")
    sandbox.send(evil_frames(public))  # neither directly
    sandbox.send(bytes(65_528) + evil_frames(public))  # nor behind as many zeros as any payload can hold
    owner.start(shell(f"touch {public}/lost"))
    owner.send(SHUTDOWN)
    assert sandbox.receive(0.3) == b""
    later = Owner(sandbox)
    assert later.attach().highest == 0
    assert list(public.iterdir()) == []
    later.settle()


@pytest.mark.parametrize(
    "damage",
    [
        b"FHW2" + bytes(60),
        b"FHW1\x09\x01\x00\x00" + bytes(60),
        b"FHW1\x09\x00\x00\x00" + bytes(12) + b"\x00\x01\x00\x01" + bytes(60),
        b"FHW1\x09\x00\x00\x00" + bytes(12) + b"\xff\xff\xff\xff" + bytes(60),
        Frame(PING, b"12345678").encode()[:-1] + b"9",
        bytes(28),
        os.urandom(300),
    ],
)
def test_every_kind_of_bad_frame_loses_it_and_hello_finds_it(sandbox: Sandbox, owner: Owner, damage: bytes) -> None:
    sandbox.send(damage)
    owner.send(PING, b"ignored!")
    assert sandbox.receive(0.2) == b""
    later = Owner(sandbox, owner)
    later.attach()
    later.settle()
    assert later.run(shell("echo back")).stdout == b"back\n"


def test_attaching_is_torn_itself_again_and_again(sandbox: Sandbox, owner: Owner) -> None:
    hello = Frame(HELLO, os.urandom(16) + struct.pack(">HI", 1, 30_000)).encode()
    for cut in (0, 1, 4, 27, 28, 30, 49):
        sandbox.send(ZEROS + hello[:cut])
    sandbox.send(ZEROS[:1000])
    later = Owner(sandbox, owner)
    later.attach()
    assert later.run(shell("echo back")).stdout == b"back\n"


def test_unknown_and_odd_frames_are_passed_over(owner: Owner) -> None:
    for kind in (0, 11, 128, 129, 135, 255):
        owner.send(kind, b"whatever", 3)
    for kind in (HELLO, SPEC, START, STDIN, STDIN_EOF, ACK, SIGNAL, RESIZE, PING):
        owner.send(kind, b"odd", 0)
    owner.send(SIGNAL, bytes([0, 1]))
    owner.send(SIGNAL, bytes([65, 1]))
    owner.send(SIGNAL, bytes([9, 2]))
    assert owner.run(shell("echo fine")).stdout == b"fine\n"


# -- refusals


def test_a_second_start_of_the_same_id_is_refused(owner: Owner, public: Path) -> None:
    spec = shell(f"echo x >> {public}/count")
    for _ in range(2):
        owner.start(spec, 5)
    owner.start(spec, 4)
    owner.start(spec, 0)
    owner.finish(5)
    owner.settle()
    assert owner.refusals() == [(5, 1), (4, 1), (0, 1)]
    assert (public / "count").read_text() == "x\n"


def test_frames_about_unknown_commands_are_refused(owner: Owner) -> None:
    owner.send(STDIN, bytes(8) + b"x", 9)
    owner.send(STDIN_EOF, bytes(8), 9)
    owner.send(SIGNAL, bytes([9, 0]), 9)
    owner.send(RESIZE, bytes(4), 9)
    owner.settle()
    assert owner.refusals() == [(9, 4)] * 4


GOOD = make_spec(["true"])


@pytest.mark.parametrize(
    "spec",
    [
        b"\0",
        GOOD[:-1],
        GOOD + b"\0",
        make_spec(["true"], kind=7),
        make_spec(["true"], flags=64),
        make_spec([]),
        make_spec([b"nul\0inside"]),
        make_spec(["true"], env=["NO_EQUALS"]),
        make_spec(["true"], env=["=value"]),
        make_spec(["true"], directory="nul\0"),
        make_spec(["a", "b"], kind=LIST),
        make_spec(["a"], kind=LIST, flags=PTY),
        make_spec(["a"], kind=LIST, flags=WAITS),
        make_spec(["a"], kind=LIST, directory="relative"),
        GOOD.replace(struct.pack(">I", 1), struct.pack(">I", 0xFFFFFFFF)),
        GOOD.replace(struct.pack(">I", 4) + b"true", struct.pack(">I", 0x7FFFFFFF) + b"true"),
    ],
)
def test_malformed_specs_are_refused(owner: Owner, spec: bytes) -> None:
    owner.start(spec, 3)
    owner.settle()
    assert owner.refusals() == [(3, 3)]
    owner.start(GOOD, 3)  # the id was not used up
    assert owner.finish(3).exit.code == 0


def test_pieces_must_fit_together(owner: Owner) -> None:
    owner.send(START, struct.pack(">I", len(GOOD)), 1)  # no piece at all
    owner.send(SPEC, struct.pack(">I", 0) + GOOD[:10], 1)
    owner.send(SPEC, struct.pack(">I", 11) + GOOD[11:], 1)  # a gap
    owner.send(START, struct.pack(">I", len(GOOD)), 1)
    owner.send(SPEC, struct.pack(">I", 0) + GOOD, 1)
    owner.send(START, struct.pack(">I", len(GOOD) + 1), 1)  # not the length
    owner.send(SPEC, struct.pack(">I", 0) + GOOD, 1)
    owner.attach(fresh=True)
    owner.send(START, struct.pack(">I", len(GOOD)), 1)  # HELLO dropped it
    owner.settle()
    assert {code for _, code in owner.refusals()} == {3}
    assert owner.run(GOOD).exit.code == 0


def test_a_spec_has_a_largest_size(owner: Owner) -> None:
    room = (2 << 20) - len(make_spec(["true", *[b""] * 20]))
    fits = make_spec(["true", *[bytes([65]) * (room // 20)] * 20])
    assert len(fits) <= 2 << 20
    owner.start(fits + bytes(100_000), 1)
    owner.start(fits, 2)
    end = owner.finish(2).exit  # taken; but more than the kernel gives a program
    assert (owner.refusals(), end.state, end.code) == ([(1, 6)], NOT_STARTED, errno.E2BIG)


def test_thirty_two_commands_at_once(owner: Owner) -> None:
    commands = [owner.start(make_spec(["cat"], flags=WITH_STDIN)) for _ in range(33)]
    owner.settle()
    assert owner.refusals() == [(33, 2)]
    for command in commands[:32]:
        owner.feed(command, str(command).encode())
    for command in commands[:32]:
        assert owner.finish(command).stdout == str(command).encode()
    owner.settle()
    assert owner.run(GOOD).exit.code == 0


# -- ends


def test_timeout_kills_what_will_not_die(owner: Owner, time_bounds: TimeBounds) -> None:
    script = "trap '' TERM INT HUP; (trap '' TERM; setsid sleep 1000 &); echo up; while :; do sleep 1000; done"
    begun = time.monotonic()
    result = owner.run(shell(script, timeout_ms=400, flags=SWEEP_TIMEOUT))
    assert (result.exit.state, result.stdout) == (TIMED_OUT, b"up\n")
    took = time.monotonic() - begun
    assert took >= 0.4
    time_bounds.check(took, 15)
    assert 400_000 <= result.exit.duration_us < 15_000_000
    assert processes(owner) == []


def test_a_timeout_is_never_early(owner: Owner) -> None:
    ends = [owner.run(make_spec(["sleep", "100"], timeout_ms=ms)).exit for ms in range(1, 60)]
    assert all(end.state == TIMED_OUT for end in ends)
    assert [ms for ms, end in enumerate(ends, start=1) if end.duration_us < 1000 * ms] == []


def left_running(owner: Owner, expected: int) -> int:
    """How many processes are left, once they are so few, or after a while; one that awaits its reaping is none."""

    def left() -> int:
        return sum(not one.startswith("Z") for one in processes(owner))

    with contextlib.suppress(AssertionError):
        wait_until(lambda: left() <= expected)
    return left()


def test_timeout_without_sweep_kills_the_group_only(owner: Owner) -> None:
    result = owner.run(shell("setsid sleep 1001 & sleep 1002", timeout_ms=300))
    assert result.exit.state == TIMED_OUT
    assert left_running(owner, 1) == 1  # what was killed may still have to die
    owner.send(SIGNAL, bytes([9, 1]))
    assert left_running(owner, 0) == 0


KEEPS_A_ZOMBIE = """
import os, time
leader = os.getpid()
if os.fork() == 0:
    os.setpgid(0, 0)
    if os.fork() == 0:
        os.setpgid(0, leader)
        print("ready", flush=True)
    time.sleep(100)
time.sleep(100)
"""


def test_a_killed_command_ends_when_its_group_is_empty_or_after_one_second(owner: Owner) -> None:
    command = owner.start(make_spec(["python3", "-c", KEEPS_A_ZOMBIE]))
    owner.until(lambda: command in owner.results and owner.results[command].stdout == b"ready\n")
    began = time.monotonic()
    owner.send(SIGNAL, bytes([9, 0]), command)
    assert owner.finish(command).exit.state == SIGNALED
    assert time.monotonic() - began >= 1.0, "the zombie is still in the group"
    owner.send(SIGNAL, bytes([9, 1]))
    assert left_running(owner, 0) == 0


def test_timeout_ends_a_stopped_program(owner: Owner) -> None:
    end = owner.run(shell("kill -STOP $$", timeout_ms=300, flags=SWEEP_EXIT)).exit
    assert end.state == TIMED_OUT
    assert processes(owner) == []


def test_a_command_in_time_is_not_timed_out(owner: Owner) -> None:
    result = owner.run(shell("sleep 0.2; echo done", timeout_ms=5_000))
    assert (result.exit.state, result.stdout) == (EXITED, b"done\n")


# -- commands that wait


def waiting(owner: Owner, timeout_ms: int = 1, flags: int = 0) -> int:
    """A `cat` that has waited for far longer than its spec allows, and answers."""
    command = owner.start(make_spec(["cat"], flags=WAITS | WITH_STDIN | flags, timeout_ms=timeout_ms))
    owner.send(STDIN, struct.pack(">Q", 0) + b"up", command)
    owner.until(lambda: command in owner.results and owner.results[command].stdout == b"up")
    since = time.monotonic()
    while time.monotonic() - since < 0.3:
        owner.settle()
    assert owner.results[command].end is None
    return command


def end_input(owner: Owner, command: int) -> None:
    owner.send(STDIN_EOF, struct.pack(">Q", 2), command)


def test_a_command_that_waits_has_no_deadline_until_it_begins(owner: Owner) -> None:
    command = waiting(owner)
    before, wall = time.monotonic(), time.time_ns() // 1_000_000
    owner.begin(command, 250)
    end = owner.finish(command).exit
    assert end.state == TIMED_OUT
    assert 250_000 <= end.duration_us <= (time.monotonic() - before) * 1_000_000
    assert wall <= end.started <= end.ended  # gate: clock one clock, read in this order


def test_a_command_that_waited_may_end_in_time(owner: Owner) -> None:
    for timeout_ms in (600_000, 0):
        command = waiting(owner)
        before = time.monotonic()
        owner.begin(command, timeout_ms)
        end_input(owner, command)
        end = owner.finish(command).exit
        assert (end.state, end.code) == (EXITED, 0)
        assert end.duration_us <= (time.monotonic() - before) * 1_000_000


def test_a_command_that_ends_before_it_begins_counts_from_its_start(owner: Owner) -> None:
    owner.auto_ack = False
    command = waiting(owner)
    end_input(owner, command)
    end = owner.finish(command).exit
    assert (end.state, end.code) == (EXITED, 0)
    assert end.duration_us >= 300_000
    owner.begin(command, 1)  # it has ended, though nobody acknowledged that
    owner.settle()
    assert owner.attach(fresh=True).commands == {command: (2, 2)}
    assert owner.refusals() == []


def test_only_the_first_begin_counts(owner: Owner) -> None:
    command = waiting(owner, flags=SWEEP_TIMEOUT)
    owner.begin(command, 600_000)
    owner.settle()
    begun = time.monotonic()
    for _ in range(3):
        owner.begin(command, 1)
    while time.monotonic() - begun < 0.3:
        owner.settle()
    end_input(owner, command)
    end = owner.finish(command).exit
    assert end.state == EXITED
    assert end.duration_us >= 300_000


def test_begin_is_nothing_to_a_command_that_does_not_wait_or_is_unknown(owner: Owner) -> None:
    command = owner.start(make_spec(["cat"], flags=WITH_STDIN))
    owner.send(STDIN, struct.pack(">Q", 0) + b"up", command)
    owner.started(command)
    before = time.monotonic()
    for number in (command, command + 1, 0):
        owner.begin(number, 1)
    while time.monotonic() - before < 0.3:
        owner.settle()
    end_input(owner, command)
    end = owner.finish(command).exit
    assert (end.state, owner.refusals()) == (EXITED, [])
    assert end.duration_us >= 300_000


@pytest.mark.parametrize("payload", [b"", b"\0\0\1", b"\0\0\0\1\0", bytes(65_536)])
def test_a_begin_of_the_wrong_size_is_passed_over(owner: Owner, payload: bytes) -> None:
    command = waiting(owner)
    owner.send(BEGIN, payload, command)
    owner.settle()
    assert owner.results[command].end is None
    owner.begin(command, 1)  # the first that counts
    assert owner.finish(command).exit.state == TIMED_OUT


def test_begin_survives_its_owner_and_may_be_said_again(sandbox: Sandbox) -> None:
    first = Owner(sandbox)
    first.attach(fresh=True)
    command, other = waiting(first), waiting(first)
    first.begin(command, 600_000)
    torn = Frame(BEGIN, struct.pack(">I", 0x01010101), other).encode()
    sandbox.send(torn[:-1])
    second = Owner(sandbox, first)
    assert second.attach().commands == {command: (1, 2), other: (1, 2)}
    second.begin(command, 1)
    second.begin(other, 1)  # what was torn did not count
    assert second.finish(other).exit.state == TIMED_OUT
    assert second.results[command].end is None
    end_input(second, command)
    assert second.finish(command).exit.state == EXITED


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_begin_may_come_before_a_start_that_a_sweep_holds_up(owner: Owner) -> None:
    """A warden that stood still finds a timeout that is over, and behind as much as it reads at once the frames."""
    begun = time.monotonic()
    swept = owner.start(make_spec(["sleep", "100"], flags=SWEEP_TIMEOUT, timeout_ms=1000))
    owner.started(swept)
    pid = host_pid(owner.sandbox)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: stopped(pid) and time.monotonic() - begun >= 1.1)
    fcntl.fcntl(owner.sandbox.fd_in, fcntl.F_SETPIPE_SZ, 1 << 20)
    owner.send(200, bytes(65_536))
    command = owner.start(make_spec(["sleep", "100"], flags=WAITS, timeout_ms=600_000))
    owner.begin(command, 100)
    owner.begin(command, 600_000)
    os.kill(pid, signal.SIGCONT)
    assert owner.finish(swept).exit.state == TIMED_OUT
    end = owner.finish(command).exit
    assert (end.state, owner.refusals()) == (TIMED_OUT, [])
    assert end.duration_us >= 100_000


def test_sweep_on_exit_leaves_nothing(owner: Owner) -> None:
    immortal = "trap '' TERM; while :; do sleep 1000; done"
    script = f'for i in 1 2 3 4 5; do (setsid sh -c "{immortal}" &); done; echo bye; exit 6'
    result = owner.run(shell(script, flags=SWEEP_EXIT))
    assert (result.exit.state, result.exit.code, result.stdout) == (EXITED, 6, b"bye\n")
    assert processes(owner) == []


def test_sweep_reads_everything_that_was_printed(owner: Owner) -> None:
    owner.auto_ack = False
    script = "(head -c 60000 /dev/zero; setsid sleep 100) & head -c 400000 /dev/zero"
    command = owner.start(shell(script, flags=SWEEP_EXIT))
    result = owner.finish(command)
    assert 400_000 <= len(result.stdout) <= 460_000


def test_sweep_tells_the_others_who_killed_them(owner: Owner) -> None:
    bystander = owner.start(make_spec(["sleep", "1000"]))
    owner.started(bystander)
    owner.run(shell("true", flags=SWEEP_EXIT))
    end = owner.finish(bystander).exit
    assert (end.state, end.code, end.flags) == (SIGNALED, 9, 1)


def test_a_start_during_a_sweep_is_not_swept_away_unseen(owner: Owner) -> None:
    for _ in range(20):
        swept = owner.start(shell("for i in 1 2 3 4 5 6 7 8; do sleep 100 & done; exit 0", flags=SWEEP_EXIT))
        owner.started(swept)
        after = owner.start(shell("echo ok"))
        owner.finish(swept)
        result = owner.finish(after)
        killed = (result.exit.state, result.exit.code, result.exit.flags) == (SIGNALED, 9, 1)
        assert killed or result.stdout == b"ok\n"


@pytest.mark.parametrize("holder", ["sleep 1000", "exec yes"])
def test_without_sweep_an_heir_of_the_pipe_does_not_hold_the_end(
    owner: Owner, holder: str, time_bounds: TimeBounds
) -> None:
    begun = Watch()
    result = owner.run(shell(f"echo mine; (setsid {holder} &); exit 2"))
    assert (result.exit.state, result.exit.code) == (EXITED, 2)
    assert result.stdout.startswith(b"mine\n")
    time_bounds.check(begun.seconds, 15)


def test_everything_is_reaped(owner: Owner) -> None:
    owner.run(shell("for i in 1 2 3 4 5 6 7 8 9; do (sleep 0.05 &) ; done"))
    wait_until(lambda: processes(owner) == [])


def test_a_fork_bomb_is_swept(owner: Owner) -> None:
    spec = make_spec(
        ["prlimit", "--nproc=120", "/bin/sh", "-c", "f() { f | f & }; f; sleep 100"],
        uid=61_234, timeout_ms=700, flags=SWEEP_TIMEOUT | SWEEP_EXIT,
    )  # fmt: skip
    owner.run(spec, timeout=30)
    assert processes(owner) == []


def test_closed_outputs_do_not_spin_the_loop(sandbox: Sandbox, owner: Owner) -> None:
    command = owner.start(shell("exec >&- 2>&- <&-; sleep 100", flags=WITH_STDIN))
    blocked = owner.start(make_spec(["yes"]))
    owner.started(command)
    owner.auto_ack = False  # the window fills up, and stays full
    with pytest.raises(TimeoutError):
        owner.until(lambda: False, 1)
    before = cpu_ticks(host_pid(sandbox))
    wait_past(1)
    assert cpu_ticks(host_pid(sandbox)) - before <= 5
    owner.auto_ack = True
    owner.ack()
    owner.send(SIGNAL, bytes([9, 1]))
    assert owner.finish(command).exit.state == SIGNALED
    assert owner.finish(blocked).exit.state == SIGNALED


# -- PTY


def test_pty(owner: Owner) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && stty size && stat -c %u $(tty) && read line && echo got:$line"
    command = owner.start(shell(script, flags=PTY | WITH_STDIN, rows=33, columns=99))
    owner.send(STDIN, struct.pack(">Q", 0) + b"typed\n", command)
    result = owner.finish(command)
    lines = result.stdout.decode().replace("\r", "").splitlines()
    assert {"33 99", str(USER), "typed", "got:typed"} <= set(lines)
    assert (result.exit.code, result.stderr) == (0, b"")


def test_pty_resize_and_end_of_input(owner: Owner) -> None:
    script = "trap 'stty size' WINCH; echo ready; read line; cat; echo over"  # the signal may end `read` too
    command = owner.start(shell(script, flags=PTY | WITH_STDIN, rows=10, columns=20))
    owner.until(lambda: command in owner.results and b"ready" in owner.results[command].stdout)
    owner.send(RESIZE, struct.pack(">HH", 50, 132), command)
    owner.send(STDIN, struct.pack(">Q", 0) + b"\n", command)
    owner.until(lambda: b"50 132" in owner.results[command].stdout)
    owner.send(STDIN_EOF, struct.pack(">Q", 1), command)
    result = owner.finish(command)
    assert result.stdout.endswith(b"over\r\n")


def test_pty_interrupt_key_and_heirs(owner: Owner) -> None:
    command = owner.start(shell("echo ready; exec sleep 100", flags=PTY | WITH_STDIN))
    owner.until(lambda: command in owner.results and b"ready" in owner.results[command].stdout)
    owner.send(STDIN, struct.pack(">Q", 0) + b"\x03", command)
    assert owner.finish(command).exit.state == SIGNALED
    result = owner.run(shell("(trap '' HUP; sleep 100) & head -c 20000 /dev/zero; echo end", flags=PTY))
    assert result.stdout.endswith(b"end\r\n")
    assert len(result.stdout) == 20_005


# -- the warden's own end, and what protects it


def test_shutdown_and_sigterm_end_with_zero(binary: Path) -> None:
    for polite in (True, False):
        sandbox = Sandbox(binary)
        owner = Owner(sandbox)
        owner.attach(fresh=True)
        owner.started(owner.start(make_spec(["sleep", "1000"])))
        if polite:
            owner.send(SHUTDOWN)
        else:
            os.kill(host_pid(sandbox), signal.SIGTERM)
        assert sandbox.wait() == 0
        sandbox.close()


def test_orphaned_it_ends_with_three(sandbox: Sandbox, time_bounds: TimeBounds) -> None:
    owner = Owner(sandbox)
    owner.attach(fresh=True, orphan_ms=2000)
    since = time.monotonic()
    while time.monotonic() - since < 3:
        owner.settle()  # any good frame renews it
    begun = time.monotonic()
    sandbox.send(ZEROS)  # these do not
    assert sandbox.wait() == 3
    took = time.monotonic() - begun
    assert took > 1.5
    time_bounds.check(took, 15)


def test_end_of_file_alone_does_not_end_it_nor_spin(sandbox: Sandbox) -> None:
    owner = Owner(sandbox)
    owner.attach(fresh=True, orphan_ms=1500)
    assert sandbox.process.stdin is not None
    sandbox.process.stdin.close()
    before = cpu_ticks(host_pid(sandbox))
    wait_past(1)
    assert cpu_ticks(host_pid(sandbox)) - before <= 5
    assert sandbox.wait() == 3


def test_started_wrongly_it_says_why_and_ends_with_four(binary: Path) -> None:
    outside = subprocess.run([binary], stdin=subprocess.DEVNULL, capture_output=True, timeout=240, check=False)
    assert (outside.returncode, outside.stdout) == (4, b"")
    assert b"PID 1" in outside.stderr
    wrapper = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--"]
    powerless = Sandbox(binary, wrapper=wrapper, stderr=subprocess.PIPE)
    assert powerless.wait() == 4
    assert powerless.process.stderr is not None
    assert b"capabilities" in powerless.process.stderr.read()
    powerless.close()


def test_what_the_warden_itself_is(sandbox: Sandbox, owner: Owner) -> None:
    owner.settle()
    status = Path(f"/proc/{host_pid(sandbox)}/status").read_text()
    found = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    assert found["Uid"].split() == [str(WARDEN_ID)] * 4
    assert found["Gid"].split() == [str(WARDEN_ID)] * 4
    assert found["Groups"].split() == []
    assert (int(found["CapPrm"], 16), int(found["CapEff"], 16), int(found["CapInh"], 16)) == (0xE0, 0xE0, 0)
    assert (found["NoNewPrivs"], found["Threads"]) == ("1", "1")


@pytest.mark.parametrize("uid", [USER, 0])
def test_probe_finds_every_door_to_pid_one_shut(owner: Owner, binary: Path, uid: int) -> None:
    result = owner.run(make_spec([str(binary), "probe"], uid=uid, gid=uid))
    found = json.loads(result.stdout)
    assert result.exit.code == 0
    assert (found["uid"], found["gid"], found["groups"]) == (uid, uid, [])
    assert (found["cap_effective"], found["cap_bounding"]) == ("0" * 16, "0" * 16)
    assert (found["no_new_privs"], found["seccomp"]) == (1, 0)
    assert {"open_files", "file_bytes", "core_bytes", "tmp_bytes", "tmp_inodes"} <= set(found["limits"])
    attempts = found["attempts"]
    shut = ["signal", "ptrace", "read_environ", "read_mem", "read_maps", "write_fd0", "write_fd1", "read_fd0"]
    if uid:
        shut.append("list_fd")  # what is not dumpable belongs to root in /proc: root may count, not open
    assert {name: attempts[name] for name in [*shut, "mount", "raw_socket"]} == {
        name: attempts[name] for name in [*shut, "mount", "raw_socket"] if attempts[name] in {"EPERM", "EACCES"}
    }
    others = {"unshare_user", "io_uring", "bpf", "keyctl", "userfaultfd", "clone3", "list_fd", "write_root"}
    assert set(attempts) == {*shut, "mount", "raw_socket", *others}


def test_with_the_engines_three_capabilities_root_still_gets_none(binary: Path) -> None:
    """Without SETPCAP the bounding set stays; no-new-privileges must then do."""
    wrapper = ["setpriv", "--bounding-set=-all,+kill,+setgid,+setuid", "--no-new-privs", "--"]
    sandbox = Sandbox(binary, wrapper=wrapper)
    owner = Owner(sandbox)
    owner.attach(fresh=True)
    found = json.loads(owner.run(make_spec([str(binary), "probe"], uid=0, gid=0)).stdout)
    assert (found["cap_effective"], found["cap_bounding"]) == ("0" * 16, f"{0xE0:016x}")
    assert {found["attempts"][name] for name in ("signal", "ptrace", "write_fd0", "write_fd1")} <= {"EPERM", "EACCES"}
    sandbox.close()


def test_a_program_cannot_end_the_warden(owner: Owner) -> None:
    script = "kill -TERM 1; kill -KILL 1; kill -TERM -1; echo FHW1 > /proc/1/fd/1; echo alive"
    for uid in (USER, 0):
        result = owner.run(shell(f"trap '' TERM; {script}", uid=uid, gid=uid))
        assert result.stdout.splitlines()[-1:] == [b"alive"]
    owner.settle()


def test_output_frames_are_whole_for_odd_pieces(owner: Owner) -> None:
    """Offsets, digests and order are checked by the harness for each frame it takes."""
    owner.auto_ack = False
    command = owner.start(shell("i=0; while [ $i -lt 300 ]; do echo $i; echo e$i >&2; i=$((i+1)); done"))
    result = owner.finish(command)
    assert result.stdout.split() == [str(n).encode() for n in range(300)]
    assert result.stderr.split() == [f"e{n}".encode() for n in range(300)]
    assert OUTPUT not in {frame.type for frame in owner.control}
    assert PONG not in {frame.type for frame in owner.control}
