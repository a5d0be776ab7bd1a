"""In which forms a body may come: what we say that it is, and nothing that would have to be guessed."""

from __future__ import annotations

from collections.abc import Sequence
from email.message import Message as HeaderParser

from starlette.requests import Request

from fumehood.door.problems import UnsupportedMediaTypeError

JSON = "application/json"
KEYLESS = "fumehood.keyless"
"""Stands in the ASGI scope of a request that needed no token."""


def check_media_type(request: Request, allowed: Sequence[str] = (JSON,)) -> str:
    """Which of the allowed ones it is, in UTF-8, uncompressed. No content type at all is taken for the first, but not
    where no token is asked for: any page in a browser on this machine can send such a request."""
    if request.scope.get(KEYLESS) and "content-type" not in request.headers:
        raise UnsupportedMediaTypeError(f"without a token, the content type must be given: {' or '.join(allowed)}")
    given = request.headers.get("content-type", allowed[0])
    if given in allowed and "content-encoding" not in request.headers:
        return given  # as nearly all say it; the rest is taken apart
    parsed = HeaderParser()
    parsed["content-type"] = given
    kind = parsed.get_content_type()
    if kind not in allowed or parsed.get_content_charset("utf-8") != "utf-8":
        raise UnsupportedMediaTypeError(f"the body must be {' or '.join(allowed)} in UTF-8")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaTypeError("the body must not be compressed")
    return kind
