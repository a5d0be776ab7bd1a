"""What people type: values, labels, moments and names, each with an error that says how it is meant."""

from __future__ import annotations

import datetime as dt
import difflib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fumehood.cli.client import Api, ApiError
from fumehood.cli.exits import CommandError, UsageError
from fumehood.engine import duration

LARGEST_INPUT = 64 * 1024 * 1024
"""Characters of a value from a file or a pipe: more than any server takes, less than would fill a laptop."""


def json_value(text: str | None, option: str) -> Any:
    """JSON as it stands, of a file (`@FILE`) or of stdin (`-`)."""
    if text is None:
        return None
    try:
        return json.loads(_content(text))
    except OSError as error:
        raise UsageError(f"{option}: {error.filename} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option} is not JSON: {error}; a text needs quotes of its own") from None


def _content(text: str) -> str:
    if text == "-":
        return sys.stdin.read(LARGEST_INPUT)
    if not text.startswith("@"):
        return text
    with Path(text[1:]).expanduser().open(encoding="utf-8") as file:
        return file.read(LARGEST_INPUT)


def labels(words: Sequence[str] | None) -> dict[str, str]:
    """`k=v` words as a mapping."""
    found: dict[str, str] = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"--label {word}: write it like NAME=VALUE")
        if name in found:
            raise UsageError(f"--label {name} is there twice")
        found[name] = value
    return found


def milliseconds(text: str | None, option: str) -> int | None:
    """A duration as people write it."""
    if text is None:
        return None
    try:
        return duration.parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def seconds(text: str | None, option: str) -> int | None:
    """A duration in whole seconds, at least one."""
    found = milliseconds(text, option)
    return None if found is None else max(1, found // 1000)


def moment(text: str | None, option: str, now: dt.datetime) -> str | None:
    """A point in time, `2026-01-31T12:00:00Z` or on the clock here `2026-01-31 12:00`; or how long ago, `90m`."""
    if text is None:
        return None
    try:
        return _rfc3339(now - dt.timedelta(milliseconds=duration.parse(text)))
    except ValueError:
        pass
    try:
        return _rfc3339(dt.datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option}: write how long ago (90m, 2d) or when (2026-01-31T12:00:00Z, 2026-01-31), not {text!r}"
        ) from None


def _rfc3339(at: dt.datetime) -> str:
    return at.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def named(api: Api, noun: str, name: str, *, most: int, page: int, field: str = "name") -> Iterator[None]:
    """A name that the server does not know is told together with the one that was probably meant. `most` is how many
    of the known ones are looked through."""
    try:
        yield
    except ApiError as error:
        if error.status != 404:
            raise
        found, _ = api.listed(f"/v1/{noun}s", f"{noun}s", most=most, page=page)
        known = [one[field] for one in found]
        if name in known:
            raise
        raise no_such(noun, name, known) from None


def no_such(noun: str, name: str, known: Iterable[str]) -> CommandError:
    """What to say of a name that is not there: the one that was probably meant."""
    nearest = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return CommandError(f"no such {noun}: {name}{hint}")
