"""Asking registries: which digest a tag names, and what is stored beside an image.

The answer decides what runs, and the one who answers is not ours, so this client is narrow and distrustful:

- To resolve is one question: `HEAD`, else `GET`, of a manifest, always with the full `Accept` list (without it some
  registries answer with an old schema that has another digest). A body, where there is one, is hashed and must fit what
  the registry says about it. Every body is bounded while it is read.
- Plain HTTP goes to the loopback only; everything else is HTTPS. Which of the two a registry gets is decided before the
  first byte and never changed by a failure, so that nobody can push credentials onto a plain connection.
- Credentials stay with the registry that they were configured for: see `conversation`.

Every failure is a `DigestResolutionError`, and a `RegistryUnavailableError` where the registry did not say no but could
not be asked. Its detail names the reference and the cause and nothing that the registry
or the operator may want kept: no header, no query, no body.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

import httpx

from fumehood.errors import DigestResolutionError, RegistryUnavailableError
from fumehood.images.access import RegistryAccess
from fumehood.images.conversation import Conversation
from fumehood.images.reading import (
    MANIFEST_TYPES,
    MAX_MANIFEST_BYTES,
    Deadline,
    RegistryReader,
    digest_of_body,
    in_words,
    is_manifest,
)
from fumehood.images.reference import ImageReference, is_digest
from fumehood.images.singleflight import SingleFlight, Turn, WorkCancelledError
from fumehood.images.transport import Answer, RefusedError, RetryPolicy, Wire, meaning, no

__all__ = ["RegistryAccess", "RegistryClient", "RetryPolicy"]

DEADLINE_SECONDS = 15.0
READING_SECONDS = 30.0
"""For all that one reader reads."""

_NO_HEAD = frozenset({405, 501})
_PERHAPS_TLS = (
    "the registry answered 400 to plain HTTP: perhaps it speaks TLS; a [[registries]] table with its ca_file or "
    "credentials makes the node speak TLS too"
)


class RegistryClient:
    """Resolves references, and reads what they name. One for each process; close it, or use it as a context manager."""

    def __init__(
        self,
        accesses: Iterable[RegistryAccess] = (),
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
        retry: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._accesses = {access.host: access for access in accesses}
        self._deadline = deadline_seconds
        self._wire = Wire(self._accesses.values(), retry or RetryPolicy(), transport)
        self._flights: SingleFlight[str, str] = SingleFlight()

    async def resolve(self, reference: ImageReference) -> str:
        """The digest (of an index or a single manifest) that the registry holds under the reference right now.

        Nothing is cached, since tags move. Equal questions that wait at the same time are asked once.
        """
        try:
            return await self._flights.run(str(reference), lambda turn: self._resolve(reference, turn))
        except WorkCancelledError:
            raise RegistryUnavailableError(f"cannot resolve {reference}: the client was closed") from None
        except DigestResolutionError as error:
            raise error.again() from error

    def reader(self, reference: ImageReference, what: str, seconds: float = READING_SECONDS) -> RegistryReader:
        """For more than one thing of the reference's repository; `what` says what is not possible when it fails."""
        return RegistryReader(self._conversation(reference), what, seconds)

    async def aclose(self) -> None:
        """End what is under way and let go of all connections."""
        await self._flights.close()
        await self._wire.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _conversation(self, reference: ImageReference) -> Conversation:
        return Conversation(reference, self._access(reference), self._wire)

    def _access(self, reference: ImageReference) -> RegistryAccess:
        return self._accesses.get(reference.registry, RegistryAccess(reference.registry))

    async def _resolve(self, reference: ImageReference, turn: Turn) -> str:
        conversation = self._conversation(reference)
        async with in_words(f"cannot resolve {reference}", conversation, Deadline.after(self._deadline)):
            await turn()
            return await self._digest(reference, conversation)

    async def _digest(self, reference: ImageReference, conversation: Conversation) -> str:
        async def manifest(method: str) -> Answer:
            path = f"manifests/{reference.digest or reference.tag}"
            answer = await conversation.ask(method, path, ", ".join(MANIFEST_TYPES), MAX_MANIFEST_BYTES)
            if answer.status == 400 and self._access(reference).plain:
                raise RefusedError(_PERHAPS_TLS)
            return answer

        head = await manifest("HEAD")
        told = None if head.status in _NO_HEAD else _digest_of_head(head)
        found = told or _digest_of_get(await manifest("GET"))
        if reference.digest is not None and found != reference.digest:
            raise RefusedError("the registry answered with another digest than it was asked for")
        return found


def _digest_of_head(answer: Answer) -> str | None:
    """What a HEAD says, if it says it well; `None` sends us to GET, where the body can be looked at."""
    if answer.status != 200:
        raise no(answer.status, meaning(answer.status))
    digest = answer.headers.get("Docker-Content-Digest", "")
    return digest if is_manifest(answer) and is_digest(digest) else None


def _digest_of_get(answer: Answer) -> str:
    if answer.status != 200:
        raise no(answer.status, meaning(answer.status))
    return digest_of_body(answer)
