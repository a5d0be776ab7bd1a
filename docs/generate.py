"""Writes docs/reference/ from the code: `python docs/generate.py`, and with `--check` only says what is stale.

What can be read off the code is never written by hand. `tests/examples/test_docs.py` fails while the committed pages
differ from what this makes.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime as dt
import errno
import inspect
import itertools
import json
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer.main

from fumehood.cli.main import app
from fumehood.errors import (
    BrokerError,
    ConfigurationError,
    FileOperationError,
    FumehoodError,
    ImageError,
    InvalidDefinitionError,
    SandboxError,
    TopologyError,
)
from fumehood.node import result
from fumehood.node.http import problems
from fumehood.node.telemetry import Metrics
from fumehood.sandbox import spec
from fumehood.sandbox.docker import plan, seccomp
from fumehood.sandbox.spec import End, Limits, Outcome, Stage
from fumehood.settings import CONFIG_VARIABLE, PREFIX, NodeSettings, RegistryCredentials
from fumehood.wire import worker_api
from fumehood.wire.problem import problem_type

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
NOTICE = "<!-- Made by docs/generate.py from the code; edit that, not this. -->"


# --- helpers -----------------------------------------------------------------------------------------------


def page(title: str, *parts: str) -> str:
    return "\n\n".join([NOTICE, f"# {title}", *(part.strip("\n") for part in parts)]) + "\n"


def prose(text: str) -> str:
    """One paragraph, wrapped as the hand-written pages are."""
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(_cell(text) for text in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: object) -> str:
    return f"`{text}`"


def attribute_docs(kind: type) -> dict[str, str]:
    """The strings that stand below the fields of a class, which Python itself throws away."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    return dict(_documented(tree.body))


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for before, after in itertools.pairwise(body):
        target = before.target if isinstance(before, ast.AnnAssign) else None
        if isinstance(before, ast.Assign):
            target = before.targets[0]  # type: ignore[assignment]
        if isinstance(target, ast.Name) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield target.id, _joined(str(after.value.value))


def _joined(text: str) -> str:
    """Lines that were broken inside a hyphenated word grow together again."""
    return " ".join(text.split()).replace("start- up", "start-up")


