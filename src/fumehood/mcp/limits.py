"""Arguments that several tools take, with their bounds and their words."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fumehood.mcp.bounds import DEFAULT_BYTES, LEAST_BYTES, MOST_BYTES

LEASE_SECONDS = 1800
"""Half an hour, from each call on: longer than a person thinks between two messages."""
LONGEST_LEASE = 86_400
TIMEOUT_SECONDS = 120
LONGEST_TIMEOUT = 3600
WAIT_SECONDS = 30
LONGEST_WAIT = 300
MOST_CODE = 120_000
"""Bytes of UTF-8 of a program that is one argument: the kernel takes 128 KiB."""

SessionName = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,128}$", description="Name of the session")]
NewSessionName = Annotated[
    str | None,
    Field(
        pattern="^[A-Za-z0-9_-]{1,128}$",
        description="Name of the session: the same name again is the same sandbox with its files. Made if there is "
        "none. Without it: a new one, whose name is in the answer",
    ),
]
CommandId = Annotated[str, Field(min_length=1, max_length=128, description="The command_id of an earlier answer")]
Image = Annotated[
    str | None,
    Field(
        max_length=1024,
        description="Image of a session that is made now, like python:3.12-slim; else the worker's own",
    ),
]
Network = Annotated[
    Literal["deny-all", "restricted", "full"] | None,
    Field(
        description="What a session that is made now can reach: nothing (deny-all, the default), the names that the "
        "operator allowed (restricted), every public address (full); policy may refuse it"
    ),
]
Lease = Annotated[
    int,
    Field(ge=60, le=LONGEST_LEASE, description="Seconds that the session lives on after this call"),
]
Timeout = Annotated[
    int,
    Field(
        ge=1,
        le=LONGEST_TIMEOUT,
        description="Seconds after which it is killed, with everything else that runs in the session",
    ),
]
Wait = Annotated[
    float, Field(ge=0, le=LONGEST_WAIT, description="Seconds to wait for the end before answering how it stands")
]
OutputBytes = Annotated[
    int,
    Field(
        ge=LEAST_BYTES,
        le=MOST_BYTES,
        description="Bytes shown of each stream, half from its beginning and half from its end",
    ),
]
DEFAULT_OUTPUT = DEFAULT_BYTES
Path = Annotated[
    str, Field(min_length=1, max_length=4096, description="Path in the sandbox; a relative one begins at /workspace")
]
Encoding = Literal["utf-8", "base64"]
