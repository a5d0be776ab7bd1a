"""What runs in fake sandboxes: a few words of its own, not shell."""

from __future__ import annotations

import asyncio
import errno
import signal as signals
from collections.abc import Awaitable, Callable, Mapping

from fumehood.sandbox.fake_machine import PIECE, WINDOW, Job
from fumehood.sandbox.spec import SANDBOX_USER, WARDEN_UID, End, Stage


async def _echo(job: Job, *words: str) -> int:
    job.write(1, (" ".join(words) + "\n").encode())
    return 0


async def _both(job: Job, out: str, err: str) -> int:
    job.write(1, out.encode())
    job.write(2, err.encode())
    return 0


async def _exit(job: Job, code: str) -> int:
    return int(code)


async def _sleep(job: Job, seconds: str) -> int:
    job.write(1, b"begun\n")
    await asyncio.sleep(float(seconds))
    return 0


async def _flood(job: Job, size: str) -> int:
    left = int(size)
    while left > 0:
        await job.until(lambda: len(job.output[1]) - job.taken[1] < WINDOW)
        job.write(1, b"x" * min(PIECE, left))
        left -= PIECE
        await asyncio.sleep(0)
    return 0


async def _ticks(job: Job, count: str, seconds: str) -> int:
    for number in range(int(count)):
        job.write(1, f"tick {number}\n".encode())
        await asyncio.sleep(float(seconds))
    return 0


async def _cat(job: Job) -> int:
    while not job.input_ended or job.read < len(job.input):
        await job.until(lambda: job.read < len(job.input) or job.input_ended)
        job.write(1, bytes(job.input[job.read :]))
        job.read = len(job.input)
        job.moved.set()
    return 0


async def _size(job: Job) -> int:
    """What its terminal's size is, now and whenever it changes."""
    while True:
        size = job.command.pty or (0, 0)
        job.write(1, f"{size[0]} {size[1]}\n".encode())
        await job.until(lambda old=size: job.command.pty != old)  # type: ignore[misc]


async def _env(job: Job) -> int:
    job.write(1, "".join(f"{name}={value}\n" for name, value in job.command.env.items()).encode())
    return 0


async def _whoami(job: Job) -> int:
    user = job.command.user or SANDBOX_USER
    job.write(1, f"{user.uid}:{user.gid}\n".encode())
    return 0


async def _raise(job: Job, number: str) -> int:
    return -int(number)


async def _hog(job: Job) -> int:
    job.end(End.OOM, exit_code=137)
    return 0


async def _obeys(job: Job, code: str) -> int:
    job.traps[signals.SIGTERM] = int(code)
    return await _sleep(job, "60")


async def _ignores(job: Job) -> int:
    job.traps[signals.SIGTERM] = None
    return await _sleep(job, "60")


async def _leaves(job: Job, mark: str) -> int:
    job.left.add(mark)
    return await _sleep(job, "60")


async def _left(job: Job, mark: str) -> int:
    job.write(1, b"alive\n" if mark in job.left else b"gone\n")
    return 0


PROGRAMS: Mapping[str, Callable[..., Awaitable[int]]] = {
    "echo": _echo,
    "both": _both,
    "exit": _exit,
    "sleep": _sleep,
    "forks": _sleep,
    "flood": _flood,
    "ticks": _ticks,
    "cat": _cat,
    "size": _size,
    "env": _env,
    "whoami": _whoami,
    "raise": _raise,
    "hog": _hog,
    "obeys": _obeys,
    "ignores": _ignores,
    "leaves": _leaves,
    "left": _left,
}


async def execute(job: Job) -> None:
    name, *words = job.command.argv
    program = PROGRAMS.get(name)
    if job.command.user is not None and WARDEN_UID in (job.command.user.uid, job.command.user.gid):
        job.end(End.NOT_STARTED, errno=errno.EPERM, stage=Stage.USER)
        return
    if program is None:
        job.end(End.NOT_STARTED, errno=errno.ENOENT, stage=Stage.EXEC)
        return
    try:
        async with asyncio.timeout_at(job.deadline) as job.watch:
            code = await program(job, *words)
    except TimeoutError:
        job.end(End.TIMED_OUT)
    else:
        job.end(End.EXITED, exit_code=code) if code >= 0 else job.end(End.SIGNALED, signal=-code)
