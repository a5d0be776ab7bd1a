"""Every example in the docstrings of the SDK, run against a real `fumehood dev`, as it stands there.

Names of the SDK need no import in them; `sb` is a sandbox and `client` a client, of the flavour that the example has.
"""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fumehood
from fumehood import AsyncClient, AsyncSandbox, Client, Sandbox
from tests.dev_process import Dev
from tests.examples.docstrings import Example, codes, examples, without
from tests.sdk_surface import public

WRITTEN = "python:3.12-slim"
"""The image that is named in them; here it is the one of the tests."""
FOUND = examples()


@pytest.fixture(scope="module")
def here(dev: Dev, images: dict[str, str]) -> Iterator[str]:
    """Settings as somebody has them who uses this `dev`; the image."""
    settings = {
        "FUMEHOOD_URL": dev.server_url,
        "FUMEHOOD_API_KEY_FILE": str(dev.state / "api.token"),
        "FUMEHOOD_RECEIPT_ROOT": (dev.state / "receipt-root.pub").read_text(encoding="ascii").strip(),
        "FUMEHOOD_RECEIPT_KEYS_FILE": str(dev.state / "receipt-keys.json"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        yield images["python"]


@pytest.fixture(scope="module")
def sandbox(here: str) -> Iterator[Sandbox]:
    """One for all of them: they mind their own names."""
    with Sandbox.create(here, lease_seconds=1800) as made:
        yield made


@pytest.mark.parametrize("example", FOUND, ids=lambda example: example.name)
def test_an_example_does_what_it_says(
    example: Example, here: str, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {name: getattr(fumehood, name) for name in fumehood.__all__}
    names |= {"Path": Path, "asyncio": asyncio}
    code = example.code.replace(WRITTEN, here)
    sandbox.commands.run("rm -rf /workspace/*")
    if example.is_async:
        asyncio.run(_async(code, names, sandbox.id))
    else:
        with Client() as client:
            exec(compile(code, example.name, "exec"), names | {"sb": sandbox, "client": client})


async def _async(code: str, names: dict[str, Any], sandbox_id: str) -> None:
    async with AsyncClient() as client, await AsyncSandbox.connect(sandbox_id, client=client) as sb:
        namespace = names | {"sb": sb, "client": client}
        exec("async def example():\n" + textwrap.indent(code, "    "), namespace)
        await namespace["example"]()


def test_there_are_examples_of_both_flavours() -> None:
    assert sum(one.is_async for one in FOUND) > 20
    assert sum(not one.is_async for one in FOUND) > 20


def test_every_class_of_the_sandboxes_shows_how_it_is_used() -> None:
    own = {"fumehood.sdk.values", "fumehood.sdk.file_values", "fumehood.sdk.template"} | {
        f"fumehood.sdk.{flavour}.{name}"
        for flavour in ("aio", "blocking")
        for name in ("sandbox", "command", "commands", "results", "files", "pty")
    }
    assert not {name for name in without() if public()[name].__module__ in own}


def test_prose_is_not_taken_for_code() -> None:
    """And code is found wherever the formatter left it."""
    assert codes("Something.\n\nmore words\n") == []
    assert codes("Something.\n\nx = 1\n\ny = f(x)") == ["x = 1\n\ny = f(x)"]
    assert codes("Something.\n\n    for x in y:\n        f(x)\n\nMore words.") == ["for x in y:\n    f(x)"]
