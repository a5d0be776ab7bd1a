"""A sandbox that lives on, at somebody's disposal: made, worked in, and removed."""

from __future__ import annotations

import builtins
import difflib
import inspect
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from fumehood.errors import (
    CommandTimedOutError,
    DeadlineExceededError,
    ExecutionFailedError,
    FumehoodError,
    InvalidRequestError,
    NoCapacityError,
    NoWorkerError,
    OverloadedError,
    PolicyDeniedError,
    SandboxGoneError,
    SetupFailedError,
    UnexpectedAnswerError,
    UnreachableError,
)
from fumehood.sdk import problems
from fumehood.sdk.aio import here
from fumehood.sdk.aio.commands import AsyncCommands
from fumehood.sdk.aio.files import AsyncFiles
from fumehood.sdk.aio.pty import AsyncPty
from fumehood.sdk.aio.transport import AsyncTransport, part
from fumehood.sdk.asking import Patience
from fumehood.sdk.connection import find_connection
from fumehood.sdk.template import Template
from fumehood.sdk.values import SandboxInfo, failure

if TYPE_CHECKING:
    from fumehood.sdk.aio.client import AsyncClient

SANDBOXES = "/v1/sandboxes"
CREATE_SECONDS = 330.0
"""An image may have to be fetched first."""
KILL_SECONDS = 60.0
"""Everything that ran in it is dead when the answer comes."""
NOTHING_HAPPENED = (UnreachableError, OverloadedError, NoWorkerError, NoCapacityError)
"""Errors after which no worker was asked."""
PAGE, MOST_LISTED = 200, 10_000
NO_IMAGE = (
    "name an image; without one it is the worker's own, python:slim unless WORKER_TERMINAL_EXEC_DOCKER_IMAGE is set "
    "where the worker is started"
)


class AsyncWhere(TypedDict, total=False):
    """Which server, and as whom; without any of these, as `fumehood login`, the environment or one's own `fumehood dev`
    say."""

    url: str | None
    key: str | None
    key_file: str | os.PathLike[str] | None
    context: str | None
    client: AsyncClient | None
    """One that is there already; its connections are shared, and it is not closed."""


