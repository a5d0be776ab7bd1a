"""A handler's own no_capacity (lives.py: no more sessions; known.py: no room) is held by the real Duties for ever: the
console takes it for a refusal and never acknowledges it; and the same command, offered again, gets the old answer."""

import asyncio
from pathlib import Path

from fumehood.control.callers import ADMIN
from fumehood.errors import CommandFailedError
from fumehood.node.console.duties import Answer, Duties
from fumehood.node.console.duty_store import DutyStore
from fumehood.wire.console.codes import Reason
from fumehood.wire.console.console_pb2 import ConsoleFrame, Dispatch
from tests.unit.console_world import FakeWorker, wish, world
from tests.waiting import until


async def test_a_handlers_no_capacity_is_not_held_for_ever(tmp_path: Path) -> None:
    store, full = await DutyStore.open(tmp_path / "duties.db"), True

    async def handle(given: Dispatch) -> Answer:
        if full:
            raise CommandFailedError(Reason.NO_CAPACITY, "this worker keeps 8 sessions, and takes no more")
        return Answer(given.payload_json)

    duties = Duties(store, {"pythonExec": handle})
    outbox = duties.begin()

    class Real(FakeWorker):
        def send(self, frame: ConsoleFrame) -> None:
            super().send(frame)
            if frame.WhichOneof("frame") == "dispatch":
                duties.take(frame.dispatch)
            elif frame.WhichOneof("frame") == "result_ack":
                duties.acknowledged(frame.result_ack.command_id)

    async with world() as there:
        plain = await there.worker("w1")
        worker = Real("w1", plain.secret)
        await worker.connect(there.desks[0])
        await until(lambda: all(desk.presence.of("w1") for desk in there.desks))

        async def talk() -> None:
            while True:
                await worker.say(await outbox.next())

        talking = asyncio.create_task(talk())
        submitted = asyncio.create_task(there.desks[0].commands.submit(wish({}, "pythonExec", wait_ms=4000), ADMIN))
        await worker.until(lambda: bool(worker.dispatched))
        await until(lambda: duties.holding() == [])
        full = False  # there is room again: who waits gets it
        try:
            done = await submitted
            assert done.result_json == "{}"
            await until(lambda: duties.holding() == [])
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)
            await duties.close()
            await store.close()
