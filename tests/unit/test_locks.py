"""Concurrency keys: never more holders than the limit, first come, first served, and nobody is lost, whatever dies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fumehood.broker.memory import Faults, MemoryBroker, MemoryServer, Verdict
from fumehood.broker.ports import Bucket
from fumehood.control import contended
from fumehood.control.contended import Contended
from fumehood.control.locks import MOST_WAITING, Answer, Lock, Locks, Who, ask, leave, name_of, without
from fumehood.errors import BrokerUnavailableError

T = TypeVar("T")
A, B, C, D = (Who(name) for name in "abcd")


def asked(*requests: tuple[Who, int], lock: Lock | None = None) -> Lock:
    lock = lock if lock is not None else Lock()
    for who, limit in requests:
        lock, _ = ask(lock, who, limit, True)
    return lock


# --- the lock itself ---------------------------------------------------------------------------------------


def test_the_first_holds_it_and_the_others_wait_in_line() -> None:
    lock = asked((A, 1), (B, 1), (C, 1))
    assert (lock.holders, lock.waiting) == ((A,), (B, C))
    assert [lock.where(who) for who in (A, B, D)] == [Answer.GRANTED, Answer.WAITING, None]
    lock, granted = leave(lock, A, 1)
    assert granted == (B,)
    assert leave(lock, C, 1) == (Lock((B,), ()), ())


def test_whoever_does_not_want_to_wait_is_refused_and_forgotten() -> None:
    held = asked((A, 1))
    assert ask(held, B, 1, False) == (held, Answer.REFUSED)
    assert ask(held, A, 1, False) == (held, Answer.GRANTED)


def test_a_run_and_its_gates_are_different_askers() -> None:
    lock = asked((Who("a"), 2), (Who("a", "build.0"), 2))
    assert lock.holders == (Who("a"), Who("a", "build.0"))


def test_the_limit_of_the_current_request_counts() -> None:
    lock = asked((A, 1), (B, 1))
    assert ask(lock, B, 2, True) == (Lock((A, B), (), 2), Answer.GRANTED), "a newer definition has room for two"
    three = asked((A, 3), (B, 3), (C, 3))
    fewer, answer = ask(three, D, 1, True)
    assert (fewer.waiting, answer) == ((D,), Answer.WAITING)
    fewer, granted = leave(fewer, A, 1)
    assert (fewer.holders, granted) == ((B, C), ()), "two are still more than one"


def test_more_room_goes_to_those_who_wait_before_whoever_comes_now() -> None:
    lock = asked((A, 1), (B, 1))
    assert ask(lock, C, 2, False) == (lock, Answer.REFUSED)
    lock = asked((C, 2), lock=lock)
    assert lock.waiting == (B, C)
    assert leave(lock, A, 2) == (Lock((B, C), (), 2), (B, C))


def test_the_line_has_an_end() -> None:
    lock = Lock((A,), tuple(Who(f"w{n}") for n in range(MOST_WAITING)))
    assert ask(lock, B, 1, True) == (lock, Answer.FULL)
    assert ask(lock, Who("w7"), 1, True) == (lock, Answer.WAITING)
    shorter, _ = leave(lock, Who("w7"), 1)
    assert ask(shorter, B, 1, True)[1] is Answer.WAITING


def test_an_empty_lock_is_nothing_and_every_other_is_read_back() -> None:
    assert Lock().encode() is None
    lock = Lock((A, Who("b", "gate.0")), (C,), 2)
    assert Lock.decode(lock.encode()) == lock


names = st.text(max_size=6)


@given(st.tuples(names, names, names), st.tuples(names, names, names))
def test_locks_of_different_things_have_different_names(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert (name_of(*one) == name_of(*other)) == (one == other)
    assert len(name_of(*one)) == 64


WHO = st.sampled_from([Who(run, gate) for run in "abcdef" for gate in ("", "g")])
LIMIT = st.integers(1, 4)


class LockMachine(RuleBasedStateMachine):
    """Against a model that only knows who came when."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = Lock()
        self.held: set[Who] = set()
        self.line: list[Who] = []

    @rule(who=WHO, limit=LIMIT, queue=st.booleans())
    def asks(self, who: Who, limit: int, queue: bool) -> None:
        room = len(self.held) < limit
        self.lock, answer = ask(self.lock, who, limit, queue)
        if who in self.held:
            assert answer is Answer.GRANTED
            return
        first = self.line[0] == who if self.line else True
        assert (answer is Answer.GRANTED) == (room and first)
        if answer is Answer.GRANTED:
            self.held.add(who)
            self.line = self.line[1:]
        elif who not in self.line:
            assert answer is (Answer.WAITING if queue else Answer.REFUSED)
            self.line += [who] if queue else []
        else:
            assert answer is Answer.WAITING

    @rule(who=WHO, limit=LIMIT)
    def leaves(self, who: Who, limit: int) -> None:
        self.lock, granted = leave(self.lock, who, limit)
        self._gone({who}, granted, limit)

    @rule(gone=st.sets(WHO, max_size=4))
    def are_taken_out(self, gone: set[Who]) -> None:
        limit = self.lock.limit
        self.lock, granted = without(self.lock, gone)
        self._gone(gone, granted, limit)

    def _gone(self, gone: set[Who], granted: tuple[Who, ...], limit: int) -> None:
        self.held -= gone
        self.line = [one for one in self.line if one not in gone]
        assert list(granted) == self.line[: len(granted)], "first come, first served"
        self.line = self.line[len(granted) :]
        self.held |= set(granted)
        assert not granted or len(self.held) <= limit
        assert not self.line or len(self.held) >= limit, "nobody waits where there is room"

    @invariant()
    def nobody_is_lost_or_there_twice(self) -> None:
        assert set(self.lock.holders) == self.held
        assert list(self.lock.waiting) == self.line
        everybody = (*self.lock.holders, *self.lock.waiting)
        assert len(set(everybody)) == len(everybody)

    @invariant()
    def somebody_holds_it_where_others_wait(self) -> None:
        assert self.lock.holders or not self.lock.waiting

    @invariant()
    def it_is_read_back_as_it_was(self) -> None:
        data = self.lock.encode()
        assert data is None or Lock.decode(data) == self.lock


