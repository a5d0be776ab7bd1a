"""The child process that reads the code of others: started for one analysis, bounded, and gone when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, ValidationError

from fumehood.errors import JobFailedError
from fumehood.wire.jobs import JobModel, Share

MODULE = "fumehood.jobs.analysis.child"


@dataclass(frozen=True, slots=True)
class Limits:
    memory_bytes: int = 2 * 1024**3
    """Of address space, for each process: the analysers reserve more than they use."""
    cpu_seconds: int = 30
    file_bytes: int = 16 * 1024**2
    open_files: int = 128
    seconds: float = 60.0
    """By the clock, for all of it."""
    answer_bytes: int = 16 * 1024**2


class FoundSymbol(JobModel):
    name: Annotated[str, Field(max_length=1000)]
    kind: Annotated[str, Field(max_length=20)]
    line: Annotated[int, Field(ge=1)]
    description: Annotated[str, Field(max_length=1000)]


class FoundImport(JobModel):
    what: Annotated[str, Field(max_length=1000)]
    line: Annotated[int, Field(ge=1)]
    kind: Annotated[str, Field(max_length=20)]


class FoundFault(JobModel):
    line: Annotated[int, Field(ge=1)]
    meaning: Annotated[str, Field(max_length=100)]
    severity: Annotated[str, Field(pattern=r"^(low|medium|high)$")]
    description: Annotated[str, Field(max_length=2000)]
    suggestion: Annotated[str | None, Field(max_length=2000)]
    source: Annotated[str, Field(max_length=20)]


class Found(JobModel):
    """What the child says. It has read what anybody may have written, so only its form is believed."""

    error_share: Share
    lead: Annotated[str | None, Field(max_length=1000)]
    symbols: Annotated[tuple[FoundSymbol, ...], Field(strict=False, max_length=10_000)]
    imports: Annotated[tuple[FoundImport, ...], Field(strict=False, max_length=10_000)]
    findings: Annotated[tuple[FoundFault, ...], Field(strict=False, max_length=10_000)]
    tool: Annotated[str | None, Field(max_length=20)]
    tool_read: bool


async def analyse(language: str, content: str, *, whole: bool, limits: Limits) -> Found:
    """`JobFailedError` where the child died, took too long, or did not answer in its form. It is not asked again: the
    same code would do the same to it. However this ends, nothing of the child is left."""
    asked = json.dumps(
        {
            "language": language,
            "content": content,
            "whole": whole,
            "limits": {
                "memory_bytes": limits.memory_bytes,
                "cpu_seconds": limits.cpu_seconds,
                "file_bytes": limits.file_bytes,
                "open_files": limits.open_files,
            },
        }
    ).encode()
    with tempfile.TemporaryDirectory(prefix="fumehood-analysis-") as folder:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-IB",
            "-m",
            MODULE,
            cwd=folder,
            env=_environment(folder),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(limits.seconds):
                output = await _converse(process, asked, limits.answer_bytes)
                code = await process.wait()
        except TimeoutError:
            late = f"the analysis took more than {limits.seconds:g} s"
            raise JobFailedError("analysis_failed", late, again=True) from None  # elsewhere there may be less to do
        finally:
            await _end(process)
    if code != 0:
        raise JobFailedError("analysis_failed", f"the process that read the code {_how(code)}")
    return _read(output)


async def _converse(process: asyncio.subprocess.Process, asked: bytes, most: int) -> bytes:
    stdin, stdout = process.stdin, process.stdout
    if stdin is None or stdout is None:
        raise JobFailedError("analysis_failed", "the process that reads the code has no pipes")
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died: its exit code says more
        stdin.write(asked)
        await stdin.drain()
        stdin.close()
    parts, size = [], 0
    while part := await stdout.read(65_536):
        parts.append(part)
        size += len(part)
        if size > most:
            raise JobFailedError("analysis_failed", "the process that read the code said too much")
    return b"".join(parts)


async def _end(process: asyncio.subprocess.Process) -> None:
    """The whole group: the analyser below the child as well, which also ends whenever the child does."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await asyncio.shield(process.wait())


def _how(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with {code}"


def _read(output: bytes) -> Found:
    try:
        said: Any = json.loads(output)
        if isinstance(said, dict) and "failed" in said:
            raise JobFailedError("analysis_failed", f"an analyser did not do its work: {str(said['failed'])[:200]}")
        return Found.model_validate(said)
    except (ValueError, ValidationError):
        raise JobFailedError("analysis_failed", "the process that read the code gave no answer") from None


def _environment(folder: str) -> dict[str, str]:
    """Nothing of ours: no address, no key, no path to other programs."""
    return {"PATH": "/nonexistent", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}