class AsyncSandbox:
    """A sandbox: commands run in it, files lie in it, and both stay for as long as its lease lasts.

        async with await AsyncSandbox.create("python:3.12-slim") as sb:
            result = await sb.commands.run("echo hello")
            assert result.stdout == "hello\\n"

    Leaving the block removes what `create` made, whatever happened in it; one that `connect` found is left alone.
    """

    id: str
    """Its name."""
    image: str
    """As it was asked for."""
    image_digest: str | None
    """What it was made from."""
    created: bool
    """Whether this program made it, and leaving the block removes it. Otherwise it was there before."""
    commands: AsyncCommands
    files: AsyncFiles
    pty: AsyncPty

    def __init__(self, transport: AsyncTransport, info: SandboxInfo, *, made_with: str | None, shared: bool) -> None:
        """Made by `create` and `connect`. `made_with`: the idempotency key of the request that made it, if this program
        did."""
        self.id = info.id
        self.image = info.image
        self.image_digest = info.image_digest
        self.created = made_with is not None
        self._transport, self._made_with, self._shared = transport, made_with, shared
        self._path = f"{SANDBOXES}/{part(info.id)}"
        self.commands = AsyncCommands(transport, self._path)
        self.files = AsyncFiles(transport, self._path)
        self.pty = AsyncPty(transport, self._path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.image}>"

    # --- making and finding --------------------------------------------------------------------------------

    @classmethod
    async def create(
        cls,
        image: str | None = None,
        *,
        template: Template | None = None,
        name: str | None = None,
        lease_seconds: int | None = None,
        network: str | None = None,
        memory_mib: int | None = None,
        cpu_millis: int | None = None,
        env: Mapping[str, str] | None = None,
        **where: Unpack[AsyncWhere],
    ) -> Self:
        """Makes a sandbox, from an image or a template; without either, from the worker's own image.

        `name`: yours. If there is a sandbox of this name, that is the one, unless it has another image, network, size
        or environment; it is left as it is, and the block does not remove it. `created` tells which it is. The program
        that made it may still be preparing it from its template. `lease_seconds`: how long it lives, five minutes
        unless said otherwise; `extend` moves that, and so does waiting for a command. `network`: `deny-all` unless said
        otherwise. `env`: of every command in it; no secrets.

            sb = await AsyncSandbox.create("python:3.12-slim", memory_mib=256, env={"WHO": "you"})
            try:
                assert (await sb.commands.run("echo $WHO")).stdout == "you\\n"
            finally:
                await sb.kill()
        """
        if not isinstance(image, str | None):
            raise TypeError("the first argument is the name of an image; template= takes a Template")
        if not isinstance(template, Template | None):
            raise TypeError("template= takes a Template; the name of an image is the first argument")
        if image is not None and template is not None:
            raise InvalidRequestError("an image and a template are both given").advise("a template has its image")
        wish = (template or Template(image)).wish(
            lease_seconds=lease_seconds, network=network, memory_mib=memory_mib, cpu_millis=cpu_millis, env=env
        )
        named = {"sandbox_id": name or f"s-{secrets.token_hex(8)}", **wish}
        transport, shared = _reached(where)
        key = f"sdk-{secrets.token_hex(16)}"
        try:
            said = await _created(transport, named, key)
            ours = name is None or _is_ours(said)
            made = cls(transport, SandboxInfo.of(said), made_with=key if ours else None, shared=shared)
            if ours:
                await _prepared(made, template)
        except BaseException:
            await _given_up(transport, str(named["sandbox_id"]), key, shared)
            raise
        return made

    @classmethod
    async def connect(cls, sandbox_id: str, **where: Unpack[AsyncWhere]) -> Self:
        """Finds a sandbox that is there. `SandboxGoneError` where there is none.

        found = await AsyncSandbox.connect(sb.id)
        assert found.image_digest == sb.image_digest
        await found.aclose()
        """
        transport, shared = _reached(where)
        try:
            said = await transport.get(f"{SANDBOXES}/{part(sandbox_id)}")
            return cls(transport, SandboxInfo.of(said), made_with=None, shared=shared)
        except BaseException:
            await _left(transport, shared)
            raise

    @classmethod
    async def list(cls, *, limit: int = MOST_LISTED, **where: Unpack[AsyncWhere]) -> builtins.list[SandboxInfo]:
        """The sandboxes that are there, by name.

        assert sb.id in [one.id for one in await AsyncSandbox.list()]
        """
        transport, shared = _reached(where)
        found: builtins.list[SandboxInfo] = []
        after: Any = None
        try:
            while len(found) < limit:
                query = {"limit": min(PAGE, limit - len(found)), "after": after}
                page = await transport.get(SANDBOXES, query)
                found += [SandboxInfo.of(one) for one in page["sandboxes"]]
                after = page.get("next")
                if after is None:
                    break
        finally:
            await _left(transport, shared)
        return found

    # --- its life ------------------------------------------------------------------------------------------

    async def info(self) -> SandboxInfo:
        """How it stands.

        assert (await sb.info()).network == "deny-all"
        """
        return SandboxInfo.of(await self._transport.get(self._path))

    async def extend(self, seconds: int) -> SandboxInfo:
        """Lets it live for so long from now; a lease that is longer already stays as it is.

        before = (await sb.info()).lease_expires_at
        assert (await sb.extend(1800)).lease_expires_at >= before
        """
        return SandboxInfo.of(
            await self._transport.post(f"{self._path}:extend", {"lease_seconds": seconds}, again=True)
        )

    async def kill(self) -> bool:
        """Removes it, with all that runs and lies in it, and closes this object's connections. False: it was gone
        already. True also if it was gone when its worker came back after an outage: then nothing tells what ended it.

        other = await AsyncSandbox.create("python:3.12-slim")
        assert await other.kill()
        assert not await other.kill()
        """
        removed = await self._removed()
        if not self._shared:
            await self._transport.aclose(lambda: SandboxGoneError(f"the sandbox {self.id} was removed").advise())
        return removed

    async def _removed(self) -> bool:
        """What this program made, and not another one that has had the name since its lease was over."""
        patience, asked = Patience(KILL_SECONDS), False
        while True:
            try:
                await self._transport.delete(self._path, {"idempotency_key": self._made_with}, seconds=KILL_SECONDS)
                return True
            except SandboxGoneError:
                return asked  # an answer that got lost may have been the one
            except FumehoodError as error:
                late = isinstance(error, CommandTimedOutError)  # the removal itself, which goes on
                pause = patience.next_pause(time.monotonic(), error.retry_after_seconds or 0.0)
                if pause is None and late:
                    raise DeadlineExceededError(f"the sandbox {self.id} is not removed yet").advise(
                        "it will be, when its worker comes to it; `kill()` again tells"
                    ) from error
                if pause is None or not (late or problems.is_passing(error)):
                    raise
                asked = asked or not isinstance(error, NOTHING_HAPPENED)
            await here.sleep(pause)

    async def aclose(self) -> None:
        """Closes the connections of this object, and leaves the sandbox alone.

        found = await AsyncSandbox.connect(sb.id)
        await found.aclose()
        """
        await _left(self._transport, self._shared)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What went wrong in the block is told, whatever comes of the removal."""
        try:
            if self.created:
                await self.kill()
        except FumehoodError as failed:
            if error is None:
                raise
            error.add_note(f"and the sandbox {self.id} could not be removed: {failed.detail}")
        finally:
            await self.aclose()


def _reached(where: AsyncWhere) -> tuple[AsyncTransport, bool]:
    """The server that is meant, and whether its connections are somebody else's. What else was given is a mistake."""
    unknown = sorted(where.keys() - AsyncWhere.__annotations__.keys())
    if unknown:
        known = [*inspect.signature(AsyncSandbox.create).parameters, *AsyncWhere.__annotations__]
        nearest = difflib.get_close_matches(unknown[0], known, 1)
        meant = f"; did you mean {nearest[0]}?" if nearest else ""
        raise TypeError(f"a sandbox has no argument {', '.join(unknown)}{meant}")
    client = where.get("client")
    if client is not None:
        return client.transport, True
    key_file = where.get("key_file")
    connection = find_connection(
        url=where.get("url"),
        key=where.get("key"),
        key_file=None if key_file is None else Path(key_file),
        context=where.get("context"),
    )
    return AsyncTransport(connection), False


