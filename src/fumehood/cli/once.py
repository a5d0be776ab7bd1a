"""What is shown once goes into a file that is there before it, so that nothing is made that could not be kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from fumehood.cli.exits import UsageError


@contextmanager
def new_file(out: Path) -> Iterator[TextIO]:
    """Its owner's alone, and never one that exists. Where the block fails, it goes again."""
    try:
        fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(f"{out} is there already, and is not overwritten: say another file with --out") from None
    except OSError as error:
        raise UsageError(f"--out {out} cannot be made: {error.strerror}") from None
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            yield file
    except BaseException:
        out.unlink(missing_ok=True)
        raise
