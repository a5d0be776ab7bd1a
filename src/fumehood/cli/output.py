"""What a sandbox of a run prints, as it appears: each byte once, whatever becomes of the server that tells it.

Elsewhere than on a terminal, what comes out is what went in, as far as it is text. On a terminal, characters that it
would obey are made visible instead: what prints here is code that nobody trusts.
"""

from __future__ import annotations

import codecs
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

from fumehood.cli.client import Api
from fumehood.cli.exits import CommandError, NoAnswerError
from fumehood.cli.pulse import Pulse
from fumehood.cli.show import document, plain
from fumehood.cli.stream import END, SHORTEST_WAIT_SECONDS, Event, Patience, frames

_OBEYED = re.compile("\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""All control characters but tab and the end of a line; and those that turn the direction of a line. A carriage return
alone lets what follows write over what a person has just read."""
_PICTURES = 0x2400
"""Where Unicode has a picture of each ASCII control character."""


@dataclass(slots=True)
class Printed:
    """One reader of what one sandbox prints."""

    api: Api
    path: str
    """Of its logs."""
    patience: Patience = field(default_factory=Patience)
    _seen: str | None = None
    """The id of the last event that came."""
    _cuts: set[tuple[Any, ...]] = field(default_factory=set)
    """Told already. A place where something is missing is told again to whoever comes back."""
    _attempt: int = 0

    def events(self) -> Iterator[Event]:
        """From the beginning, until it has ended for good: `event` is `start`, `stdout`, `stderr` or `cut`."""
        while True:
            try:
                some = False
                for event in self._streamed():
                    some = True
                    if event["event"] == END:
                        return
                    if self._is_new(event):
                        yield event
            except NoAnswerError as error:
                self.patience.went_wrong(error)
            else:
                if not some:  # nothing at all, not even a greeting, is how a server says that all was seen
                    return
                self.patience.sleep(SHORTEST_WAIT_SECONDS)

    def _streamed(self) -> Iterator[Event]:
        with self.api.stream(f"{self.path}/stream", last_event_id=self._seen) as chunks:
            for frame in frames(chunks):
                self.patience.went_well()
                self._seen = frame.id or self._seen
                yield {"event": frame.event, **(frame.data or {})}

    def _is_new(self, event: Event) -> bool:
        if event["event"] == "start":
            self._attempt = event["attempt"]
        if event["event"] != "cut":
            return bool(event["event"])
        cut = (self._attempt, event["stream"], event["offset"], event.get("resumes_at"))
        is_new = cut not in self._cuts
        self._cuts.add(cut)
        return is_new


# --- where it goes -----------------------------------------------------------------------------------------


class Sink:
    """One of our own streams; what is written is there at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty()
        self.is_fresh = True
        """At the beginning of a line."""
        self._held = ""
        """A carriage return, until it is known whether it ends a line."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, text: str) -> None:
        if not text or self._stream.closed:  # a thread that comes too late has nobody to speak to
            return
        if self.is_terminal:
            self._stream.write(self._shown(text))
        else:
            self._stream.buffer.write(text.encode("utf-8", "replace"))
        self._stream.flush()
        self.is_fresh = text.endswith("\n")

    def write_bytes(self, data: bytes) -> None:
        """What no server has made text of: on a terminal it becomes that, elsewhere it stays as it is."""
        if self.is_terminal:
            self.write(self._decoder.decode(data))
            return
        self._stream.buffer.write(data)
        self._stream.flush()
        self.is_fresh = data.endswith(b"\n")

    def _shown(self, text: str) -> str:
        whole = self._held + text
        self._held = "\r" if whole.endswith("\r") else ""
        return harmless(whole.removesuffix("\r"))


def harmless(text: str) -> str:
    """Nothing that a terminal would obey, but what moves to the next place or line."""
    return _OBEYED.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(_PICTURES + code) if code < 0x20 else "␡" if code == 0x7F else "\N{REPLACEMENT CHARACTER}"


class Screen:
    """Where the run's two streams go, and our own words between them. From any thread."""

    def __init__(self) -> None:
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        for stream in (sys.stdout, sys.stderr) if reconfigure is not None else ():
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
        self._sinks = {"stdout": Sink(sys.stdout), "stderr": Sink(sys.stderr)}
        self._lock = threading.Lock()
        self._pulse: Pulse | None = None

    def waiting(self, phase: str) -> Pulse:
        """A line beneath all that is shown here, as long as nothing comes."""
        self._pulse = Pulse(phase, lock=self._lock, free=self._is_fresh)
        return self._pulse

    def _is_fresh(self) -> bool:
        return all(sink.is_fresh for sink in self._sinks.values() if sink.is_terminal)

    def _write(self, stream: str, content: str | bytes) -> None:
        """With the lock held."""
        sink = self._sinks[stream]
        if self._pulse is not None and sink.is_terminal:
            self._pulse.clear()
        sink.write(content) if isinstance(content, str) else sink.write_bytes(content)

    def show(self, event: Event) -> None:
        """One event of `Printed`."""
        match event["event"]:
            case "stdout" | "stderr":
                with self._lock:
                    self._write(event["event"], event["text"])
            case "cut":
                self.say(_cut(event))
            case "start" if event["attempt"] > 1:
                self.say(f"attempt {event['attempt']} begins, and prints from the start")

    def show_bytes(self, stream: str, data: bytes) -> None:
        """Some of what a command in a session printed."""
        with self._lock:
            self._write(stream, data)

    def say(self, words: str) -> None:
        """A line of ours, on a line of its own."""
        with self._lock:
            out, err = self._sinks["stdout"], self._sinks["stderr"]
            torn = not err.is_fresh or (out.is_terminal and err.is_terminal and not out.is_fresh)
            self._write("stderr", ("\n" if torn else "") + f"fumehood: {plain(words)}\n")
            if torn and out.is_terminal:
                out.is_fresh = True

    def document(self, ended: dict[str, Any], whole: Callable[[], dict[str, Any]]) -> None:
        """All of it for programs; how it ended, if its output cannot be read."""
        try:
            shown = whole()
        except CommandError as error:
            self.say(f"its output is left out: {error.detail}")
            shown = ended
        document(shown)

    def explain(self, lines: Iterator[str]) -> None:
        for number, line in enumerate(lines):
            if number:
                with self._lock:
                    self._write("stderr", f"{line}\n")
            else:
                self.say(line)


def _cut(event: Event) -> str:
    if event.get("resumes_at") is None:
        return f"there may be more of {event['stream']} than is shown here"
    return f"{event['resumes_at'] - event['offset']} bytes of {event['stream']} are left out here"
