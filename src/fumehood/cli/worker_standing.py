"""How providers stand: how often each was right, and which ones are set aside."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fumehood.cli import given, show
from fumehood.cli.client import Api, ApiError, part
from fumehood.cli.options import Remote, grouped

PATH = "/v1/providers"
COUNTS = ("agreed", "disagreed", "disputed", "rejected", "failed", "answered")
RECENT = 10

Worker = Annotated[str, typer.Argument(metavar="WORKER", help="The provider's name.")]


@grouped
def standing(
    worker: Annotated[str | None, typer.Argument(metavar="[WORKER]", help="One of them: its last jobs.")] = None,
    *,
    remote: Remote,
) -> None:
    """Show how often providers of jobs were right, and which are set aside."""
    with remote.opened() as api:
        known = _known(api)
    if worker is None:
        if remote.as_json:
            show.document({"providers": known})
        else:
            show.table(["provider", *COUNTS, "", "job types"], [_row(one) for one in known], whole=["provider"])
        return
    found = next((one for one in known if one["worker"] == worker), None)
    if found is None:
        raise given.no_such("provider", worker, [one["worker"] for one in known])
    if remote.as_json:
        show.document(found)
    else:
        _shown(found)


@grouped
def set_aside(
    worker: Worker,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; others see it.")],
    remote: Remote,
) -> None:
    """Set a provider aside: it takes nothing more, and what it says does not count."""
    answer = _told(remote, worker, "set-aside", {"reason": reason})
    remote.tell(answer, f"{worker} is set aside")


@grouped
def restore(worker: Worker, *, remote: Remote) -> None:
    """Let a provider that was set aside work again."""
    answer = _told(remote, worker, "restore", None)
    remote.tell(answer, f"{worker} works again")


def _told(remote: Remote, worker: str, order: str, body: object) -> Any:
    with remote.opened() as api:
        try:
            return api.post(f"{PATH}/{part(worker)}:{order}", body)
        except ApiError as error:
            if error.status != 404:
                raise
            raise given.no_such("provider", worker, [one["worker"] for one in _known(api)]) from None


def _known(api: Api) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(PATH)["providers"]
    return found


def _row(one: dict[str, Any]) -> list[str]:
    counts = one.get("counts") or {}
    return [one["worker"], *(str(counts.get(name, 0)) for name in COUNTS), _state(one), ", ".join(one["job_types"])]


def _state(one: dict[str, Any]) -> str:
    aside = one.get("set_aside")
    if aside:
        return f"set aside: {aside['reason']}"
    return "" if one["present"] else "away"


def _shown(one: dict[str, Any]) -> None:
    counts, aside = one.get("counts") or {}, one.get("set_aside")
    show.pairs(
        {
            "provider": one["worker"],
            "is": "here" if one["present"] else "away",
            "job types": ", ".join(one["job_types"]),
            "receipt key": one.get("receipt_key"),
            "was": ", ".join(f"{counts[name]} {name}" for name in COUNTS if counts.get(name)) or "never asked",
            "set aside": f"by {aside['by']}, {show.local(aside['at'])}: {aside['reason']}" if aside else None,
        }
    )
    if recent := (one.get("recent") or [])[-RECENT:]:
        show.console().print()
        show.table(["job", "was", "at"], [[job["job_id"], job["said"], show.local(job["at"])] for job in recent[::-1]])
