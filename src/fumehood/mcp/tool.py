"""What a tool is: its name and words for a model, its arguments, its answer, and what it does.

Nothing here knows the protocol: `serving.py` translates.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fumehood.errors import InvalidRequestError
from fumehood.mcp.aftermath import Aftermath
from fumehood.mcp.progress import Progress

if TYPE_CHECKING:
    from fumehood.sdk.aio.client import AsyncClient


class Arguments(BaseModel):
    """What a tool takes. A name that it does not know is an error: a misspelt one would be missed in silence."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Answer(BaseModel):
    """What a tool says: the fields for programs, `text` for models."""

    model_config = ConfigDict(frozen=True)

    def text(self) -> str:
        raise NotImplementedError


class SessionAnswer(Answer):
    """The answer of a tool that works in a session."""

    session: Annotated[str, Field(description="The session that it was done in")]
    session_created: Annotated[bool, Field(description="Whether this call made the session, empty")]

    def session_line(self) -> str:
        return f"session: {self.session}{' (new)' if self.session_created else ''}"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool: as whom it asks, whom it tells how far it is, and who cleans up behind it."""

    client: AsyncClient
    progress: Progress
    aftermath: Aftermath
    pinned: bool = False
    """Whether receipts are checked against the root that the user of this machine pinned; else against what the server
    publishes."""


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    title: str
    about: str
    arguments: type[Arguments]
    answer: type[Answer]
    call: Callable[[Call, Any], Awaitable[Answer]] = field(repr=False)
    read_only: bool = False
    destructive: bool = False
    """Whether something may be gone afterwards that was there before."""
    idempotent: bool = False

    HINTS: ClassVar = ("read_only", "destructive", "idempotent")

    def parsed(self, given: Mapping[str, Any]) -> Arguments:
        """The arguments, or an error that names each one that is wrong."""
        try:
            return self.arguments.model_validate(dict(given))
        except ValidationError as error:
            known = list(self.arguments.model_fields)
            said = [_said(one, known) for one in error.errors(include_url=False, include_context=False)[:10]]
            raise InvalidRequestError(f"the arguments of {self.name} do not fit: {'; '.join(said)}") from None


def _said(problem: Mapping[str, Any], known: list[str]) -> str:
    name = ".".join(str(part) for part in problem["loc"]) or "the arguments"
    if problem["type"] == "extra_forbidden":
        meant = get_close_matches(name, known, n=1)
        return f"{name}: there is no such argument" + (f", did you mean {meant[0]}?" if meant else "")
    if problem["type"] == "missing":
        return f"{name}: is missing"
    words = str(problem["msg"]).removeprefix("Value error, ")
    return f"{name}: {words[:1].lower()}{words[1:]}"


def schema_of(model: type[BaseModel], mode: Any = "validation") -> dict[str, Any]:
    """A model's JSON Schema without the titles that say its names once more: a model reads every word of it."""
    made: dict[str, Any] = _without_titles(model.model_json_schema(mode=mode))
    made.pop("description", None)
    return made


def _without_titles(node: Any, *, names: bool = False) -> Any:
    """`names`: the keys of this one are names of fields, of which one may be `title`."""
    if isinstance(node, list):
        return [_without_titles(one) for one in node]
    if not isinstance(node, dict):
        return node
    kept = {key: value for key, value in node.items() if names or key != "title" or not isinstance(value, str)}
    return {
        key: _without_titles(value, names=key in ("properties", "$defs") and not names) for key, value in kept.items()
    }
