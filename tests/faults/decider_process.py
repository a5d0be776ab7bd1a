"""Deciders that die at a point of their work which the test names, by a real SIGKILL.

One process is started, imports everything once, and then forks a decider for each line on its input: to import and
compile anew for every one of several hundred deaths would take minutes. A forked decider opens a connection of its
own and serves one partition, exactly as a server does, but every call to the broker passes through `Failpoints`,
which counts before and after it and kills its own process at the n-th. Nothing is cleaned up: no `finally`, no flush,
no farewell to the server.

Input, one JSON object a line: first where the broker is, then `{"id", "run", "partition", "kill_at"}` to fork and
`{"id", "end": true}` to kill from outside. Output: `{"id", "pid"}` and, once it is dead, `{"id", "signal", "trace"}`
with the names of the points that it passed.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, cast

from fumehood.broker import names
from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import Connection, ConnectionOptions
from fumehood.broker.ports import Broker, Bucket, Delivery
from fumehood.control import loading
from fumehood.control.decider import Decider
from fumehood.engine import draft, moving
from fumehood.errors import BrokerError
from tests.integration.engine_world import shape

SNAPSHOT_EVERY = 5
"""Events. In the 200 of production no case here would ever come to a snapshot, nor die beside one."""
PORTS = ("journal", "mailboxes", "histories", "tasks", "timers")
NAMELESS = ("blobs", f"bucket.{Bucket.LOCKS}", f"bucket.{Bucket.DEFINITIONS}")
"""Ports whose calls name no run."""


def stay_near(partitions: int, patch: Callable[[object, str, object], None] = setattr) -> None:
    """Have runs that follow from another one lie in its partition, which one trial has for itself."""

    def near(now: int, *names_of: str) -> str:
        wanted = names.partition_of(names_of[0], partitions)
        ids = (new_run_id(now, *names_of, str(number)) for number in itertools.count())
        return next(run_id for run_id in ids if names.partition_of(run_id, partitions) == wanted)

    new_run_id = draft.new_run_id
    for module in (draft, moving):
        patch(module, "new_run_id", near)


# --- one decider -----------------------------------------------------------------------------------------------------


class Failpoints:
    """Counts the points that concern one run and those that follow from it, and dies at the n-th. Its partition is
    its own: whatever run is in it is one of them."""

    def __init__(self, run_id: str, partitions: int, kill_at: int | None, connection: Connection, trace: int) -> None:
        self._partitions = partitions
        self._lane = names.partition_of(run_id, partitions)
        self._kill_at = kill_at
        self._connection = connection
        self._trace = trace
        self._count = 0

    def concerns(self, *values: object) -> bool:
        return any(isinstance(value, str) and self._is_ours(value) for value in values)

    def _is_ours(self, value: str) -> bool:
        run_id = value.partition(".")[0]
        return run_id.startswith("run-") and names.partition_of(run_id, self._partitions) == self._lane

    async def reach(self, name: str, *, sent: bool = False) -> None:
        self._count += 1
        os.write(self._trace, f"{name}\n".encode())
        if self._count == self._kill_at:
            if sent:
                await self._connection._client.flush()
            os.kill(os.getpid(), signal.SIGKILL)


class _Port:
    """All calls of one port that concern the run."""

    def __init__(self, real: Any, name: str, points: Failpoints) -> None:
        self._real = real
        self._name = name
        self._points = points

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._real, attribute)
        if not inspect.iscoroutinefunction(found):
            return found
        name = f"{self._name}.{attribute}"

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._name not in NAMELESS and not self._points.concerns(*args, *kwargs.values()):
                return await found(*args, **kwargs)
            await self._points.reach(f"before {name}")
            try:
                result = await found(*args, **kwargs)
            except BrokerError:
                await self._points.reach(f"after refused {name}")
                raise
            await self._points.reach(f"after {name}")
            return result

        return call


class _Settlement:
    """Ack and nak are sent without an answer: they may be lost in a buffer, or just have left it."""

    def __init__(self, real: Any, points: Failpoints) -> None:
        self._real = real
        self._points = points

    async def ack(self) -> None:
        await self._points.reach("before ack")
        await self._real.ack()
        await self._points.reach("after ack")
        await self._points.reach("after ack was sent", sent=True)

    async def nak(self, delay: float) -> None:
        await self._points.reach("before nak")
        await self._real.nak(delay)
        await self._points.reach("after nak was sent", sent=True)

    async def extend(self) -> None:
        await self._real.extend()


class _Feed:
    def __init__(self, real: Any, points: Failpoints) -> None:
        self._real = real
        self._points = points

    @property
    def patience(self) -> float:
        return float(self._real.patience)

    async def pull(self, partition: int, *, max_messages: int, timeout: float) -> list[Delivery]:
        found = await self._real.pull(partition, max_messages=max_messages, timeout=timeout)
        ours = [self._points.concerns(delivery.run_id) for delivery in found]
        if any(ours):
            await self._points.reach("after pull")
        return [
            replace(delivery, settlement=_Settlement(delivery.settlement, self._points)) if mine else delivery
            for delivery, mine in zip(found, ours, strict=True)
        ]

    async def release(self, partition: int) -> None:
        await self._real.release(partition)


class Doomed:
    """A broker whose every call is a point to die at."""

    def __init__(self, real: NatsBroker, points: Failpoints) -> None:
        self._real = real
        self._points = points
        self.feed = _Feed(real.feed, points)

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._real, attribute)
        return _Port(found, attribute, self._points) if attribute in PORTS else found

    def bucket(self, name: Bucket) -> Any:
        return _Port(self._real.bucket(name), f"bucket.{name}", self._points)

    def blobs(self, tenant: str = "default") -> Any:
        return _Port(self._real.blobs(tenant), "blobs", self._points)


async def decide(options: ConnectionOptions, partitions: int, order: dict[str, Any], trace: int) -> None:
    connection = await Connection.open(options)
    real = NatsBroker(connection, shape(partitions))
    await real.unlock()
    points = Failpoints(order["run"], partitions, order["kill_at"], connection, trace)
    decider = Decider(cast(Broker, Doomed(real, points)), now_ms=lambda: time.time_ns() // 1_000_000)
    await decider.work(order["partition"])


def live_and_die(options: ConnectionOptions, partitions: int, order: dict[str, Any], trace: int) -> NoReturn:
    """The forked process. It never returns into its parent's code."""
    gc.disable()  # it lives for moments; a collection would only copy what it shares with its parent
    try:
        asyncio.run(decide(options, partitions, order, trace))
    except BaseException:  # noqa: BLE001 - whatever it is, it is told, and the parent's stack is not unwound
        traceback.print_exc()
    finally:
        os._exit(70)


