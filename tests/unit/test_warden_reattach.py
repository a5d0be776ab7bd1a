"""Owners that die at any byte, in either direction: nothing is lost, nothing comes twice, nothing is obeyed by half."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import unavailable
from tests.unit.warden_harness import (
    ACK,
    PING,
    SPEC,
    START,
    STDIN,
    STDIN_EOF,
    WITH_STDIN,
    Frame,
    Owner,
    Sandbox,
    build,
    make_spec,
    shell,
)

RELAXED = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(
    scope="session", params=["fumehood-warden", pytest.param("fumehood-warden-asan", marks=pytest.mark.variant)]
)
def binary(request: pytest.FixtureRequest) -> Path:
    if os.geteuid() != 0:
        unavailable("namespaces for the warden need root")
    return build() / str(request.param)


def drop_output(sandbox: Sandbox, reads: int) -> None:
    """What an engine does while nobody is attached: some bytes are simply gone."""
    for _ in range(reads):
        if not sandbox.receive(0.005):
            return


def take(owner: Owner, frames: int) -> None:
    with contextlib.suppress(TimeoutError):
        for _ in range(frames):
            owner.step(0.02)


life = st.fixed_dictionaries(
    {
        "sends": st.integers(0, 4),  # whole pieces of input before the end
        "size": st.integers(1, 65_528),
        "takes": st.integers(0, 6),  # frames taken in
        "acks": st.booleans(),
        "cut": st.floats(0, 1),  # where the last frame is torn
        "lost_reads": st.integers(0, 3),
    }
)


@RELAXED
@given(lives=st.lists(life, min_size=1, max_size=5), seed=st.binary(min_size=8, max_size=8))
def test_a_conversation_survives_any_number_of_owners(
    binary: Path, lives: list[dict[str, object]], seed: bytes
) -> None:
    """`cat` is fed by owners that die in mid-frame; its output must be its input, byte for byte."""
    data = b"".join(seed + struct.pack(">Q", n) for n in range(40_000))
    sandbox = Sandbox(binary)
    try:
        owner = Owner(sandbox)
        owner.attach(fresh=True)
        command = owner.start(make_spec(["cat"], flags=WITH_STDIN))
        sent = 0
        for plan in lives:
            owner.auto_ack = bool(plan["acks"])
            size = int(str(plan["size"]))
            for _ in range(int(str(plan["sends"]))):
                part = data[sent : sent + size]
                if sent + size - owner.stdin_acked.get(command, 0) > 262_144:
                    break
                owner.send(STDIN, struct.pack(">Q", sent) + part, command)
                sent += len(part)
            take(owner, int(str(plan["takes"])))
            torn = Frame(STDIN, struct.pack(">Q", sent) + data[sent : sent + size], command).encode()
            cut = int(float(str(plan["cut"])) * (len(torn) - 1))
            sandbox.send(torn[:cut])
            drop_output(sandbox, int(str(plan["lost_reads"])))
            owner = Owner(sandbox, owner)
            owner.auto_ack = True
            welcome = owner.attach()
            assert welcome.highest == command
            if owner.results.get(command) is None or owner.results[command].end is None:
                state, received = welcome.commands[command]
                assert state == 1
                # The torn piece was not taken; unless all it lacked were zeros, which then made it whole.
                assert received <= sent or not any(torn[cut:])
                sent = received
            owner.settle()  # the STDIN_ACK behind WELCOME is in
        while sent < len(data):
            room = 262_144 - (sent - owner.stdin_acked[command])
            if room <= 0:
                owner.step()
                continue
            part = data[sent : sent + min(65_528, room)]
            owner.send(STDIN, struct.pack(">Q", sent) + part, command)
            sent += len(part)
        owner.send(STDIN_EOF, struct.pack(">Q", len(data)), command)
        assert owner.finish(command).stdout == data
        assert owner.refusals() == []
    finally:
        sandbox.close()


@RELAXED
@given(kept=st.integers(0, 400), cut=st.integers(0, 200_000))
def test_exactly_the_unacknowledged_frames_come_again(binary: Path, kept: int, cut: int) -> None:
    sandbox = Sandbox(binary)
    try:
        owner = Owner(sandbox)
        owner.attach(fresh=True)
        owner.auto_ack = False
        command = owner.start(shell("i=0; while [ $i -lt 150 ]; do echo $i; i=$((i+1)); done; head -c 99999 /dev/zero"))
        owner.finish(command)
        total = owner.last_seq
        acked = min(kept, total)
        owner.ack(acked)
        later = Owner(sandbox, owner)
        welcome = later.attach()
        assert welcome.next_seq == total + 1
        assert welcome.commands == ({command: (2, 0)} if acked < total else {})
        dropped = 0
        while dropped < cut and (data := sandbox.receive(0.02)):
            dropped += len(data)
        last = Owner(sandbox, later)
        last.auto_ack = False
        last.attach()
        for seq in range(acked + 1, total + 1):
            assert last.step().seq == seq
        assert last.repeated == total - acked
        last.settle()  # and nothing else
        assert last.repeated == total - acked
    finally:
        sandbox.close()


@RELAXED
@given(
    kind=st.sampled_from([SPEC, START, STDIN, STDIN_EOF, ACK, PING]),
    size=st.integers(0, 65_536),
    cut=st.floats(0, 1),
    fill=st.sampled_from([b"\0", b"F", b"FHW1", b"\xff"]),
)
def test_any_frame_torn_at_any_byte(binary: Path, kind: int, size: int, cut: float, fill: bytes) -> None:
    sandbox = Sandbox(binary)
    try:
        owner = Owner(sandbox)
        owner.attach(fresh=True)
        frame = Frame(kind, (fill * size)[:size], 3).encode()
        sandbox.send(frame[: int(cut * (len(frame) - 1))])
        later = Owner(sandbox, owner)
        assert later.attach().highest == 0
        assert later.run(shell("echo whole")).stdout == b"whole\n"
    finally:
        sandbox.close()
