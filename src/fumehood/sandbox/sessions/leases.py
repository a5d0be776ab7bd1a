"""How long a session may stay. Pure: whoever asks says what time it is.

Others are told a moment of the wall clock, and so is the store. Here it is judged by a clock that nobody can set: a
wall clock that is set forward by an hour must not end every session, nor one that is set back keep them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, by both clocks, in milliseconds."""

    wall_ms: int
    steady_ms: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Until when a session is kept. It only ever grows, and once it is over it stays over: whoever saw it expire calls
    it `over`."""

    expires_ms: int
    """Of the wall clock, for others."""
    ends_ms: int
    """Of the steady one."""
    over: bool = False

    @classmethod
    def begun(cls, now: Moment, length_ms: int) -> Lease:
        return cls(now.wall_ms + length_ms, now.steady_ms + length_ms)

    @classmethod
    def stored(cls, now: Moment, expires_ms: int) -> Lease:
        """As another life of this process, or another machine, knows it: all that both have is the wall clock."""
        return cls(expires_ms, now.steady_ms + expires_ms - now.wall_ms)

    def expired(self, now: Moment) -> bool:
        return self.over or now.steady_ms >= self.ends_ms

    def seen(self, now: Moment) -> Lease:
        """The same, and over for good if it is over now."""
        return Lease(self.expires_ms, self.ends_ms, over=True) if self.expired(now) else self

    def extended(self, now: Moment, length_ms: int) -> Lease:
        """Never shorter than before. One that is over stays as it is."""
        if self.expired(now):
            return self.seen(now)
        return self.joined(Lease.begun(now, length_ms))

    def joined(self, other: Lease) -> Lease:
        """The longer one, by each clock."""
        return Lease(max(self.expires_ms, other.expires_ms), max(self.ends_ms, other.ends_ms), self.over)