# --- the process that forks them -------------------------------------------------------------------------------------


@dataclass
class Child:
    pid: int
    order_id: int
    trace: bytearray = field(default_factory=bytearray)


class Nursery:
    """No threads and no event loop of its own, so that forking is safe."""

    def __init__(self, options: ConnectionOptions, partitions: int) -> None:
        self._options = options
        self._partitions = partitions
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._children: dict[int, Child] = {}
        self._rest = b""

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd != 0:
                    self._hear(key.fd)
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        """Whatever stands on the input; `False` at its end."""
        data = os.read(0, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if order.get("end"):
                self._end(order["id"])
            else:
                self._fork(order)
        return bool(data)

    def _fork(self, order: dict[str, Any]) -> None:
        heard, trace = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            live_and_die(self._options, self._partitions, order, trace)
        os.close(trace)
        self._children[heard] = Child(pid, order["id"])
        self._selector.register(heard, selectors.EVENT_READ)
        tell({"id": order["id"], "pid": pid})

    def _end(self, order_id: int) -> None:
        for child in self._children.values():
            if child.order_id == order_id:
                os.kill(child.pid, signal.SIGKILL)

    def _hear(self, heard: int) -> None:
        """What a child passed; its end closes the pipe, whatever it was that ended it."""
        child = self._children[heard]
        data = os.read(heard, 65536)
        child.trace += data
        if data:
            return
        self._selector.unregister(heard)
        os.close(heard)
        del self._children[heard]
        _, status = os.waitpid(child.pid, 0)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        tell({"id": child.order_id, "signal": number, "trace": child.trace.decode().splitlines()})

    def close(self) -> None:
        for child in self._children.values():
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)


def tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    """The first line comes by itself, so that what follows it is not lost in a buffer."""
    first = b""
    while not first.endswith(b"\n"):
        first += os.read(0, 1)
    place = json.loads(first)
    partitions = place.pop("partitions")
    loading.EVERY = SNAPSHOT_EVERY
    stay_near(partitions)
    nursery = Nursery(ConnectionOptions(tuple(place.pop("servers")), **place), partitions)
    gc.freeze()
    try:
        nursery.run()
    finally:
        nursery.close()


if __name__ == "__main__":
    main()
