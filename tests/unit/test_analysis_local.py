"""The local analysis as a worker runs it: a bounded child process, an answer that is the same everywhere."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fumehood.errors import ConfigurationError, JobFailedError
from fumehood.jobs.analysis import process, tools
from fumehood.jobs.analysis.local import LocalAnalysis
from fumehood.jobs.analysis.process import Limits
from fumehood.jobs.registry import Registry
from fumehood.jobs.types.code_chunk_analysis import JOB_TYPE, ChunkAnalysisRequest, ChunkAnalysisResponse
from fumehood.wire.canonical import json_sha256
from tests.unit.local_job_world import Bench

LOGIN = '''"""Logs people in."""
from shop.db.users import find
import hashlib


def login(connection, name, password=""):
    row = connection.execute("SELECT hash FROM users WHERE name = '" + name + "'").fetchone()
    hosts = [name for name in find(name)]
    return hashlib.md5(password.encode()).hexdigest() == row[0] and hosts


def shared(items=[]):
    return items
'''


def request(content: str = LOGIN, **chunk: Any) -> ChunkAnalysisRequest:
    task = chunk.pop("task", "Find security issues")
    first = chunk.pop("start_line", 1)
    last = first + content.count("\n")
    whole = {"path": "src/shop/login.py", "start_line": first, "end_line": last, "content": content, **chunk}
    return ChunkAnalysisRequest.model_validate({"task": task, "chunk": whole})


async def run(asked: ChunkAnalysisRequest, limits: Limits | None = None) -> ChunkAnalysisResponse:
    return await LocalAnalysis(limits).run(asked, Bench())


async def test_the_answer_names_what_is_there_and_what_may_be_wrong_in_lines_of_the_file() -> None:
    found = await run(request(start_line=101))
    assert [(one.line, one.kind, one.name) for one in found.symbols] == [
        (106, "function", "login"),
        (112, "function", "shared"),
    ]
    assert {(one.line, one.severity) for one in found.suspected_faults} == {
        (107, "high"),
        (109, "medium"),
        (112, "medium"),
    }
    assert all(one.suggestion for one in found.suspected_faults)
    assert "Python, lines 101 to 114 of src/shop/login.py" in found.summary
    assert "Logs people in." in found.summary
    probes = {one.path: one for one in found.recommended_next_probes}
    assert set(probes) == {"src/shop/db/users.py", "src/shop", "src/shop/login.py"}
    assert "login" in probes["src/shop"].reason
    assert 0.5 < found.confidence < 0.9, "what stands before the chunk was not seen"
    assert JOB_TYPE.response.model_validate(found.typed()) == found


async def test_two_providers_agree_to_the_byte() -> None:
    """Two processes with hash seeds of their own."""
    asked = request()
    first, second = await asyncio.gather(run(asked), run(asked))
    assert json_sha256(first.outputs()) == json_sha256(second.outputs())
    model = first.provenance.model_id
    assert model.startswith("fumehood-analysis/")
    assert all(f"{name}-{number}" in model for name, number in tools.versions().items())


async def test_what_the_task_asks_for_comes_first() -> None:
    content = "def f(x, y=[]):\n    return eval(x)\n"
    security = await run(request(content, task="Is there a vulnerability?"))
    bugs = await run(request(content, task="Which bugs are there?"))
    assert [one.line for one in security.suspected_faults] == [2, 1]
    assert [one.line for one in bugs.suspected_faults] == [1, 2]
    assert "asks for security" in security.summary
    assert "asks for bug" in bugs.summary


@pytest.mark.parametrize("said", [{"language": "cobol"}, {"path": "a/README"}])
async def test_a_language_that_is_not_known_is_said_to_be(said: dict[str, str]) -> None:
    found = await run(request("MOVE A TO B.\n", **said))
    assert (found.symbols, found.suspected_faults) == ((), ())
    assert found.confidence == 0.1
    assert "not known" in found.summary


async def test_a_chunk_from_the_middle_of_a_function_is_read_as_far_as_it_goes() -> None:
    content = "        if ready:\n            os.system('rm ' + name)\n    def next(self):\n        return 1\n"
    found = await run(request(content, start_line=40))
    assert [(one.line, one.name) for one in found.symbols] == [(42, "next")]
    assert [(one.line, one.severity) for one in found.suspected_faults] == [(41, "high")]


async def test_what_cannot_be_parsed_costs_confidence() -> None:
    whole, torn = await asyncio.gather(run(request()), run(request("def f(:\n ) ) ]]]] %% \n" * 5)))
    assert torn.confidence < whole.confidence / 2
    assert "could not be parsed" in torn.summary


# --- the child -----------------------------------------------------------------------------------------------


async def test_a_child_that_takes_too_long_is_a_failure_that_says_so() -> None:
    with pytest.raises(JobFailedError, match=r"more than 0\.01 s") as failed:
        await run(request(), Limits(seconds=0.01))
    assert (failed.value.reason, failed.value.again) == ("analysis_failed", True)


async def test_a_child_without_memory_is_a_failure() -> None:
    with pytest.raises(JobFailedError) as failed:
        await run(request("x = f(1)\n" * 50_000), Limits(memory_bytes=96 * 1024**2))
    assert failed.value.reason == "analysis_failed"


async def test_a_child_that_uses_up_its_processor_time_is_killed() -> None:
    with pytest.raises(JobFailedError, match=r"SIGKILL|SIGXCPU"):
        await run(request("x = " + "(" * 400_000), Limits(cpu_seconds=1))


async def test_a_cancelled_analysis_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: asyncio.Future[asyncio.subprocess.Process] = asyncio.get_running_loop().create_future()
    make = asyncio.create_subprocess_exec

    async def remembered(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        started.set_result(await make(*arguments, **options))
        return started.result()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", remembered)
    task = asyncio.create_task(run(request("x = " + "(" * 200_000)))
    async with asyncio.timeout(60):
        process_ = await started
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert process_.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.killpg(process_.pid, 0)


async def test_no_file_that_the_code_names_is_opened(tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to would never end."""
    pipe = tmp_path / "pipe.h"
    os.mkfifo(pipe)
    disguises = [
        f'#include "{pipe}"',
        f'# /* */ include "{pipe}"',
        f'#inc\\\nlude "{pipe}"',
        f'/* \n */ #include "{pipe}"',
        f'%:include "{pipe}"',
        f'??=include "{pipe}"',
        f'#define X "{pipe}"\n#include X',
        f'#if __has_include("{pipe}")\nint x = 1 / 0;\n#endif',
    ]
    shell = f". {pipe}\nsource {pipe}\n# shellcheck source={pipe}\n"
    found = await asyncio.gather(
        run(request("\n".join(disguises) + "\nint f(void) { return 1; }\n", path="a.c"), Limits(seconds=30)),
        run(request(shell, path="a.sh"), Limits(seconds=30)),
    )
    assert [one.name for one in found[0].symbols if one.kind == "function"] == ["f"]


