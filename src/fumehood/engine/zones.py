"""Time zones by their names, with the same rules on every server.

The rules come from the package `tzdata` alone, never from the host: two servers that disagreed about a zone would
start the same scheduled run at two times.
"""

from __future__ import annotations

import functools
from importlib import resources
from zoneinfo import ZoneInfo

LONGEST = 64
"""Of a name: the longest in the database has 32 characters."""


def zone(name: str) -> ZoneInfo:
    """`ValueError` for a name that the database does not have."""
    if len(name) > LONGEST or name not in _known():
        raise ValueError("not a time zone: write it like Europe/Berlin, America/New_York or UTC")
    return _load(name)


@functools.cache
def _known() -> frozenset[str]:
    return frozenset(resources.files("tzdata").joinpath("zones").read_text(encoding="utf-8").split())


@functools.cache
def _load(name: str) -> ZoneInfo:
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)
