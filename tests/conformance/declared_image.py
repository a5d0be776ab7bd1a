"""Images that differ from a test image only in the command that they declare."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import httpx

from fumehood.sandbox.spec import ImageCommand

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def push_declaring(reference: str, declared: ImageCommand) -> str:
    """Push it beside the original, without a tag. The same declaration always makes the same digest."""
    registry, _, rest = reference.partition("/")
    repository, _, digest = rest.partition("@")
    with httpx.Client(base_url=f"http://{registry}/v2/{repository}", timeout=60) as client:
        manifest = _get(client, f"/manifests/{digest}")
        config = _get(client, f"/blobs/{manifest['config']['digest']}")
        config["config"] |= {"Entrypoint": list(declared.entrypoint) or None, "Cmd": list(declared.cmd) or None}
        manifest["config"] |= _push_blob(client, _json(config))
        data = _json(manifest)
        pushed = _sha256(data)
        client.put(f"/manifests/{pushed}", content=data, headers={"Content-Type": MANIFEST}).raise_for_status()
    return f"{registry}/{repository}@{pushed}"


def _get(client: httpx.Client, path: str) -> dict[str, Any]:
    answer = client.get(path, headers={"Accept": MANIFEST}, follow_redirects=True)
    answer.raise_for_status()
    document: dict[str, Any] = answer.json()
    return document


def _push_blob(client: httpx.Client, data: bytes) -> dict[str, object]:
    upload = client.post("/blobs/uploads/")
    upload.raise_for_status()
    target = httpx.URL(upload.headers["Location"]).copy_merge_params({"digest": _sha256(data)})
    client.put(client.base_url.join(target), content=data).raise_for_status()
    return {"digest": _sha256(data), "size": len(data)}


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