def first_paragraph(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").split("\n\n", 1)[0].split())


# --- settings ----------------------------------------------------------------------------------------------


def settings_page() -> str:
    hints, docs = get_type_hints(NodeSettings), attribute_docs(NodeSettings)
    rows = []
    for item in dataclasses.fields(NodeSettings):
        if item.metadata.get("derived"):
            continue
        variable = "" if item.name == "registries" else code(PREFIX + item.name.upper())
        rows.append(
            [code(item.name), variable, _kind(hints[item.name]), _default(item), _bounds(item), docs[item.name]]
        )
    registry_docs = attribute_docs(RegistryCredentials)
    registry_hints = get_type_hints(RegistryCredentials)
    registry_rows = [
        [
            code(item.name),
            _kind(registry_hints[item.name]),
            registry_docs.get(item.name, "")
            or {
                "host": "The registry as it stands in image references, with its port. Needed.",
                "username": "Together with `password_file`, or not at all.",
                "password_file": "A file that holds only the password.",
            }[item.name],
        ]
        for item in dataclasses.fields(RegistryCredentials)
    ]
    return page(
        "Settings of a node",
        prose(
            f"""
            A value comes from, in falling order: a flag of the command line, a variable, the TOML file
            (`--config`, or the file that {code(CONFIG_VARIABLE)} names), the default. A name that nobody knows
            is an error in all of them. The unit is the end of the name: `_seconds`, `_mib`, `_bytes`, `_millis`
            (thousandths of a core).
            """
        ),
        table(["setting", "variable", "type", "default", "bounds", "what and why"], rows),
        "## `[[registries]]`",
        "Credentials, one table for each registry, in the TOML file only.",
        table(["key", "type", "what"], registry_rows),
        "## Fixed",
        "Not settings: these bounds of a sandbox are the same on every node.",
        table(["bound", "value"], _fixed()),
    )


def _fixed() -> list[list[str]]:
    limits = Limits()
    return [
        ["open files of each process", str(limits.open_files)],
        [
            "files and folders in `/workspace` and in `/tmp`, each",
            f"{limits.workspace_inodes:,} on runc; gVisor does not count them: there memory is the bound",
        ],
        ["largest single file", "`workspace_mib`"],
        ["`/dev/shm`", f"{limits.shm_bytes // spec.MIB} MiB"],
        ["each volume that the image declares", f"{plan.IMAGE_VOLUME_BYTES // spec.MIB} MiB, in memory"],
        ["PIDs beyond `pids` on gVisor, for its own threads", str(plan.OWN_KERNEL_THREADS)],
        ["core dumps", "0 bytes"],
        ["network", "none but loopback"],
        ["user of a program", f"{spec.SANDBOX_USER.uid}:{spec.SANDBOX_USER.gid}, unless `run_as` says `image`"],
        ["user of the warden", str(spec.WARDEN_UID)],
    ]


def _kind(hint: Any) -> str:
    options = [part for part in get_args(hint) if part is not types.NoneType]
    if types.NoneType in get_args(hint):
        hint = options[0]
    if get_origin(hint) is Literal:
        return " or ".join(code(value) for value in get_args(hint))
    names = {int: "integer", float: "number", bool: "true/false", str: "text", Path: "path"}
    return names.get(hint, "list of tables")


def _default(item: dataclasses.Field[Any]) -> str:
    if item.default is None:
        return "none"
    if item.default == ():
        return "none"
    if isinstance(item.default, bool):
        return code(str(item.default).lower())
    return code(item.default)


def _bounds(item: dataclasses.Field[Any]) -> str:
    if "low" not in item.metadata:
        return ""
    return f"{item.metadata['low']:,} to {item.metadata['high']:,}"


# --- errors ------------------------------------------------------------------------------------------------


LATER = (BrokerError, FileOperationError, InvalidDefinitionError, TopologyError)
"""Errors of parts that this version does not open to anybody yet."""


def errors_page() -> str:
    found = {kind for kind in _subclasses(FumehoodError) if not issubclass(kind, LATER)} - {ImageError}
    answered = sorted((kind for kind in found if kind.code in problems.KINDS), key=lambda k: (_status(k.code), k.code))
    others = sorted((kind for kind in found if kind.code not in problems.KINDS), key=lambda kind: kind.code)
    extra = sorted(set(problems.KINDS) - {kind.code for kind in answered})
    rows = [[code(k.code), *_answer(k.code), _yes(k.retryable), first_paragraph(k.__doc__)] for k in answered]
    rows += [[code(name), *_answer(name), "no", "The path exists, with other methods."] for name in extra]
    rows.sort(key=lambda row: (row[1], row[0]))
    return page(
        "Errors",
        prose(
            """
            Every error has a stable code. *Retryable* means that the very same request, `job_id` included, may be
            sent again and may succeed then; the job never runs twice by that.
            """
        ),
        "## Answers of the Worker API",
        prose(
            f"""
            Error bodies are RFC 9457 problem documents (`application/problem+json`): `type`, which is
            {code(problem_type(""))} and the code, `version`, `title`, `status`, `detail` and `instance`, which is
            the request id that stands in `X-Request-Id` and in the node's log. Answers with 503 have a
            `Retry-After`. `forbidden` is reserved: this version has one kind of caller.
            """
        ),
        table(["code", "status", "title", "retryable", "meaning"], rows),
        "## Errors that become something else",
        prose(
            """
            These have no status of their own. About an image or a sandbox they become the end of a job, which is
            answered with 200: *how* names the exit code and the header `Fumehood-Exit-Reason` (see
            [outcomes](outcomes.md)). A fault of the node's is answered with 500 and the title "Internal node
            error"; the same request may be sent again. The codes stand in the node's log.
            """
        ),
        table(["code", "how", "meaning"], [[code(k.code), _fate(k), first_paragraph(k.__doc__)] for k in others]),
    )


FATES = {
    "sandbox": "failed job, 125, `not_started`; in a check of the node's own, what `/readyz` says",
    "sandbox-lost": "failed job, 137, `sandbox_lost` or `node_lost`",
    "sandbox-not-found": "failed job, 137, `node_lost`",
    "warden-protocol": "tried again; then failed job, 137, `sandbox_lost`",
    "command-refused": "tried again; then failed job, 137, `sandbox_lost`",
}


def _fate(kind: type[FumehoodError]) -> str:
    if kind.code in FATES:
        return FATES[kind.code]
    if issubclass(kind, ConfigurationError):
        return "the command ends with exit code 2"
    if issubclass(kind, ImageError | SandboxError):
        return "failed job, 125, `not_started`"
    return "500"


def _answer(name: str) -> tuple[str, str]:
    return str(problems.KINDS[name].status), problems.KINDS[name].title


def _status(name: str) -> int:
    return problems.problem(name, "", "x").status_code


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _subclasses(kind: type[FumehoodError]) -> Iterator[type[FumehoodError]]:
    for sub in kind.__subclasses__():
        if sub.__module__.startswith("fumehood."):
            yield sub
            yield from _subclasses(sub)


# --- outcomes ----------------------------------------------------------------------------------------------


def outcomes_page() -> str:
    reasons = attribute_docs(worker_api.ExitReason)
    listed = [[code(reason.value), reasons[reason.name]] for reason in worker_api.ExitReason]
    return page(
        "How jobs end",
        prose(
            """
            `status`, `exit_code` and the header `Fumehood-Exit-Reason`, for every way in which a job can end.
            The rows are made by the function that makes the answers.
            """
        ),
        table(["what happened", "`status`", "`exit_code`", "`Fumehood-Exit-Reason`"], _ends()),
        "## Reasons",
        "The header is there only where status and exit code do not say it all.",
        table(["reason", "meaning"], listed),
        "## A program that returns the same number",
        prose(
            """
            125, 126, 127 and 137 are also numbers that a program may return by itself. The header tells them
            apart: with `not_started` the program never ran; with `signal`, `oom`, `node_lost` or `sandbox_lost`
            something ended it; without the header the number is the program's own.
            """
        ),
    )


def _ends() -> list[list[str]]:
    now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    def outcome(end: End, **more: Any) -> Outcome:
        return Outcome(end, started_at=now, ended_at=now, **more)

    def not_started(stage: Stage, number: int) -> Outcome:
        return outcome(End.NOT_STARTED, stage=stage, errno=number)

    cases: list[tuple[str, Outcome]] = [
        ("the program returned 0", outcome(End.EXITED, exit_code=0)),
        ("the program returned another number, say 3", outcome(End.EXITED, exit_code=3)),
        ("a signal ended the program, say SIGTERM (15)", outcome(End.SIGNALED, signal=15)),
        ("the deadline passed", outcome(End.TIMED_OUT)),
        ("the kernel killed it for its memory", outcome(End.OOM)),
        ("there is no such program", not_started(Stage.EXEC, errno.ENOENT)),
        ("the file is not executable", not_started(Stage.EXEC, errno.EACCES)),
        ("the program could not be set up: no process, user or working directory", not_started(Stage.FORK, 11)),
        ("the sandbox ended before the warden could say how the program did", outcome(End.SANDBOX_LOST)),
    ]
    rows = [[what, *_said(result.verdict(ended))] for what, ended in cases]
    refused = ["the image was denied or could not be fetched, or the engine refused to start it"]
    lost = ["the engine or the machine went away under the job, or the node did and nothing was left to attach to"]
    rows.append([*refused, "`failed`", code(result.CANNOT_START), code(worker_api.ExitReason.NOT_STARTED)])
    rows.append([*lost, "`failed`", code(result.KILLED), code(worker_api.ExitReason.NODE_LOST)])
    return rows


def _said(verdict: result.Verdict) -> list[str]:
    number = "absent" if verdict.exit_code is None else code(verdict.exit_code)
    return [code(verdict.status), number, code(verdict.reason) if verdict.reason else "absent"]


# --- command line ------------------------------------------------------------------------------------------


def cli_page() -> str:
    root: Any = typer.main.get_command(app)
    commands: dict[str, Any] = root.commands
    parts = [_command("fumehood", root)]
    parts += [_command(f"fumehood {name}", command) for name, command in commands.items()]
    return page(
        "Command line",
        prose(
            """
            Exit codes: 0 success, 1 `doctor` found that a node could not run jobs here, 2 wrong usage or a
            configuration error (one line on stderr says which). A node that is told twice to stop exits with 130.
            `dev` ends as its node did, with 128 and the number of a signal that killed it.
            """
        ),
        prose(
            """
            [Settings](settings.md) that have no option come from `FUMEHOOD_*` variables, for `dev` and `doctor` as
            for `node`. `fumehood --install-completion` and `--show-completion` are for the completion of words in
            your shell.
            """
        ),
        *parts,
    )


def _command(name: str, command: Any) -> str:
    rows = [_option(option) for option in command.params if not getattr(option, "hidden", False)]
    rows = [row for row in rows if not row[0].startswith(("`--install-", "`--show-"))]
    lines = [f"## `{name}`", first_paragraph(command.help)]
    return "\n\n".join([*lines, table(["option", "default", "what"], rows)])


def _option(option: Any) -> list[str]:
    names = ", ".join(code(text) for text in (*option.opts, *option.secondary_opts))
    default = option.default
    shown = "" if default is None or default is False or callable(default) else code(default)
    return [names, shown, str(getattr(option, "help", "") or "")]


# --- HTTP --------------------------------------------------------------------------------------------------


def http_page() -> str:
    document: dict[str, Any] = json.loads((ROOT / "contracts/openapi/worker-api.json").read_text(encoding="utf-8"))
    schemas = document["components"]["schemas"]
    parts = [_operation(path, method, what) for path, ops in document["paths"].items() for method, what in ops.items()]
    models = [_model(name, schemas) for name in sorted(schemas) if "properties" in schemas[name]]
    return page(
        "Worker API",
        prose(
            f"""
            {document["info"]["description"]} The source of this page is
            [`contracts/openapi/worker-api.json`](../../contracts/openapi/worker-api.json); JSON Schemas of the
            bodies are in [`contracts/schemas/`](../../contracts/schemas), examples in
            [`contracts/golden/`](../../contracts/golden/worker-api).
            """
        ),
        prose(
            """
            Requests carry `Authorization: Bearer TOKEN`, but for `/healthz` and `/readyz`, and for `/metrics`
            where the node listens on a loopback address. Paths that do not exist need the token too. The node
            serves the OpenAPI document at `/openapi.json`.
            """
        ),
        *parts,
        "## The same request again",
        prose(
            """
            `job_id` is a job's identity for as long as its answer is kept (`result_retention_seconds`, a day). The
            same request again joins the job while it runs and gets the stored answer after that; another request
            under the same id is 409. Two requests are the same when they say the same: white space, the order of
            keys, the case of the ids and defaults that are written out make no difference; everything else does,
            `task_id`, a timeout that only spells out the node's default, and the order of arguments included.
            """
        ),
        "## Bodies",
        prose(
            """
            JSON in UTF-8. Unknown fields are refused, and so are the same key twice, `NaN` and half a surrogate
            pair. Nothing is guessed into another type: `"1"` is not 1, and `null` is not absent. Times are RFC 3339
            in UTC with milliseconds. They are the warden's, that is of the clock of the node's machine, and tell
            when the program began and ended, not when the request did.
            """
        ),
        *models,
    )


def _operation(path: str, method: str, what: dict[str, Any]) -> str:
    rows = [
        [status, answer["description"], ", ".join(code(name) for name in answer.get("headers", {}))]
        for status, answer in sorted(what["responses"].items())
    ]
    headers = {name: about for answer in what["responses"].values() for name, about in answer["headers"].items()}
    return "\n\n".join(
        [
            f"## `{method.upper()} {path}`",
            table(["status", "answer", "headers"], rows),
            table(["header", "what"], [[code(name), _header(about)] for name, about in headers.items()]),
        ]
    )


def _header(about: dict[str, Any]) -> str:
    values = [code(value) for value in about["schema"].get("examples", ())]
    return str(about["description"]) + (f": {', '.join(values)}" if values else "")


def _model(name: str, schemas: dict[str, Any]) -> str:
    schema = schemas[name]
    needed = set(schema.get("required", ()))
    rows = [
        [code(field), _type(about, schemas), _yes(field in needed), _about(about)]
        for field, about in schema["properties"].items()
    ]
    return f"### {name}\n\n{first_paragraph(schema.get('description'))}\n\n" + table(
        ["field", "type", "always there", "what"], rows
    )


def _type(about: dict[str, Any], schemas: dict[str, Any]) -> str:
    if "$ref" in about:
        name = str(about["$ref"]).rpartition("/")[2]
        values = schemas[name].get("enum")
        return " or ".join(code(json.dumps(value)) for value in values) if values else f"[{name}](#{name.lower()})"
    if "const" in about:
        return code(json.dumps(about["const"]))
    kind = str(about.get("type", ""))
    if kind == "array":
        return f"array of {about.get('items', {}).get('type', 'values')}"
    if kind == "object":
        return "object of strings"
    return str(about.get("format", kind))


def _about(about: dict[str, Any]) -> str:
    words = [str(about.get("description", ""))]
    if "minimum" in about and "maximum" in about:
        words.append(f"{about['minimum']} to {about['maximum']}")
    elif "minimum" in about:
        words.append(f"at least {about['minimum']}")
    if "default" in about:
        words.append(f"default {code(json.dumps(about['default']))}")
    return "; ".join(word for word in words if word)


# --- seccomp -----------------------------------------------------------------------------------------------


def seccomp_page() -> str:
    groups = {
        "Files": seccomp.FILES,
        "Memory": seccomp.MEMORY,
        "Processes and signals": seccomp.PROCESSES,
        "Time and waiting": seccomp.WAITING,
        "Sockets, pipes and queues": seccomp.TALKING,
    }
    lists = [f"### {name}\n\n{' '.join(code(call) for call in sorted(text.split()))}" for name, text in groups.items()]
    families = ", ".join(str(number) for number in seccomp.SOCKET_FAMILIES)
    return page(
        "System calls",
        prose(
            """
            The seccomp profile of every sandbox is an allowlist. A call that is not here answers EPERM. The
            reasons are in [the module itself](../../src/fumehood/sandbox/docker/seccomp.py) and in [decision
            0004](../decisions/0004-seccomp-per-runtime.md).
            """
        ),
        f"## Allowed ({len(seccomp.ALLOWED)})",
        *lists,
        "## Allowed with conditions",
        table(
            ["call", "condition"],
            [
                ["`clone`", f"no flag that makes a namespace (mask `{seccomp.CLONE_NEW_ANYTHING:#x}`)"],
                ["`socket`", f"families {families}: UNIX, IPv4, IPv6, netlink"],
                ["`personality`", ", ".join(code(hex(value)) for value in seccomp.PERSONALITIES)],
            ],
        ),
        "## Refused with ENOSYS, so that libraries fall back",
        " ".join(code(name) for name in seccomp.FALLS_BACK),
        prose(
            f"""
            On runtimes with a kernel of their own
            ({", ".join(code(name) for name in sorted(seccomp.OWN_KERNEL_RUNTIMES))}) `clone3` goes through to
            that kernel.
            """
        ),
    )


# --- metrics -----------------------------------------------------------------------------------------------


def metrics_page() -> str:
    rows = []
    for attribute in vars(Metrics()).values():
        described = getattr(attribute, "describe", None)
        if described is None or not hasattr(attribute, "_labelnames"):
            continue
        (family,) = attribute.describe()
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(code(label) for label in attribute._labelnames)
        rows.append([code(name), family.type, labels, family.documentation])
    return page(
        "Metrics",
        prose(
            """
            `GET /metrics`, in Prometheus' text format. What to do with them: [read the
            metrics](../howto/read-the-metrics.md). A series appears when its labels first have a value. `reason` is
            the `Fumehood-Exit-Reason` of a job, and `none` where it has none.
            """
        ),
        table(["metric", "kind", "labels", "what"], rows),
    )


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "errors.md": errors_page,
    "outcomes.md": outcomes_page,
    "cli.md": cli_page,
    "http.md": http_page,
    "seccomp.md": seccomp_page,
    "metrics.md": metrics_page,
}


def pages() -> dict[Path, str]:
    """Every page of the reference, by its path."""
    return {REFERENCE / name: make() for name, make in PAGES.items()}


def stale() -> list[Path]:
    """The pages on disk that are not what the code says now."""
    return [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        for path in stale():
            print(f"stale: {path.relative_to(ROOT)}")
        return 1 if stale() else 0
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
