"""The list of keys that receipts are checked with: published by servers, signed by a root that the reader pins.

A key is *retired* when its worker has a newer one: what it signed until then holds. A key is *revoked* when somebody
else may have it: then nothing that it ever signed holds, since whoever has it writes any date.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fumehood.errors import ConflictError, NotFoundError, UnverifiedError
from fumehood.verify.dsse import Envelope, SigningKey, is_binding, json_value, key_id
from fumehood.wire.base import Sha256, UtcTime
from fumehood.wire.canonical import canonical_json

PAYLOAD_TYPE = "application/vnd.fumehood.keys+json"
MAX_KEYS = 2_500
"""Of which each has some 350 bytes, in a payload of a megabyte."""
CLOCKS_DIFFER = dt.timedelta(seconds=60)
PUBLIC_KEY_FORM = r"^[0-9a-f]{64}$"


def _binding(public_key: str) -> str:
    if not is_binding(bytes.fromhex(public_key)):
        raise ValueError("a signature of this key would fit other texts too")
    return public_key


PublicKey = Annotated[str, Field(pattern=PUBLIC_KEY_FORM), AfterValidator(_binding)]
"""Raw Ed25519, in hex."""


class ListedKey(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    key_id: Sha256
    public_key: PublicKey
    worker: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:@-]{1,128}$")]
    """Whose it is: a receipt of it counts for no other name."""
    not_before: UtcTime
    not_after: UtcTime | None = None
    """Retired then."""
    revoked_at: UtcTime | None = None
    revoked_because: Annotated[str, Field(max_length=500)] | None = None

    @property
    def public_bytes(self) -> bytes:
        return bytes.fromhex(self.public_key)

    @property
    def is_current(self) -> bool:
        return self.not_after is None and self.revoked_at is None

    def check_good_at(self, moment: dt.datetime) -> None:
        """`UnverifiedError` where it does not count for what was finished then."""
        if self.revoked_at is not None:
            why = self.revoked_because or "no reason was given"
            raise UnverifiedError("revoked_key", f"the key of {self.worker} was revoked: {why}")
        if self.not_before - moment > CLOCKS_DIFFER:
            raise UnverifiedError("key_not_valid_then", f"the key of {self.worker} was not listed yet at that time")
        if self.not_after is not None and moment - self.not_after > CLOCKS_DIFFER:
            raise UnverifiedError("key_not_valid_then", f"the key of {self.worker} was retired before that time")


class KeyList(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    version: Annotated[int, Field(ge=1, le=2**53 - 1)]
    """Grows with every change, so that an older list cannot pass for a newer one."""
    issued_at: UtcTime
    keys: Annotated[tuple[ListedKey, ...], Field(max_length=MAX_KEYS)] = ()

    def find(self, wanted: str) -> ListedKey:
        for key in self.keys:
            if key.key_id == wanted:
                return key
        raise UnverifiedError("unknown_key", "the key that signed this is not on the list")

    # --- changes, each of which makes the next version ------------------------------------------------------

    def enrolled(self, worker: str, public_key: bytes, now: dt.datetime, since: dt.datetime | None = None) -> KeyList:
        """With a key of a worker, good from `since` on; other keys that it has are retired. The same list where it is
        enrolled already."""
        wanted = key_id(public_key)
        known = next((key for key in self.keys if key.key_id == wanted), None)
        if known is not None and known.worker == worker and known.is_current:
            return self
        if known is not None:
            how = "is listed for another worker" if known.worker != worker else "was retired or revoked"
            raise ConflictError(f"this key {how}: a key is used once; the worker needs another one")
        new = ListedKey(key_id=wanted, public_key=public_key.hex(), worker=worker, not_before=since or now)
        return self._changed({key.key_id: {"not_after": now} for key in self._current_of(worker)}, now, new)

    def retired(self, wanted: str, now: dt.datetime) -> KeyList:
        """Without what a key signs from now on; `wanted` is its id, or a worker's name for the key that it has."""
        return self._changed({key.key_id: {"not_after": now} for key in self._found(wanted)}, now)

    def revoked(self, wanted: str, now: dt.datetime, because: str) -> KeyList:
        """Without anything that a key ever signed."""
        change = {"revoked_at": now, "revoked_because": because}
        return self._changed({key.key_id: change for key in self._found(wanted, retired_too=True)}, now)

    def _current_of(self, worker: str) -> list[ListedKey]:
        return [key for key in self.keys if key.worker == worker and key.is_current]

    def _found(self, wanted: str, *, retired_too: bool = False) -> list[ListedKey]:
        named = [key for key in self.keys if key.key_id == wanted]
        found = [key for key in named if key.is_current or (retired_too and key.revoked_at is None)]
        found = found or self._current_of(wanted)
        if found:
            return found
        if named or any(key.worker == wanted for key in self.keys):
            raise ConflictError(
                "that was done already" if named else "it has no key now: name one of its keys by its id"
            )
        raise NotFoundError("no key of the list has this id, and no worker this name")

    def _changed(self, changes: Mapping[str, Mapping[str, Any]], now: dt.datetime, *more: ListedKey) -> KeyList:
        kept = (ListedKey.model_validate({**key.model_dump(), **changes.get(key.key_id, {})}) for key in self.keys)
        return KeyList(version=self.version + 1, issued_at=now, keys=(*kept, *more))

    # --- as it travels --------------------------------------------------------------------------------------

    def sign(self, root: SigningKey) -> dict[str, Any]:
        return root.sign(PAYLOAD_TYPE, canonical_json(self.model_dump(mode="json", exclude_none=True)))

    @classmethod
    def read(cls, envelope: Any, root: bytes) -> KeyList:
        """Signed by this root, whole, and no key in it under another's id."""
        payload = Envelope.read(envelope, PAYLOAD_TYPE).verify(root)
        json_value(payload)  # refuses what two readers could read differently
        try:
            found = cls.model_validate_json(payload, strict=True)
        except (ValidationError, ValueError, OverflowError) as error:
            raise UnverifiedError("malformed", "the signed payload is no list of keys") from error
        ids = [key.key_id for key in found.keys]
        if len(set(ids)) != len(ids) or any(key_id(key.public_bytes) != key.key_id for key in found.keys):
            raise UnverifiedError("malformed", "a key of the list is there twice, or under another's id")
        return found


# --- as it is published ------------------------------------------------------------------------------------


def published(keys: KeyList, root: SigningKey) -> dict[str, Any]:
    """The document of `/v1/receipt-keys`, and of the file that is kept for checking offline."""
    return {"root": root.public_key.hex(), "list": keys.sign(root)}


def root_of(document: Any) -> bytes:
    """Which root a published list names: what it says itself, and nothing to rely on."""
    if not isinstance(document, Mapping) or set(document) != {"root", "list"}:
        raise UnverifiedError("malformed", "this is no published list of keys: it has a root and a list, and no more")
    return root_key(document["root"])


def read_published(document: Any, root: bytes) -> KeyList:
    """The list, if it is by the root that the reader relies on."""
    if root_of(document) != root:
        raise UnverifiedError("wrong_root", "the list is signed by another root than the pinned one")
    return KeyList.read(document["list"], root)


def root_key(text: Any) -> bytes:
    """A public key as people write it down."""
    if not isinstance(text, str) or re.fullmatch(r"[0-9a-f]{64}", text) is None:
        raise UnverifiedError("malformed", "a public key is written as 64 digits of 0-9 and a-f")
    return bytes.fromhex(text)
