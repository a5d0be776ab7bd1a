"""`fumehood doctor`: what the engine, its runtimes, cgroups and limits really give, found by trying."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fumehood.cli.engine_access import engine_trouble
from fumehood.cli.show import plain
from fumehood.errors import SandboxError
from fumehood.sandbox.docker import DockerDriver, DockerOptions
from fumehood.settings import NodeSettings


def doctor(
    config: Annotated[Path | None, typer.Option("--config", help="The node's TOML file.")] = None,
    attack: Annotated[
        bool, typer.Option("--attack", help="Also run hostile programs in sandboxes, and see what comes of each.")
    ] = False,
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="What they run in; anything with a shell will do.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Tell what this machine's sandboxes really hold back. Exits with 1 when a node could not run jobs here, or when an
    attack was not held back."""
    settings = NodeSettings.load(config_file=config)
    trouble = engine_trouble(settings.docker_socket)
    try:
        report = asyncio.run(examine(settings)) if trouble is None else _no_engine(trouble.sentence)
    except SandboxError as error:
        report = _no_engine(error.detail)
    if not as_json:
        _print(report)
    if attack and report["problem"] is None:
        report["attacks"] = asyncio.run(_attacked(settings, image, quiet=as_json))
    if as_json:
        print(json.dumps(report, indent=2))
    held = all(one["held"] for one in report.get("attacks", ()))
    sys.exit(0 if report["problem"] is None and held else 1)


async def _attacked(settings: NodeSettings, image: str | None, *, quiet: bool) -> list[dict[str, Any]]:
    """Each is told as soon as it is over: all together they take a minute or two."""
    from fumehood.cli.attacks import IMAGE, attacked

    console, results = Console(), []
    async for result in attacked(settings, image or IMAGE):
        results.append(result.to_dict())
        if not quiet:
            word = "[green]held back[/]" if result.held else "[red]NOT HELD BACK[/]"
            tried = f"{result.attack.name} ({result.attack.tries})"
            console.print(f"{word}  {escape(tried)}: {escape(plain(result.saw))}", soft_wrap=True)
    return results


def _no_engine(problem: str) -> dict[str, Any]:
    return {"engine": None, "problem": problem, "chosen": None, "runtimes": [], "warnings": []}


async def examine(settings: NodeSettings) -> dict[str, Any]:
    """Everything that `doctor` knows, as plain values."""
    with TemporaryDirectory(prefix="fumehood-doctor-") as folder:
        driver = DockerDriver(
            DockerOptions(
                node_id=f"doctor-{Path(folder).name}",
                state_dir=Path(folder),
                socket=settings.docker_socket,
                runtime=settings.runtime,
            )
        )
        try:
            found = await driver.capabilities()
            chosen, problem = await _choice(driver)
            return {
                "engine": {"name": found.engine, "version": found.engine_version, **found.facts},
                "problem": problem,
                "chosen": chosen,
                "runtimes": [asdict(runtime) for runtime in found.runtimes],
                "warnings": list(found.warnings),
            }
        finally:
            await driver.close()


async def _choice(driver: DockerDriver) -> tuple[str | None, str | None]:
    """The runtime that a node would take, and why it could not run jobs with it. Tried exactly as a node does."""
    chosen = None
    try:
        chosen = await driver.runtime()
        await driver.check()
    except SandboxError as error:
        return chosen, error.detail
    return chosen, None


# --- for people --------------------------------------------------------------------------------------------


def _print(report: Mapping[str, Any]) -> None:
    console = Console()
    if report["engine"] is None:
        console.print(f"[red]no engine:[/] {escape(report['problem'])}", soft_wrap=True)
        return
    console.print(_pairs("engine", report["engine"]))
    console.print(_runtimes(report))
    for runtime in report["runtimes"]:
        if runtime["usable"]:
            console.print(_doors(runtime))
            console.print(_pairs(f"{runtime['name']}: limits of the probe", runtime["limits"]))
    for warning in report["warnings"]:
        console.print(f"[yellow]engine:[/] {escape(warning)}", soft_wrap=True)
    if report["problem"] is not None:
        console.print(f"[red]a node could not run jobs here:[/] {escape(report['problem'])}", soft_wrap=True)


def _pairs(title: str, values: Mapping[str, object]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in values.items():
        table.add_row(name.replace("_", " "), escape(_plain(name, value)))
    return table


def _plain(name: str, value: object) -> str:
    """A value in people's words, not in Python's."""
    if value is None or value == "":
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "none"
    unlimited = str(value).split()[:1] in (["max"], ["-1"]) or (name.endswith("_inodes") and value == 0)
    return "no limit" if unlimited else str(value)


def _runtimes(report: Mapping[str, Any]) -> Table:
    table = Table("runtime", "usable", "root", "remark", title="runtimes", title_justify="left")
    for runtime in report["runtimes"]:
        chosen = " (default here)" if runtime["name"] == report["chosen"] else ""
        usable = "[green]yes[/]" if runtime["usable"] else "[red]no[/]"
        root = "held back" if runtime["root_allowed"] else "refused"
        table.add_row(runtime["name"] + chosen, usable, root, escape(runtime["detail"].replace("_", " ")))
    return table


def _doors(runtime: Mapping[str, Any]) -> Table:
    users = {who: report.get("attempts", {}) for who, report in runtime["probe"].items()}
    title = f"{runtime['name']}: what a program tried, and what it got"
    table = Table("attempt", *users, title=title, title_justify="left")
    for attempt in sorted({name for attempts in users.values() for name in attempts}):
        answers = [str(attempts.get(attempt, "not tried")) for attempts in users.values()]
        table.add_row(attempt.replace("_", " "), *(f"[red]{a}[/]" if a == "open" else a for a in answers))
    return table