TestLockMachine = LockMachine.TestCase
TestLockMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# --- over a broker -----------------------------------------------------------------------------------------


async def nobody(who: Who) -> bool:
    return False


async def test_locks_of_two_servers_are_the_same() -> None:
    server = MemoryServer()
    here, there = Locks(MemoryBroker(server)), Locks(MemoryBroker(server))
    assert await here.ask("k", A, 1, queue=True) is Answer.GRANTED
    assert await there.ask("k", B, 1, queue=True) is Answer.WAITING
    assert (await here.where("k", A), await here.where("k", B)) == (Answer.GRANTED, Answer.WAITING)
    assert await there.leave("k", A, 1) == (B,)
    assert await here.where("k", A) is None


async def test_a_lock_that_nobody_holds_is_not_kept() -> None:
    broker = MemoryBroker()
    locks = Locks(broker)
    await locks.ask("k", A, 1, queue=True)
    assert await locks.ask("k", B, 1, queue=False) is Answer.REFUSED
    assert await locks.leave("k", A, 1) == ()
    assert await broker.bucket(Bucket.LOCKS).keys() == []
    assert await locks.leave("k", A, 1) == ()
    assert await locks.dead("k", nobody) == ()


async def test_a_lock_never_grows_beyond_what_a_key_may_hold() -> None:
    broker = MemoryBroker()
    longest = [Who(f"{number:0>128}", "g" * 128) for number in range(1000)]
    await broker.bucket(Bucket.LOCKS).create("k", Lock(tuple(longest[:980]), (), 1000).encode() or b"")
    answers = [await Locks(broker).ask("k", who, 1000, queue=True) for who in longest[980:]]
    assert (answers[0], answers[-1]) == (Answer.GRANTED, Answer.FULL)
    assert await Locks(broker).where("k", longest[-1]) is None


async def test_leaving_twice_tells_those_again_who_may_not_have_been_told() -> None:
    locks = Locks(MemoryBroker())
    for who in (A, B, C):
        await locks.ask("k", who, 1, queue=True)
    assert await locks.leave("k", A, 1) == (B,)
    assert await locks.leave("k", A, 1) == (B,)
    assert await locks.where("k", C) is Answer.WAITING


