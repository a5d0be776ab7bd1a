"""What may be taken in at most, counted while it is taken: these threads cannot be cancelled, but they can be told."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from fumehood.node.jobs.sandbox.refused import RefusedError


class StoppedError(Exception):
    """Nobody waits for it any more."""


@dataclass(slots=True)
class Bounds:
    most_bytes: int
    most_files: int
    stop: threading.Event = field(default_factory=threading.Event)
    bytes: int = 0
    files: int = 0

    def take(self, count: int) -> None:
        if self.stop.is_set():
            raise StoppedError
        self.bytes += count
        if self.bytes > self.most_bytes:
            raise RefusedError(f"the repository has more than the {self.most_bytes} bytes that one may have here")

    def take_file(self) -> None:
        self.take(0)
        self.files += 1
        if self.files > self.most_files:
            raise RefusedError(f"the repository has more than {self.most_files} files, the most that one may have here")
