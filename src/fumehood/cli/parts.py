"""The root's commands, loaded when they are called: whoever lists runs does not wait for a web framework.

`fumehood --help` and the completion of words need names and a sentence each, and import nothing either.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from fumehood.cli.exits import FAILED, USAGE


@dataclass(frozen=True, slots=True)
class Part:
    """A command, or a group of them."""

    home: str
    """The module of this package, and the name in it."""
    about: str
    within: str | None = None
    """What a function is called in a group that has nothing else."""


PARTS = {
    "dev": Part("dev:dev", "Run NATS, a server, a node and a worker on this machine, for development."),
    "server": Part("server:server", "Run a server: the API, the console and the bridge for workers, and the deciders."),
    "node": Part("node:node", "Run this machine's node: the Worker API, and the sandboxes behind it."),
    "doctor": Part("doctor:doctor", "Tell what this machine's sandboxes really hold back."),
    "run": Part("run:run", "Run an image in a sandbox, and see what it prints."),
    "session": Part("session:app", "Make sandboxes that live on, and work in them: commands, a terminal, files."),
    "image": Part("image:app", "Ask what admission decides about images."),
    "broker": Part("broker:config", "What the broker needs.", within="config"),
    "workflow": Part("workflow:app", "Apply workflows, look at them, run them."),
    "job": Part("job:app", "Have jobs done by several providers, and get a verdict with receipts."),
    "login": Part("login:login", "Keep a server and its key as a context, for all that is asked from now on."),
    "logout": Part("login:logout", "Forget a server and its key."),
    "context": Part("context:app", "See the servers that you logged in to, and choose between them."),
    "runs": Part("runs:app", "Find runs, follow them, stop and repair them."),
    "schedule": Part("schedule:app", "Start runs by the clock."),
    "worker": Part("worker:app", "Run a worker, let workers in, see who takes tasks, and bound how fast."),
    "verify": Part("verify:verify", "Check a receipt, or a job and its verdict, without asking anybody."),
    "receipts": Part("receipts:app", "Say whose receipts count, and fetch the keys to check them with."),
    "key": Part("keys:keys", "Make and revoke API keys."),
    "tenant": Part("keys:tenants", "See tenants and bound what they may run."),
    "mcp": Part("mcp:app", "Give agent programs Fumehood's tools (MCP), and print what to tell them."),
    "audit": Part("keys:audit", "Tell who did what."),
}


class Parts(TyperGroup):
    """A group that knows its commands by name, and the rest when one is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, part in PARTS.items():
            self.add_command(TyperCommand(name, help=part.about), name)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """A wrong word is told as all else is: what is wrong with it, and what to do."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except _USAGE_ERROR as error:
            sys.exit(_told(error))
        except typer.Abort:
            print("fumehood: given up", file=sys.stderr)
            sys.exit(FAILED)
        sys.exit(code if isinstance(code, int) else 0)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else loaded(name), rest


BEHIND = "-- CMD"
"""How help names the words behind `--`."""
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""What all wrong words are to the library, which has no public name for it."""


def _told(error: Any) -> int:
    """In two lines. A group that is called without a word shows its help instead, as it says itself."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return USAGE
    from fumehood.cli.show import plain  # takes a tenth of a second, and is not always needed

    where, remedy = "fumehood", ""
    if error.ctx is not None:
        where = error.ctx.command_path
        is_unknown = type(error).__name__ == "NoSuchOption" and not error.possibilities
        if is_unknown and "--" not in sys.argv and BEHIND in (one.metavar for one in error.ctx.command.params):
            remedy = "put -- before the command to run and its options, or "
    print(f"fumehood: {plain(error.format_message())}\n{remedy}try `{where} --help`", file=sys.stderr)
    return int(error.exit_code)


def loaded(name: str) -> Any:
    """The whole command."""
    part = PARTS[name]
    module, _, attribute = part.home.partition(":")
    found = getattr(import_module(f"fumehood.cli.{module}"), attribute)
    if isinstance(found, typer.Typer) or part.within is not None:
        group = typer.main.get_group(_group(found, part.within))
        group.help = part.about
        return group
    single = typer.Typer(add_completion=False)
    single.command(name)(found)
    return typer.main.get_command(single)


def _group(found: Any, within: str | None) -> typer.Typer:
    if isinstance(found, typer.Typer):
        return found
    made = typer.Typer(no_args_is_help=True)
    made.command(within)(found)
    return made