async def test_a_place_that_nobody_will_leave_goes_to_the_next_who_is_alive() -> None:
    locks = Locks(MemoryBroker())
    for who in (A, B, C, D, Who("e")):
        await locks.ask("k", who, 2, queue=True)
    looked_at: list[Who] = []

    async def is_over(who: Who) -> bool:
        looked_at.append(who)
        return who in (A, C)

    assert await locks.dead("k", is_over) == (D,)
    assert sorted(looked_at) == [A, B, C, D], "each once, and the line no further than it moves"
    assert [await locks.where("k", who) for who in (A, B, C, D)] == [None, Answer.GRANTED, None, Answer.GRANTED]
    assert await locks.where("k", Who("e")) is Answer.WAITING
    assert await locks.dead("k", is_over) == ()


async def test_a_sweep_takes_out_the_dead_and_tells_who_is_let_in() -> None:
    broker = MemoryBroker()
    locks = Locks(broker)
    for name in ("k", "l"):
        for who in (A, B, C, D):
            await locks.ask(name, who, 1, queue=True)
    told: list[Who] = []

    async def tell(who: Who) -> None:
        told.append(who)

    async def is_over(who: Who) -> bool:
        return who in (A, C)

    assert await locks.sweep(is_over, tell) == 2
    assert told == [B, B]
    assert Lock.decode((await broker.bucket(Bucket.LOCKS).entries())[0].value) == Lock((B,), (D,))
    assert await locks.sweep(is_over, tell) == 0


async def test_a_lock_that_cannot_be_swept_keeps_the_sweep_from_no_other() -> None:
    server = MemoryServer()
    calm = Locks(MemoryBroker(server))
    for name in ("k", "l"):
        for who in (A, B):
            await calm.ask(name, who, 1, queue=True)

    class LosesOne(Faults):
        async def call(self, operation: str, subject: str) -> Verdict:
            return Verdict.LOST if (operation, subject) == ("locks.update", "k") else Verdict.OK

    told: list[Who] = []

    async def tell(who: Who) -> None:
        told.append(who)

    async def is_over(who: Who) -> bool:
        return who == A

    assert await Locks(MemoryBroker(server, faults=LosesOne())).sweep(is_over, tell) == 1
    assert told == [B]
    assert (await calm.where("k", B), await calm.where("l", B)) == (Answer.WAITING, Answer.GRANTED)


async def test_many_of_one_process_do_not_contend_with_each_other() -> None:
    broker = MemoryBroker()
    shared = Contended(broker.bucket(Bucket.LOCKS))
    locks = Locks(broker, shared)
    answers = await asyncio.gather(*(locks.ask("k", Who(f"r{n}"), 10, queue=True) for n in range(200)))
    assert answers == [Answer.GRANTED] * 10 + [Answer.WAITING] * 190
    assert shared.refusals == 0


async def test_whoever_is_never_first_gives_up_with_an_error_that_says_to_come_again() -> None:
    server = MemoryServer()
    other = MemoryBroker(server).bucket(Bucket.LOCKS)

    class AlwaysSecond(Faults):
        async def call(self, operation: str, subject: str) -> Verdict:
            if operation in ("locks.create", "locks.update"):
                await other.put("k", Lock((A,)).encode() or b"")
            return Verdict.OK

    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    broker = MemoryBroker(server, faults=AlwaysSecond())
    slow = Contended(broker.bucket(Bucket.LOCKS), sleep=pause, draw=lambda: 1.0)
    with pytest.raises(BrokerUnavailableError):
        await Locks(broker, slow).ask("k", B, 1, queue=True)
    assert len(pauses) == slow.refusals == contended.TRIES
    assert (pauses[0], max(pauses)) == (contended.FIRST_PAUSE, contended.LONGEST_PAUSE)
    assert sum(pauses) < 10


# --- in bad weather ----------------------------------------------------------------------------------------


class Crashed(BaseException):
    """This process is gone, at whatever line it was."""


class Phase(Enum):
    """All that a run's journal would know."""

    ASKING = "asking"
    WAITING = "waiting"
    HOLDING = "holding"
    LEAVING = "leaving"
    ENDED = "ended"


