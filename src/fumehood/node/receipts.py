"""Receipts of what ran here: from what a worker knows of an end to its signed claim.

A receipt is made when the end is known and stored with it, so that whoever asks again is given the very same. It comes
from what is at hand, asks nobody, and has a bound; should it fail all the same, the result goes without it.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

import structlog

from fumehood.errors import FumehoodError
from fumehood.node.signing import ReceiptKeys
from fumehood.verify import receipt
from fumehood.verify.dsse import SigningKey
from fumehood.verify.receipt import Asked, Claim, Image, Kind, Outcome, Worker
from fumehood.wire.canonical import json_sha256
from fumehood.wire.times import rfc3339

LARGEST: Final = 24 * 1024
"""Characters of a payload: with the rest of a failed step's details, it has 64 KiB."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Said:
    """What there is to be signed."""

    kind: Kind
    task: Mapping[str, str | int | None]
    """What is None is left out."""
    request: Asked
    outcome: Outcome
    finished_at: dt.datetime
    subjects: Mapping[str, str | None]
    """What is None is not known."""
    started_at: dt.datetime | None = None
    image: Image | None = None
    observed: Mapping[str, Any] = field(default_factory=dict)


class Receipts:
    """Signs in the name of one worker."""

    def __init__(self, keys: ReceiptKeys, worker: str) -> None:
        self._keys = keys
        self._worker = worker
        self._software = f"fumehood {version('fumehood')}"

    @property
    def public_key_hex(self) -> str:
        return self._keys.public_key_hex

    def issue(self, claim: Callable[[], Said]) -> dict[str, Any] | None:
        """The envelope. Evidence that is too long for it is there by its hash."""
        try:
            said = claim()
            made = self._signed(said)
            return made if len(made["payload"]) <= LARGEST else self._signed(_shortened(said))
        except Exception as error:  # noqa: BLE001 - whatever it is, the result is worth more than its receipt
            code = error.code if isinstance(error, FumehoodError) else type(error).__name__
            _log.error("receipt.not_made", code=code, exc_info=not isinstance(error, FumehoodError))
            return None

    def _signed(self, said: Said) -> dict[str, Any]:
        key = self._keys.current
        subjects = {name: sha256 for name, sha256 in said.subjects.items() if sha256 is not None}
        return receipt.issue(self._claim(said, key), subjects, key)

    def _claim(self, said: Said, key: SigningKey) -> Claim:
        """What ended before this key was there is claimed from when it was: no key speaks for an earlier time."""
        finished, observed = max(said.finished_at, self._keys.since), dict(said.observed)
        if finished > said.finished_at:
            observed["ended_at"] = rfc3339(said.finished_at)
        return Claim(
            kind=said.kind,
            worker=Worker(id=self._worker, key_id=key.key_id),
            task={name: one for name, one in said.task.items() if one is not None},
            request=said.request,
            outcome=said.outcome,
            image=said.image,
            observed=observed,
            started_at=said.started_at,
            finished_at=finished,
            software=self._software,
        )


def _shortened(said: Said) -> Said:
    image = said.image
    if image is not None:
        image = image.model_copy(update={"reference": None, "evidence": _hashed(image.evidence)})
    return Said(
        kind=said.kind,
        task=said.task,
        request=said.request,
        outcome=said.outcome,
        finished_at=said.finished_at,
        subjects=said.subjects,
        started_at=said.started_at,
        image=image,
        observed=_hashed(said.observed),
    )


def _hashed(content: Mapping[str, Any]) -> dict[str, str]:
    return {"sha256": json_sha256(plain(content))}


def plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON has it: what was stored and what was not come to the same."""
    return dict(json.loads(json.dumps(content)))
