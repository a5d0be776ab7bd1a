"""What an operation is asked in its body, and under which key."""

from __future__ import annotations

from typing import TypeVar

from starlette.requests import Request

from fumehood.control.http.queries import Query
from fumehood.door.bodies import check_media_type
from fumehood.errors import ConflictError, InvalidRequestError
from fumehood.wire import strict_json
from fumehood.wire.base import WireModel, validate
from fumehood.wire.run_api import IDEMPOTENCY_HEADER, LONGEST_KEY

Asked = TypeVar("Asked", bound=WireModel)


async def body_of(kind: type[Asked], request: Request) -> Asked:
    """Of an operation that has no parameters in its query."""
    check_media_type(request)
    Query(request)
    return validate(kind, strict_json.loads(await request.body()))


async def body_if_any(kind: type[Asked], request: Request) -> Asked:
    """No body at all is an empty one."""
    Query(request)
    return await body_of(kind, request) if await request.body() else validate(kind, {})


def idempotency_key(request: Request) -> str | None:
    """In the header; None where there is none."""
    given = request.headers.getlist(IDEMPOTENCY_HEADER)
    if len(given) > 1:
        raise InvalidRequestError(f"the header {IDEMPOTENCY_HEADER} is there twice")
    if given and not 1 <= len(given[0]) <= LONGEST_KEY:
        raise InvalidRequestError(f"{IDEMPOTENCY_HEADER}: must have 1 to {LONGEST_KEY} characters")
    return given[0] if given else None


def agreed_key(request: Request, in_body: str | None) -> str | None:
    """From the body or the header; both are fine as long as they agree."""
    given = idempotency_key(request)
    if given is not None and in_body is not None and in_body != given:
        raise ConflictError(f"idempotency_key and the header {IDEMPOTENCY_HEADER} differ")
    return in_body if given is None else given
