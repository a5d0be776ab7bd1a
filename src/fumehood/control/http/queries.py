"""Query parameters, read as strictly as bodies: a misspelt one is an error, not a default."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Sequence

from starlette.requests import Request

from fumehood.errors import InvalidRequestError

_DIGITS = re.compile(r"[0-9]{1,18}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")


class Query:
    """The parameters of one request, of which only the named ones may be there, each once or as often as it likes."""

    def __init__(self, request: Request, known: Collection[str] = (), *, repeated: Collection[str] = ()) -> None:
        self._all = request.query_params.multi_items()
        for name, _ in self._all:
            if name not in known and name not in repeated:
                raise InvalidRequestError("the query has a parameter that is not part of this contract")
        once = [(name, text) for name, text in self._all if name not in repeated]
        self._given = dict(once)
        if len(self._given) != len(once):
            raise InvalidRequestError("the query has the same parameter twice")

    def texts(self, name: str, longest: int, most: int) -> list[str]:
        """All values of a parameter that may be repeated."""
        texts = [text for given, text in self._all if given == name]
        if len(texts) > most:
            raise InvalidRequestError(f"{name}: may be there at most {most} times")
        if any(len(text) > longest for text in texts):
            raise InvalidRequestError(f"{name}: must have at most {longest} characters")
        return texts

    def text(self, name: str, longest: int) -> str | None:
        text = self._given.get(name)
        if text is not None and len(text) > longest:
            raise InvalidRequestError(f"{name}: must have at most {longest} characters")
        return text

    def choice(self, name: str, values: Sequence[str]) -> str | None:
        """One of some values."""
        text = self._given.get(name)
        if text is not None and text not in values:
            raise InvalidRequestError(f"{name}: must be one of {', '.join(values)}")
        return text

    def number(self, name: str, default: int, low: int, high: int) -> int:
        text = self._given.get(name)
        if text is None:
            return default
        if _DIGITS.fullmatch(text) is None or not low <= int(text) <= high:
            raise InvalidRequestError(f"{name}: must be an integer from {low} to {high}")
        return int(text)

    def moment(self, name: str) -> int | None:
        """Milliseconds since the epoch."""
        text = self.text(name, 64)
        if text is None:
            return None
        try:
            if _TIME.fullmatch(text) is None:
                raise ValueError
            at = dt.datetime.fromisoformat(text.upper())
            return int(at.replace(microsecond=0).timestamp()) * 1000 + at.microsecond // 1000
        except (ValueError, OverflowError):
            raise InvalidRequestError(f"{name}: must be a moment like 2026-01-31T12:00:00Z") from None

    def flag(self, name: str, *, default: bool = False) -> bool:
        text = self._given.get(name)
        if text not in (None, "true", "false"):
            raise InvalidRequestError(f"{name}: must be true or false")
        return default if text is None else text == "true"
