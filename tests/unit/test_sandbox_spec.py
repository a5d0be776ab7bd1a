"""The rules that a spec holds by itself: names, and which program an image and a request make together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import InvalidRequestError, NoCommandError
from fumehood.images import Admission, DevelopmentPolicy, RegistryClient
from fumehood.images.admission import AdmittedImage
from fumehood.sandbox.spec import ImageCommand, SandboxSpec, argv_of

IMAGE = "127.0.0.1:5055/fake/image@sha256:" + "0" * 64
WORDS = st.lists(st.text(max_size=5), max_size=3).map(tuple)
GIVEN = st.none() | WORDS


@pytest.fixture
async def image() -> AdmittedImage:
    async with RegistryClient() as registry:
        return await Admission(DevelopmentPolicy(), registry).admit(IMAGE)


# --- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run-1", "0x", "a" * 128, "A_b.c-d", None])
def test_a_name_that_an_engine_takes(image: AdmittedImage, name: str | None) -> None:
    assert SandboxSpec("s", image, name=name).name == name


@pytest.mark.parametrize("name", ["", "a", "a" * 129, "-run", ".run", "_run", "a b", "a/b", "a?b", "run-1\n", "né"])
def test_a_name_that_an_engine_would_refuse_or_misread(image: AdmittedImage, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot name a sandbox"):
        SandboxSpec("s", image, name=name)


# --- commands ----------------------------------------------------------------------------------------------

BOTH = ImageCommand(("/ep", "-e"), ("c", "-c"))


@pytest.mark.parametrize(
    ("image", "command", "args", "argv"),
    [
        (BOTH, None, None, ("/ep", "-e", "c", "-c")),
        (BOTH, ("/x",), None, ("/x",)),
        (BOTH, None, ("y",), ("/ep", "-e", "y")),
        (BOTH, ("/x",), ("y",), ("/x", "y")),
        (ImageCommand(("/ep",)), None, None, ("/ep",)),
        (ImageCommand(("/ep",)), None, ("y",), ("/ep", "y")),
        (ImageCommand(cmd=("c",)), None, None, ("c",)),
        (ImageCommand(cmd=("c",)), None, ("y",), ("y",)),
        (ImageCommand(cmd=("c",)), ("/x",), None, ("/x",)),
        (ImageCommand(), ("/x",), None, ("/x",)),
        (ImageCommand(), ("/x",), ("y",), ("/x", "y")),
        (ImageCommand(), None, ("y",), ("y",)),
    ],
)
def test_the_rule_of_kubernetes(
    image: ImageCommand, command: tuple[str, ...] | None, args: tuple[str, ...] | None, argv: tuple[str, ...]
) -> None:
    assert argv_of(image, command, args) == argv


@given(st.builds(ImageCommand, WORDS, WORDS), GIVEN, GIVEN)
def test_every_word_comes_from_one_place_and_an_empty_list_is_none(
    image: ImageCommand, command: tuple[str, ...] | None, args: tuple[str, ...] | None
) -> None:
    program = command or image.entrypoint
    rest = args or (() if command else image.cmd)
    if program + rest:
        assert argv_of(image, command, args) == program + rest
    else:
        with pytest.raises(NoCommandError, match="command"):
            argv_of(image, command, args)
