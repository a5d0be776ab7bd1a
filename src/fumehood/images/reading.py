"""Reading a registry's content: manifests, blobs, and lists of what refers to a digest.

The one who answers is not ours, so everything is bounded and hashed: what was asked for by its digest has that digest,
or is refused. One reader is one conversation, with one deadline for all that it reads.

What the registry says in words of its own is an error: `RegistryUnavailableError` where it could not be asked,
`DigestResolutionError` where it said no, and `RegistryContentError` where it sent something else than it was asked for.
What it does not have is `None`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self

from fumehood.errors import DigestResolutionError, RegistryContentError, RegistryUnavailableError
from fumehood.images.conversation import Conversation
from fumehood.images.reference import is_digest
from fumehood.images.transport import (
    MIB,
    Answer,
    RefusedError,
    UnavailableError,
    UnfitContentError,
    meaning,
    no,
)

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
MANIFEST_TYPES = (
    OCI_INDEX,
    OCI_MANIFEST,
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
MAX_MANIFEST_BYTES = 4 * MIB
"""The size that the distribution specification asks registries to accept."""
MAX_PAGES = 4
"""Of a list of referrers; registries put hundreds of entries on one."""

_NO_REFERRERS = frozenset({400, 404, 405, 406, 501})
"""How registries say that they have no list of referrers; an empty one is an answer, too."""
_NEXT_PAGE = re.compile(r'<[^<>?]{0,2048}(?P<query>\?[A-Za-z0-9._~%&=+:/-]{1,1024})>\s*;\s*rel="?next"?')


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest or an index, as it was sent."""

    digest: str
    media_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the running loop's clock, and how long it was away when it was set."""

    seconds: float
    at: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        return cls(seconds, asyncio.get_running_loop().time() + seconds)


@contextlib.asynccontextmanager
async def in_words(what: str, conversation: Conversation, deadline: Deadline) -> AsyncIterator[None]:
    """Bound what is asked of a registry, and say what went wrong in this package's errors: `what` was not possible."""
    try:
        async with asyncio.timeout_at(deadline.at):
            yield
    except TimeoutError:
        last = f" (last: {conversation.trouble.text})" if conversation.trouble.text else ""
        raise RegistryUnavailableError(
            f"{what}: the registry gave no answer within {deadline.seconds:g} s{last}"
        ) from None
    except UnavailableError as error:
        raise RegistryUnavailableError(f"{what}: {error}", retry_after_seconds=error.seconds) from None
    except UnfitContentError as error:
        raise RegistryContentError(f"{what}: {error}") from None
    except RefusedError as error:
        raise DigestResolutionError(f"{what}: {error}") from None


class RegistryReader:
    """Reads from one repository until its deadline."""

    def __init__(self, conversation: Conversation, what: str, seconds: float) -> None:
        self._conversation = conversation
        self._what = what
        self._deadline = Deadline.after(seconds)

    async def manifest(self, name: str, limit: int = MAX_MANIFEST_BYTES) -> Manifest | None:
        """By its digest or a tag."""
        answer = await self._get(f"manifests/{name}", ", ".join(MANIFEST_TYPES), limit)
        if answer is None:
            return None
        async with self._told():
            digest = digest_of_body(answer)
            if is_digest(name) and digest != name:
                raise UnfitContentError("the registry sent another manifest than the digest names")
            return Manifest(digest, media_type(answer), answer.body)

    async def blob(self, digest: str, limit: int) -> bytes | None:
        """By its digest."""
        if not is_digest(digest):
            raise ValueError("a blob is asked for by its digest")
        answer = await self._get(f"blobs/{digest}", "*/*", limit)
        if answer is None:
            return None
        async with self._told():
            if _sha256(answer.body) != digest:
                raise UnfitContentError("the registry sent another blob than the digest names")
            return answer.body

    async def referrers(self, digest: str, limit: int = MAX_MANIFEST_BYTES) -> list[bytes] | None:
        """The index of what names this digest as its subject, in pages; `None` from a registry that keeps no such list.

        Nothing vouches for it: it says where to look, and no more.
        """
        pages: list[bytes] = []
        query: str | None = ""
        while query is not None and len(pages) < MAX_PAGES:
            async with self._told():
                answer = await self._conversation.ask("GET", f"referrers/{digest}{query}", OCI_INDEX, limit)
                if not pages and _has_no_list(answer):
                    return None
                if answer.status != 200:
                    raise no(answer.status, meaning(answer.status))
            pages.append(answer.body)
            query = _next_page(answer)
        return pages

    async def _get(self, path: str, accept: str, limit: int) -> Answer | None:
        async with self._told():
            answer = await self._conversation.ask("GET", path, accept, limit)
            if answer.status == 404:
                return None
            if answer.status != 200:
                raise no(answer.status, meaning(answer.status))
            return answer

    def _told(self) -> contextlib.AbstractAsyncContextManager[None]:
        return in_words(self._what, self._conversation, self._deadline)


def _has_no_list(answer: Answer) -> bool:
    return answer.status in _NO_REFERRERS or (answer.status == 200 and media_type(answer) != OCI_INDEX)


def _next_page(answer: Answer) -> str | None:
    """Only the query of what the registry names as its next page: it cannot send us elsewhere."""
    link = _NEXT_PAGE.match(answer.headers.get("Link", ""))
    return link["query"] if link is not None else None


def digest_of_body(answer: Answer) -> str:
    """The digest of a manifest that was sent; it fits what the registry says about it."""
    if not is_manifest(answer):
        raise UnfitContentError("the registry's answer is not a manifest of a type that we asked for")
    digest = _sha256(answer.body)
    if answer.headers.get("Docker-Content-Digest", digest) != digest:
        raise UnfitContentError("the digest that the registry states is not that of the manifest it sent")
    return digest


def is_manifest(answer: Answer) -> bool:
    """A login page with status 200 has a SHA-256 too."""
    return media_type(answer) in MANIFEST_TYPES


def media_type(answer: Answer) -> str:
    kind: str = answer.headers.get("Content-Type", "")
    return kind.partition(";")[0].strip().lower()


def _sha256(body: bytes) -> str:
    return "sha256:" + hashlib.sha256(body).hexdigest()
