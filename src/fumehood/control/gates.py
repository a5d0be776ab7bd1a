"""Concurrency keys of runs: asked for, left, and put right where a crash came between."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fumehood.broker.ports import Broker
from fumehood.control import intake, loading, summaries
from fumehood.control.callers import DEFAULT_TENANT
from fumehood.control.locks import Answer, Locks, Who, name_of
from fumehood.engine.desired import Claim, desired
from fumehood.engine.messages import MessageType
from fumehood.engine.state import RunState, RunStatus

LOOK_SECONDS = 60.0
"""Between two looks of one process for the dead among those who hold a key: there may be a thousand of them, and as
many who ask. Who dies meanwhile is found by a later look, or by the sweep."""
MOST_LOOKS = 10_000
"""Keys whose last look is remembered."""


class Gates:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._locks = Locks(broker)
        self._looked: OrderedDict[str, float] = OrderedDict()

    async def ask(self, state: RunState, claim: Claim) -> None:
        """The answer comes as a message to the run: now, or when whoever holds the key leaves."""
        who, lock = Who(state.run_id, claim.gate), _lock(state, claim)
        if state.tries:  # whoever ended the try before this one may have died before he left its key
            await self.leave(state, replace(claim, gate=state.gate_id(claim.step, state.tries - 1)))
        answer = await self._locks.ask(lock, who, claim.limit, queue=claim.queue)
        if answer is not Answer.GRANTED and self._is_time_to_look(lock):  # perhaps somebody holds it who is no more
            for other in await self._locks.dead(lock, self.has_ended):
                await self.grant(other)
            answer = await self._locks.ask(lock, who, claim.limit, queue=claim.queue)
        if answer is Answer.GRANTED and not claim.held:
            await self.grant(who)
        elif answer in (Answer.REFUSED, Answer.FULL):
            await self._tell(who, {"refused": answer.value})

    async def leave(self, state: RunState, claim: Claim) -> None:
        for other in await self._locks.leave(_lock(state, claim), Who(state.run_id, claim.gate), claim.limit):
            await self.grant(other)

    async def leave_ended(self, state: RunState) -> None:
        """What is not wanted any more, whoever failed to do it before."""
        wanted = {claim.gate for claim in desired(state).claims}
        for name, gate in state.gates.items():
            if state.gate_id(name) not in wanted:
                await self.leave(state, Claim(state.gate_id(name), gate.key, name, gate.limit))

    async def grant(self, who: Who) -> None:
        await self._tell(who, {})

    async def sweep(self) -> int:
        """All keys once; how many runs were let in."""
        return await self._locks.sweep(self.is_over, self.grant)

    def _is_time_to_look(self, lock: str) -> bool:
        """At most once in a while, also where that fails."""
        now = asyncio.get_running_loop().time()
        if now - self._looked.get(lock, -LOOK_SECONDS) < LOOK_SECONDS:
            return False
        self._looked[lock] = now
        self._looked.move_to_end(lock)
        if len(self._looked) > MOST_LOOKS:
            self._looked.popitem(last=False)
        return True

    async def has_ended(self, who: Who) -> bool:
        """Whether the try in which a run asked is over, mostly by its line alone. A step that ended in a run which goes
        on is left to that run's decider, who acks nothing before he has left the step's key, and to the sweep."""
        line, _ = await summaries.read(self._broker, who.run_id)
        return not _goes_on(line, who) and await self._is_unwanted(line, who)

    async def is_over(self, who: Who) -> bool:
        """Whether a run does not want what it once asked for, steps that ended in a run which goes on included."""
        line, _ = await summaries.read(self._broker, who.run_id)
        by_line = not _step_of(who) and _goes_on(line, who)
        return not by_line and await self._is_unwanted(line, who)

    async def _is_unwanted(self, line: Mapping[str, Any], who: Who) -> bool:
        """By the run's journal. One that asks has said so there before: without one, nothing is known."""
        if summaries.ARCHIVED in line and not line.get(summaries.LIVE):
            return True
        state, _ = await loading.load(self._broker, who.run_id)
        return state is not None and who.gate not in {claim.gate for claim in desired(state).claims}

    async def _tell(self, who: Who, said: dict[str, str]) -> None:
        body = {"step": _step_of(who), "gate": who.gate, **said}
        data = intake.encode(MessageType.GATE, body)
        await self._broker.mailboxes.send(who.run_id, f"{who.run_id}.gate.{who.gate}", data)


def _step_of(who: Who) -> str:
    """Empty: the whole run."""
    return who.gate.rpartition(".")[0]


def _goes_on(line: Mapping[str, Any], who: Who) -> bool:
    """Whether a run's line says that it is still at the try in which it asked. It may be late, never early."""
    return line.get("status") == RunStatus.RUNNING.value and str(line.get("tries")) == who.gate.rpartition(".")[2]


def _lock(state: RunState, claim: Claim) -> str:
    return name_of(str(state.meta.get("tenant") or DEFAULT_TENANT), f"{state.definition.name}/{claim.step}", claim.key)
