"""Workflows: definitions kept by what they say, and names that point to one of them.

`digest.<hash>` holds a definition for ever, since runs are pinned to it; `name.<name>` says which one is current. The
content is stored before the name points to it, and the name moves by compare-and-set, so that of two people who apply
at once both succeed, one after the other, and applying the same again changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from fumehood.broker import names
from fumehood.broker.ports import Broker, Bucket, KvEntry
from fumehood.control.schemas import InputSchema
from fumehood.engine.definition import MAX_BYTES, Definition, parse, strays
from fumehood.errors import (
    ConflictError,
    InvalidDefinitionError,
    InvalidRequestError,
    KeyConflictError,
    NotFoundError,
)
from fumehood.wire import strict_json

_CACHED = 64
"""Definitions kept in memory; they are at most 1 MiB, and never change."""
_TRIES = 100
"""Against others who apply the same name at the same time: each lost try is somebody else's success."""
_NAME, _DIGEST = "name", "digest"


@dataclass(frozen=True, slots=True)
class Pointer:
    """What a name means now."""

    name: str
    digest: str
    version: int
    applied_at: int
    """Milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A definition, ready to be run."""

    digest: str
    document: dict[str, Any]
    """Canonical: defaults left out, durations in milliseconds."""
    input_schema: InputSchema | None

    @property
    def name(self) -> str:
        return str(self.document["name"])


class Workflows:
    def __init__(self, broker: Broker, *, now_ms: Callable[[], int]) -> None:
        self._bucket = broker.bucket(Bucket.DEFINITIONS)
        self._now_ms = now_ms
        self._known: OrderedDict[str, Stored] = OrderedDict()

    async def apply(self, name: str, body: bytes, *, is_json: bool) -> tuple[Pointer, bool]:
        """Make a definition the current one of its name; whether that changed anything."""
        definition, canonical = await asyncio.to_thread(_read, body, is_json)
        if definition.name != name:
            raise InvalidDefinitionError([f"name: it is {definition.name!r}, but it was applied as {name!r}"])
        stored = _stored(definition.digest, canonical)
        with contextlib.suppress(KeyConflictError):  # the same content was there before
            await self._bucket.create(_digest_key(stored.digest), canonical)
        return await self._point(name, stored.digest)

    async def _point(self, name: str, digest: str) -> tuple[Pointer, bool]:
        for _ in range(_TRIES):
            entry = await self._bucket.get(_name_key(name))
            before = _pointer(entry) if entry is not None else None
            if before is not None and before.digest == digest:
                return before, False
            after = Pointer(name, digest, before.version + 1 if before else 1, self._now_ms())
            try:
                if entry is None:
                    await self._bucket.create(_name_key(name), _encode(after))
                else:
                    await self._bucket.update(_name_key(name), _encode(after), revision=entry.revision)
            except KeyConflictError:
                continue
            return after, True
        raise ConflictError("too many others apply this workflow at the same time")

    async def list(self, *, after: str = "", limit: int = 100) -> tuple[Sequence[Pointer], str | None]:
        """Names in order, from behind `after`; and where to go on, if there are more."""
        found = sorted((_pointer(entry) for entry in await self._bucket.entries(_NAME)), key=lambda one: one.name)
        rest = [one for one in found if one.name > after]
        return rest[:limit], rest[limit - 1].name if len(rest) > limit else None

    async def current(self, name: str) -> Pointer:
        entry = await self._bucket.get(_name_key(name)) if names.is_token(name) else None
        if entry is None:
            raise NotFoundError("there is no such workflow")
        return _pointer(entry)

    async def show(self, name: str, digest: str | None = None) -> tuple[Stored, Pointer]:
        """A definition of a name, the current one unless another is asked for; and the name's pointer."""
        pointer = await self.current(name)
        stored = await self.definition(pointer.digest if digest is None else digest)
        if stored.name != name:
            raise NotFoundError("this workflow has no such definition")
        return stored, pointer

    async def definition(self, digest: str) -> Stored:
        """By its hash; `NotFoundError` where nothing like it was ever applied."""
        known = self._known.get(digest)
        if known is None:
            entry = await self._bucket.get(_digest_key(digest))
            if entry is None:
                raise NotFoundError("there is no such definition")
            known = self._known[digest] = _stored(digest, entry.value)
        self._known.move_to_end(digest)
        while len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return known


# --- what is stored ----------------------------------------------------------------------------------------


def _name_key(name: str) -> str:
    return f"{_NAME}.{names.token(name, 'the name of a workflow')}"


def _digest_key(digest: str) -> str:
    return f"{_DIGEST}.{names.blob_hash(digest)}"


def _encode(pointer: Pointer) -> bytes:
    said = {"digest": pointer.digest, "version": pointer.version, "applied_at": pointer.applied_at}
    return json.dumps(said).encode()


def _pointer(entry: KvEntry) -> Pointer:
    said = json.loads(entry.value)
    return Pointer(entry.key.removeprefix(f"{_NAME}."), said["digest"], said["version"], said["applied_at"])


def _stored(digest: str, canonical: bytes) -> Stored:
    document = json.loads(canonical)
    schema = document.get("input_schema")
    return Stored(digest, document, InputSchema(schema) if schema is not None else None)


# --- what people write -------------------------------------------------------------------------------------


def _read(body: bytes, is_json: bool) -> tuple[Definition, bytes]:
    """In a thread: YAML of a megabyte takes seconds."""
    if len(body) > MAX_BYTES:
        raise InvalidDefinitionError([f"the definition is larger than {MAX_BYTES} bytes"])
    definition = _from_json(body) if is_json else _from_yaml(body)
    return definition, _canonical(definition)


def _from_yaml(body: bytes) -> Definition:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise InvalidDefinitionError(["the definition is not valid UTF-8"]) from None
    return parse(text)


def _from_json(body: bytes) -> Definition:
    """Not as YAML, which it nearly is: `1e5` would be a text there, and a tab an error."""
    try:
        document = strict_json.loads(body)
    except InvalidRequestError as error:
        raise InvalidDefinitionError([error.detail.replace("the body", "the definition", 1)]) from None
    if not strict_json.is_flat(document):
        raise InvalidDefinitionError(["the definition is nested too deeply"])
    try:
        definition = Definition.model_validate(document)
    except ValidationError as error:
        raise InvalidDefinitionError([_problem(one["loc"], one["msg"]) for one in error.errors()]) from None
    stray = [f"step {step}: {said}" if step else said for step, said in strays(definition)]
    if stray:
        raise InvalidDefinitionError(stray)
    return definition


def _problem(location: tuple[int | str, ...], message: str) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    text = message.removeprefix("Value error, ")
    return f"{path}: {text}" if path else text


def _canonical(definition: Definition) -> bytes:
    """YAML can say things that JSON cannot; a run would meet them as something else."""
    impossible = InvalidDefinitionError(["the definition holds a value that cannot be written as JSON"])
    if not _is_json(definition.model_dump()):
        raise impossible
    try:
        return definition.canonical()
    except ValueError:  # half a surrogate pair
        raise impossible from None


def _is_json(value: Any) -> bool:
    """Looked at in Python: the model's own JSON would make `null` of what is no number."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_json(inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return all(_is_json(inner) for inner in value)
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
