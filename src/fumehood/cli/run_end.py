"""How a run of an image ended, as an exit code and, where that does not say it all, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fumehood.cli.show import plain

UNKNOWN: Final = 122
"""It may have run, and nobody knows how it ended."""
TIMED_OUT: Final = 124
"""As `timeout` has it."""
NOT_RUN: Final = 125
"""It was not run, as `docker run` has it."""
INTERRUPTED: Final = 130
KILLED: Final = 137
UNREAD: Final = 141
"""Nobody reads what it prints any more: as after SIGPIPE."""
STOPPED: Final = 143

ENDED: Final = frozenset({"succeeded", "failed", "timed_out", "stopped"})


@dataclass(frozen=True, slots=True)
class End:
    """What the command line does with it."""

    code: int
    line: str = ""
    """Empty: the exit code is the command's own, and says it all."""


def end_of(run: Mapping[str, Any], *, asked_to_stop: bool = False) -> End:
    """`run`: as the API shows one that has ended. `asked_to_stop`: by whoever waits for it."""
    reason, name = str(run.get("reason") or ""), run["run_id"]
    code = run["exit_code"] if isinstance(run.get("exit_code"), int) else None
    if reason in ("", "exit") and (code is not None or run["status"] == "succeeded"):
        return End(code or 0)
    detail = plain(str(run.get("detail") or "")).strip()
    why = f": {detail}" if detail else ""
    if reason == "stopped":
        return End(INTERRUPTED if asked_to_stop else STOPPED, f"{name} was stopped")
    otherwise, words = _ENDS.get(reason, (UNKNOWN, "{name} ended as {status}{why}"))
    said = words.format(name=name, why=why, status=plain(str(run["status"])))
    return End(otherwise if code is None else code, said)


_ENDS: Final[Mapping[str, tuple[int, str]]] = {
    "timeout": (TIMED_OUT, "{name} was killed: it took longer than its --timeout"),
    "oom": (KILLED, "{name} was killed: it needed more memory than --memory gave it"),
    "signal": (KILLED, "{name} ended by a signal{why}"),
    "image_error": (NOT_RUN, "{name} did not start{why}"),
    "node_lost": (
        UNKNOWN,
        "the node of {name} was lost, and nobody knows how far it came; what may be begun twice can be run with "
        "--attempts 2",
    ),
    "internal": (UNKNOWN, "{name} failed for no fault of its own{why}"),
}
"""By reason: the exit code where the command has none, and the words."""
