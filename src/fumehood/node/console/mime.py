"""What kind of file something is: by its name, else by a look at how it begins.

The tables of the machine (`/etc/mime.types`) are left out, so that every worker gives the same answer.
"""

from __future__ import annotations

import codecs
import mimetypes
from collections.abc import Mapping
from typing import Final

TEXT: Final = "text/plain"
BYTES: Final = "application/octet-stream"
LOOK_BYTES: Final = 4096
"""As much of a file as is looked at."""

_PACKED: Final[Mapping[str, str]] = {
    "gzip": "application/gzip",
    "bzip2": "application/x-bzip2",
    "xz": "application/x-xz",
    "compress": "application/x-compress",
    "br": "application/x-brotli",
}
"""A packed file is not what is in it."""

_ADDED: Final[Mapping[str, str]] = {
    ".md": "text/markdown",
    ".toml": "application/toml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".zst": "application/zstd",
}
"""What Python 3.11 does not know, and agents write all day."""


def _known() -> mimetypes.MimeTypes:
    known = mimetypes.MimeTypes()
    for ending, kind in _ADDED.items():
        known.add_type(kind, ending)
    return known


_KNOWN: Final = _known()


def by_name(path: str) -> str | None:
    """None: its name does not tell."""
    kind, packed = _KNOWN.guess_type(f"/{path.rpartition('/')[2]}")  # without a path `data:` would count as a URL
    return _PACKED.get(packed, BYTES) if packed is not None else kind


def by_content(head: bytes, *, whole: bool) -> str:
    """By its first bytes; `whole`: there are no more. Text is what is UTF-8 and has no NUL."""
    if b"\0" in head:
        return BYTES
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=whole)
    except UnicodeDecodeError:
        return BYTES
    return TEXT
