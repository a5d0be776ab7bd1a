"""Keys that leave a terminal without ending what runs in it. Pure.

They are found wherever they stand in what is typed, also when they come one by one; everything else goes on as it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fumehood.cli.exits import UsageError

DEFAULT = "ctrl-p,ctrl-q"
MOST_KEYS = 16
_CONTROL = re.compile(r"ctrl-([a-z@\[\\\]^_])")


def parsed(text: str) -> bytes:
    """`ctrl-p,ctrl-q` as a terminal sends it; nothing for no keys at all."""
    words = text.split(",") if text else []
    if len(words) > MOST_KEYS:
        raise UsageError(f"--detach-keys: at most {MOST_KEYS} keys")
    return b"".join(_key(word) for word in words)


def _key(word: str) -> bytes:
    control = _CONTROL.fullmatch(word.lower()) if len(word) > 1 else None
    if control is not None:
        return bytes([ord(control[1].upper()) & 0x1F])
    if len(word) == 1 and word.isascii() and word.isprintable():
        return word.encode()
    raise UsageError(f"--detach-keys: write them like {DEFAULT} or ctrl-],x, not {word!r}")


def shown(keys: str) -> str:
    """For people: `Ctrl-P Ctrl-Q`."""
    return " ".join(word.title() if len(word) > 1 else word for word in keys.split(","))


@dataclass(slots=True)
class DetachKeys:
    """Looks through what is typed. What may be the beginning of the keys is held until the next one tells."""

    keys: bytes
    held: bytes = b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """What goes on, and whether the keys were pressed; what was typed behind them goes nowhere."""
        if not self.keys:
            return data, False
        whole = self.held + data
        found = whole.find(self.keys)
        if found >= 0:
            self.held = b""
            return whole[:found], True
        begun = next((n for n in range(min(len(self.keys) - 1, len(whole)), 0, -1) if self._ends_in(whole, n)), 0)
        passed, self.held = whole[: len(whole) - begun], whole[len(whole) - begun :]
        return passed, False

    def _ends_in(self, whole: bytes, length: int) -> bool:
        return whole.endswith(self.keys[:length])

    def let_go(self) -> bytes:
        """What was held, once nothing more came: it was meant for the program."""
        held, self.held = self.held, b""
        return held
