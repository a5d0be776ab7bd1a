"""What is kept of a sandbox's output after its end: one blob of JSON, written by a node and read by servers.

`{"stdout": {"head": …, "tail": …, "total": n}, "stderr": {…}, "truncated": {"stdout": …, "stderr": …}}`, where head and
tail are base64: a client that was cut off goes on at a byte, and text in which invalid bytes were replaced has lost
count of them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fumehood.errors import BlobCorruptError
from fumehood.sandbox.head_tail import HEAD_BYTES, TAIL_BYTES, Kept

LARGEST = 3 * (HEAD_BYTES + TAIL_BYTES)
"""Bytes of the blob: two streams, a third longer than they are."""
_MOST = 2**53


@dataclass(frozen=True, slots=True)
class KeptLogs:
    stdout: Kept = field(default_factory=Kept)
    stderr: Kept = field(default_factory=Kept)

    def encode(self) -> bytes:
        streams = {"stdout": self.stdout, "stderr": self.stderr}
        said: dict[str, Any] = {name: _plain(kept) for name, kept in streams.items()}
        said["truncated"] = {name: kept.left_out > 0 for name, kept in streams.items()}
        return json.dumps(said, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> KeptLogs:
        try:
            said = json.loads(data)
            return cls(_kept(said["stdout"]), _kept(said["stderr"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BlobCorruptError("what was kept of this run's output cannot be read") from None


def _plain(kept: Kept) -> dict[str, Any]:
    head, tail = (base64.b64encode(data).decode() for data in (kept.head, kept.tail))
    return {"head": head, "tail": tail, "total": kept.total}


def _kept(said: Mapping[str, Any]) -> Kept:
    head, tail = (base64.b64decode(said[name], validate=True) for name in ("head", "tail"))
    total = said["total"]
    if type(total) is not int or not len(head) + len(tail) <= total <= _MOST:
        raise ValueError("a stream has not less than what is kept of it")
    return Kept(head, tail, total)
