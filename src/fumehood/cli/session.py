"""`fumehood session`: sandboxes that live on: made, worked in with commands, a terminal and files, and removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from fumehood.cli import completing, given, run_request, session_files, show
from fumehood.cli.client import ApiError
from fumehood.cli.exits import FAILED, CommandError, NoAnswerError
from fumehood.cli.options import Limit, Remote, grouped
from fumehood.cli.pulse import Pulse
from fumehood.cli.session_calls import Session, created, listed
from fumehood.cli.session_commands import Env, SessionId, attach, exec_, kill, logs, receipt, shell
from fumehood.cli.session_view import COMMAND_HEAD, SESSION_HEAD, command_row, session_pairs, session_row

app = typer.Typer(no_args_is_help=True)

_REMEDIES = {
    "policy-denied": "ask for what the worker's policy allows, or ask its operator to allow this",
    "image-unavailable": "name an image that the worker can fetch; without one it takes its own, python:slim unless "
    "WORKER_TERMINAL_EXEC_DOCKER_IMAGE is set where it is started",
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What a session is to be. What is not given is as its worker has it."""

    lease: Annotated[str, typer.Option("--lease", metavar="TIME", help="How long it lives unless extended.")] = "10m"
    network: Annotated[
        str | None, typer.Option("--network", metavar="PROFILE", help=f"One of {', '.join(run_request.NETWORKS)}.")
    ] = None
    memory: Annotated[str | None, typer.Option("--memory", metavar="MIB", help="MiB (512), or GiB (2g).")] = None
    cpus: Annotated[
        str | None, typer.Option("--cpus", "--cpu", metavar="CORES", help="Cores (0.5), or thousandths (500m).")
    ] = None
    env: Env = None
    name: Annotated[
        str | None, typer.Option("--name", metavar="ID", help="Its id; the same id again is the same session.")
    ] = None

    def body(self, image: str | None) -> dict[str, Any]:
        wanted = {
            "sandbox_id": self.name,
            "image": image,
            "lease_seconds": _seconds(self.lease, "--lease"),
            "network": _if_given(run_request.network, self.network),
            "memory_mib": _if_given(run_request.memory_mib, self.memory),
            "cpu_millis": _if_given(lambda text: run_request.cpu_millis(text, "--cpus"), self.cpus),
            "env": run_request.environment(self.env) or None,
        }
        return {name: value for name, value in wanted.items() if value is not None}


def _if_given(read: Callable[[str], Any], text: str | None) -> Any:
    return None if text is None else read(text)


def _seconds(text: str | None, option: str) -> int | None:
    """A bare number is seconds, too."""
    return given.seconds(f"{text}s" if text is not None and text.isdecimal() else text, option)


@app.command("new")
@grouped
def new(
    image: Annotated[
        str | None, typer.Argument(metavar="IMAGE", help="What it is made from; else the worker's own.")
    ] = None,
    *,
    wish: Wish,
    remote: Remote,
) -> None:
    """Make a session, and print its id."""
    with remote.opened() as api, Pulse("making it: a worker fetches its image, unless it has it"):
        try:
            made = created(api, wish.body(image))
        except ApiError as error:
            remedy = _REMEDIES.get(error.problem)
            detail = run_request.in_options(error.detail)
            raise CommandError(detail if remedy is None else f"{detail}\n  → {remedy}") from None
    remote.tell(made, made["sandbox_id"])


@app.command("ls")
@grouped
def ls(*, limit: Limit = 200, remote: Remote) -> None:
    """List your sessions."""
    with remote.opened() as api:
        found, following = listed(api, limit)
    if remote.as_json:
        show.document({"sessions": found, "next": following})
        return
    show.table(SESSION_HEAD, [session_row(one, show.now()) for one in found], whole=["session", "lease left"])
    if following is not None:
        show.console(stderr=True).print("there are more: --limit shows them")


@app.command("show")
@grouped
def show_session(session: SessionId, remote: Remote) -> None:
    """Show a session and its commands."""
    with remote.opened() as api:
        asked = Session(api, session)
        found, commands = asked.get(), asked.commands()
    if remote.as_json:
        show.document({**found, "commands": commands})
        return
    show.pairs(session_pairs(found, show.now()))
    if commands:
        typer.echo()
        _print_commands(commands)


@app.command("ps")
@grouped
def ps(session: SessionId, remote: Remote) -> None:
    """List the commands of a session, also those that have ended."""
    with remote.opened() as api:
        found = Session(api, session).commands()
    if remote.as_json:
        show.document({"commands": found})
        return
    _print_commands(found)


def _print_commands(commands: list[dict[str, Any]]) -> None:
    show.table(COMMAND_HEAD, [command_row(one, show.now()) for one in commands], whole=["command", "status"])


@app.command("extend")
@grouped
def extend(
    session: SessionId,
    lease: Annotated[str, typer.Argument(metavar="TIME", help="From now, like 10m. A lease is never made shorter.")],
    remote: Remote,
) -> None:
    """Let a session live longer."""
    seconds = _seconds(lease, "TIME")
    assert seconds is not None
    with remote.opened() as api:
        answer = Session(api, session).extend(seconds)
    remote.tell(answer, f"{session} lives until {show.local(answer.get('lease_expires_at'))}")


@app.command("rm")
@grouped
def rm(
    sessions: Annotated[
        list[str], typer.Argument(metavar="SESSION…", help="Ids of sessions.", autocompletion=completing.sessions)
    ],
    remote: Remote,
) -> None:
    """Remove sessions, with everything that runs in them and all their files."""
    removed, failed = list[str](), list[str]()
    with remote.opened() as api:
        for session in sessions:
            try:
                Session(api, session).remove()
            except NoAnswerError:
                raise
            except CommandError as error:
                failed.append(error.detail)
            else:
                removed.append(session)
    if removed or remote.as_json:
        remote.tell({"removed": removed}, "\n".join(removed))
    for detail in failed:
        show.console(stderr=True).print(f"fumehood: {detail}", soft_wrap=True)
    if failed:
        raise typer.Exit(FAILED)


app.command("exec")(exec_)
app.command("shell")(shell)
app.command("attach")(attach)
app.command("logs")(logs)
app.command("kill")(kill)
app.command("receipt")(receipt)
app.command("cp")(session_files.cp)
