"""The test image with Python, plus the name `python`: what `python:slim` has, and the contract's pythonExec calls."""

from __future__ import annotations

import io
import tarfile
from functools import partial

from tests.pushed_image import Document, Push, push_changed

LAYER = "application/vnd.oci.image.layer.v1.tar"


def push_python(reference: str) -> str:
    """Its reference. It is the same whoever makes it."""
    return push_changed(reference, partial(_add, _link("usr/bin/python", "python3")))


def push_other_python(reference: str, script: str) -> str:
    """What it calls `python` is this."""
    return push_changed(reference, partial(_add, _file("usr/bin/python", script.encode())))


def _add(packed: bytes, manifest: Document, config: Document, push: Push) -> None:
    layer = push(packed)
    config["rootfs"]["diff_ids"].append(layer["digest"])
    if "history" in config:
        config["history"].append({"created_by": "python"})
    manifest["layers"].append({"mediaType": LAYER, **layer})


def _file(name: str, data: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as layer:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(data), 0o755
        layer.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def _link(name: str, target: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as layer:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
        layer.addfile(entry)
    return packed.getvalue()
