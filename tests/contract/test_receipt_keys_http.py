"""The keys that receipts are checked with, over HTTP: who may read and publish them, and what is refused."""

from __future__ import annotations

import pytest

from fumehood.verify.keylist import published, read_published
from fumehood.wire.canonical import canonical_json
from tests.contract.server_api_harness import BRIDGE, Api
from tests.contract.test_keys_http import lines, made
from tests.contract.test_server_api_http import is_problem
from tests.unit.receipt_world import OTHER_ROOT, ROOT, key_list, listed

PATH = "/v1/receipt-keys"
FIRST, SECOND = key_list(listed("w1")), key_list(listed("w1"), listed("w2"), version=2)


async def test_a_list_is_published_and_read_by_everybody_with_a_key() -> None:
    api = Api()
    async with api.client() as client:
        is_problem(await client.get(PATH), 404, "not-found")
        answer = await client.put(PATH, json=published(FIRST, ROOT))
        assert (answer.status_code, answer.json()) == (200, published(FIRST, ROOT))
        reader = (await made(client, scopes=["workflows:read"]))["key"]
    for token in (reader, BRIDGE):
        async with api.client(token) as client:
            found = await client.get(PATH)
            assert read_published(found.json(), ROOT.public_key) == FIRST
            is_problem(await client.put(PATH, json=published(SECOND, ROOT)), 403, "forbidden")
    assert await api.service.receipt_keys.current() == FIRST


async def test_publishing_is_a_line_in_the_audit_list_and_doing_it_twice_is_not() -> None:
    api = Api()
    async with api.client() as client:
        for _ in range(2):
            assert (await client.put(PATH, json=published(SECOND, ROOT))).status_code == 200
    (line,) = [one for one in await lines(api) if one["action"] == "receipt_keys.published"]
    assert line["target"] == ROOT.public_key.hex()
    assert line["detail"] == {"outcome": "done", "version": "2", "keys": "2"}


async def test_another_root_and_an_older_list_are_conflicts() -> None:
    async with Api().client() as client:
        await client.put(PATH, json=published(SECOND, ROOT))
        is_problem(await client.put(PATH, json=published(key_list(version=3), OTHER_ROOT)), 409, "conflict")
        is_problem(await client.put(PATH, json=published(FIRST, ROOT)), 409, "conflict")
        assert (await client.get(PATH)).json() == published(SECOND, ROOT)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"root": ROOT.public_key.hex()},
        {"root": "x", "list": published(FIRST, ROOT)["list"]},
        {**published(FIRST, ROOT), "more": 1},
        {**published(FIRST, ROOT), "root": OTHER_ROOT.public_key.hex()},
        {"root": ROOT.public_key.hex(), "list": {"payloadType": "x", "payload": "", "signatures": []}},
        {"root": ROOT.public_key.hex(), "list": ROOT.sign("application/vnd.fumehood.keys+json", canonical_json({}))},
    ],
)
async def test_what_its_root_did_not_sign_is_no_list(body: object) -> None:
    async with Api().client() as client:
        is_problem(await client.put(PATH, json=body), 400, "invalid-request")
        is_problem(await client.get(PATH), 404, "not-found")