class Storm:
    """Runs on one key, each served by a process that dies and comes back, over a connection that loses things."""

    def __init__(self, seed: int, *, runs: int, limit: int, deserters: int) -> None:
        self.draw = random.Random(seed)
        self.server = MemoryServer()
        self.limit = limit
        self.phases = {Who(f"r{number}"): Phase.ASKING for number in range(runs)}
        self.told = {who: asyncio.Event() for who in self.phases}
        self.deserters = set(self.draw.sample(sorted(self.phases), deserters))
        """Those that end without a word, and whose place only a sweep can free."""
        self.granted: list[Who] = []
        self.crashes = 0

    def locks(self) -> Locks:
        """A new process."""

        async def pause(seconds: float) -> None:
            await asyncio.sleep(0)

        broker = MemoryBroker(self.server, faults=Weather(self))
        return Locks(broker, Contended(broker.bucket(Bucket.LOCKS), sleep=pause, draw=self.draw.random))

    def check(self) -> None:
        """What must hold at every moment."""
        stored = self.server.buckets[Bucket.LOCKS].values.get("k")
        lock = Lock.decode(stored.value if stored is not None else None)
        assert len(lock.holders) <= self.limit
        assert {who for who, phase in self.phases.items() if phase is Phase.HOLDING} <= {*lock.holders}

    async def live(self) -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            sweeping = group.create_task(self.sweeps())
            runs = [group.create_task(self.run(who)) for who in self.phases]
            await asyncio.gather(*runs)
            sweeping.cancel()

    async def through(self, step: Callable[[Locks], Awaitable[T]]) -> T:
        """One step of a run, again until it is done: as a decider repeats what was not acked."""
        locks = self.locks()
        while True:
            try:
                return await step(locks)
            except Crashed:
                self.crashes += 1
                locks = self.locks()
            except BrokerUnavailableError:
                continue

    async def run(self, who: Who) -> None:
        answer = await self.through(lambda locks: locks.ask("k", who, self.limit, queue=True))
        if answer is Answer.WAITING:
            self.phases[who] = Phase.WAITING
            await self.turn(who)
        self.phases[who] = Phase.HOLDING
        self.granted.append(who)
        for _ in range(self.draw.randint(0, 20)):
            await asyncio.sleep(0)
        if who in self.deserters:
            self.phases[who] = Phase.ENDED
            return
        self.phases[who] = Phase.LEAVING
        await self.through(lambda locks: self.leave(locks, who))
        self.phases[who] = Phase.ENDED

    async def leave(self, locks: Locks, who: Who) -> None:
        for one in await locks.leave("k", who, self.limit):
            await self.tell(one)

    async def tell(self, who: Who) -> None:
        if self.draw.random() < 0.1:
            raise Crashed
        self.told[who].set()

    async def turn(self, who: Who) -> None:
        """Until told; where a sweep may have died between its two steps, also by looking."""
        if not self.deserters:
            await self.told[who].wait()
            return
        while not self.told[who].is_set():
            if await self.through(lambda locks: locks.where("k", who)) is Answer.GRANTED:
                return
            await asyncio.sleep(0)

    async def sweeps(self) -> None:
        while self.deserters:
            await self.through(lambda locks: locks.sweep(self.is_over, self.tell))
            await asyncio.sleep(0)

    async def is_over(self, who: Who) -> bool:
        return self.phases[who] is Phase.ENDED


class Weather(Faults):
    def __init__(self, storm: Storm) -> None:
        self._storm = storm

    async def call(self, operation: str, subject: str) -> Verdict:
        draw = self._storm.draw
        for _ in range(draw.randint(0, 3)):
            await asyncio.sleep(0)
        self._storm.check()
        luck = draw.random()
        if luck < 0.05:
            raise Crashed
        return Verdict.LOST if luck < 0.15 else Verdict.UNANSWERED if luck < 0.25 else Verdict.OK


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("deserters", [0, 4])
async def test_everybody_has_a_turn_and_never_too_many_at_once(seed: int, deserters: int) -> None:
    storm = Storm(seed, runs=16, limit=1 + seed % 3, deserters=deserters)
    await storm.live()
    storm.check()
    assert sorted(storm.granted) == sorted(storm.phases), "each once"
    assert storm.crashes > 0, "there was weather"
    if deserters == 0:
        assert await MemoryBroker(storm.server).bucket(Bucket.LOCKS).keys() == []
