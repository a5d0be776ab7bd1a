"""The sandboxes that tools work in: found by their names, made where there is none, kept while somebody uses them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from fumehood.errors import FumehoodError, InvalidRequestError, SandboxGoneError
from fumehood.mcp import limits
from fumehood.mcp.tool import Call

if TYPE_CHECKING:
    from fumehood.sdk.aio.sandbox import AsyncSandbox

T = TypeVar("T")


def new_name() -> str:
    return f"mcp-{secrets.token_hex(5)}"


async def found(call: Call, name: str, lease_seconds: int | None = None) -> AsyncSandbox:
    """A session that is there; it lives on for as long as the lease says."""
    sandbox = await call.client.sandboxes.connect(name)
    if lease_seconds is not None:
        await _prolong(sandbox, lease_seconds)
    return sandbox


async def _prolong(sandbox: AsyncSandbox, lease_seconds: int) -> None:
    with contextlib.suppress(FumehoodError):  # its worker may have bounds for it; that ends no call
        await sandbox.extend(lease_seconds)


@asynccontextmanager
async def found_or_made(
    call: Call, name: str | None, image: str | None, network: str | None, lease_seconds: int = limits.LEASE_SECONDS
) -> AsyncIterator[AsyncSandbox]:
    """An error of a call that made its session says so: the next call finds one that is there, and empty."""
    sandbox = None
    if name is not None:
        with contextlib.suppress(SandboxGoneError):
            there = await found(call, name)
            await _check_same(there, image, network)
            await _prolong(there, lease_seconds)
            sandbox = there
    if sandbox is None:
        sandbox = await made(call, name or new_name(), image=image, network=network, lease_seconds=lease_seconds)
    try:
        yield sandbox
    except FumehoodError as error:
        if sandbox.created:
            error.detail += f"; this call made the session {sandbox.id}"
        raise


async def _check_same(sandbox: AsyncSandbox, image: str | None, network: str | None) -> None:
    """A session keeps its image and network, so a request for others is refused rather than ignored."""
    given = {"image": (image, sandbox.image), "network": (network, (await sandbox.info()).network if network else None)}
    for name, (asked, own) in given.items():
        if asked is not None and asked != own:
            told = f"the session {sandbox.id} has the {name} {own}, not {asked}"
            raise InvalidRequestError(f"{told}: leave out `{name}`, or use another session")


async def made(call: Call, name: str, *, image: str | None, network: str | None, lease_seconds: int) -> AsyncSandbox:
    await call.progress.tell(0, f"making the session {name}; an image may have to be fetched first")
    async with call.progress.ticking(lambda: f"making the session {name}"):
        return await call.client.sandboxes.create(image, name=name, lease_seconds=lease_seconds, network=network)


async def finished(call: Call, work: Coroutine[Any, Any, T], otherwise: Any, what: str) -> T:
    """Done to its end even if the call is cancelled meanwhile: then what came out of it is undone, by `otherwise`."""
    doing = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        call.aftermath.leave(_undone(doing, otherwise), what)
        raise


async def _undone(doing: asyncio.Future[T], otherwise: Any) -> None:
    await otherwise(await doing)
