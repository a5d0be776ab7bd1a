"""The keys that receipts are checked with, over HTTP: anybody with a key may read them, administrators publish them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.http import schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.asked import body_of
from fumehood.control.http.callers import note, note_unchanged
from fumehood.control.http.queries import Query
from fumehood.control.receipt_keys import ReceiptKeyStore
from fumehood.door.schema import Responses, problem_response
from fumehood.wire import receipt_api as wire

PATHS = (wire.RECEIPT_KEYS_PATH,)
MODELS: schema.Models = [(wire.ReceiptKeys, "validation")]

_GET: Responses = {200: schema.answer("ReceiptKeys", "The list, and its root"), 404: problem_response("not-found")}
_PUT: Responses = {
    200: schema.answer("ReceiptKeys", "The list that counts from now on"),
    409: problem_response("conflict"),
}


def receipt_keys_router(store: ReceiptKeyStore) -> APIRouter:
    router = APIRouter(tags=["receipts"])

    @router.get(
        wire.RECEIPT_KEYS_PATH,
        **schema.operation(
            "get_receipt_keys",
            "Read the keys that receipts are checked with",
            _GET,
            description="Whoever relies on it pins the root once, by another way, and checks the signature.",
        ),
    )
    async def get(request: Request) -> Response:
        Query(request)
        return json_answer(wire.ReceiptKeys.model_validate(await store.document()))

    @router.put(
        wire.RECEIPT_KEYS_PATH,
        **schema.operation(
            "put_receipt_keys",
            "Publish the keys that receipts are checked with",
            _PUT,
            body="ReceiptKeys",
            description="Signed by the same root as the list before it, with a higher version. The first list fixes "
            "the root, unless the setting `receipt_root` does. The same list again changes nothing.",
        ),
    )
    async def put(request: Request) -> Response:
        asked = await body_of(wire.ReceiptKeys, request)
        keys, is_news = await store.publish(asked.model_dump())
        if is_news:
            note(request, target=asked.root, version=str(keys.version), keys=str(len(keys.keys)))
        else:
            note_unchanged(request)
        return json_answer(asked)

    return router
