"""Images in the engine: present or pulled, always by digest, and what they declare about themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fumehood.errors import EngineStatusError, ImagePullError, ImagePullUnavailableError
from fumehood.images.admission import AdmittedImage
from fumehood.sandbox.docker.engine import Engine
from fumehood.sandbox.docker.options import Credentials
from fumehood.sandbox.spec import ImageCommand

REMEMBERED = 1024
"""Images whose facts are kept. They never change under a digest; the bound only keeps memory flat."""

_REFUSALS = {
    400: "the engine cannot read its name",
    401: "the registry wants other credentials",
    403: "the registry does not give it to this node",
    404: "there is no such image, or no access to it",
}
"""By status: the engine's own text is the registry's, or names paths of the host."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What an image says about itself, as far as a sandbox cares."""

    env: tuple[str, ...]
    volumes: tuple[str, ...]
    user: str
    command: ImageCommand


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

    async def command(self, image_id: str) -> ImageCommand:
        """What the image of a sandbox declares that another process made. The engine keeps it while it is in use."""
        return _facts(await self._engine.image(image_id)).command

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
        try:
            await self._engine.pull(image.repository, image.digest, auth=auth, seconds=self._pull_seconds)
        except EngineStatusError as error:
            raise await self._reason(image, auth, error.status) from error

    async def _reason(self, image: AdmittedImage, auth: Mapping[str, str] | None, status: int) -> ImagePullError:
        """A pull fails with 500 when the registry refuses (Docker 20.10) as well as when it is away. Asked about the
        image alone, the engine passes on the registry's own status, as far as there is one.
        """
        if status not in _REFUSALS:
            try:
                await self._engine.distribution(image.pinned, auth=auth)
            except EngineStatusError as error:
                status = error.status
        if status in _REFUSALS:
            return ImagePullError(f"the image cannot be pulled: {_REFUSALS[status]}")
        return ImagePullUnavailableError(
            "the image could not be pulled: the engine does not reach the registry, or gets no access to it for want "
            "of credentials"
        )

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
        command=ImageCommand(_words(config.get("Entrypoint")), _words(config.get("Cmd"))),
    )


def _words(declared: list[str] | None) -> tuple[str, ...]:
    """`[""]` is how a build file takes back what its base image declared."""
    return () if declared in (None, [""]) else tuple(declared)
