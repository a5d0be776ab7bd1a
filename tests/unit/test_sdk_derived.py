"""The SDK is written once: its blocking flavour is what the script makes of the other one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "derive-sync"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("derive_sync", str(SCRIPT))
    spec = importlib.util.spec_from_loader("derive_sync", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_what_is_committed_is_what_the_script_makes() -> None:
    """`scripts/derive-sync` brings it up to date."""
    check = [sys.executable, str(SCRIPT), "--check"]
    done = subprocess.run(check, check=False, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_module_but_one_is_derived() -> None:
    folder = ROOT / "src" / "fumehood" / "sdk"
    names = {path.name for path in (folder / "aio").glob("*.py")}
    assert names == {path.name for path in (folder / "blocking").glob("*.py")}
    by_hand = [
        path.name
        for path in (folder / "blocking").glob("*.py")
        if not path.read_text(encoding="utf-8").startswith("# Made by scripts/derive-sync")
    ]
    assert by_hand == ["here.py"]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("async def f() -> AsyncIterator[int]: ...", "def f() -> Iterator[int]: ..."),
        ("x = await f(await g())", "x = f(g())"),
        ("async with await AsyncSandbox.create() as sb:", "with Sandbox.create() as sb:"),
        ("async for piece in answer.aiter_bytes():", "for piece in answer.iter_bytes():"),
        ("class _AsyncThing(AsyncOther):", "class _Thing(Other):"),
        ("from fumehood.sdk.aio import here", "from fumehood.sdk.blocking import here"),
        ("from fumehood import AsyncSandbox, Sandbox", "from fumehood import Sandbox"),
        ("http: httpx.AsyncClient", "http: httpx.Client"),
        ("asynchronous awaiting", "asynchronous awaiting"),
    ],
)
def test_words_become_others(script: ModuleType, text: str, made: str) -> None:
    assert script.derived(text, "x.py").split("\n", 1)[1] == made


def test_a_stale_file_is_told(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above is worth something only if it would notice."""
    (tmp_path / "gone.py").write_text("")
    (tmp_path / "same.py").write_text("x = 1\n")
    monkeypatch.setattr(script, "TARGET", tmp_path)
    assert script.stale({"same.py": "x = 1\n"}) == ["gone.py"]
    assert script.stale({"same.py": "x = 2\n", "new.py": ""}) == ["gone.py", "new.py", "same.py"]
