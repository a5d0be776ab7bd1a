"""The published list of the keys that receipts are checked with: one value, whose root is fixed by the first who comes,
or from outside by the setting `receipt_root`.

Servers keep it and check it; none can make one, since the root's private key is the operator's and is on no server. An
older list never replaces a newer one, or a key that was revoked would be good again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fumehood.broker.ports import Broker, Bucket, KvEntry
from fumehood.errors import ConflictError, InvalidRequestError, KeyConflictError, NotFoundError, UnverifiedError
from fumehood.verify.dsse import from_file, to_file
from fumehood.verify.keylist import KeyList, read_published, root_of

FRESH_SECONDS = 2.0
"""How old this process's knowledge of the list may be: so long a key that was revoked may still count."""
TRIES = 3
_KEY = "published"


@dataclass(frozen=True, slots=True)
class Published:
    """A list whose signature was checked, as it lies in the broker."""

    document: Any
    root: bytes
    keys: KeyList
    revision: int


class ReceiptKeyStore:
    def __init__(
        self, broker: Broker, *, root: bytes | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`root`: the only one that counts; None: that of the first list."""
        self._bucket = broker.bucket(Bucket.RECEIPT_KEYS)
        self._root = root
        self._clock = clock
        self._known: Published | None = None
        self._looked: float | None = None
        self._looking = asyncio.Lock()

    async def current(self) -> KeyList | None:
        """What receipts are checked with now; None: nothing was published. `UnverifiedError` where a list is there that
        does not count: to go on as if there were none would let anybody in."""
        if not self._is_fresh():
            async with self._looking:
                if not self._is_fresh():
                    self._remember(await self._bucket.get(_KEY))
        if self._known is None:
            return None
        if self._root is not None and self._known.root != self._root:
            raise UnverifiedError("wrong_root", "the published list of keys is by another root than receipt_root")
        return self._known.keys

    async def document(self) -> Any:
        """As it was published, for whoever checks it himself."""
        found = _read(await self._bucket.get(_KEY))
        if found is None:
            raise NotFoundError("no list of receipt keys was published yet")
        return found.document

    async def publish(self, document: Any) -> tuple[KeyList, bool]:
        """The list that counts from now on, and whether that is news. `ConflictError` for another root, or for one that
        is not newer."""
        root, keys = _checked(document)
        if self._root is not None and root != self._root:
            raise ConflictError("the list is by another root than the one that this server was told (receipt_root)")
        for _ in range(TRIES):
            entry = await self._bucket.get(_KEY)
            stored = _read(entry)
            if stored is not None and stored.document == document:
                self._remember(entry)
                return keys, False
            self._check_newer(root, keys, stored)
            try:
                await self._write(to_file(document), entry)
            except KeyConflictError:
                continue  # somebody was quicker: compare with theirs
            self._looked = None
            return keys, True
        raise ConflictError("others publish lists of keys at the same time: fetch the newest one and try again")

    def _check_newer(self, root: bytes, keys: KeyList, stored: Published | None) -> None:
        if stored is None:
            return
        if self._root is None and stored.root != root:
            raise ConflictError(
                "the list is by another root than the published one: to change the root, set receipt_root everywhere"
            )
        if keys.version <= stored.keys.version:
            raise ConflictError(
                f"the list has version {keys.version} and the published one {stored.keys.version}: fetch that, and "
                "make the change to it"
            )

    async def _write(self, value: bytes, entry: KvEntry | None) -> None:
        if entry is None:
            await self._bucket.create(_KEY, value)
        else:
            await self._bucket.update(_KEY, value, revision=entry.revision)

    def _is_fresh(self) -> bool:
        return self._looked is not None and self._clock() - self._looked < FRESH_SECONDS

    def _remember(self, entry: KvEntry | None) -> None:
        """A signature is checked once for each revision."""
        if entry is None or self._known is None or self._known.revision != entry.revision:
            self._known = _read(entry)
        self._looked = self._clock()


def _read(entry: KvEntry | None) -> Published | None:
    """Checked again: whoever can write to the broker is not thereby the root."""
    if entry is None:
        return None
    document = from_file(entry.value)
    root = root_of(document)
    return Published(document, root, read_published(document, root), entry.revision)


def _checked(document: Any) -> tuple[bytes, KeyList]:
    try:
        root = root_of(document)
        return root, read_published(document, root)
    except UnverifiedError as error:
        raise InvalidRequestError(f"list: {error.detail} ({error.reason})") from None
