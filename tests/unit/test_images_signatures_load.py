"""What hostile signatures cost: nobody else waits for them, and there is a bound on all that is done at once."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from fumehood.images import ImageReference, RegistryClient, SignatureStatus
from fumehood.images import documents as documents_module
from fumehood.images.aside import THREADS, Aside
from fumehood.images.bundle import bundle_in
from fumehood.images.documents import FlawError
from fumehood.images.signature_store import MAX_BUNDLE_MANIFEST, MAX_TAG_MANIFEST
from fumehood.images.signatures import MOST_AT_ONCE, Verifier
from fumehood.images.simple_signing import tag_of
from fumehood.images.trust import Trust, TrustedKey
from tests.conftest import TimeBounds
from tests.unit.registry_shelf import NAME, QUICK, Shelf, noted, verify
from tests.unit.signing_world import SHA256, compact, digest_of, key_bundle, new_key, payload_of, public_pem
from tests.waiting import until

DIGEST = digest_of(b"the image")
KEY = new_key()
STRANGER = new_key()
TRUST = Trust(keys=(TrustedKey.from_pem("release", public_pem(KEY)),))
MIB = 1024 * 1024


async def test_nothing_that_strangers_wrote_is_read_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither manifests nor lists, payloads, bundles and statements."""
    threads: list[int] = []

    def loads(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.get_ident())
        return json.loads(*args, **kwargs)

    monkeypatch.setattr(documents_module, "json", SimpleNamespace(loads=loads))
    shelf, payload = Shelf(), payload_of(digest_of(b"another image"))
    shelf.tagged(DIGEST, (payload, noted(KEY.sign(payload, SHA256))))
    shelf.bundled(DIGEST, compact(key_bundle(DIGEST, KEY)))
    assert (await verify(shelf, DIGEST, TRUST)).status is SignatureStatus.VERIFIED
    assert len(threads) == 6
    assert threading.get_ident() not in threads


async def test_no_signature_is_judged_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def key_of(self: Trust, signature: bytes, message: bytes) -> None:
        threads.append(threading.get_ident())

    monkeypatch.setattr(Trust, "key_of", key_of)
    shelf, payload = Shelf(), payload_of(DIGEST)
    shelf.tagged(DIGEST, (payload, noted(STRANGER.sign(payload, SHA256))))
    shelf.bundled(DIGEST, compact(key_bundle(DIGEST, STRANGER)))
    await verify(shelf, DIGEST, TRUST)
    assert len(threads) == 2
    assert threading.get_ident() not in threads


def test_a_document_of_many_parts_costs_next_to_nothing(time_bounds: TimeBounds) -> None:
    body = b'{"layers":[' + b"[]," * (MIB // 3) + b"[]]}"
    began = time.process_time()
    for _ in range(10):
        with pytest.raises(FlawError, match="too many parts"):
            bundle_in(body, DIGEST)
    time_bounds.check(time.process_time() - began, 0.2)


def test_closing_brackets_in_a_text_hide_no_depth() -> None:
    body = b'{"a":"' + b"]" * 100 + b'","b":' + b"[" * 40 + b"]" * 40 + b"}"
    with pytest.raises(FlawError, match="too deep"):
        documents_module.parse_object(body, "it")


def test_brackets_in_a_text_are_no_depth() -> None:
    text = "[{" * 100
    assert documents_module.parse_object(compact({"a": text}), "it") == {"a": text}


@pytest.mark.parametrize(("room", "status"), [(0, SignatureStatus.VERIFIED), (1, SignatureStatus.INVALID)])
async def test_the_manifest_of_a_bundle_is_small(room: int, status: SignatureStatus) -> None:
    shelf = Shelf()
    (small,) = shelf.referring(compact(key_bundle(DIGEST, KEY)), digest=DIGEST)
    body = shelf.kept[f"manifests/{small}"].content
    large = shelf.manifest(body + b" " * (MAX_BUNDLE_MANIFEST - len(body) + room))
    shelf.listed(DIGEST, [large])
    assert MAX_BUNDLE_MANIFEST == 64 * 1024
    assert (await verify(shelf, DIGEST, TRUST)).status is status


@pytest.mark.parametrize(("room", "status"), [(0, SignatureStatus.VERIFIED), (1, SignatureStatus.INVALID)])
async def test_the_manifest_under_the_tag_is_bounded(room: int, status: SignatureStatus) -> None:
    shelf, payload = Shelf(), payload_of(DIGEST)
    shelf.tagged(DIGEST, (payload, noted(KEY.sign(payload, SHA256))))
    body = shelf.kept[f"manifests/{tag_of(DIGEST)}"].content
    shelf.manifest(body + b" " * (MAX_TAG_MANIFEST - len(body) + room), tag_of(DIGEST))
    assert MAX_TAG_MANIFEST == 256 * 1024
    assert (await verify(shelf, DIGEST, TRUST)).status is status


async def test_only_so_many_digests_are_looked_at_at_once() -> None:
    waiting, most, go = 0, 0, asyncio.Event()

    async def registry(request: httpx.Request) -> httpx.Response:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await go.wait()
        waiting -= 1
        return httpx.Response(404)

    async def is_full() -> bool:
        return waiting == MOST_AT_ONCE

    async with RegistryClient(retry=QUICK, transport=httpx.MockTransport(registry)) as client:
        verifier, reference = Verifier(client), ImageReference.parse(f"{NAME}:1")
        asked = [
            asyncio.create_task(verifier.verify(reference, digest_of(b"%d" % number), TRUST))
            for number in range(3 * MOST_AT_ONCE)
        ]
        await until(is_full)
        go.set()
        found = await asyncio.gather(*asked)
    assert {one.status for one in found} == {SignatureStatus.MISSING}
    assert most == MOST_AT_ONCE


async def test_who_asks_and_goes_away_makes_no_room_for_more_threads() -> None:
    lock, go = threading.Lock(), threading.Event()
    counts = {"running": 0, "most": 0}

    def work() -> None:
        with lock:
            counts["running"] += 1
            counts["most"] = max(counts["most"], counts["running"])
        go.wait(120)
        with lock:
            counts["running"] -= 1

    async def is_full() -> bool:
        return counts["running"] == THREADS

    aside = Aside()
    gone = [asyncio.create_task(aside.run(work)) for _ in range(THREADS)]
    try:
        await until(is_full)
        for task in gone:
            task.cancel()
        await asyncio.wait(gone)
        asked = [asyncio.create_task(aside.run(work)) for _ in range(3 * THREADS)]
        await asyncio.sleep(0)
    finally:
        go.set()
    await asyncio.gather(*asked)
    assert counts["most"] == THREADS
