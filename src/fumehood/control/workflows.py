"""Workflows: definitions kept by what they say, and names that point to one of them.

`digest.<hash>` holds a definition for ever, since runs are pinned to it; `name.<name>` says which one is current. The
content is stored before the name points to it, and the name moves by compare-and-set, so that of two people who apply
at once both succeed, one after the other, and applying the same again changes nothing.

Names are a tenant's own: those of other tenants than the default one lie below `tenant.<tenant>`, and so does a mark
for each definition that a name of a tenant has had. Content is shared, but a hash alone opens nothing: a definition is
shown to whoever has applied it. Definitions from before there were tenants have no marks: they are the default
tenant's, and `foreign.<hash>` marks content that another one brought first. No mark is ever taken away, so that it does
not matter who comes between whom.
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
from fumehood.control.callers import DEFAULT_TENANT
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
from fumehood.wire.job_api import JOB_WORKFLOW
from fumehood.wire.sandbox import RUN_WORKFLOW
from fumehood.wire.sealed import is_sealed

_CACHED = 64
"""Definitions kept in memory; they are at most 1 MiB, and never change."""
_TRIES = 100
"""Against others who apply the same name at the same time: each lost try is somebody else's success."""
_NAME, _DIGEST, _TENANT, _FOREIGN = "name", "digest", "tenant", "foreign"


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


def _check_task_types(definition: Definition) -> None:
    """What nodes and providers are asked is checked before: by a step's `sandbox`, and by `/v1/jobs`."""
    errands = [step.compensate for step in definition.steps if step.compensate is not None]
    errands += [definition.on_failure] if definition.on_failure is not None else []
    kinds = [step.task_type for step in definition.steps if step.sandbox is None] + [one.task for one in errands]
    sealed = [kind for kind in kinds if kind is not None and is_sealed(kind)]
    if sealed:
        raise InvalidDefinitionError([f"task: {sealed[0]} is no task type for workflows"])


