"""A command in a sandbox that runs already: through its warden, and as `docker exec` does it, in the same container."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from bench.bare import Bare
from bench.figures import Ratio, Summary, ratio, summary
from bench.world import SOCKET, BenchError
from fumehood.sandbox.capture import STDOUT, Capture
from fumehood.sandbox.docker.attach import attach
from fumehood.sandbox.spec import SANDBOX_USER, Command
from fumehood.sandbox.warden.client import WardenClient
from fumehood.sandbox.warden.outcome import wire_command

COMMAND = ("echo", "1")
PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Inside:
    """Times inside a running sandbox."""

    round_trip: Summary
    """A PING and its PONG."""
    first_command: float
    """Milliseconds of the first command in a fresh container."""
    warden: Summary
    exec: Summary
    ratio: Ratio
    """The warden's over the engine's `exec`."""


async def measure(bare: Bare, pairs: int) -> Inside:
    container = await bare.create(bare.warden_body())
    try:
        client = WardenClient(await attach(SOCKET, container, seconds=SECONDS), orphan_ms=30_000)
        try:
            await bare.start(container)
            await client.connect(fresh=True, timeout=SECONDS)
            return await _measure(bare, container, client, pairs)
        finally:
            client.close()
    finally:
        await bare.remove(container)


async def _measure(bare: Bare, container: str, client: WardenClient, pairs: int) -> Inside:
    first = await _through_warden(client)
    await _through_exec(bare, container)
    ours, theirs = [], []
    for _ in range(pairs):
        if random.random() < 0.5:
            ours.append(await _through_warden(client))
            theirs.append(await _through_exec(bare, container))
        else:
            theirs.append(await _through_exec(bare, container))
            ours.append(await _through_warden(client))
    trips = [await _ping(client) for _ in range(5 * pairs)]
    return Inside(summary(trips), 1000 * first, summary(ours), summary(theirs), ratio(ours, theirs))


async def _ping(client: WardenClient) -> float:
    began = time.perf_counter()
    await client.ping(SECONDS)
    return time.perf_counter() - began


async def _through_warden(client: WardenClient) -> float:
    capture = Capture(1024)
    command_id = client.fresh_id()
    wire = wire_command(Command(COMMAND, env=PATH), SANDBOX_USER, ())
    began = time.perf_counter()
    ended = await client.run(command_id, wire, capture)
    seconds = time.perf_counter() - began
    await client.settle(command_id)
    if ended.code != 0 or capture.kept(STDOUT) != b"1\n":
        raise BenchError(f"a wrong answer through the warden: {ended.code} {capture.kept(STDOUT)!r}")
    return seconds


async def _through_exec(bare: Bare, container: str) -> float:
    began = time.perf_counter()
    output = await bare.execute(container, COMMAND)
    seconds = time.perf_counter() - began
    if output != b"1\n":
        raise BenchError(f"a wrong answer through exec: {output!r}")
    return seconds
