"""`fumehood doctor --attack`: hostile programs in real sandboxes on this machine, and what came of each.

Each one runs in a sandbox of its own, beside a neighbour that must get its right answer meanwhile, and must be gone
when it is over. What counts is what was seen, not what was configured. The programs need a shell and nothing more.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fumehood.cli.admission import admitting
from fumehood.errors import SandboxError, SandboxLostError
from fumehood.images.admission import AdmittedImage
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from fumehood.sandbox.driver import State
from fumehood.sandbox.spec import MIB, Command, End, Limits, Outcome, SandboxSpec
from fumehood.settings import NodeSettings

IMAGE = "docker.io/library/python:3.12-slim"
"""Where none is named: what the documentation uses everywhere."""
SECONDS = 5
"""That an attack may take. What does not end by itself is ended."""
PATIENCE_SECONDS = 120.0
"""For everything around it: making sandboxes on a machine that is being attacked."""
KEPT = 16 * 1024
STDOUT = 1
SHELL = "/bin/sh"
WORD = "the-neighbour-is-well"
LIMITS = Limits(memory_bytes=128 * MIB, workspace_bytes=32 * MIB, tmp_bytes=16 * MIB, file_bytes=64 * MIB)
"""Small ones, so that an attack is over soon; as many processes as any sandbox."""


@dataclass(slots=True)
class Heard:
    """What a program printed: how much, and the beginning of it. A flood fills nothing of ours."""

    data: bytearray = field(default_factory=bytearray)
    total: int = 0

    def write(self, stream: int, offset: int, data: bytes) -> None:
        self.total += len(data)
        if stream == STDOUT and len(self.data) < KEPT:
            self.data += data[: KEPT - len(self.data)]

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Attack:
    """One hostile program, and how to see that it came to nothing."""

    name: str
    tries: str
    script: str
    held: Callable[[Outcome, Heard], bool]


def _ended(*ends: End) -> Callable[[Outcome, Heard], bool]:
    return lambda outcome, _: outcome.end in ends


def _silent(outcome: Outcome, heard: Heard) -> bool:
    return outcome.end is End.EXITED and outcome.exit_code == 0 and heard.text.strip() == "done"


def _wrote_at_most(outcome: Outcome, heard: Heard) -> bool:
    said = heard.text.strip()
    return outcome.end is End.OOM or (said.isdecimal() and int(said) <= LIMITS.workspace_bytes)


_DOORS = (
    "/etc/passwd /proc/sys/kernel/core_pattern /proc/sysrq-trigger /sys/kernel/uevent_helper /dev/mem /dev/sda "
    "/dev/kmsg /fumehood/x /x"
)
ATTACKS = (
    Attack(
        "fork bomb",
        "to use up all processes",
        "b() { b | b & b; }; b",
        lambda outcome, _: outcome.end is not End.EXITED or outcome.exit_code != 0,
    ),
    Attack(
        "memory",
        "to use up all memory",
        "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done",
        lambda outcome, _: outcome.end in (End.OOM, End.SIGNALED) or (outcome.exit_code or 0) != 0,
    ),
    Attack(
        "disk",
        "to fill the disk",
        "cat /dev/zero > /workspace/full 2> /dev/null; wc -c < /workspace/full",
        _wrote_at_most,
    ),
    Attack("flood", "to print without end", "while :; do echo flood; done", _ended(End.TIMED_OUT)),
    Attack(
        "outliving",
        "to live on when it has ended",
        "(trap '' HUP TERM INT; while :; do sleep 1; done) > /dev/null 2>&1 & exit 0",
        lambda outcome, _: outcome.end is End.EXITED and outcome.exit_code == 0,
    ),
    Attack(
        "ignoring signals",
        "not to end at its timeout",
        "trap '' HUP TERM INT QUIT; while :; do :; done",
        _ended(End.TIMED_OUT),
    ),
    Attack(
        "killing everybody",
        "to kill its supervisor",
        "kill -9 -1; sleep 60",
        _ended(End.SIGNALED, End.EXITED, End.TIMED_OUT),
    ),
    Attack(
        "posing as out of memory",
        "to lie about how it ended",
        "exit 137",
        lambda outcome, _: outcome.end is End.EXITED and outcome.exit_code == 137,
    ),
    Attack(
        "system files",
        "to write where it must not",
        f"for f in {_DOORS}; do (echo x > $f) 2> /dev/null && echo open $f; done; echo done",
        _silent,
    ),
    Attack(
        "the engine",
        "to reach the engine, and the environment of its supervisor",
        "for f in /var/run/docker.sock /run/docker.sock; do [ -e $f ] && echo there $f; done; "
        "tr '\\0' '\\n' < /proc/1/environ 2> /dev/null | while read line; do "
        "case $line in *FUMEHOOD*|*TOKEN*|*PASSWORD*|*SECRET*) echo read;; esac; done; echo done",
        _silent,
    ),
    Attack(
        "the network",
        "to find an interface to leave by",
        "while read name rest; do case $name in lo:*|Inter-*|face*) ;; *) echo found $name;; esac; done "
        "< /proc/net/dev; echo done",
        _silent,
    ),
)


@dataclass(frozen=True, slots=True)
class Result:
    attack: Attack
    held: bool
    saw: str

    def to_dict(self) -> dict[str, Any]:
        return {"attack": self.attack.name, "tries": self.attack.tries, "held": self.held, "saw": self.saw}


async def attacked(settings: NodeSettings, image: str) -> AsyncIterator[Result]:
    """Each attack in turn. `ImageError` where the image is not admitted, `SandboxError` where there is no engine."""
    with TemporaryDirectory(prefix="fumehood-doctor-") as folder:
        async with admitting(settings) as images:
            admitted = await images.admission.admit(image)
            driver = DockerDriver(
                DockerOptions(
                    node_id=f"doctor-{Path(folder).name}",
                    state_dir=Path(folder),
                    socket=settings.docker_socket,
                    runtime=settings.runtime,
                    credentials=images.engine_auth,
                )
            )
            try:
                for attack in ATTACKS:
                    yield await _judged(driver, admitted, attack)
            finally:
                await driver.close()


async def _judged(driver: DockerDriver, image: AdmittedImage, attack: Attack) -> Result:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            both = asyncio.gather(_run(driver, image, attack.script), _well(driver, image))
            (outcome, heard, left), well = await both
    except TimeoutError:
        return Result(attack, False, f"it was not over after {PATIENCE_SECONDS:.0f} s")
    saw = _words(outcome, heard)
    if left:
        return Result(attack, False, f"{saw}; its sandbox is still there")
    if not well:
        return Result(attack, False, f"{saw}; a neighbour did not get its right answer")
    return Result(attack, attack.held(outcome, heard), saw)


async def _well(driver: DockerDriver, image: AdmittedImage) -> bool:
    outcome, heard, left = await _run(driver, image, f"sleep 1; echo {WORD}")
    return outcome.exit_code == 0 and heard.text.strip() == WORD and not left


async def _run(driver: DockerDriver, image: AdmittedImage, script: str) -> tuple[Outcome, Heard, bool]:
    """How it ended, what it printed, and whether anything of it is left."""
    heard = Heard()
    async with _sandbox(driver, image) as handle:
        command, began = Command((SHELL, "-c", script), timeout_ms=SECONDS * 1000), dt.datetime.now(dt.UTC)
        try:
            outcome = await driver.run(handle, command, heard, command_id=1)
        except SandboxLostError:  # it took its own sandbox with it
            outcome = Outcome(End.SANDBOX_LOST, began, dt.datetime.now(dt.UTC))
    return outcome, heard, (await driver.inspect(handle)).state is not State.GONE


@asynccontextmanager
async def _sandbox(driver: DockerDriver, image: AdmittedImage) -> AsyncIterator[Any]:
    handle = await driver.prepare(SandboxSpec(f"attack-{uuid.uuid4().hex}", image, limits=LIMITS))
    try:
        await driver.start(handle)
        yield handle
    finally:
        await driver.destroy(handle)


def _words(outcome: Outcome, heard: Heard) -> str:
    how = {
        End.EXITED: f"exited with {outcome.exit_code}",
        End.SIGNALED: f"killed by signal {outcome.signal}",
        End.TIMED_OUT: "ended at its timeout",
        End.OOM: "ended for lack of memory",
        End.NOT_STARTED: "not started",
        End.SANDBOX_LOST: "its sandbox broke down, and nothing else",
    }[outcome.end]
    if outcome.end is End.NOT_STARTED:
        raise SandboxError(f"the image has no {SHELL} to attack with: name another one with --image")
    said = heard.text.strip().replace("\n", ", ")[:200]
    return f"{how}, {heard.total} bytes printed" if heard.total > len(heard.data) else f"{how}; said: {said or '-'}"
