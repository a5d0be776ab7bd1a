"""`fumehood context`: the servers that somebody logged in to, and which one counts where nothing is said."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fumehood.cli import show
from fumehood.cli.client import opened
from fumehood.cli.completing import contexts as context_names
from fumehood.cli.exits import UsageError
from fumehood.cli.login import CALLER_PATH, forget
from fumehood.cli.show import Json
from fumehood.sdk.context_store import ContextStore
from fumehood.sdk.contexts import Contexts
from fumehood.settings import ClientSettings

app = typer.Typer(no_args_is_help=True)

Name = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Else the one that counts now.", autocompletion=context_names)
]


@app.command("ls")
def ls(as_json: Json = False) -> None:
    """List contexts. No key is shown."""
    known, counts = ContextStore().read(), _counting()
    if as_json:
        rows = [_facts(known, name) for name in sorted(known.entries)]
        show.document({"current": known.current, "contexts": rows})
        return
    show.table(
        ["", "name", "server", "key"],
        [
            ["*" if name == counts else "", name, one.url, one.kept_in.value]
            for name, one in sorted(known.entries.items())
        ],
        whole=["name", "server"],
    )


@app.command("use")
def use(
    name: Annotated[str | None, typer.Argument(metavar="NAME", autocompletion=context_names)] = None,
    none: Annotated[bool, typer.Option("--none", help="None: your own `fumehood dev` again, or this machine.")] = False,
    as_json: Json = False,
) -> None:
    """Make a context the current one."""
    if (name is None) is not none:
        raise UsageError("give the name of a context, or --none")
    store = ContextStore()
    store.use(name)
    known = store.read()
    if as_json:
        show.document({"current": known.current})
    elif known.current is None:
        show.console().print("no context is the current one")
    else:
        show.console().print(f"{known.current}: {known.entries[known.current].url}", soft_wrap=True)
    over = ClientSettings.load().context
    if over is not None and over != known.current:
        show.console(stderr=True).print(f"fumehood: FUMEHOOD_CONTEXT is {over}, and counts more", soft_wrap=True)


@app.command("show")
def show_context(
    name: Name = None,
    ask: Annotated[bool, typer.Option("--ask", help="Ask the server whose key it is, and what that may do.")] = False,
    as_json: Json = False,
) -> None:
    """Show a context; never its key."""
    store, known = ContextStore(), ContextStore().read()
    chosen = name or _counting()
    if chosen is None:
        raise UsageError("no context is the current one: `fumehood login URL` makes one")
    facts = _facts(known, chosen)
    if ask:
        with opened(None, None, context=chosen) as api:
            facts["caller"] = api.get(CALLER_PATH)
    if as_json:
        show.document(facts)
        return
    caller = facts.get("caller") or {}
    show.pairs(
        {
            "name": chosen,
            "server": facts["url"],
            "key": facts["key"],
            "current": "yes" if facts["current"] else "no",
            "insecure http": "allowed" if facts["insecure_http"] else None,
            "as": caller.get("name"),
            "tenant": caller.get("tenant"),
            "may": " ".join(map(str, caller.get("scopes", ()))),
            "expires": show.local(caller.get("expires_at")),
            "file": str(store.path),
        }
    )


@app.command("rm")
def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", autocompletion=context_names)], as_json: Json = False
) -> None:
    """Forget contexts and their keys. The keys themselves still open their servers until they are revoked."""
    forget(ContextStore(), list(dict.fromkeys(names)), as_json=as_json)


def _counting() -> str | None:
    """The one that commands use now."""
    return ClientSettings.load().context or ContextStore().read().current


def _facts(known: Contexts, name: str) -> dict[str, Any]:
    one = known.named(name)
    return {
        "name": name,
        "url": one.url,
        "key": one.kept_in.value,
        "insecure_http": one.insecure_http,
        "current": name == known.current,
    }
