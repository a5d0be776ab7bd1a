"""How an answer is written."""

from __future__ import annotations

from starlette.responses import Response

from fumehood.wire.base import WireModel


def json_answer(model: WireModel, status: int = 200) -> Response:
    return Response(model.model_dump_json(), status, media_type="application/json")