async def _left(transport: AsyncTransport, shared: bool) -> None:
    if not shared:
        await transport.aclose()


async def _created(transport: AsyncTransport, named: Mapping[str, Any], key: str) -> Any:
    """The sandbox, as the server shows it. A lost answer is asked for again, and is then the same."""
    try:
        return await transport.post(SANDBOXES, named, idempotency_key=key, seconds=CREATE_SECONDS)
    except PolicyDeniedError as error:
        error.advise("ask for what the worker's policy allows, or ask its operator to allow this")
        raise
    except ExecutionFailedError as error:
        if "image" not in named:
            error.advise(NO_IMAGE)
        raise


def _is_ours(said: Mapping[str, Any]) -> bool:
    """Whether this program made the sandbox of the name that it chose."""
    created = said.get("created")
    if isinstance(created, bool):
        return created
    raise UnexpectedAnswerError("the server does not say whether it made the sandbox, or found it").advise(
        "bring the server and its workers to the version of this SDK"
    )


async def _prepared(made: AsyncSandbox, template: Template | None) -> None:
    if template is None:
        return
    for path, content in template.files.items():
        await made.files.write(path, content)
    for number, command in enumerate(template.setup, 1):
        result = await made.commands.run(command, timeout=template.setup_timeout)
        if not result.ok:
            raise failure(SetupFailedError, result, f"setup command {number}").advise(SetupFailedError.remedy)


async def _given_up(transport: AsyncTransport, sandbox_id: str, key: str, shared: bool) -> None:
    """What was begun is removed, as well as can be; what another program made is not."""
    try:
        await transport.delete(f"{SANDBOXES}/{part(sandbox_id)}", {"idempotency_key": key}, seconds=KILL_SECONDS)
    except FumehoodError:
        return
    finally:
        await _left(transport, shared)
