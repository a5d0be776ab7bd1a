"""The test image with Python, plus the name `python`: what `python:slim` has, and the contract's pythonExec calls."""

from __future__ import annotations

import io
import tarfile

from tests.pushed_image import Document, Push, push_changed

LAYER = "application/vnd.oci.image.layer.v1.tar"


def push_python(reference: str) -> str:
    """Its reference. It is the same whoever makes it."""
    return push_changed(reference, _add_python)


def _add_python(manifest: Document, config: Document, push: Push) -> None:
    layer = push(_link("usr/bin/python", "python3"))
    config["rootfs"]["diff_ids"].append(layer["digest"])
    if "history" in config:
        config["history"].append({"created_by": "python"})
    manifest["layers"].append({"mediaType": LAYER, **layer})


def _link(name: str, target: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as layer:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
        layer.addfile(entry)
    return packed.getvalue()
