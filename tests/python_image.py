"""The test image with Python, plus the name `python`: what `python:slim` has, and the contract's pythonExec calls."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import Any

import httpx

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def push_python(reference: str) -> str:
    """Push it beside the original, without a tag: its reference. It is the same whoever makes it."""
    registry, _, rest = reference.partition("/")
    repository, _, digest = rest.partition("@")
    with httpx.Client(base_url=f"http://{registry}/v2/{repository}", timeout=60, trust_env=False) as client:
        manifest = _get(client, f"/manifests/{digest}")
        config = _get(client, f"/blobs/{manifest['config']['digest']}")
        layer = _push(client, _link("usr/bin/python", "python3"))
        config["rootfs"]["diff_ids"].append(layer["digest"])
        if "history" in config:
            config["history"].append({"created_by": "python"})
        manifest["layers"].append({"mediaType": LAYER, **layer})
        manifest["config"] |= _push(client, _json(config))
        data = _json(manifest)
        pushed = _sha256(data)
        client.put(f"/manifests/{pushed}", content=data, headers={"Content-Type": MANIFEST}).raise_for_status()
    return f"{registry}/{repository}@{pushed}"


def _link(name: str, target: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as layer:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
        layer.addfile(entry)
    return packed.getvalue()


def _get(client: httpx.Client, path: str) -> dict[str, Any]:
    answer = client.get(path, headers={"Accept": MANIFEST}, follow_redirects=True)
    answer.raise_for_status()
    document: dict[str, Any] = answer.json()
    return document


def _push(client: httpx.Client, data: bytes) -> dict[str, object]:
    upload = client.post("/blobs/uploads/")
    upload.raise_for_status()
    target = httpx.URL(upload.headers["Location"]).copy_merge_params({"digest": _sha256(data)})
    client.put(client.base_url.join(target), content=data).raise_for_status()
    return {"digest": _sha256(data), "size": len(data)}


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
