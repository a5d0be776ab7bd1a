"""What a payload says that its type has no field for. The contract ignores it; whoever misspelt it wants to know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel

MOST = 20


def unknown(kind: type[BaseModel], payload: object) -> list[str]:
    """The places of such fields, the first ones of them."""
    return [place for place, _ in zip(_unknown(kind, payload, ""), range(MOST), strict=False)]


def _unknown(kind: type[BaseModel], value: object, inside: str) -> Iterator[str]:
    if isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _unknown(kind, item, f"{inside.removesuffix('.')}[{number}].")
        return
    for name, part in value.items() if isinstance(value, Mapping) else ():
        field = kind.model_fields.get(str(name))
        if field is None:
            yield f"{inside}{str(name)[:64]}"
            continue
        for model in _models(field.annotation):
            yield from _unknown(model, part, f"{inside}{name}.")


def _models(hint: Any) -> Iterator[type[BaseModel]]:
    """Those that a field may hold, in a list or by itself."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
    for part in get_args(hint):
        yield from _models(part)
