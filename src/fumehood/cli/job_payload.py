"""What goes into a job and what comes out of it as files: requests, bundles, receipts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fumehood.cli.exits import UsageError
from fumehood.wire.bundle_api import MAX_BUNDLE_BYTES
from fumehood.wire.yaml_lines import YamlDocument, YamlError

LARGEST_REQUEST: Final = 16 * 1024 * 1024
"""Characters; a server takes less."""
LARGEST_BUNDLE: Final = MAX_BUNDLE_BYTES
PIECE: Final = 1024 * 1024
LONGEST_NAME: Final = 128
GIT_SECONDS: Final = 120.0
MAJORITY: Final = "majority_vote"


def read(file: str) -> dict[str, Any]:
    """A request from a file or from stdin. JSON is read as JSON; all else as YAML without its surprises."""
    text = _text(file)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        try:
            found = YamlDocument(text).value
        except YamlError as error:
            raise UsageError(f"{file} is neither JSON nor YAML: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{file} holds no request: it must be an object, with the fields of the job type")
    return found


def _text(file: str) -> str:
    try:
        if file == "-":
            text = sys.stdin.read(LARGEST_REQUEST + 1)
        else:
            with Path(file).expanduser().open(encoding="utf-8") as opened:
                text = opened.read(LARGEST_REQUEST + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8") from None
    if len(text) > LARGEST_REQUEST:
        raise UsageError(f"{file} is larger than any server takes")
    return text


def with_trust(
    payload: dict[str, Any], kind: dict[str, Any], redundancy: int | None, adjudication: str | None
) -> dict[str, Any]:
    """The request with another redundancy or adjudication; the rest is as it says, or as its type does. Several
    answers of which nobody makes one would be as good as one: then their majority counts."""
    said = payload.get("verification")
    usual = {name: value for name, value in kind["verification"].items() if value is not None}
    wanted = {**usual, **(said if isinstance(said, dict) else {})}
    wanted["redundancy"] = wanted["redundancy"] if redundancy is None else redundancy
    if adjudication is not None:
        wanted["adjudication"] = adjudication
    elif redundancy is not None and redundancy > 1 and wanted["adjudication"] == "none":
        wanted["adjudication"] = MAJORITY
    return {**payload, "verification": wanted}


# --- receipts ----------------------------------------------------------------------------------------------


def write_receipts(job: dict[str, Any], folder: Path) -> list[Path]:
    """A file for each, in the order of the executions, and the judge's last. The name is the server's, and leads
    nowhere else."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", str(job["job_id"]))[:LONGEST_NAME]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for number, receipt in enumerate(job.get("receipts") or ()):
            written.append(folder / f"{name}.{number}.receipt.json")
            written[-1].write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--receipts {folder}: {error.strerror}") from None
    return written


# --- bundles -----------------------------------------------------------------------------------------------


@contextmanager
def bundled(source: Path) -> Iterator[Path]:
    """A file that can be uploaded: the one that was named, or one that was made of a folder."""
    source = source.expanduser()
    if source.is_file():
        yield source
        return
    if not source.is_dir():
        raise UsageError(f"{source} is neither a file nor a folder")
    with tempfile.TemporaryDirectory(prefix="fumehood-") as folder:
        made = Path(folder) / "bundle"
        if (source / ".git").exists():
            _git_bundle(source, made)
        else:
            _tar(source, made)
        yield made


def _git_bundle(source: Path, made: Path) -> None:
    """What is committed; `HEAD` tells which of it is meant."""
    words = ["git", "-C", str(source), "bundle", "create", "--quiet", str(made.resolve()), "HEAD", "--all"]
    try:
        done = subprocess.run(words, capture_output=True, timeout=GIT_SECONDS, check=False)
    except FileNotFoundError:
        raise UsageError(f"{source} is a git repository, and there is no git here to bundle it with") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{source}: git did not make a bundle of it in time") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(f"{source}: git makes no bundle of it: {said[-1] if said else 'it does not say why'}")


def _tar(source: Path, made: Path) -> None:
    """Every file, with nothing in it that another day or another machine would make otherwise."""
    try:
        with tarfile.open(made, "w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(source.rglob("*")):
                archive.add(path, path.relative_to(source).as_posix(), recursive=False, filter=_plain)
    except OSError as error:
        raise UsageError(f"{source}: {error.filename} cannot be read: {error.strerror}") from None


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Files, folders and links; who owns them and when they were changed is nobody's business."""
    if not (entry.isreg() or entry.isdir() or entry.issym()):
        return None
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def pieces(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as opened:
            if os.fstat(opened.fileno()).st_size > LARGEST_BUNDLE:
                raise UsageError(f"{file} is larger than any server takes")
            while piece := opened.read(PIECE):
                yield piece
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
