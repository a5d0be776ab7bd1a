"""`fumehood run`: an image in a sandbox, what it prints as it appears, and its exit code as ours.

Whatever happens here, the run is the server's: this command starts it, watches it, and may ask for its end.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fumehood.cli import denial, receipt_out, run_request
from fumehood.cli.client import Api, ApiError, part
from fumehood.cli.exits import INTERRUPTED, NOT_RUN, CommandError, UnknownEndError, UsageError, unknown_if_it_may_run
from fumehood.cli.leaving import LEAVING, left
from fumehood.cli.options import Remote, grouped
from fumehood.cli.output import Printed, Screen
from fumehood.cli.parts import BEHIND
from fumehood.cli.run_end import end_of
from fumehood.cli.run_watch import QUEUED, Phase, QueueNotice, stopping, until_ended
from fumehood.cli.stream import Patience
from fumehood.cli.watching import Complaints

MOST_LINES = 10_000
"""Of each stream in the document that `--json` prints: the most that a server gives."""

Image = Annotated[str, typer.Argument(metavar="IMAGE", help="The image, like 127.0.0.1:5055/fumehood/base:1.")]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar=BEHIND, help="Behind --: arguments of the image's entrypoint, instead of its own."),
]
Cpu = Annotated[str, typer.Option("--cpu", metavar="CORES", help="Cores (0.5), or thousandths (500m).")]
Memory = Annotated[str, typer.Option("--memory", metavar="MIB", help="MiB (512), or GiB (2g).")]
Timeout = Annotated[str, typer.Option("--timeout", metavar="TIME", help="Like 30s or 5m; then it is killed.")]
Network = Annotated[
    str, typer.Option("--network", metavar="PROFILE", help=f"One of {', '.join(run_request.NETWORKS)}.")
]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="NAME=VALUE", help="A variable, no secret; repeat for more."),
]
Command = Annotated[
    bool, typer.Option("--command", help="What stands behind -- replaces the image's entrypoint as well.")
]
Attempts = Annotated[
    int, typer.Option("--attempts", min=1, help="How often it may be begun, should a node be lost under it.")
]
Receipt = Annotated[
    Path | None,
    typer.Option("--receipt", metavar="FILE", help="Keep there what the node signed about it, for `fumehood verify`."),
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Print the run's id and do not wait.")]
Key = Annotated[
    str | None, typer.Option("--idempotency-key", metavar="KEY", help="The same key again is the same run.")
]


@dataclass(frozen=True, slots=True)
class Wish:
    """How it is to be run."""

    cpu: Cpu = "1"
    memory: Memory = "512"
    timeout: Timeout = "5m"
    network: Network = "deny-all"
    env: Env = None
    command: Command = False
    attempts: Attempts = 1

    def body(self, image: str, words: list[str]) -> dict[str, Any]:
        limits = {
            "cpu_millis": run_request.cpu_millis(self.cpu),
            "memory_mb": run_request.memory_mib(self.memory),
            "timeout_seconds": run_request.timeout_seconds(self.timeout),
        }
        return run_request.body(
            image,
            words,
            replaces_entrypoint=self.command,
            limits=limits,
            network_policy_profile=run_request.network(self.network),
            env_allowlist=run_request.environment(self.env),
            max_attempts=self.attempts,
        )


class NotRunError(CommandError):
    """Nothing was run, and the reason was told."""

    code = "not-run"
    exit_code = NOT_RUN


@grouped
def run(
    image: Image,
    words: Words = None,
    *,
    wish: Wish,
    receipt: Receipt = None,
    detach: Detach = False,
    key: Key = None,
    remote: Remote,
) -> None:
    """Run an image in a sandbox: its output as it appears, its exit code as the command's own.

    Other ends: 122 unknown (its node was lost), 124 timeout, 125 not run (denied, or no such image), 130 Ctrl-C,
    137 out of memory, 128+N signal N, 143 stopped by somebody else.
    """
    body = wish.body(image, words or [])
    if receipt is not None and detach:
        raise UsageError("--receipt waits for the end, and --detach does not: `fumehood runs receipt RUN` comes later")
    screen = Screen()
    with remote.opened() as api:
        if receipt is not None:
            receipt_out.clear_place(receipt)
        made = _created(api, body, key, screen)
        if detach:
            remote.tell(made, made["run_id"])
            return
        code = _watched(api, made["run_id"], screen, as_json=remote.as_json)
        if receipt is not None:
            receipt_out.keep(api, made["run_id"], receipt, screen)
        raise typer.Exit(code)


# --- creating ----------------------------------------------------------------------------------------------


def _created(api: Api, body: Mapping[str, Any], key: str | None, screen: Screen) -> dict[str, Any]:
    """Asked again after an answer that did not come: with a key, that is the same run."""
    named = f"cli-{secrets.token_hex(16)}" if key is None else key
    try:
        with unknown_if_it_may_run("fumehood runs ls"):
            return api.post_named("/runs", body, made="run_id", key=named)
    except UnknownEndError:
        raise
    except CommandError as error:
        evidence = error.evidence if isinstance(error, ApiError) else None
        if evidence is None:
            raise NotRunError(run_request.in_options(error.detail)) from None
        screen.explain(denial.explained(evidence, error.detail))
        raise typer.Exit(NOT_RUN) from None
    except KeyboardInterrupt:
        screen.say("interrupted before the server answered: it may run all the same, and `fumehood runs ls` shows it")
        raise typer.Exit(INTERRUPTED) from None


# --- watching ----------------------------------------------------------------------------------------------


def _watched(api: Api, run_id: str, screen: Screen, *, as_json: bool) -> int:
    """The exit code of a run that was followed to its end."""
    interrupts = stopping(api, run_id, screen)
    try:
        with interrupts:
            _show(api, run_id, screen, as_json=as_json)
            ended = until_ended(api, run_id, _patience(screen))
    except LEAVING as error:
        interrupted = f"it ends by itself, and `fumehood runs logs {run_id}` shows it"
        unread = f"{run_id} goes on, `fumehood runs stop {run_id}` ends it"
        return left(error, run_id, screen, interrupted=interrupted, unread=unread)
    if as_json:
        screen.document(ended, lambda: _with_output(api, ended))
    end = end_of(ended, asked_to_stop=interrupts.asked)
    if end.line:
        screen.say(end.line)
    return end.code


def _show(api: Api, run_id: str, screen: Screen, *, as_json: bool) -> None:
    """For programs, only that it has ended matters: all of it is in the document."""
    with screen.waiting(QUEUED) as pulse, QueueNotice(api, run_id, screen) as notice, Phase(api, run_id, pulse):
        for event in Printed(api, f"/runs/{part(run_id)}/logs", _patience(screen)).events():
            notice.over()
            if not as_json or event["event"] == "start":
                screen.show(event)


def _patience(screen: Screen) -> Patience:
    return Patience(Complaints(screen.say))


def _with_output(api: Api, ended: dict[str, Any]) -> dict[str, Any]:
    logs = api.get(f"/runs/{ended['run_id']}/logs", {"tail_lines": MOST_LINES})
    return {**ended, **{name: logs[name] for name in ("stdout", "stderr", "truncated")}}
