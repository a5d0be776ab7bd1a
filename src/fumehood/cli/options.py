"""Options that many commands have. Those that belong together are written once, as a group that a command takes as one
value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from fumehood.cli import completing, show
from fumehood.cli.client import Api, ContextName, InsecureHttp, KeyFile, Server, opened
from fumehood.cli.show import Json

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", autocompletion=completing.runs)]
Reason = Annotated[str, typer.Option("--reason", help="Why; it stands in the run's history.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")]


@dataclass(frozen=True, slots=True)
class Remote:
    """The server that a command asks, and in which form it gives the answer."""

    server: Server = None
    key_file: KeyFile = None
    insecure_http: InsecureHttp = False
    context: ContextName = None
    as_json: Json = False

    def opened(self) -> AbstractContextManager[Api]:
        return opened(self.server, self.key_file, self.insecure_http, self.context)

    def tell(self, answer: object, sentence: str) -> None:
        """The answer for programs, or a sentence for people."""
        if self.as_json:
            show.document(answer)
        else:
            show.console().print(sentence)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of its groups in their places. A group is a dataclass whose fields are options."""

    @wraps(command)
    def called(**given: Any) -> None:
        _filled(command, given)

    called.__signature__ = inspect.Signature(list(_options(command)))  # type: ignore[attr-defined]
    return called


def _filled(taker: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    values = {
        one.name: _filled(one.annotation, given) if _is_group(one) else given[one.name] for one in _parameters(taker)
    }
    return taker(**values)


def _options(taker: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    for one in _parameters(taker):
        yield from _options(one.annotation) if _is_group(one) else [one]


def _is_group(one: inspect.Parameter) -> bool:
    return is_dataclass(one.annotation)


def _parameters(taker: Callable[..., Any]) -> list[inspect.Parameter]:
    """By keyword alone, since then one with a default may stand before one without; with types, not their names."""
    hints = get_type_hints(taker, include_extras=True)
    return [
        one.replace(kind=one.KEYWORD_ONLY, annotation=hints[one.name])
        for one in inspect.signature(taker).parameters.values()
    ]
