"""Sessions and commands as the store keeps them: rows, and the JSON in them."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from fumehood.sandbox.sessions.values import ProcessWish, SessionName, SessionWish
from fumehood.sandbox.spec import End, Limits, Outcome, Stage, StreamEnd, Usage
from fumehood.wire.sandbox import NetworkProfile

SHOWN = 4096
"""Characters of a command's words that are remembered when it has ended."""


class SessionState(StrEnum):
    MAKING = "making"
    """The engine may have been asked; nobody was told that there is one."""
    THERE = "there"
    GOING = "going"
    """Somebody wants it gone: whoever finds it so goes on with that."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    wish: SessionWish
    sandbox_id: str
    image_digest: str
    created_ms: int
    lease_expires_ms: int
    state: SessionState = SessionState.MAKING
    runtime: str = ""
    farewell: str = ""
    """Why it goes: what its commands are told that it ends."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """See `SessionFacts`."""

    @property
    def name(self) -> SessionName:
        return self.wish.name


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    command_id: str
    name: SessionName
    sandbox_id: str
    number: int
    """By which its sandbox's supervisor knows it."""
    sha256: str
    """Of the wish: the same name for something else is refused."""
    argv: tuple[str, ...]
    terminal: bool
    stdin: bool
    exclusive: bool
    """Its session belongs to it until it has ended."""
    started_ms: int
    wish: ProcessWish | None = None
    """None once it has ended: an environment may hold secrets."""
    outcome: Outcome | None = None
    detail: str = ""
    stdin_bytes: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    serial: int = 0
    """The store's own number of it, and the name of its spool."""
    signalled: bool = False
    """On somebody's wish: if it is killed, that may be why."""
    receipt: str = ""
    """What was signed about its end."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a command, about to be stored."""

    record: ProcessRecord
    """With its outcome."""
    wish: ProcessWish | None
    session: SessionRecord | None
    """None where nothing is known of it any more."""


Sign = Callable[[Ending], str]
"""What is signed about an end, to be stored with it; empty: nothing."""


def no_receipt(_: Ending) -> str:
    return ""


def digest_of(wish: ProcessWish) -> str:
    return hashlib.sha256(process_json(wish).encode()).hexdigest()


def shown(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A command's words for people, of a bounded length."""
    left = SHOWN
    kept: list[str] = []
    for word in argv:
        if len(word) > left:
            return (*kept, word[:left] + "…")
        left -= len(word) + 1
        kept.append(word)
    return tuple(kept)


# --- JSON --------------------------------------------------------------------------------------------------


def process_json(wish: ProcessWish) -> str:
    return json.dumps(asdict(wish), sort_keys=True)


def process_of(text: str) -> ProcessWish:
    said = json.loads(text)
    terminal = said.pop("terminal")
    return ProcessWish(**said | {"argv": tuple(said["argv"]), "terminal": tuple(terminal) if terminal else None})


def session_json(wish: SessionWish) -> str:
    return json.dumps(asdict(wish), sort_keys=True)


def session_of(text: str) -> SessionWish:
    said = json.loads(text)
    return SessionWish(
        **said
        | {
            "name": SessionName(**said["name"]),
            "network": NetworkProfile(said["network"]),
            "limits": Limits(**said["limits"]),
        }
    )


def outcome_json(outcome: Outcome) -> str:
    said = asdict(outcome)
    return json.dumps(said | {name: said[name].isoformat() for name in ("started_at", "ended_at")})


def outcome_of(text: str) -> Outcome:
    said: dict[str, Any] = json.loads(text)
    return Outcome(
        **said
        | {
            "end": End(said["end"]),
            "started_at": dt.datetime.fromisoformat(said["started_at"]),
            "ended_at": dt.datetime.fromisoformat(said["ended_at"]),
            "stage": Stage(said["stage"]) if said["stage"] else None,
            "stdout": _stream(said["stdout"]),
            "stderr": _stream(said["stderr"]),
            "usage": Usage(**said["usage"]) if said["usage"] else None,
        }
    )


def _stream(said: Mapping[str, Any] | None) -> StreamEnd | None:
    return StreamEnd(**said) if said else None
