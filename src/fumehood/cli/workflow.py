"""`fumehood workflow`: apply definitions, look at them, run them."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from fumehood.cli import completing, given, graph, runs, show, watching
from fumehood.cli.client import Api, ApiError, part
from fumehood.cli.exits import INTERRUPTED, CommandError, UsageError
from fumehood.cli.graph import Format
from fumehood.cli.options import Remote, grouped

app = typer.Typer(no_args_is_help=True)

MOST = 100_000
PAGE = 1000
YAML, JSON = "application/yaml", "application/json"

Name = Annotated[str, typer.Argument(metavar="NAME", help="The workflow's name.", autocompletion=completing.workflows)]


# --- applying ----------------------------------------------------------------------------------------------


@app.command("apply")
@grouped
def apply(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Definitions, as YAML or JSON.")],
    remote: Remote,
) -> None:
    """Make definitions the current ones of their names. Runs that are under way keep the one they have."""
    found = [(file, *_read(file)) for file in files]
    applied = []
    with remote.opened() as api:
        for file, name, content in found:
            applied.append(_apply(api, file, name, content))
            if not remote.as_json:
                show.console().print(f"{applied[-1]['name']} version {applied[-1]['version']}")
    if remote.as_json:
        show.document(applied)


def _read(file: Path) -> tuple[str, bytes]:
    """A definition's name, and all of it as it stands: what is wrong with the rest is for the server to say."""
    import yaml

    try:
        content = file.read_bytes()
        document = yaml.safe_load(content)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise UsageError(
            f"{file} is not valid YAML: {where}{show.plain(str(getattr(error, 'problem', error)))}; correct that line "
            f"(`fumehood workflow graph {file}` checks it without a server)"
        ) from None
    name = document.get("name") if isinstance(document, dict) else None
    if not isinstance(name, str):
        raise UsageError(f"{file} is no workflow: it has no name")
    return name, content


def _apply(api: Api, file: Path, name: str, content: bytes) -> dict[str, Any]:
    kind = JSON if file.suffix == ".json" else YAML
    try:
        answer: dict[str, Any] = api.put_text(f"/v1/workflows/{part(name)}", content, kind)
    except ApiError as error:
        if not error.problems:
            raise
        raise CommandError(f"{file} was not applied\n" + "\n".join(f"  {line}" for line in error.problems)) from None
    return answer


# --- looking -----------------------------------------------------------------------------------------------


@app.command("ls")
@grouped
def ls(remote: Remote) -> None:
    """List workflows by name."""
    with remote.opened() as api:
        found, _ = api.listed("/v1/workflows", "workflows", most=MOST, page=PAGE)
    if remote.as_json:
        show.document({"workflows": found})
        return
    rows = [[one["name"], str(one["version"]), show.local(one["applied_at"]), one["digest"][:19]] for one in found]
    show.table(["name", "version", "applied", "definition"], rows, whole=["name"])


@app.command("show")
@grouped
def show_workflow(
    name: Name,
    *,
    digest: Annotated[str | None, typer.Option(help="Another definition than the current one: sha256:…")] = None,
    remote: Remote,
) -> None:
    """Show a workflow and its graph; with --json its whole definition."""
    with remote.opened() as api:
        found = _get(api, name, digest)
    if remote.as_json:
        show.document(found)
        return
    definition, out = found["definition"], show.console()
    bounds = {"deadline": definition.get("deadline"), "max_parallel": definition.get("max_parallel")}
    show.pairs(
        {
            "name": found["name"],
            "description": definition.get("description"),
            "version": str(found["version"]) if found.get("version") else "not the current one",
            "applied": show.local(found.get("applied_at")),
            "definition": found["digest"],
            "deadline": graph.duration(bounds["deadline"]) if bounds["deadline"] else None,
            "at once": f"{bounds['max_parallel']} steps" if bounds["max_parallel"] else None,
            "on failure": f"task {definition['on_failure']['task']}" if "on_failure" in definition else None,
        }
    )
    out.print()
    out.print(graph.text(definition, out.width))


