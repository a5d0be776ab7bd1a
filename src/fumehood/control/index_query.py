"""Questions to the index, as SQL. Newest first, page by page.

A page ends at a run, and the next one begins behind it, by the moment that it started and its id: both are the same on
every server and never change, so that a cursor is good at any of them, after any rebuild, and while new runs arrive.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fumehood.errors import InvalidRequestError

DEAD = ("failed", "timed_out")
MOST_RANKED = 10
"""Of the slowest workflows, and of the steps that fail most."""
_PLACE = re.compile(r"1\.(0|-?[1-9][0-9]{0,15})\.([A-Za-z0-9_-]{1,128})")
_NUMBER = re.compile(r"1\.([1-9][0-9]{0,15})")
_HAS_LABEL = (
    "EXISTS (SELECT 1 FROM labels AS m WHERE m.tenant = ? AND m.key = ? AND m.value = ? "
    "AND m.started_at = r.started_at AND m.run_id = r.run_id)"
)
_ORDER = "ORDER BY {0}.started_at DESC, {0}.run_id DESC LIMIT ?"


@dataclass(frozen=True, slots=True)
class Place:
    """Behind which run a page begins."""

    started_at: int
    run_id: str

    def encode(self) -> str:
        return _wrapped(f"1.{self.started_at}.{self.run_id}")

    @classmethod
    def decode(cls, cursor: str) -> Place:
        found = _PLACE.fullmatch(_unwrapped(cursor))
        if found is None:
            raise InvalidRequestError("cursor: must be the `next` of an earlier answer")
        return cls(int(found[1]), found[2])


def encode_number(number: int) -> str:
    """A cursor of the audit list."""
    return _wrapped(f"1.{number}")


def decode_number(cursor: str) -> int:
    found = _NUMBER.fullmatch(_unwrapped(cursor))
    if found is None:
        raise InvalidRequestError("cursor: must be the `next` of an earlier answer")
    return int(found[1])


def _wrapped(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _unwrapped(cursor: str) -> str:
    """What was wrapped; nothing that it could be where it cannot be undone. One text has one form only."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        return ""
    return text if _wrapped(text) == cursor else ""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs are asked for; what is `None` does not matter."""

    workflow: str | None = None
    status: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """All of them."""
    started_after: int | None = None
    """At this moment or later (ms)."""
    started_before: int | None = None
    """Earlier than this (ms)."""
    parent: str | None = None
    schedule: str | None = None
    dead: bool = False
    """Only runs that failed or timed out."""
    outcome: str | None = None
    image_digest: str | None = None
    """Only runs that the Runner API created: those that ended so, and those of an image."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which lines of the audit log are asked for."""

    by: str | None = None
    action: str | None = None
    target: str | None = None
    after: int | None = None
    """At this moment or later (ms)."""
    before: int | None = None
    """Earlier than this (ms)."""


@dataclass(frozen=True, slots=True)
class Statement:
    sql: str
    values: tuple[object, ...]


class _Where:
    """Conditions that are all to be met."""

    def __init__(self) -> None:
        self._terms: list[str] = []
        self._values: list[object] = []

    def add(self, term: str, *values: object) -> None:
        self._terms.append(term)
        self._values += values

    def given(self, term: str, value: object) -> None:
        if value is not None:
            self.add(term, value)

    def statement(self, head: str, tail: str, *values: object) -> Statement:
        return Statement(f"{head} WHERE {' AND '.join(self._terms)} {tail}", (*self._values, *values))


def rarity(tenant: str, key: str, value: str, most: int) -> Statement:
    """How many runs have a label, counted up to a bound."""
    inner = "SELECT 1 FROM labels WHERE tenant = ? AND key = ? AND value = ? LIMIT ?"
    return Statement(f"SELECT count(*) FROM ({inner})", (tenant, key, value, most))


