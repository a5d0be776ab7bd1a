"""Which command ids are whose. Pure.

The warden takes only ids above the highest it has started, whoever starts: a caller, who chooses an id and stores it
before he uses it, and we, for file operations, who need none of that. So the two have numbers of their own, and a
caller gets one that leaves room for our operations until he comes to use it. A number also tells the next owner of
a sandbox what to do with a command that he does not know: ours nobody will ever ask for again.
"""

from __future__ import annotations

_BLOCK = 256
_OURS = 128
"""In each block of numbers the upper half is ours."""

HIGHEST = 2**32 - 1
FIRST = 2 * _BLOCK
"""What a caller gets whose command is the first in its sandbox, unless he chose a lower one: see `caller_id`."""


def is_ours(command_id: int) -> bool:
    return command_id % _BLOCK >= _OURS


def our_id(highest: int) -> int:
    """The next one for an operation of ours, after the highest that was started."""
    return max(highest + 1, (highest + 1) // _BLOCK * _BLOCK + _OURS)


def caller_id(highest: int) -> int:
    """One for a caller, with room for at least 128 operations of ours before it."""
    return (highest // _BLOCK + 2) * _BLOCK
