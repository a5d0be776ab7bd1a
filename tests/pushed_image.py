"""Images that differ a little from a test image, pushed beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import httpx

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
Document = dict[str, Any]
Push = Callable[[bytes], Document]
"""A blob; what a manifest says of it."""


def push_changed(reference: str, change: Callable[[Document, Document, Push], None]) -> str:
    """Change an image's manifest and configuration, and push it without a tag: its reference. The same change always
    makes the same digest."""
    registry, _, rest = reference.partition("/")
    repository, _, digest = rest.partition("@")
    with httpx.Client(base_url=f"http://{registry}/v2/{repository}", timeout=240, trust_env=False) as client:
        manifest = _get(client, f"/manifests/{digest}")
        config = _get(client, f"/blobs/{manifest['config']['digest']}")
        change(manifest, config, lambda data: _push(client, data))
        manifest["config"] |= _push(client, _json(config))
        data = _json(manifest)
        pushed = _sha256(data)
        client.put(f"/manifests/{pushed}", content=data, headers={"Content-Type": MANIFEST}).raise_for_status()
    return f"{registry}/{repository}@{pushed}"


def _get(client: httpx.Client, path: str) -> Document:
    answer = client.get(path, headers={"Accept": MANIFEST}, follow_redirects=True)
    answer.raise_for_status()
    document: Document = answer.json()
    return document


def _push(client: httpx.Client, data: bytes) -> Document:
    upload = client.post("/blobs/uploads/")
    upload.raise_for_status()
    target = httpx.URL(upload.headers["Location"]).copy_merge_params({"digest": _sha256(data)})
    client.put(client.base_url.join(target), content=data).raise_for_status()
    return {"digest": _sha256(data), "size": len(data)}


def _json(document: Document) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
