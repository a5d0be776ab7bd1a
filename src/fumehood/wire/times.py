"""Moments: milliseconds since the epoch inside, RFC 3339 in UTC with `Z` outside."""

from __future__ import annotations

import datetime as dt


def moment(at_ms: int) -> dt.datetime:
    """Exact to the millisecond, which a division of floats is not."""
    seconds, rest = divmod(at_ms, 1000)
    return dt.datetime.fromtimestamp(seconds, dt.UTC).replace(microsecond=rest * 1000)


def rfc3339(at: dt.datetime | int) -> str:
    """A moment, or milliseconds since the epoch, as text; milliseconds are always written."""
    when = moment(at) if isinstance(at, int) else at.astimezone(dt.UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
