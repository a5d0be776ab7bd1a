"""The two ways in which a job ends early and is answered all the same."""

from __future__ import annotations


class RefusedError(Exception):
    """What was asked for is not done, and asking again changes nothing: the sentence becomes the answer's `error`."""


class TimeIsUpError(Exception):
    """The request's own time is over."""