@pytest.mark.parametrize(
    ("path", "content", "line"),
    [
        ("a.py", "# ruff: noqa\ndef f():\n    raise NotImplemented  # noqa\n", 3),
        ("a.js", "/* eslint-disable */\n// oxlint-disable-next-line\nf(typeof a === 'strin');\n", 3),
        ("a.sh", "#!/bin/bash\n# shellcheck disable=all\nrm $1\n", 3),
        ("a.c", "int f(int *p) {\n  // cppcheck-suppress all\n  int x; return x;\n}\n", 3),
    ],
)
async def test_the_code_cannot_switch_off_what_is_said_of_it(path: str, content: str, line: int) -> None:
    found = await run(request(content, path=path))
    assert line in {one.line for one in found.suspected_faults}


def files_in(folder: str) -> list[str] | None:
    return [one.name for one in Path(folder).iterdir()] if Path(folder).exists() else None


async def test_the_child_is_given_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUMEHOOD_SECRET", "do not tell")
    seen: dict[str, Any] = {}
    make = asyncio.create_subprocess_exec

    async def watched(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        seen.update(options, files=files_in(options["cwd"]))
        return await make(*arguments, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", watched)
    await run(request("x = 1\n"))
    assert set(seen["env"]) == {"PATH", "HOME", "TMPDIR", "LANG"}
    assert seen["files"] == []
    assert files_in(seen["cwd"]) is None, "its folder is gone"


@pytest.mark.parametrize("said", [b"", b"[]", b'{"symbols": []}', b"\xff", b'{"failed": "ruff ended with 2"}'])
def test_an_answer_out_of_form_is_not_believed(said: bytes) -> None:
    with pytest.raises(JobFailedError):
        process._read(said)


def test_an_analyser_that_fails_is_named() -> None:
    with pytest.raises(JobFailedError, match="ruff"):
        process._read(b'{"failed": "ruff ended with 2"}')


def test_without_an_analyser_there_is_no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tools.PACKAGES, "ruff", "no-such-package")
    with pytest.raises(ConfigurationError, match="no-such-package"):
        LocalAnalysis()


def test_the_type_has_it_as_its_default() -> None:
    known = Registry.load()[JOB_TYPE.name]
    assert next(iter(known.handlers)) == "local"
