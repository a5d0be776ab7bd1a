"""The policy file as it is written: its words, their types and bounds, and the JSON Schema that is published of them.

What the parts mean together (a trust that a rule names, a key that is one) is looked at in `policy_file.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fumehood.images.egress import MAX_RULES as MAX_EGRESS
from fumehood.images.run_rules import RunUser
from fumehood.images.trust import MAX_ENTRIES, MAX_PEM
from fumehood.wire.base import NOT_NULL
from fumehood.wire.sandbox import NetworkProfile

VERSION: Final = 1
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
FORMS: Final = {
    NAME: "must be at most 64 letters, digits, dots, dashes and underscores, and begin with a letter or digit"
}
"""Patterns in words."""
RESERVED_NAME: Final = "development"
MAX_RULES: Final = 1024
MAX_TRUSTS: Final = 256
MAX_REPOSITORIES: Final = 64

Name = Annotated[str, Field(pattern=NAME)]
Text = Annotated[str, Field(min_length=1, max_length=1024)]


def _one_of(*names: str) -> dict[str, Any]:
    return {"oneOf": [{"required": [name]} for name in names]}


def _integer(value: object) -> object:
    """`true` is 1 for Python."""
    if isinstance(value, bool):
        raise ValueError("must be an integer")
    return value


def _true(value: object) -> object:
    if value is not True:
        raise ValueError("must be true; a rule that needs a signature leaves it out and names a trust")
    return value


def _not_ours(name: str) -> str:
    if name == RESERVED_NAME:
        raise ValueError(f"{RESERVED_NAME} is the policy without a file: evidence must tell the two apart")
    return name


class _Part(BaseModel):
    """Unknown words are errors: a misspelt `unsinged` must not silently mean something else."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    def _exactly_one(self, *names: str) -> None:
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of {' and '.join(names)} is needed, not {' and '.join(given) or 'none'}")


class KeyEntry(_Part):
    """A public key, as PEM text or in a file of its own."""

    model_config = ConfigDict(json_schema_extra=_one_of("pem", "file"))

    name: Name
    """For the evidence."""
    pem: Annotated[Annotated[str, Field(min_length=1, max_length=MAX_PEM)] | None, NOT_NULL] = None
    file: Annotated[Text | None, NOT_NULL] = None
    """A path; one that is not absolute begins at the policy file's folder."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        self._exactly_one("pem", "file")
        return self


class IdentityEntry(_Part):
    """Somebody whom a certificate names, and who says so."""

    model_config = ConfigDict(json_schema_extra=_one_of("subject", "subject_pattern"))

    subject: Annotated[Text | None, NOT_NULL] = None
    subject_pattern: Annotated[Text | None, NOT_NULL] = None
    """A regular expression for the whole subject."""
    issuer: Text

    @model_validator(mode="after")
    def _one(self) -> Self:
        self._exactly_one("subject", "subject_pattern")
        return self


class TrustEntry(_Part):
    """Whose signature counts: of any of these keys, or of any of these identities under the trusted root."""

    keys: Annotated[list[KeyEntry], Field(max_length=MAX_ENTRIES)] = []
    identities: Annotated[list[IdentityEntry], Field(max_length=MAX_ENTRIES)] = []
    trusted_root: Annotated[Text | None, NOT_NULL] = None
    """A file; a path that is not absolute begins at the policy file's folder."""

    @model_validator(mode="after")
    def _somebody(self) -> Self:
        if not self.keys and not self.identities:
            raise ValueError("a trust without keys and identities trusts nobody: name one, or let no rule need it")
        if bool(self.identities) != (self.trusted_root is not None):
            raise ValueError("identities and trusted_root belong together")
        return self


class RuleEntry(_Part):
    """What counts for the images that match. The first rule that matches is the only one that counts."""

    model_config = ConfigDict(json_schema_extra=_one_of("trust", "unsigned"))

    match: Text
    trust: Annotated[Name | None, NOT_NULL] = None
    """A name under `trust`: a signature that it holds for is needed."""
    unsigned: Annotated[Literal[True] | None, BeforeValidator(_true)] = None
    """No signature is needed, nor looked for; the evidence says so."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        self._exactly_one("trust", "unsigned")
        return self


class EgressEntry(_Part):
    """Where the network profile `restricted` leads."""

    allow: Annotated[list[Text], Field(min_length=1, max_length=MAX_EGRESS)]
    """`NAME:PORT`, or `*.NAME:PORT` for everything beneath a name."""


Maximum = Annotated[int, Field(ge=1, le=1_000_000_000)]


class LimitsEntry(_Part):
    """What nothing may pass. What is left out has no bound but the node's own."""

    cpu_millis: Annotated[Maximum | None, NOT_NULL] = None
    memory_mib: Annotated[Maximum | None, NOT_NULL] = None
    timeout_seconds: Annotated[Maximum | None, NOT_NULL] = None


class JobsEntry(_Part):
    """What counts for jobs alone."""

    repositories: Annotated[list[Text], Field(min_length=1, max_length=MAX_REPOSITORIES)]
    """Where an image is looked for that a job names by its digest: `HOST/NAME`, in this order. Each needs a rule."""


_TRUSTS: Final = Field(max_length=MAX_TRUSTS, json_schema_extra={"additionalProperties": False})


class PolicyDocument(_Part):
    """Which images may run, whose signatures count, and how anything may be run."""

    version: Annotated[Literal[1], BeforeValidator(_integer)]
    name: Annotated[Name, AfterValidator(_not_ours)]
    """For the evidence."""
    rules: Annotated[list[RuleEntry], Field(max_length=MAX_RULES)]
    """In order: the first that matches counts. An image that none matches is denied."""
    trust: Annotated[dict[Name, TrustEntry], _TRUSTS] = {}
    users: Annotated[list[RunUser], Field(min_length=1, max_length=2)] = ["sandbox"]
    networks: Annotated[list[Annotated[NetworkProfile, Field(strict=False)]], Field(min_length=1, max_length=8)] = [
        NetworkProfile.DENY_ALL,
        NetworkProfile.LOCALHOST,
    ]
    egress: Annotated[EgressEntry | None, NOT_NULL] = None
    """Needed for `restricted`, and only for it."""
    limits: Annotated[LimitsEntry | None, NOT_NULL] = None
    jobs: Annotated[JobsEntry | None, NOT_NULL] = None
    """Without it no image is found by its digest alone."""


def schema() -> dict[str, Any]:
    """The JSON Schema, as published in `contracts/`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:fumehood:schema:policy:1",
        **_without_null(PolicyDocument.model_json_schema()),
    }


def _without_null(part: Any) -> Any:
    """An optional word is left out, and never null."""
    if isinstance(part, list):
        return [_without_null(item) for item in part]
    if not isinstance(part, dict):
        return part
    made = {key: _without_null(value) for key, value in part.items() if not (key == "default" and value is None)}
    options = [option for option in made.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        del made["anyOf"]
        made |= options[0]
    return made


def files() -> dict[str, str]:
    """What stands in `contracts/`, by its name."""
    return {"policy.schema.json": json.dumps(schema(), indent=2) + "\n"}


def main(folder: Path) -> None:
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "contracts"))
