"""What went wrong, in words that a model can act on: a stable code, what happened, and which tool helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fumehood.errors import FumehoodError
from fumehood.mcp.bounds import clipped, visible

MOST_DETAIL = 4096
_REMEDIES: Mapping[str, str] = {
    "session-not-found": "`sessions` lists those that are there; run_command with another name makes one",
    "command-not-found": "name the session and the command_id of an earlier answer",
    "file-not-found": "list_files shows what is there; relative paths begin at /workspace",
    "path-is-directory": "list_files shows what is in it",
    "file-too-large": "read a part of it with run_command: head, tail or sed",
    "invalid-request": "correct what is named and call the tool again",
    "unreachable": "whoever runs this agent must start a server (`fumehood dev`), or name it with FUMEHOOD_URL",
    "unauthenticated": "whoever runs this agent must give the MCP server a key that counts: `fumehood login`",
    "forbidden": "whoever runs this agent must give the MCP server a key that may do this",
    "quota-exceeded": "end sessions and commands that are not needed (end_session, stop_command), then try again",
    "execution-failed": "if the sandbox has ended, use another session; otherwise the worker's log says more",
    "image-unavailable": "name an `image` that the worker can fetch; without one it takes its own "
    "(WORKER_TERMINAL_EXEC_DOCKER_IMAGE). If the registry did not answer, try again later",
    "policy-denied": "ask for an image and a network that the worker's policy allows; its operator can change it",
    "no-worker": "no worker is connected: whoever runs the server must start one",
    "no-capacity": "end sessions that are not needed (end_session), or try again later",
    "conflict": "take another name, or ask for the same as before",
    "wait-timeout": "call the tool again to go on waiting",
}
"""In place of those of the SDK, which speak of Python."""


@dataclass(frozen=True, slots=True)
class Trouble:
    code: str
    detail: str
    remedy: str
    retryable: bool

    def text(self) -> str:
        return f"{self.detail} ({self.code})\nremedy: {self.remedy}"

    def fields(self) -> dict[str, Any]:
        return {"code": self.code, "detail": self.detail, "remedy": self.remedy, "retryable": self.retryable}


def told(error: FumehoodError) -> Trouble:
    detail = clipped(visible(error.detail), MOST_DETAIL)[0]
    return Trouble(error.code, detail, _REMEDIES.get(error.code, error.remedy), error.retryable)
