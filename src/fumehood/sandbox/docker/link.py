"""The link to one sandbox's warden: attached, and attached again, until the sandbox has really ended.

When an attachment breaks, the sandbox may be running, ended, or unreachable because the engine is. Only the
engine's own state decides which: running means attach again and join; ended means look for the cause; unreachable
means wait, but no longer than the warden itself would wait for an owner, because after that nothing runs any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, replace
from typing import Any

from fumehood.errors import (
    DeadlineExceededError,
    EngineStatusError,
    EngineUnavailableError,
    SandboxError,
    SandboxLostError,
    SandboxStartError,
)
from fumehood.sandbox.docker.attach import AttachTransport, attach
from fumehood.sandbox.docker.backstop import Clock, backstop
from fumehood.sandbox.docker.engine import Engine
from fumehood.sandbox.docker.oom import UNTOUCHED, Mark, OomWatch
from fumehood.sandbox.docker.steering import Steering
from fumehood.sandbox.driver import Sink
from fumehood.sandbox.phases import Phases
from fumehood.sandbox.spec import End, ImageCommand, Outcome, User
from fumehood.sandbox.warden import ids
from fumehood.sandbox.warden.client import WardenClient
from fumehood.sandbox.warden.frames import Flag, WireCommand
from fumehood.sandbox.warden.once import run_once
from fumehood.sandbox.warden.outcome import outcome_of
from fumehood.sandbox.warden.transport import NotRunningError, TransportClosedError

ATTACH_SECONDS = 15.0
CONNECT_SECONDS = 45.0
END_SECONDS = 1.0
ORPHAN_MARGIN_SECONDS = 5.0
SIGKILL = 9
OOM_EXIT_CODE = 128 + SIGKILL
SETTLED_REMEMBERED = 1024
"""Far more than a warden has commands at a time: what it was not told in time is among the last ones."""


@dataclass(frozen=True, slots=True)
class Task:
    """A command on its way to the warden, with what it reads and who takes what it says."""

    wire: WireCommand
    sink: Sink
    stdin: bytes = b""
    more_stdin: bool = False


class Link:
    def __init__(
        self,
        *,
        engine: Engine,
        oom: OomWatch,
        container: str,
        user: User,
        image_env: tuple[str, ...],
        orphan_seconds: float,
    ) -> None:
        self.user = user
        self.image_env = image_env
        self.image_command: ImageCommand | None = None
        """Known where this process made the sandbox, or was asked before."""
        self.runtime: str | None = None
        """Known once it was asked for."""
        self.phases = Phases()
        self.steering = Steering(self.client)
        self._engine = engine
        self._oom = oom
        self._container = container
        self._orphan_seconds = orphan_seconds
        self._client: WardenClient | None = None
        self._lock = asyncio.Lock()
        self._given = 0
        self._settled: OrderedDict[int, None] = OrderedDict()
        self._marks: dict[int, Mark] = {}
        self._clocks: dict[int, Clock] = {}
        """Of commands that wait, or waited."""

    # --- attachments ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Attach, then start, so that nothing the warden says is lost. Some runtimes fail a start now and then."""
        try:
            await self._start_once()
        except EngineStatusError as error:
            if error.status < 500:
                raise
            await self._start_once()

    async def _start_once(self) -> None:
        async with self._lock:
            transport = await self._attach()
            client = WardenClient(transport, orphan_ms=self._orphan_ms)
            try:
                await self._engine.start(self._container)
                await client.connect(fresh=True, timeout=CONNECT_SECONDS)
            except TransportClosedError as error:
                raise SandboxStartError(f"the warden ended at once: {transport.last_words or 'no reason'}") from error
            except BaseException:
                client.close()
                raise
            self._client = client

    async def client(self) -> WardenClient:
        """The live attachment, made anew if the last one broke."""
        async with self._lock:
            if self._client is None or self._client.closed:
                self.close()
                if not (await self._engine.inspect(self._container))["State"].get("Running"):
                    raise NotRunningError("the sandbox does not run")  # nobody would ever answer
                client = WardenClient(await self._attach(), orphan_ms=self._orphan_ms)
                await client.connect(fresh=False, timeout=CONNECT_SECONDS)
                self._client = client
                await client.settle(*self._settled)
            return self._client

    async def _attach(self) -> AttachTransport:
        return await attach(self._engine.socket, self._container, seconds=ATTACH_SECONDS)

    @property
    def _orphan_ms(self) -> int:
        return int(self._orphan_seconds * 1000)

    async def end(self) -> None:
        """Have the warden end its sandbox, and wait a moment for it: measured quicker than a removal that has to kill
        (bench/README.md). Whatever stands in the way, the removal that follows kills for certain.
        """
        if self._client is None or self._client.closed:
            return
        with contextlib.suppress(TimeoutError, TransportClosedError, SandboxError, EngineStatusError):
            async with asyncio.timeout(END_SECONDS):
                await self._client.shutdown()
                await self._engine.wait(self._container, seconds=2 * END_SECONDS)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    # --- commands ------------------------------------------------------------------------------------------

    async def run(self, task: Task, *, command_id: int) -> Outcome:
        """Run or join a command, and note how far it came."""
        try:
            outcome = await self._run(task, command_id)
        except SandboxLostError:
            self._over(command_id)
            raise
        self._over(command_id)
        return outcome

    def _over(self, command_id: int) -> None:
        self.phases.ended(command_id)
        self._marks.pop(command_id, None)
        self._clocks.pop(command_id, None)

    async def _run(self, task: Task, command_id: int) -> Outcome:
        """Through as many attachments as it takes."""
        lost_since: float | None = None
        while True:
            try:
                client = await self.client()
                lost_since = None  # we are its owner again: the warden's clock starts anew, and so does our patience
                self._mark(client, command_id)
                self.phases.sent(command_id)  # it is written before anybody who waits for this can be woken
                return await self._run_on(client, task, command_id)
            except (TransportClosedError, EngineUnavailableError, DeadlineExceededError, EngineStatusError):
                lost_since = lost_since or asyncio.get_running_loop().time()
                ended = await self._after_loss(lost_since, self._since(command_id))
                if ended is not None:
                    return ended

    def _mark(self, client: WardenClient, command_id: int) -> None:
        """Before it is sent: what another owner sent is not marked."""
        if command_id > client.highest:
            self._marks[command_id] = self._oom.mark(self._container)

    def _since(self, command_id: int) -> Mark | None:
        """What the OOM killer had done when a command began; None where nobody knows. Before the first: nothing."""
        return self._marks.get(command_id, UNTOUCHED if command_id <= ids.FIRST else None)

    async def run_once(self, wire: WireCommand, sink: Sink, stdin: bytes | AsyncIterator[bytes]) -> Outcome:
        """A command without a history: it gets a fresh id, is settled at once, and is not tried again."""
        try:
            return outcome_of(await run_once(await self.client(), wire, sink, stdin))
        except TransportClosedError as error:
            raise SandboxLostError("the connection to the sandbox broke") from error

    async def next_id(self) -> int:
        client = await self._live_client()
        self._given = ids.caller_id(max(client.highest, self._given))
        return self._given

    async def settle(self, command_id: int) -> None:
        """Also when nobody is attached: then the warden hears it next time."""
        self._settled[command_id] = None
        self._marks.pop(command_id, None)
        self._clocks.pop(command_id, None)
        while len(self._settled) > SETTLED_REMEMBERED:
            self._settled.popitem(last=False)
        if self._client is not None:
            with contextlib.suppress(TransportClosedError):
                await self._client.settle(command_id)

    async def disown(self, keep: Collection[int]) -> None:
        await (await self._live_client()).disown(keep)

    async def begin(self, command_id: int, timeout_ms: int) -> None:
        """The warden's clock first: ours, for the backstop, must not be ahead of it."""
        if await self.steering.begin(command_id, timeout_ms):
            self._waiting_clock(command_id).begin(timeout_ms / 1000)

    def _waiting_clock(self, command_id: int) -> Clock:
        """It may begin before it is joined here, and is joined again after a loss."""
        return self._clocks.setdefault(command_id, Clock())

    async def signal(self, command_id: int, number: int, *, everything: bool) -> None:
        try:
            client = await self.client()
            await client.signal(command_id, number, everything=everything)
        except TransportClosedError as error:
            raise SandboxLostError("the connection to the sandbox broke") from error

    async def _live_client(self) -> WardenClient:
        try:
            return await self.client()
        except TransportClosedError as error:
            raise SandboxLostError() from error

    async def _run_on(self, client: WardenClient, task: Task, command_id: int) -> Outcome:
        wire = task.wire
        waits = bool(wire.flags & Flag.WAITS)
        clock = self._waiting_clock(command_id) if waits else Clock(wire.timeout_ms / 1000)
        watch: asyncio.Timeout | None = None
        try:
            async with backstop(client, clock) as watch:
                ended = await client.run(command_id, wire, task.sink, task.stdin, more_stdin=task.more_stdin)
        except TimeoutError:
            if watch is None or not watch.expired():
                raise
            client.close()
            await self._kill()
            return Outcome(End.TIMED_OUT, started_at=clock.since, ended_at=dt.datetime.now(dt.UTC))
        return await self._judge(outcome_of(ended), self._since(command_id))

    async def _kill(self) -> None:
        try:
            await self._engine.kill(self._container)
        except EngineStatusError as error:
            if error.status not in (404, 409):
                raise SandboxError("the engine could not end a sandbox") from error

    # --- judgement -----------------------------------------------------------------------------------------

    async def _judge(self, outcome: Outcome, since: Mark | None) -> Outcome:
        """Tell an OOM kill from any other kill: the warden cannot see who sent a SIGKILL."""
        killed = outcome.signal == SIGKILL and not outcome.killed_by_owner
        if not killed and outcome.exit_code != OOM_EXIT_CODE:
            return outcome
        if not await self._oom.killed(self._container, since):
            return outcome
        return replace(outcome, end=End.OOM, exit_code=OOM_EXIT_CODE, signal=None)

    async def _after_loss(self, lost_since: float, since: Mark | None) -> Outcome | None:
        """What became of the sandbox whose attachment broke? `None`: it is running, attach again. The engine is asked
        at least once, however long we stood still."""
        patience = lost_since + self._orphan_seconds + ORPHAN_MARGIN_SECONDS
        engine_lost, pause = False, 0.02
        while True:
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 2)
            try:
                state = (await self._engine.inspect(self._container))["State"]
            except EngineStatusError as error:
                if error.status == 404:
                    raise SandboxLostError(
                        "the sandbox was removed under its command", engine_lost=engine_lost
                    ) from error
            except (EngineUnavailableError, DeadlineExceededError):
                engine_lost = True
            else:
                return None if state.get("Running") else await self._epitaph(state, engine_lost, since)
            if asyncio.get_running_loop().time() > patience:
                raise SandboxLostError(
                    "the sandbox was out of reach for longer than it lives without an owner", engine_lost=True
                )

    async def _epitaph(self, state: dict[str, Any], engine_lost: bool, since: Mark | None) -> Outcome:
        """The container ended without the warden's word. If memory was the cause, that is known and said.

        The engine's flag alone proves nothing: it stays set when only a child was killed. Then the warden, had it been
        the end, would have ended with a code of its own. Nor does it say when: it counts where nothing was before.
        """
        killed = not engine_lost and state.get("ExitCode") == OOM_EXIT_CODE
        flagged = since == UNTOUCHED and state.get("OOMKilled")
        if killed and (flagged or await self._oom.killed(self._container, since)):
            return Outcome(
                End.OOM,
                started_at=_time(state["StartedAt"]),
                ended_at=_time(state["FinishedAt"]),
                exit_code=OOM_EXIT_CODE,
            )
        code = state.get("ExitCode")
        raise SandboxLostError(
            f"the sandbox ended with {code} before its command's end was known", engine_lost=engine_lost
        )


def _time(text: str) -> dt.datetime:
    """The engine writes nanoseconds; Python reads microseconds."""
    return dt.datetime.fromisoformat(text[:19] + "+00:00")
