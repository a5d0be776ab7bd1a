"""The web console's files, as they were built into the package.

The files hold no data, so they are open to all: the page gets what it shows from the API. It may load nothing from
elsewhere and run no script but its own.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from fumehood.errors import NotFoundError

ROOT_PATH = "/"
PAGE_PATHS = ("/ui", "/ui/", "/ui/{page}", "/ui/{page}/{item}")
"""All pages are the same file, whose script reads the address."""
ASSET_PATH = "/ui/assets/{asset}"
PATHS = (ROOT_PATH, *PAGE_PATHS, ASSET_PATH)
FOLDER = Path(__file__).parents[2] / "web"
_FOR_EVER = "public, max-age=31536000, immutable"
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class File:
    media_type: str
    content: bytes
    zipped: bytes
    etag: str


@functools.cache
def files() -> dict[str, File]:
    """The files by path, read once: they are small, and an upgrade restarts the server."""
    found = (path for path in FOLDER.rglob("*") if path.suffix in MEDIA_TYPES)
    return {path.relative_to(FOLDER).as_posix(): _read(path) for path in found}


def _read(path: Path) -> File:
    content = path.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return File(MEDIA_TYPES[path.suffix], content, gzip.compress(content, mtime=0), etag)


def web_router() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    files()  # read them now, before an upgrade can replace them

    @router.get(ROOT_PATH)
    async def root() -> Response:
        return RedirectResponse(PAGE_PATHS[0])

    @router.get(ASSET_PATH)
    async def asset(request: Request) -> Response:
        return _answer(request, f"assets/{request.path_params['asset']}", _FOR_EVER)  # its name has its hash

    async def page(request: Request) -> Response:
        return _answer(request, "index.html", "no-cache")

    for path in PAGE_PATHS:
        router.add_api_route(path, page, methods=["GET"])
    return router


def _answer(request: Request, name: str, caching: str) -> Response:
    file = files().get(name)
    if file is None:
        raise NotFoundError("there is no such file in the web console of this installation")
    headers = {**_HEADERS, "cache-control": caching, "etag": file.etag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.zipped, headers=headers | {"content-encoding": "gzip"}, media_type=file.media_type)
    return Response(file.content, headers=headers, media_type=file.media_type)
