"""A command as somebody types it, in this process: what starting an interpreter costs is paid once."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from fumehood.cli.main import main


def typed(*words: str, folder: Path, env: Mapping[str, str], given: str = "") -> subprocess.CompletedProcess[str]:
    """Its exit code, and all that it printed."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    stdin = io.TextIOWrapper(io.BytesIO(given.encode()), encoding="utf-8")
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["fumehood", *words]),
        mock.patch.object(sys, "stdin", stdin),
        mock.patch.dict(os.environ, env, clear=True),
    ):
        try:
            main()
            code: object = 0
        except SystemExit as end:
            code = end.code
    printed = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return subprocess.CompletedProcess(words, code if isinstance(code, int) else 0, *printed)
