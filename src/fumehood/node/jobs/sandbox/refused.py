"""A job that is not done as it was asked, and is answered all the same."""

from __future__ import annotations

from typing import Final

SHOWN: Final = 200


class RefusedError(Exception):
    """What was asked for is not done, and asking again changes nothing: the sentence becomes the answer's `error`."""


def shown(text: str) -> str:
    """What somebody wrote, in an error: bounded, and on one line."""
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")
