"""Who works, and how much waits: what workers say about themselves, and what the queue knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pydantic import ValidationError

from fumehood.broker.ports import Broker, Bucket, KvEntry
from fumehood.control.bridge_workers import CONNECTION_ID
from fumehood.wire.protocol import WorkerRegistration


class Directory:
    def __init__(self, broker: Broker, dialled: Callable[[], Sequence[WorkerRegistration]] = lambda: ()) -> None:
        """`dialled`: workers that are connected to a console, of which no entry is kept here."""
        self._workers = broker.bucket(Bucket.WORKERS)
        self._dialled = dialled
        self._tasks = broker.tasks

    async def workers(self, *, after: str = "", limit: int = 100) -> tuple[Sequence[WorkerRegistration], str | None]:
        """By name, from behind `after`; and where to go on, if there are more."""
        found = {entry.key: read for entry in await self._workers.entries() if (read := _read(entry)) is not None}
        found |= {one.worker_id: one for one in self._dialled()}  # who proved its name has it
        rest = [found[name] for name in sorted(found) if name > after]
        return rest[:limit], rest[limit - 1].worker_id if len(rest) > limit else None

    async def waiting(self) -> Mapping[str, int]:
        """Tasks that nobody has taken yet, by type; types that have none are left out."""
        return await self._tasks.waiting()


def _read(entry: KvEntry) -> WorkerRegistration | None:
    """Workers write here themselves: what is no registration is nobody's, and a name is believed only as the key, which
    is all that a worker may write to. Which connection wrote it is our own affair."""
    try:
        read = WorkerRegistration.model_validate_json(entry.value)
    except ValidationError:
        return None
    metadata = {name: said for name, said in read.metadata.items() if name != CONNECTION_ID}
    return read.model_copy(update={"worker_id": entry.key, "metadata": metadata})
