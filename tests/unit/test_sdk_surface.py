"""The SDK's public names are pinned, documented, and the same in both flavours."""

from __future__ import annotations

import inspect

import pytest

from fumehood import errors
from tests import sdk_surface
from tests.sdk_surface import members, public


def test_the_surface_is_the_one_that_was_agreed_on() -> None:
    """`python -m tests.sdk_surface` writes a new one down, which is then reviewed."""
    assert sdk_surface.surface() == sdk_surface.FILE.read_text(encoding="utf-8")


def test_every_public_name_is_documented() -> None:
    assert sdk_surface.undocumented() == []


def test_a_name_without_a_word_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above is worth something only if it would notice."""

    class Silent:
        def method(self) -> None: ...

        @classmethod
        def make(cls) -> None: ...

    Silent.__module__ = "fumehood.made.up"
    monkeypatch.setattr(sdk_surface, "public", lambda: {"Silent": Silent})
    assert sdk_surface.undocumented() == ["Silent", "Silent.make", "Silent.method"]


@pytest.mark.parametrize("name", sorted(name for name in public() if name.startswith("Async")))
def test_both_flavours_have_the_same_names(name: str) -> None:
    """Apart from how they are closed."""
    there, blocking = public()[name], public()[name.removeprefix("Async")]
    names = {member for member, _ in members(there)}
    assert {"close" if one == "aclose" else one for one in names} == {member for member, _ in members(blocking)}


def test_every_error_that_a_caller_meets_can_be_imported() -> None:
    """Those of the parts that no caller meets stay inside."""
    inside = {
        kind.__name__
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, errors.FumehoodError)
    } - set(public())
    assert not {name for name in inside if name.startswith(("Command", "Wait", "Un", "Limit"))} - {
        "CommandRefusedError",
        "UnsupportedVersionError",
    }
