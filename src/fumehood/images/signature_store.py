"""Where signatures are kept: under a tag, and as referrers of the digest. Finds them, and believes nothing about them.

Everything is bounded, and each form has a bound of its own, so that a thousand broken signatures in one form do not
hide a good one in the other. What cannot be read is yielded as such: it is a signature that is worth nothing, while a
registry that does not answer is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from fumehood.errors import RegistryContentError
from fumehood.images.aside import Aside
from fumehood.images.bundle import MAX_BUNDLE, bundle_in, fallback_tag_of, manifests_in
from fumehood.images.documents import FlawError
from fumehood.images.reading import RegistryReader
from fumehood.images.simple_signing import MAX_PAYLOAD, TaggedSignature, signatures_in, tag_of

MAX_SIGNATURES: Final = 32
"""Looked at in each of the two forms."""
MAX_REFERRERS: Final = 128
"""Manifests that are opened to see whether they are signatures: other things refer to images too."""
MAX_LIST: Final = 1024 * 1024
"""Of a page that lists referrers; registries put hundreds on one."""
MAX_TAG_MANIFEST: Final = 256 * 1024
"""All signatures under the tag, certificates included; a keyless one has some 6 KiB."""
MAX_BUNDLE_MANIFEST: Final = 64 * 1024
"""Real ones have one KiB, and there may be many to open."""

TAG: Final = "tag"
BUNDLE: Final = "bundle"


@dataclass(frozen=True, slots=True)
class Tagged:
    """A signature of the older form: a layer of the tagged manifest, and its payload."""

    form: ClassVar[str] = TAG
    layer: TaggedSignature
    payload: bytes


@dataclass(frozen=True, slots=True)
class Bundled:
    """A bundle that refers to the digest, by its manifest's word."""

    form: ClassVar[str] = BUNDLE
    body: bytes


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A signature that could not be read, and why."""

    form: str
    detail: str


Kept: TypeAlias = Tagged | Bundled | Unreadable


class SignatureStore:
    """All signatures of one digest in one repository."""

    def __init__(self, reader: RegistryReader, digest: str, aside: Aside) -> None:
        self._reader = reader
        self._digest = digest
        self._aside = aside

    async def signatures(self) -> AsyncGenerator[Kept, None]:
        """In both forms, as far as the bounds go."""
        for form in (self._tagged, self._bundled):
            async with contextlib.aclosing(form()) as signatures:
                async for kept in signatures:
                    yield kept

    async def _tagged(self) -> AsyncGenerator[Kept, None]:
        try:
            manifest = await self._reader.manifest(tag_of(self._digest), MAX_TAG_MANIFEST)
            layers = await self._aside.run(signatures_in, manifest.body) if manifest is not None else []
        except (FlawError, RegistryContentError) as flaw:
            yield Unreadable(TAG, _why(flaw))
            return
        for layer in layers[:MAX_SIGNATURES]:
            try:
                yield Tagged(layer, await self._blob(layer.payload_digest, MAX_PAYLOAD))
            except (FlawError, RegistryContentError) as flaw:
                yield Unreadable(TAG, _why(flaw))

    async def _bundled(self) -> AsyncGenerator[Kept, None]:
        try:
            listed = await self._listed()
        except (FlawError, RegistryContentError) as flaw:
            yield Unreadable(BUNDLE, _why(flaw))
            return
        found = 0
        for name in listed[:MAX_REFERRERS]:
            try:
                bundle = await self._bundle(name)
            except (FlawError, RegistryContentError) as flaw:
                found += 1
                yield Unreadable(BUNDLE, _why(flaw))
            else:
                if bundle is None:
                    continue
                found += 1
                yield Bundled(bundle)
            if found == MAX_SIGNATURES:
                return

    async def _listed(self) -> list[str]:
        """Each manifest that refers to the digest, once; from the tag where the registry keeps no list."""
        pages = await self._reader.referrers(self._digest, MAX_LIST)
        if pages is None:
            tagged = await self._reader.manifest(fallback_tag_of(self._digest), MAX_LIST)
            pages = [tagged.body] if tagged is not None else []
        names = [await self._aside.run(manifests_in, page) for page in pages]
        return list(dict.fromkeys(name for page in names for name in page))

    async def _bundle(self, name: str) -> bytes | None:
        manifest = await self._reader.manifest(name, MAX_BUNDLE_MANIFEST)
        if manifest is None:
            raise FlawError("a manifest that is listed is not there")
        digest = await self._aside.run(bundle_in, manifest.body, self._digest)
        return None if digest is None else await self._blob(digest, MAX_BUNDLE)

    async def _blob(self, digest: str, limit: int) -> bytes:
        blob = await self._reader.blob(digest, limit)
        if blob is None:
            raise FlawError("the signature's content is not there")
        return blob


def _why(flaw: FlawError | RegistryContentError) -> str:
    return flaw.detail if isinstance(flaw, RegistryContentError) else str(flaw)
