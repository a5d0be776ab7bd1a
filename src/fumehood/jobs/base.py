"""What a job type is made of. A new one is a module with a request, a response, a handler, and one `JobType`.

class EchoRequest(JobRequest): ...
class EchoResponse(JobResponse): ...
class Echo:
    async def run(self, request: EchoRequest, context: Context) -> EchoResponse: ...

JOB_TYPE = JobType(name="oa.text_echo.v1", version=SchemaVersion(1, 0, 0), request=EchoRequest, ...)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from pydantic import model_validator

from fumehood.wire.base import JOB_TYPE_FORM
from fumehood.wire.canonical import json_sha256
from fumehood.wire.jobs import (
    LONGEST_JOB_TYPE,
    VERSION_FORM,
    Adjudication,
    JobModel,
    Provenance,
    Verification,
)

EXECUTION_SECONDS = 300
Request = TypeVar("Request", bound="JobRequest")
Response = TypeVar("Response", bound="JobResponse")


class JobRequest(JobModel):
    """What somebody wants done. Each type gives `verification` the default that its contract names."""

    verification: Verification
    """How often it is done, and what decides; what is left out is as in the default."""

    @model_validator(mode="before")
    @classmethod
    def _verified_as_usual(cls, data: object) -> object:
        """Whoever asks for one more provider says that, and nothing else."""
        said = data.get("verification") if isinstance(data, dict) else None
        usual = cls.model_fields["verification"].default
        if not (isinstance(data, dict) and isinstance(said, dict) and isinstance(usual, Verification)):
            return data
        return data | {"verification": usual.model_dump(mode="json") | said}

    def typed(self) -> dict[str, Any]:
        """The typed form: defaults filled in, unset options left out, unknown fields gone. What is hashed."""
        return self.model_dump(mode="json", exclude_none=True)

    def compute_hash(self) -> str:
        return json_sha256(self.typed())


class JobResponse(JobModel):
    """What a provider found."""

    provenance: Provenance
    """Who found it, with what, and from what."""

    def typed(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True)

    def outputs(self) -> dict[str, Any]:
        """All that was found, without who found it and when."""
        return {name: value for name, value in self.typed().items() if name != "provenance"}

    def declared(self) -> Any:
        """What two responses are compared on: never provenance, durations or host names. A type whose outputs hold
        such things says here what counts."""
        return self.outputs()


@dataclass(frozen=True, slots=True, order=True)
class SchemaVersion:
    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> SchemaVersion:
        found = re.fullmatch(VERSION_FORM, text)
        if found is None:
            raise ValueError("a schema version is three numbers, like 1.0.0")
        return cls(*map(int, found.groups()))

    def can_read(self, other: SchemaVersion) -> bool:
        """Whether a reader of this version understands what was written by `other`: the same major, and not newer in
        what it may say. `jobs/compatibility.py` says what may change within a major."""
        return self.major == other.major and other.minor <= self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


class Context(Protocol):
    """What a handler is given beside its request."""

    @property
    def worker_id(self) -> str: ...

    @property
    def task_id(self) -> str:
        """Of this execution: for labels and logs."""
        ...

    @property
    def tenant(self) -> str: ...

    def prove(self, name: str, sha256: str) -> None:
        """One more subject of the receipt: `stdout/0`, `artifact/build/app`. Beyond 256, only the response has it."""
        ...

    def observe(self, **facts: Any) -> None:
        """More for the receipt's predicate: `image`, `isolation`, `network`, `repo`. JSON values only."""
        ...


RequestIn = TypeVar("RequestIn", bound=JobRequest, contravariant=True)
ResponseOut = TypeVar("ResponseOut", bound=JobResponse, covariant=True)


class Handler(Protocol[RequestIn, ResponseOut]):
    """Does one job. It fills in its own part of the provenance (`model_id`, `sampling`, `tokens`); the worker adds
    hashes, times and its key. Raises `JobFailedError` where it cannot do it; is cancelled when nobody wants it."""

    async def run(self, request: RequestIn, context: Context) -> ResponseOut: ...


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """An endpoint that speaks the OpenAI protocol."""

    base_url: str
    model: str
    api_key: str = field(repr=False, default="")
    """Empty: no key is sent, as servers on one's own machine have it."""
    timeout_seconds: float = 60.0
    """Of one attempt: to connect, and between two reads."""
    max_retries: int = 3
    deadline_seconds: float = 240.0
    """For all calls of one job, retries and waits included."""
    max_input_chars: int = 200_000
    """Of one prompt; some four characters make a token. A job that needs more is refused, never cut."""
    max_tokens: int = 4096
    """Of one answer; four times as many when that was too few."""
    plain_http: bool = False
    """Whether `http:` may go further than the loopback: the key and the code can then be read on the way."""


@dataclass(frozen=True, slots=True)
class Workbench:
    """What a worker has for its handlers."""

    chat: ChatOptions | None = None
    sandboxes: Any | None = None
    """Runs `oa.sandbox_run` requests: `jobs.types.sandbox_run.SandboxJobs`."""


Make = Callable[[Workbench], "Handler[Any, Any]"]


@dataclass(frozen=True, slots=True)
class JobType(Generic[Request, Response]):
    """All that there is to know of a type: API, command line and workers look nowhere else."""

    name: str
    version: SchemaVersion
    about: str
    request: type[Request]
    response: type[Response]
    handlers: Mapping[str, Make]
    """By the name of a way of doing it (`local`, `openai`, `docker`); the first one is the default. A maker raises
    `ConfigurationError` where the workbench lacks what it needs."""
    merge: Callable[[Request, Sequence[Response]], Response] | None = None
    """Makes one response of several, with `provenance.model_id` `merge`; without it, `merge` is refused."""
    enforce: Callable[[Request, Response], Response] | None = None
    """Holds a response to what the request allows, whoever made it. Doing it twice changes nothing: a server rejects
    an answer that it would change."""
    allowed: frozenset[Adjudication] = frozenset(Adjudication)
    seconds: Callable[[Request], int] = lambda _: EXECUTION_SECONDS
    """How long one execution of a request may take."""
    uploads: Callable[[Request], Sequence[str]] = lambda _: ()
    """What of a request was uploaded before: only whoever did so may name it."""

    def __post_init__(self) -> None:
        if not re.fullmatch(JOB_TYPE_FORM, self.name) or len(self.name) > LONGEST_JOB_TYPE:
            raise ValueError(f"{self.name!r}: a job type is called like oa.text_echo.v1")
        if int(self.name.rpartition(".v")[2]) != self.version.major:
            raise ValueError(f"{self.name} has version {self.version}: the major must be the one in its name")
        if not isinstance(self.request.model_fields["verification"].default, Verification):
            raise ValueError(f"{self.name} has no default verification: {self.request.__name__} must give one")
        if self.verification.adjudication not in self.adjudications:
            raise ValueError(f"{self.name} does not allow what its default verification asks for")
        if not self.handlers:
            raise ValueError(f"{self.name} has no handler")

    @property
    def verification(self) -> Verification:
        """How a job of this type is verified when nothing is said about that."""
        usual: Verification = self.request.model_fields["verification"].default
        return usual

    @property
    def adjudications(self) -> frozenset[Adjudication]:
        """What a request may ask for."""
        return self.allowed if self.merge is not None else self.allowed - {Adjudication.MERGE}