@app.command("graph")
@grouped
def show_graph(
    name_or_file: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A workflow, or a file with one.")],
    *,
    form: Annotated[Format, typer.Option("--format", help="text is for this terminal.")] = Format.TEXT,
    remote: Remote,
) -> None:
    """Draw the graph of a workflow. One in a file needs no server: it is checked and drawn here."""
    if Path(name_or_file).is_file():
        definition = _parsed(Path(name_or_file))
    else:
        with remote.opened() as api:
            definition = _get(api, name_or_file)["definition"]
    if remote.as_json:
        needs = graph.needs(definition)
        steps = [{"id": one["id"], "kind": graph.kind(one), "needs": needs[one["id"]]} for one in definition["steps"]]
        show.document({"name": definition["name"], "steps": steps})
    elif form is Format.TEXT:
        out = show.console()
        out.print(graph.text(definition, out.width))
    else:
        typer.echo((graph.mermaid if form is Format.MERMAID else graph.dot)(definition))


def _parsed(file: Path) -> dict[str, Any]:
    from fumehood.engine.definition import parse
    from fumehood.errors import InvalidDefinitionError

    try:
        definition: dict[str, Any] = json.loads(parse(file.read_text(encoding="utf-8")).canonical())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    except InvalidDefinitionError as error:
        lines = "\n".join(f"  {show.plain(line)}" for line in error.problems)
        raise UsageError(f"{file} is no workflow\n{lines}") from None
    return definition


def _get(api: Api, name: str, digest: str | None = None) -> dict[str, Any]:
    with _named(api, name) if digest is None else nullcontext():
        found: dict[str, Any] = api.get(f"/v1/workflows/{part(name)}", {"digest": digest})
    return found


def _named(api: Api, name: str) -> AbstractContextManager[None]:
    return given.named(api, "workflow", name, most=PAGE, page=PAGE)


# --- running -----------------------------------------------------------------------------------------------


@app.command("run")
@grouped
def run(
    name: Name,
    *,
    value: Annotated[
        str | None, typer.Option("--input", metavar="JSON", help="The run's input; @FILE for a file, - for stdin.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="Written on the run; repeat for more.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: the same start again with it is the same run.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until the run has ended; 0 only if it succeeded.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="The same, on a live screen.")] = False,
    remote: Remote,
) -> None:
    """Start a run. Prints its id, and nothing else."""
    if wait and watch:
        raise UsageError("--wait and --watch: give one of them")
    labels = given.labels(label)
    body = {"input": given.json_value(value, "--input")}
    body |= ({"labels": labels} if labels else {}) | ({"idempotency_key": key} if key is not None else {})
    with remote.opened() as api:
        with _named(api, name):
            answer = api.post(f"/v1/workflows/{part(name)}/runs", body)
        if watch:
            watching.follow(api, answer["run_id"], as_json=remote.as_json)
        elif wait:
            _wait(api, answer["run_id"], remote.as_json)
    if remote.as_json:
        show.document(answer)
    else:
        typer.echo(answer["run_id"])


@app.command("watch")
@grouped
def watch(name: Name, remote: Remote) -> None:
    """Follow the newest run of a workflow on a live screen until it ends. Exits with 0 where it succeeded, and with 1
    where it did not."""
    with remote.opened() as api:
        found, _ = api.listed("/v1/runs", "runs", {"workflow": name}, most=1, page=1, cursor="cursor")
        if not found:
            _get(api, name)  # says which one was meant where there is no such workflow
            raise CommandError(f"{name} has no run yet: `fumehood workflow run {name}` starts one")
        watching.follow(api, found[0]["run_id"], as_json=remote.as_json)


def _wait(api: Api, run_id: str, as_json: bool) -> None:
    """Quietly; whoever gives up learns which run it was."""
    try:
        ended = watching.wait(api, run_id)
    except KeyboardInterrupt:
        show.console(stderr=True).print(f"fumehood: {run_id} goes on", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        show.document(ended)
    else:
        runs.print_run(api, ended)
    raise typer.Exit(watching.exit_code(ended))
