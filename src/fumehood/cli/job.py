"""`fumehood job`: ask for a job, wait for its verdict, keep what proves it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fumehood.cli import given, job_payload, job_view, show
from fumehood.cli.client import Api, ApiError, part
from fumehood.cli.exits import CommandError
from fumehood.cli.job_watch import asking, until_ended
from fumehood.cli.leaving import LEAVING, left
from fumehood.cli.options import Remote, grouped
from fumehood.cli.output import Screen
from fumehood.cli.pulse import Pulse, Transfer

app = typer.Typer(no_args_is_help=True)

Type = Annotated[str, typer.Argument(metavar="TYPE", help="The job type; `fumehood job types` lists them.")]
File = Annotated[str, typer.Argument(metavar="[FILE]", help="The request, as JSON or YAML; - is stdin.")]
Job = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
Receipts = Annotated[
    Path | None, typer.Option("--receipts", metavar="DIR", help="Write each receipt to a file of its own there.")
]
Redundancy = Annotated[
    int | None, typer.Option("--redundancy", min=1, help="So many distinct providers do it, whatever FILE says.")
]
Adjudication = Annotated[
    str | None, typer.Option("--adjudication", metavar="WORD", help="How one result is made of theirs.")
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Whether to wait for the verdict.")]
Key = Annotated[
    str | None, typer.Option("--idempotency-key", metavar="KEY", help="The same key again is the same job.")
]


@dataclass(frozen=True, slots=True)
class Trust:
    """How sure the result has to be."""

    redundancy: Redundancy = None
    adjudication: Adjudication = None


@app.command("submit")
@grouped
def submit(
    job_type: Type,
    file: File = "-",
    *,
    trust: Trust,
    wait: Wait = True,
    key: Key = None,
    receipts: Receipts = None,
    remote: Remote,
) -> None:
    """Submit a job, wait for its verdict, and show what counts.

    Exit codes: 0 there is a result; 1 there is none, or the server said no; 4 its providers disagree; 122 its end
    could not be read; 124 it took too long; 130 Ctrl-C (the job is cancelled); 143 somebody else cancelled it. What a
    result says is no exit code: a test that fails in a sandbox is a result.
    """
    payload = job_payload.read(file)
    screen = Screen()
    with remote.opened() as api:
        if trust.redundancy is not None or trust.adjudication is not None:
            kind = _type(api, job_type)
            payload = job_payload.with_trust(payload, kind, trust.redundancy, trust.adjudication)
        made = _submitted(api, job_type, payload, key)
        if ignored := made.get("ignored"):
            notice = f"fumehood: {job_type} has no field {', '.join(ignored)}: ignored"
            show.console(stderr=True).print(notice, markup=False, soft_wrap=True)
        if not wait:
            remote.tell(made, made["job_id"])
            return
        raise typer.Exit(_waited(api, made["job_id"], screen, receipts, as_json=remote.as_json))


def _submitted(api: Api, job_type: str, payload: dict[str, Any], key: str | None) -> dict[str, Any]:
    """Asked again after an answer that did not come: with a key, that is the same job."""
    body = {"job_type": job_type, "payload": payload}
    named = f"cli-{secrets.token_hex(16)}" if key is None else key
    try:
        return api.post_named("/v1/jobs", body, made="job_id", key=named)
    except ApiError as error:
        if error.status == 404:
            raise given.no_such("job type", job_type, [one["name"] for one in _types(api)]) from None
        raise


def _waited(api: Api, job_id: str, screen: Screen, receipts: Path | None, *, as_json: bool) -> int:
    interrupts = asking(api, job_id, screen)
    try:
        with interrupts:
            ended = until_ended(api, job_id, screen)
    except LEAVING as error:
        seen = f"`fumehood job show {job_id}` shows it"
        return left(error, job_id, screen, interrupted=f"it is being cancelled, and {seen}", unread=seen)
    _told(ended, receipts, as_json=as_json)
    return job_view.exit_code(ended, asked_to_stop=interrupts.asked)


def _told(job: dict[str, Any], receipts: Path | None, *, as_json: bool) -> None:
    written = job_payload.write_receipts(job, receipts) if receipts is not None else []
    if as_json:
        show.document(job)
        return
    job_view.shown(job, written)


@app.command("show")
@grouped
def show_job(job: Job, *, receipts: Receipts = None, remote: Remote) -> None:
    """Show a job: its result, the verdict and who said what. With --json all of it, as `fumehood verify` takes it."""
    with remote.opened() as api:
        _told(_get(api, job), receipts, as_json=remote.as_json)


@app.command("cancel")
@grouped
def cancel(job: Job, remote: Remote) -> None:
    """Cancel a job. What its providers do is ended; one that has ended stays as it is."""
    with remote.opened() as api:
        try:
            answer = api.post(f"/v1/jobs/{part(job)}:cancel")
        except ApiError as error:
            raise _no_such(error, job) from None
    remote.tell(answer, f"{job} is being cancelled")


def _get(api: Api, job: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = api.get(f"/v1/jobs/{part(job)}")
    except ApiError as error:
        raise _no_such(error, job) from None
    return found


def _no_such(error: ApiError, job: str) -> CommandError:
    return CommandError(f"there is no job {job}") if error.status == 404 else error


# --- types -------------------------------------------------------------------------------------------------


@app.command("types")
@grouped
def types(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One of them: its schemas.")] = None,
    *,
    remote: Remote,
) -> None:
    """List the job types that the server knows; with NAME, what one takes and gives."""
    with remote.opened() as api:
        found: Any = _types(api) if name is None else _type(api, name)
    if remote.as_json:
        show.document({"job_types": found} if name is None else found)
    elif name is None:
        rows = [[one["name"], one["version"], one["about"]] for one in found]
        show.table(["job type", "version", "about"], rows, whole=["job type"])
    else:
        job_view.shown_type(found)


def _types(api: Api) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get("/v1/job-types")["job_types"]
    return found


def _type(api: Api, name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = api.get(f"/v1/job-types/{part(name)}")
    except ApiError as error:
        if error.status != 404:
            raise
        raise given.no_such("job type", name, [one["name"] for one in _types(api)]) from None
    return found


# --- uploads -----------------------------------------------------------------------------------------------


@app.command("upload")
@grouped
def upload(
    source: Annotated[
        Path, typer.Argument(metavar="PATH", help="A git bundle, a tar, a git repository, or any other folder.")
    ],
    remote: Remote,
) -> None:
    """Upload a repository, and print what a request names it by, as `repo.source`.

    Of a git repository, what is committed goes along, with all its branches and tags; of another folder, every file.
    """
    with Pulse(f"packing {source}") as pulse, job_payload.bundled(source) as file, remote.opened() as api:
        going, size = Transfer(pulse, "sending"), file.stat().st_size
        answer = api.send_named("/v1/bundles", lambda: going.pieces(source.name, job_payload.pieces(file), size))
    remote.tell(answer, str(answer["source"]))
