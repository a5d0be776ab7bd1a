"""Where processor time goes: a stack is taken every millisecond of it, in the process itself.

Unlike a tracing profiler it leaves the proportions as they are: what is called a million times is not made to look
slow by being counted a million times.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from types import FrameType

EVERY = 0.001


class Sampler:
    """Begins at once; belongs to the main thread."""

    def __init__(self) -> None:
        self.samples = 0
        self.own: Counter[str] = Counter()
        """By line: where it was."""
        self.within: Counter[str] = Counter()
        """By function: what it was part of."""
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)

    def _take(self, _number: int, frame: FrameType | None) -> None:
        self.samples += 1
        if frame is not None:
            self.own[f"{_name(frame)}:{frame.f_lineno}"] += 1
        seen = set()
        while frame is not None:
            seen.add(_name(frame))
            frame = frame.f_back
        self.within.update(seen)

    def write(self, path: str) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        lines = [f"{self.samples} samples of {EVERY * 1000:g} ms", "", "in, with all that it called:"]
        lines += [f"{100 * count / self.samples:6.1f} %  {name}" for name, count in self.within.most_common(80)]
        functions: Counter[str] = Counter()
        for name, count in self.own.items():
            functions[name.rpartition(":")[0]] += count
        lines += ["", "by itself (with C code that it called):"]
        lines += [f"{100 * count / self.samples:6.1f} %  {name}" for name, count in functions.most_common(50)]
        lines += ["", "by line:"]
        lines += [f"{100 * count / self.samples:6.1f} %  {name}" for name, count in self.own.most_common(50)]
        Path(path).write_text("\n".join(lines) + "\n")


def _name(frame: FrameType) -> str:
    code = frame.f_code
    return f"{'/'.join(Path(code.co_filename).parts[-2:])} {code.co_qualname}"
