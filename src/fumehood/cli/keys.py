"""`fumehood key`, `fumehood tenant`, `fumehood audit`: who may do what, how much of it, and who did."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from fumehood.cli import given, show
from fumehood.cli.client import Query, part
from fumehood.cli.exits import CommandError, UsageError
from fumehood.cli.once import new_file
from fumehood.cli.options import Limit, Remote, grouped

keys = typer.Typer(no_args_is_help=True)
tenants = typer.Typer(no_args_is_help=True)

MOST = 100_000
PAGE = 200
NO_BOUND = "none"

OfTenant = Annotated[str | None, typer.Option("--tenant", help="Another tenant's than your own: for administrators.")]

# --- keys --------------------------------------------------------------------------------------------------


@keys.command("create")
@grouped
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What people know it by.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="What it may do; repeat for more: workflows:read, workflows:write, runs:read, runs:write, "
            "runs:approve, runs:repair, schedules:read, schedules:write, sandboxes:read, sandboxes:write, workers, "
            "keys, or * for everything."
        ),
    ],
    *,
    tenant: Annotated[str | None, typer.Option(help="Whose it is; your own tenant's, if not given.")] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long it opens anything, like 90d; for good, if not given."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the key there, with mode 0600, and not to stdout.")
    ] = None,
    remote: Remote,
) -> None:
    """Make a key. It is shown once, on stdout; the server keeps only its hash."""
    wanted = {"tenant": tenant, "expires_in_seconds": given.seconds(expires, "--expires")}
    body = {"name": name, "scopes": scope} | {field: value for field, value in wanted.items() if value is not None}
    with new_file(out) if out is not None else nullcontext() as file, remote.opened() as api:
        made = api.post("/v1/keys", body)
        if file is not None:
            _write(file, out, made)
    if remote.as_json:
        show.document(made)
        return
    if "key" in made:
        typer.echo(made["key"])
    where = f"written to {out}" if out is not None else "it is not shown again"
    show.console(stderr=True).print(f"{made['id']} {made['name']} of {made['tenant']}: {where}")


def _write(file: TextIO, out: Path | None, made: dict[str, Any]) -> None:
    try:
        with file:
            file.write(f"{made.pop('key')}\n")
    except OSError as error:
        raise CommandError(
            f"--out {out} cannot be written: {error.strerror}; the key is made, and lost: "
            f"revoke it with `fumehood key revoke {show.plain(made['id'])}`"
        ) from None


@keys.command("ls")
@grouped
def ls(*, tenant: OfTenant = None, remote: Remote) -> None:
    """List keys, without what opens anything."""
    with remote.opened() as api:
        found, _ = api.listed("/v1/keys", "keys", {"tenant": tenant}, most=MOST, page=PAGE)
    if remote.as_json:
        show.document({"keys": found})
        return
    show.table(
        ["id", "name", "tenant", "may", "made", "by", "expires"],
        [
            [
                one["id"],
                one["name"],
                one["tenant"],
                " ".join(one["scopes"]),
                show.local(one.get("created_at")),
                one.get("created_by"),
                show.local(one.get("expires_at")) or "never",
            ]
            for one in found
        ],
        whole=["id", "name"],
    )


@keys.command("revoke")
@grouped
def revoke(
    key: Annotated[str, typer.Argument(metavar="ID", help="The key's id, as `key ls` shows it.")],
    remote: Remote,
) -> None:
    """Take a key back: it opens nothing any more, at once and everywhere."""
    with remote.opened() as api, given.named(api, "key", key, most=MOST, page=PAGE, field="id"):
        api.delete(f"/v1/keys/{part(key)}")
    remote.tell({"id": key}, f"{key} opens nothing any more")


# --- tenants -----------------------------------------------------------------------------------------------

Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]


@tenants.command("ls")
@grouped
def tenants_ls(remote: Remote) -> None:
    """List tenants that have keys or a bound, and the default one."""
    with remote.opened() as api:
        found = api.get("/v1/tenants")
    if remote.as_json:
        show.document(found)
        return
    rows = [[one["tenant"], _bound(one)] for one in found["tenants"]]
    show.table(["tenant", "runs in flight"], rows, whole=["tenant"])


@tenants.command("show")
@grouped
def tenant_show(tenant: Tenant, remote: Remote) -> None:
    """Show what a tenant may use."""
    with remote.opened() as api:
        found = api.get(f"/v1/tenants/{part(tenant)}")
    _print_tenant(found, remote)


@tenants.command("set")
@grouped
def tenant_set(
    tenant: Tenant,
    max_runs: Annotated[str, typer.Option(metavar="NUMBER", help="Runs in flight at once; none for no bound.")],
    remote: Remote,
) -> None:
    """Bound what a tenant may use."""
    if max_runs != NO_BOUND and not max_runs.isdecimal():
        raise UsageError("--max-runs must be a number, or none")
    with remote.opened() as api:
        bound = None if max_runs == NO_BOUND else int(max_runs)
        found = api.put(f"/v1/tenants/{part(tenant)}", {"max_runs": bound})
    _print_tenant(found, remote)


def _print_tenant(found: dict[str, Any], remote: Remote) -> None:
    if remote.as_json:
        show.document(found)
    else:
        show.pairs({"tenant": found["tenant"], "runs in flight": _bound(found)})


def _bound(tenant: dict[str, Any]) -> str:
    return "no bound" if tenant.get("max_runs") is None else f"at most {tenant['max_runs']}"


# --- the audit list ----------------------------------------------------------------------------------------


@grouped
def audit(
    *,
    action: Annotated[str | None, typer.Option(help="Only what is called so, like run.started.")] = None,
    by: Annotated[str | None, typer.Option(help="Only what this one did: admin, or a key's id and name.")] = None,
    target: Annotated[str | None, typer.Option(help="Only what was done to this: a run, a workflow, a key …")] = None,
    tenant: OfTenant = None,
    limit: Limit = 50,
    cursor: Annotated[str | None, typer.Option(help="Go on behind an earlier list: its `next`.")] = None,
    remote: Remote,
) -> None:
    """Tell who did what, newest first: changes, and what was refused."""
    query: Query = {"action": action, "by": by, "target": target, "tenant": tenant, "cursor": cursor}
    with remote.opened() as api:
        found, cursor = api.listed("/v1/audit", "entries", query, most=limit, page=PAGE, cursor="cursor")
    if remote.as_json:
        show.document({"entries": found, "next": cursor})
        return
    show.table(
        ["when", "who", "what", "to", "outcome"],
        [[show.local(one["at"]), one["by"], one["action"], one["target"], one["outcome"]] for one in found],
        whole=["when", "outcome"],
    )
