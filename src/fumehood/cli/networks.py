"""Networks of sandboxes, when a process that runs sandboxes starts."""

from __future__ import annotations

from typing import Any

from fumehood.errors import EngineUnavailableError, NetworkUnavailableError
from fumehood.sandbox.docker import DockerDriver


async def serve_networks(driver: DockerDriver, log: Any) -> None:
    """Of sandboxes that an earlier life left. Where that cannot be done yet, whoever needs a network tries again."""
    try:
        await driver.open()
    except (EngineUnavailableError, NetworkUnavailableError) as error:
        log.warning("networks.not_served", code=error.code, notice=error.detail)
