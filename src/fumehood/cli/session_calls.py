"""Where sessions, their commands and their files are in the API, and what is said of one that is not there."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fumehood.cli import given
from fumehood.cli.client import Api, ApiError, part
from fumehood.cli.exits import CommandError, unknown_if_it_may_run
from fumehood.cli.terminal import Size

SANDBOXES = "/v1/sandboxes"
MOST, PAGE = 10_000, 200
"""Sessions that are listed, and how many of them a server gives at once."""
CREATE_SECONDS = 330.0
"""An image may have to be fetched first."""


@dataclass(frozen=True, slots=True)
class Session:
    """One session, over the API."""

    api: Api
    session_id: str

    @property
    def path(self) -> str:
        return f"{SANDBOXES}/{part(self.session_id)}"

    def get(self) -> dict[str, Any]:
        with self.known():
            found: dict[str, Any] = self.api.get(self.path)
        return found

    def extend(self, seconds: int) -> dict[str, Any]:
        with self.known():
            return self.api.post_named(f"{self.path}:extend", {"lease_seconds": seconds}, made="sandbox_id")

    def remove(self) -> None:
        with self.known():
            self.api.delete(self.path)

    def commands(self) -> list[dict[str, Any]]:
        with self.known():
            found: list[dict[str, Any]] = self.api.get(f"{self.path}/commands")["commands"]
        return found

    def start(self, body: dict[str, Any]) -> dict[str, Any]:
        """The view of a new command, which runs on whatever becomes of the caller. Its name is ours, so that an answer
        that got lost can be asked for again."""
        named = {"command_id": f"cmd-{secrets.token_hex(16)}", **body, "background": True}
        with self.known(), unknown_if_it_may_run(f"fumehood session ps {self.session_id}"):
            return self.api.post_named(f"{self.path}/commands", named, made="command_id")

    @contextmanager
    def known(self) -> Iterator[None]:
        """A session that is not there is told together with the one that was probably meant."""
        try:
            yield
        except ApiError as error:
            if error.status != 404:
                raise
            ids = [one["sandbox_id"] for one in listed(self.api)[0]]
            if self.session_id in ids:
                raise
            raise no_session(self.session_id, ids) from None


def no_session(session_id: str, ids: Sequence[str]) -> CommandError:
    said = given.no_such("session", session_id, ids).detail
    if not said.endswith("?"):
        said += "; its lease may have expired, it may have run out of memory, or its worker may be gone;"
    return CommandError(f"{said} `fumehood session ls` shows those that are there")


def listed(api: Api, most: int = MOST) -> tuple[list[dict[str, Any]], str | None]:
    """And the name that the next page begins behind, if there are more."""
    return api.listed(SANDBOXES, "sandboxes", most=most, page=PAGE)


def created(api: Api, wish: dict[str, Any]) -> dict[str, Any]:
    """The name is ours, so that an answer that got lost can be asked for again."""
    named = {"sandbox_id": f"s-{secrets.token_hex(6)}", **wish}
    try:
        return api.post_named(SANDBOXES, named, made="sandbox_id", seconds=CREATE_SECONDS)
    except CommandError as error:
        if error.may_be_done:
            error.detail += f"; if it was made, it is session {named['sandbox_id']}"
        raise


@dataclass(frozen=True, slots=True)
class Command:
    """One command in a session, over the API."""

    session: Session
    command_id: str

    @property
    def api(self) -> Api:
        return self.session.api

    @property
    def path(self) -> str:
        return f"{self.session.path}/commands/{part(self.command_id)}"

    def get(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self.api.get(self.path)
        except ApiError as error:
            if error.status != 404:
                raise
            ids = [one["command_id"] for one in self.session.commands()]
            if self.command_id in ids:
                raise
            said = given.no_such("command", self.command_id, ids).detail
            raise CommandError(f"{said}; `fumehood session ps {self.session.session_id}` shows them") from None
        return found

    def receipt(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self.api.get(f"{self.path}/receipt")
        except ApiError as error:
            if error.status != 404:
                raise
            self.get()  # it knows which command was meant
            raise
        return found

    def feed(self, offset: int, data: bytes, last: bool) -> int:
        taken: int = self.api.send(f"{self.path}/stdin", {"offset": offset, "eof": "true" if last else None}, data)[
            "stdin_bytes"
        ]
        return taken

    def resize(self, size: Size) -> None:
        self.api.post(f"{self.path}:resize", {"rows": size.rows, "columns": size.columns})

    def signal(self, which: str | int) -> None:
        self.api.post(f"{self.path}:signal", {"signal": which})
