"""All job types that this process knows: the modules of `jobs/types/`, and those that its operator names.

Each such module has one `JOB_TYPE`. Nothing else has to be told of a new one.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from fumehood.errors import ConfigurationError, InvalidRequestError, NotFoundError, UnsupportedVersionError
from fumehood.jobs import types
from fumehood.jobs.base import JobRequest, JobResponse, JobType, SchemaVersion
from fumehood.wire.base import explain
from fumehood.wire.canonical import canonical_json

AnyType = JobType[Any, Any]
Kind = TypeVar("Kind", JobRequest, JobResponse)


class Registry(Mapping[str, AnyType]):
    def __init__(self, found: Iterable[AnyType]) -> None:
        self._types: dict[str, AnyType] = {}
        for one in found:
            if self._types.setdefault(one.name, one) is not one:
                raise ConfigurationError(f"two modules say what {one.name} is")

    @classmethod
    def load(cls, modules: Iterable[str] = ()) -> Registry:
        """Ours, and `modules` of others by their import path."""
        ours = [f"{types.__name__}.{found.name}" for found in pkgutil.iter_modules(types.__path__)]
        return cls(_type_in(name) for name in (*ours, *modules))

    def __getitem__(self, name: str) -> AnyType:
        return self._types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._types))

    def __len__(self) -> int:
        return len(self._types)

    def type(self, name: str) -> AnyType:
        """`NotFoundError` for what nobody has heard of."""
        try:
            return self._types[name]
        except KeyError:
            raise NotFoundError(f"there is no job type of this name; there are {', '.join(self)}") from None

    def request(self, name: str, payload: object, *, version: str | None = None) -> JobRequest:
        """`InvalidRequestError` names the fields that are wrong, and shows no value. `version`: of whoever wrote it,
        where somebody did; `UnsupportedVersionError` if that may say what this one does not understand."""
        job_type = self.type(name)
        if version is not None:
            _check(job_type, version)
        kind: type[JobRequest] = job_type.request
        asked = _read(kind, payload, "payload")
        if asked.verification.adjudication not in job_type.adjudications:
            ways = ", ".join(sorted(job_type.adjudications))
            raise InvalidRequestError(f"payload.verification.adjudication: {name} has {ways}")
        return asked

    def response(self, name: str, payload: object) -> JobResponse:
        kind: type[JobResponse] = self.type(name).response
        return _read(kind, payload, "response")


def _type_in(module: str) -> AnyType:
    try:
        found = importlib.import_module(module)
    except Exception as error:  # a module of somebody else's may raise anything
        raise ConfigurationError(f"the module {module} of a job type cannot be imported: {error!r}") from error
    said = getattr(found, "JOB_TYPE", None)
    if not isinstance(said, JobType):
        raise ConfigurationError(f"the module {module} has no JOB_TYPE that says what its job type is")
    return said


def _check(job_type: AnyType, version: str) -> None:
    try:
        written = SchemaVersion.parse(version)
    except ValueError as error:
        raise InvalidRequestError(f"schema_version: {error}") from None
    if not job_type.version.can_read(written):
        raise UnsupportedVersionError(f"{job_type.name} {written} was received; supported is {job_type.version}")


def _read(kind: type[Kind], payload: object, place: str) -> Kind:
    """What is no JSON, or has no canonical form, has no hash. No model looks at the names in a map, nor into `Any`, and
    what is not Unicode there would be written as something else."""
    try:
        json.dumps(payload, ensure_ascii=False).encode()
        read = kind.model_validate(payload)
    except ValidationError as error:
        raise InvalidRequestError(explain(kind, error, place)) from None
    except (TypeError, ValueError, RecursionError):
        raise InvalidRequestError(f"{place}: is no JSON") from None
    canonical_json(read.typed())
    return read
