"""Images in the engine: present or pulled, always by digest, and what they declare about themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fumehood.errors import EngineStatusError
from fumehood.images.admission import AdmittedImage
from fumehood.sandbox.docker.engine import Engine
from fumehood.sandbox.docker.options import Credentials

REMEMBERED = 1024
"""Images whose facts are kept. They never change under a digest; the bound only keeps memory flat."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What an image says about itself, as far as a sandbox cares."""

    env: tuple[str, ...]
    volumes: tuple[str, ...]
    user: str


class EngineImages:
    """Knows which admitted images the engine holds; fetches each missing one once, however many ask."""

    def __init__(self, engine: Engine, credentials: Credentials, pull_seconds: float) -> None:
        self._engine = engine
        self._credentials = credentials
        self._pull_seconds = pull_seconds
        self._facts: dict[str, ImageFacts] = {}
        self._pulls: dict[str, asyncio.Task[None]] = {}

    async def facts(self, image: AdmittedImage) -> ImageFacts:
        if image.pinned not in self._facts:
            try:
                inspected = await self._engine.image(image.pinned)
            except EngineStatusError as error:
                if error.status != 404:
                    raise
                await self.pull(image)
                inspected = await self._engine.image(image.pinned)
            if len(self._facts) >= REMEMBERED:
                self._facts.clear()
            self._facts[image.pinned] = _facts(inspected)
        return self._facts[image.pinned]

    async def pull(self, image: AdmittedImage) -> None:
        """Fetch the image. A caller that gives up does not stop the pull for the others."""
        task = self._pulls.get(image.pinned)
        if task is None:
            task = asyncio.create_task(self._pull(image), name="image-pull")
            self._pulls[image.pinned] = task
            task.add_done_callback(lambda _: self._pulls.pop(image.pinned, None))
        await asyncio.shield(task)

    async def _pull(self, image: AdmittedImage) -> None:
        auth = self._credentials(image.repository.split("/", 1)[0])
        await self._engine.pull(image.repository, image.digest, auth=auth, seconds=self._pull_seconds)

    async def close(self) -> None:
        for task in list(self._pulls.values()):
            task.cancel()
        await asyncio.gather(*self._pulls.values(), return_exceptions=True)


def _facts(inspected: Mapping[str, Any]) -> ImageFacts:
    config = inspected.get("Config") or {}
    return ImageFacts(
        env=tuple(config.get("Env") or ()),
        volumes=tuple(config.get("Volumes") or ()),
        user=str(config.get("User") or ""),
    )
