"""How a run of an image ended, as an exit code and, where that does not say it all, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fumehood.cli.exits import INTERRUPTED, KILLED, NOT_RUN, STOPPED, TIMED_OUT, UNKNOWN
from fumehood.cli.show import plain

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
    "timeout": (TIMED_OUT, "{name} was killed: it took longer than its --timeout; a longer one gives it more time"),
    "oom": (KILLED, "{name} was killed: it needed more memory than --memory gave it; --memory 2g gives it 2 GiB"),
    "signal": (KILLED, "{name} ended by a signal{why}; `fumehood runs logs {name}` shows what it printed before"),
    "image_error": (NOT_RUN, "{name} did not start{why}"),
    "node_lost": (
        UNKNOWN,
        "the node of {name} was lost, and nobody knows how far it came; what may be begun twice can be run with "
        "--attempts 2",
    ),
    "internal": (UNKNOWN, "{name} failed for no fault of its own{why}; run it again, if it may be begun twice"),
}
"""By reason: the exit code where the command has none, and the words."""
