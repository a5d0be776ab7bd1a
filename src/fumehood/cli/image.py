"""`fumehood image`: what admission decides about an image, and why, before anybody runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from fumehood.cli import show
from fumehood.cli.admission import admitting
from fumehood.cli.denial import advice_to_operator, signer, stage_of
from fumehood.cli.exits import FAILED, NO_ANSWER
from fumehood.cli.show import Json
from fumehood.errors import ImageError, RegistryUnavailableError
from fumehood.settings import NodeSettings

app = typer.Typer(no_args_is_help=True)

_ASKED: Final = ("reference", "rule", "digest", "signature")
"""The questions about an image, of those that admission asks."""

_TROUBLE: Final = "nothing was decided: ask again when the registry answers"


@app.callback()
def image() -> None:
    """Ask what admission decides about images."""


@app.command()
def check(
    image: Annotated[str, typer.Argument(metavar="REF", help="The image, as a run would name it.")],
    policy: Annotated[
        Path | None, typer.Option("--policy", help="The policy file to decide by, instead of the configured one.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="The node's TOML file: its policy_file and its registries.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell whether an image would be admitted, and why: 0 if it would, 1 if not, 3 if the registry cannot be asked."""
    settings = NodeSettings.load(config_file=config, policy_file=policy)
    evidence, unknown = asyncio.run(decided(settings, image))
    if as_json:
        show.document(evidence)
    else:
        _explain(evidence, unknown)
    if unknown:
        raise typer.Exit(NO_ANSWER)
    raise typer.Exit(FAILED if evidence["denial_reason"] is not None else 0)


async def decided(settings: NodeSettings, image: str) -> tuple[Mapping[str, Any], bool]:
    """The evidence, and whether the registry could not be asked, so that it is of no decision."""
    async with admitting(settings) as images:
        try:
            return (await images.admission.admit(image)).evidence.to_dict(), False
        except ImageError as error:
            if error.evidence is None:  # not admission's: a fault of ours
                raise
            return error.evidence, isinstance(error, RegistryUnavailableError)


def _explain(evidence: Mapping[str, Any], unknown: bool) -> None:
    file = f" (sha256 {evidence['policy_sha256']})" if "policy_sha256" in evidence else ""
    out = show.console()
    out.print(Text(show.plain(f"{evidence['image']} under the policy {evidence['policy']}{file}")), soft_wrap=True)
    for line in _lines(evidence, unknown):
        out.print(line, soft_wrap=True)


def _lines(evidence: Mapping[str, Any], unknown: bool) -> Iterator[Text]:
    reason = evidence["denial_reason"]
    end = stage_of(evidence)
    for stage in _ASKED[: _ASKED.index(end) if reason is not None else None]:
        yield Text.assemble(("✓ ", "green"), f"{stage:<10} {_found(stage, evidence)}")
    if reason is None:
        yield Text("admitted: this digest runs, whatever the tag names later", "green")
        return
    yield Text.assemble(("? ", "yellow") if unknown else ("✗ ", "red"), f"{end:<10} {show.plain(evidence['detail'])}")
    advice = _TROUBLE if unknown else advice_to_operator(evidence)
    yield Text(f"  {'':<10} → {advice}")
    yield Text("not decided" if unknown else f"denied: {reason}", "yellow" if unknown else "red")


def _found(stage: str, evidence: Mapping[str, Any]) -> str:
    match stage:
        case "reference":
            return f"{evidence['registry']}/{evidence['repository']}"
        case "rule":
            return str(evidence["rule"])
        case "digest":
            return str(evidence["resolved_digest"])
        case _:
            return _signed(evidence)


def _signed(evidence: Mapping[str, Any]) -> str:
    if not evidence["signature_verified"]:
        return show.plain(f"not needed: {evidence.get('detail', 'nobody looked')}")
    return show.plain(signer(evidence))
