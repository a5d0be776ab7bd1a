"""Which sessions there are, and the end of one."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fumehood.mcp import limits
from fumehood.mcp.bounds import and_more, visible
from fumehood.mcp.sessions import found
from fumehood.mcp.tool import Answer, Arguments, Call, Tool

MOST_SESSIONS = 100


class Sessions(Arguments):
    limit: Annotated[int, Field(ge=1, le=MOST_SESSIONS, description="At most so many")] = 50


class Session(Answer):
    session: str
    image: str
    created_at: str
    lease_expires_at: Annotated[str, Field(description="When it is removed, unless it is used before")]


class SessionList(Answer):
    sessions: list[Session]
    truncated: bool

    def text(self) -> str:
        lines = [f"{one.session}  {one.image}  until {one.lease_expires_at}" for one in self.sessions]
        more = [and_more(len(lines), MOST_SESSIONS)] if self.truncated else []
        return "\n".join([f"{len(lines)} sessions", *lines, *more])


async def sessions(call: Call, asked: Sessions) -> SessionList:
    answer = await call.client.transport.get("/v1/sandboxes", {"limit": asked.limit})
    return SessionList(
        sessions=[
            Session(
                session=one["sandbox_id"],
                image=visible(one["image"]),
                created_at=one["created_at"],
                lease_expires_at=one["lease_expires_at"],
            )
            for one in answer["sandboxes"]
        ],
        truncated=answer.get("next") is not None,
    )


class EndSession(Arguments):
    session: limits.SessionName


class Ended(Answer):
    session: str

    def text(self) -> str:
        return f"the session {self.session} is ended: its sandbox is removed, with all that was in it"


async def end_session(call: Call, asked: EndSession) -> Ended:
    await (await found(call, asked.session)).kill()
    return Ended(session=asked.session)


TOOLS = (
    Tool(
        "sessions",
        "List sessions",
        "List the sessions that are there, with their images and how long they live.",
        Sessions,
        SessionList,
        sessions,
        read_only=True,
        idempotent=True,
    ),
    Tool(
        "end_session",
        "End a session",
        "Remove a session's sandbox, with its files and whatever runs in it. Do this when a task is done.",
        EndSession,
        Ended,
        end_session,
        destructive=True,
        idempotent=True,
    ),
)
