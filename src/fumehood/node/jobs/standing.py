"""Whether this provider was set aside: servers say so, and it stops taking executions until they take it back."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from fumehood.broker.ports import KeyValue
from fumehood.errors import BrokerError, InvalidRequestError
from fumehood.wire import strict_json

LOOK_SECONDS = 3.0
_log = structlog.get_logger()


class Standing:
    """What the directory of providers says about one of them. A broker that does not answer says nothing new."""

    def __init__(self, bucket: KeyValue, worker_id: str) -> None:
        self._bucket = bucket
        self._worker_id = worker_id
        self.set_aside = False

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        try:
            entry = await self._bucket.get(self._worker_id)
        except BrokerError:
            return
        said = _read(entry.value) if entry is not None else {}
        is_aside = bool(said.get("set_aside"))
        if is_aside != self.set_aside:
            _log.warning("provider.set_aside" if is_aside else "provider.restored", worker_id=self._worker_id)
        self.set_aside = is_aside


def _read(value: bytes) -> dict[str, Any]:
    """Nothing where it is not what servers write."""
    try:
        said = strict_json.loads(value)
    except InvalidRequestError:
        return {}
    return said if isinstance(said, dict) else {}
