"""Bundles over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fumehood.control.bundles import Bundles
from fumehood.control.http import schema
from fumehood.control.http.answers import json_answer
from fumehood.control.http.callers import caller_of, note
from fumehood.control.http.queries import Query
from fumehood.door.app import PlainRoute
from fumehood.door.bodies import check_media_type
from fumehood.door.middleware import BodyLimits
from fumehood.door.schema import RETRY, Responses, problem_response
from fumehood.wire import bundle_api

PATHS = (bundle_api.BUNDLES_PATH,)
MODELS: schema.Models = [(bundle_api.BundleView, "serialization")]
LONG_BODIES: Mapping[tuple[str, str], BodyLimits] = {
    ("POST", bundle_api.BUNDLES_PATH): BodyLimits(
        bundle_api.MAX_BUNDLE_BYTES, seconds=600.0, stall_seconds=60.0, streamed=True
    )
}
OCTETS = "application/octet-stream"

_TAKEN: Responses = {
    201: schema.answer("BundleView", "It is there, for jobs of this tenant"),
    413: problem_response("payload-too-large"),
    503: problem_response("overloaded", "broker-unavailable", "broker-full", extra_headers=RETRY),
}


def bundles_router(bundles: Bundles) -> APIRouter:
    router = APIRouter(tags=["jobs"], route_class=PlainRoute)

    @router.post(
        bundle_api.BUNDLES_PATH,
        **schema.raw_operation(
            "upload_bundle",
            "Upload a repository for jobs",
            _TAKEN,
            media_type=OCTETS,
            description=(
                f"A git bundle or a tar archive (also with gzip), of at most {bundle_api.MAX_BUNDLE_BYTES} bytes. Jobs "
                "name it by its hash (`repo.source`). It is kept for some days, and given up where room is needed."
            ),
        ),
    )
    async def upload(request: Request) -> Response:
        check_media_type(request, (OCTETS,))
        Query(request)
        taken = await bundles.take(caller_of(request).tenant, request.stream())
        note(request, target=taken.source, size=str(taken.size))
        return json_answer(taken, 201)

    return router