def runs(tenant: str, wanted: RunFilter, place: Place | None, limit: int, lead: str | None = None) -> Statement:
    """A page. `lead` is the label to go along, the rarest, where there are any."""
    where = _Where()
    order = "r" if lead is None else "l"
    if lead is None:
        head = "SELECT r.* FROM runs AS r"
        where.add("r.tenant = ?", tenant)
    else:
        head = "SELECT r.* FROM labels AS l CROSS JOIN runs AS r ON r.id = l.id"
        where.add("l.tenant = ? AND l.key = ? AND l.value = ?", tenant, lead, wanted.labels[lead])
    for key, value in wanted.labels.items():
        if key != lead:
            where.add(_HAS_LABEL, tenant, key, value)
    where.given("r.workflow = ?", wanted.workflow)
    where.given("r.status = ?", wanted.status)
    where.given("r.parent_run = ?", wanted.parent)
    where.given("r.schedule = ?", wanted.schedule)
    where.given("r.outcome = ?", wanted.outcome)
    where.given("r.image_digest = ?", wanted.image_digest)
    if wanted.dead:
        where.add(f"r.status IN {DEAD}")
    where.given(f"{order}.started_at >= ?", wanted.started_after)
    where.given(f"{order}.started_at < ?", wanted.started_before)
    if place is not None:
        where.add(f"({order}.started_at, {order}.run_id) < (?, ?)", place.started_at, place.run_id)
    return where.statement(head, _ORDER.format(order), limit)


def audit(tenant: str, wanted: AuditFilter, before: int | None, limit: int) -> Statement:
    where = _Where()
    where.add("tenant = ?", tenant)
    where.given('"by" = ?', wanted.by)
    where.given("action = ?", wanted.action)
    where.given("target = ?", wanted.target)
    where.given("at >= ?", wanted.after)
    where.given("at < ?", wanted.before)
    where.given("number < ?", before)
    return where.statement("SELECT * FROM audit", "ORDER BY number DESC LIMIT ?", limit)


def statistics(tenant: str, since: int, width: int) -> tuple[Statement, Statement, Statement]:
    """Runs that started at a moment or later: how many there are by interval and status, which workflows take longest,
    and which steps fail most."""
    where = _Where()
    where.add("tenant = ?", tenant)
    where.add("started_at >= ?", since)
    intervals = Statement(
        "SELECT (started_at - ?) / ? AS interval, status, count(*) AS runs FROM runs "
        "WHERE tenant = ? AND started_at >= ? GROUP BY 1, 2 ORDER BY 1, 2",
        (since, width, tenant, since),
    )
    slowest = where.statement(
        "SELECT workflow, count(ended_at) AS runs, avg(ended_at - started_at) AS mean_ms, "
        "max(ended_at - started_at) AS longest_ms FROM runs",
        "GROUP BY workflow HAVING runs > 0 ORDER BY mean_ms DESC, workflow LIMIT ?",
        MOST_RANKED,
    )
    where.add(f"failed_step IS NOT NULL AND +status IN {DEAD}")  # with `+`, SQLite does not take the index on status
    failing = where.statement(
        # With max(), SQLite takes the other columns from the row that has the maximum.
        "SELECT workflow, failed_step AS step, count(*) AS runs, max(started_at), run_id AS newest FROM runs",
        "GROUP BY workflow, failed_step ORDER BY runs DESC, workflow, step LIMIT ?",
        MOST_RANKED,
    )
    return intervals, slowest, failing


def archivable(before: int, behind: tuple[int, str], limit: int) -> Statement:
    """Runs of all tenants that ended before a moment and are not archived to the last, oldest first."""
    where = _Where()
    where.add("ended_at IS NOT NULL AND (archived = 0 OR live = 1)")
    where.add("ended_at < ?", before)
    where.add("(ended_at, run_id) > (?, ?)", *behind)
    return where.statement("SELECT ended_at, run_id FROM runs", "ORDER BY ended_at, run_id LIMIT ?", limit)