class Workflows:
    def __init__(self, broker: Broker, *, now_ms: Callable[[], int]) -> None:
        self._bucket = broker.bucket(Bucket.DEFINITIONS)
        self._now_ms = now_ms
        self._known: OrderedDict[str, Stored] = OrderedDict()

    async def apply(self, name: str, body: bytes, *, is_json: bool, tenant: str) -> tuple[Pointer, bool]:
        """Make a definition the current one of its name; whether that changed anything."""
        definition, canonical = await asyncio.to_thread(_read, body, is_json)
        if definition.name != name:
            raise InvalidDefinitionError([f"name: it is {definition.name!r}, but it was applied as {name!r}"])
        if name in (RUN_WORKFLOW, JOB_WORKFLOW):
            raise InvalidDefinitionError([f"name: {name!r} is kept for runs of single images; take another one"])
        _check_task_types(definition)
        stored = _stored(definition.digest, canonical)
        await self._keep(name, stored.digest, canonical, tenant)
        return await self._point(name, stored.digest, tenant)

    async def _keep(self, name: str, digest: str, canonical: bytes, tenant: str) -> None:
        """The content, unless it was there before, and that this tenant has it."""
        if tenant != DEFAULT_TENANT and await self._bucket.get(_digest_key(digest)) is None:
            await self._create(f"{_FOREIGN}.{names.blob_hash(digest)}", b"{}")
        await self._create(_digest_key(digest), canonical)
        await self._create(_mark_key(name, digest, tenant), b"{}")

    async def _create(self, key: str, value: bytes) -> None:
        with contextlib.suppress(KeyConflictError):  # the same was there before
            await self._bucket.create(key, value)

    async def _point(self, name: str, digest: str, tenant: str) -> tuple[Pointer, bool]:
        key = _name_key(name, tenant)
        for _ in range(_TRIES):
            entry = await self._bucket.get(key)
            before = _pointer(entry) if entry is not None else None
            if before is not None and before.digest == digest:
                return before, False
            after = Pointer(name, digest, before.version + 1 if before else 1, self._now_ms())
            try:
                if entry is None:
                    await self._bucket.create(key, _encode(after))
                else:
                    await self._bucket.update(key, _encode(after), revision=entry.revision)
            except KeyConflictError:
                continue
            return after, True
        raise ConflictError("too many others apply this workflow at the same time")

    async def list(self, *, tenant: str, after: str = "", limit: int = 100) -> tuple[Sequence[Pointer], str | None]:
        """Names in order, from behind `after`; and where to go on, if there are more."""
        entries = await self._bucket.entries(_names(tenant))
        found = sorted((_pointer(entry) for entry in entries), key=lambda one: one.name)
        rest = [one for one in found if one.name > after]
        return rest[:limit], rest[limit - 1].name if len(rest) > limit else None

    async def current(self, name: str, *, tenant: str) -> Pointer:
        entry = await self._bucket.get(_name_key(name, tenant)) if names.is_token(name) else None
        if entry is None:
            raise NotFoundError("there is no such workflow")
        return _pointer(entry)

    async def show(self, name: str, digest: str | None = None, *, tenant: str) -> tuple[Stored, Pointer]:
        """A definition of a name, the current one unless another is asked for; and the name's pointer."""
        pointer = await self.current(name, tenant=tenant)
        if digest is None or digest == pointer.digest:
            return await self.definition(pointer.digest), pointer
        if not await self._had(name, digest, tenant):
            raise _no_such_definition()
        return await self.definition(digest), pointer

    async def _had(self, name: str, digest: str, tenant: str) -> bool:
        """Whether this name of this tenant has had this definition."""
        if await self._bucket.get(_mark_key(name, digest, tenant)) is not None:
            return True
        if tenant != DEFAULT_TENANT or await self._bucket.get(f"{_FOREIGN}.{names.blob_hash(digest)}") is not None:
            return False
        return (await self.definition(digest)).name == name

    async def definition(self, digest: str) -> Stored:
        """By its hash; `NotFoundError` where nothing like it was ever applied."""
        known = self._known.get(digest)
        if known is None:
            entry = await self._bucket.get(_digest_key(digest))
            if entry is None:
                raise _no_such_definition()
            known = self._known[digest] = _stored(digest, entry.value)
        self._known.move_to_end(digest)
        while len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return known


# --- what is stored ----------------------------------------------------------------------------------------


def _names(tenant: str) -> str:
    """Below which all names of a tenant lie. The default one's lie where they did before there were others."""
    return _NAME if tenant == DEFAULT_TENANT else f"{_TENANT}.{names.token(tenant, 'a tenant')}.{_NAME}"


def _name_key(name: str, tenant: str) -> str:
    return f"{_names(tenant)}.{names.token(name, 'the name of a workflow')}"


def _mark_key(name: str, digest: str, tenant: str) -> str:
    """Says that a name of a tenant has had a definition."""
    return f"{_TENANT}.{names.token(tenant, 'a tenant')}.{_DIGEST}.{names.token(name)}.{names.blob_hash(digest)}"


def _digest_key(digest: str) -> str:
    return f"{_DIGEST}.{names.blob_hash(digest)}"


def _encode(pointer: Pointer) -> bytes:
    said = {"digest": pointer.digest, "version": pointer.version, "applied_at": pointer.applied_at}
    return json.dumps(said).encode()


def _pointer(entry: KvEntry) -> Pointer:
    said = json.loads(entry.value)
    return Pointer(entry.key.rpartition(".")[2], said["digest"], said["version"], said["applied_at"])


def _stored(digest: str, canonical: bytes) -> Stored:
    document = json.loads(canonical)
    schema = document.get("input_schema")
    return Stored(digest, document, InputSchema(schema) if schema is not None else None)


def _no_such_definition() -> NotFoundError:
    return NotFoundError("this workflow has no such definition")


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
