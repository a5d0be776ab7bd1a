"""What the documentation shows works as it is shown: every file in examples/, every block that is marked to be run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.dev_process import Dev
from tests.examples import installed
from tests.examples.markdown import ROOT, Block, blocks

FIRST_JOB = "docs/tutorial/first-job.md"
PAGES = [FIRST_JOB, "docs/howto/run-your-code.md"]
BLOCKS = [block for page in PAGES for block in blocks(page)]
LANGUAGES = {"console": ["bash", "-eu"], "python": ["python"]}
TIMES = re.compile(r'"(started_at|ended_at)": ?"[^"]*"')
SECONDS = 100

Done = subprocess.CompletedProcess[str]


def execute(*command: str | Path) -> Done:
    path = f"{installed.bin_folder()}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": os.environ.get("HOME", "/root"), "LANG": "C.UTF-8"}
    return subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def run_block(block: Block, dev: Dev, folder: Path) -> str:
    script = folder / f"block.{block.language}"
    text = block.text
    here = {"examples/run_job.py": f"examples/run_job.py --url {dev.node_url} --token-file {dev.token_file}"}
    for written, real in {**here, **dev.places}.items():
        text = text.replace(written, real)
    script.write_text(text, encoding="utf-8")
    done = execute(*LANGUAGES[block.language], script)
    assert done.returncode == 0, f"{block} failed\n{done.stdout}\n{done.stderr}"
    return done.stdout


def without_times(text: str) -> Any:
    return json.loads(TIMES.sub(r'"\1": "some time"', text))


def check_answer(printed: str, answer: Block) -> None:
    if answer.language == "json":
        assert without_times(printed) == without_times(answer.text)
    else:
        assert printed == answer.text


# --- pages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_blocks_that_are_run(page: str) -> None:
    """Else a slip of the marker would switch all of this off."""
    assert [block for block in blocks(page) if block.mark == "run"]


@pytest.mark.parametrize(
    "number", [n for n, block in enumerate(BLOCKS) if block.mark == "run"], ids=lambda n: str(BLOCKS[n])
)
def test_a_block_runs_as_written_and_answers_as_shown(number: int, dev: Dev, tmp_path: Path) -> None:
    """The same bytes as on the page, but for port and folder; and the answer beneath it, but for the times."""
    printed = run_block(BLOCKS[number], dev, tmp_path)
    following = BLOCKS[number + 1 : number + 2]
    if following and following[0].mark == "answer" and following[0].page == BLOCKS[number].page:
        check_answer(printed, following[0])


@pytest.fixture
def first_job() -> Block:
    """The request that is written with curl, and has an id that is written down."""
    (found,) = (block for block in blocks(FIRST_JOB) if block.mark == "run" and block.text.startswith("curl"))
    return found


def test_the_same_job_again_is_a_replay(first_job: Block, dev: Dev, tmp_path: Path) -> None:
    """As the page says: the very same answer, times included."""
    assert run_block(first_job, dev, tmp_path) == run_block(first_job, dev, tmp_path)


def test_the_same_job_with_another_command_is_a_conflict(first_job: Block, dev: Dev, tmp_path: Path) -> None:
    run_block(first_job, dev, tmp_path)
    other = replace(first_job, text=first_job.text.replace("echo hello", "echo hello again"))
    assert json.loads(run_block(other, dev, tmp_path))["status"] == 409


# --- files -------------------------------------------------------------------------------------------------

COMMANDS = {
    "run_job.py": (sys.executable, "examples/run_job.py", "--url", "{url}", "--token-file", "{token}"),
    "run_many.py": (sys.executable, "examples/run_many.py", "--url", "{url}", "--token-file", "{token}"),
    "worker_api.sh": ("bash", "examples/worker_api.sh", "{url}", "{token}"),
}
WORKERS = ("worker.py", "bare_nats_worker.py", "bare_worker.sh", "bare_worker.mjs")
"""Run by `test_worker_examples.py` and `test_bridge_examples.py`: they need a run to work for."""
FOLDERS = {
    "coding_agent": "test_programs.py",
    "data_analysis": "test_programs.py",
    "map_files": "test_programs.py",
    "approval": "test_programs.py",
    "ci_with_receipts": "test_programs.py",
    "node_worker": "test_node_worker.py",
    "job_types": "test_stories.py",
}
"""And where they are run."""
LIST = "README.md"


def command_of(name: str, dev: Dev) -> list[str]:
    return [part.format(url=dev.node_url, token=dev.token_file) for part in COMMANDS[name]]


@pytest.fixture(scope="module")
def finished(dev: Dev) -> dict[str, Done]:
    """Every example, run once."""
    return {name: execute(*command_of(name, dev)) for name in COMMANDS}


def test_every_example_is_run() -> None:
    assert present() == {*COMMANDS, *WORKERS, *FOLDERS}
    for name, test in FOLDERS.items():
        assert name in (Path(__file__).parent / test).read_text(encoding="utf-8"), f"{test} does not run {name}"


def present() -> set[str]:
    """What is there, beside the list of it."""
    found = {path.name for path in (ROOT / "examples").iterdir() if path.name != "__pycache__"}
    return found - {LIST}


def test_the_list_of_examples_is_complete() -> None:
    """One line for each; and how to run it, for those that are folders and not told in a tutorial."""
    text = (ROOT / "examples" / LIST).read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[([^]]+)]\(([^)]+)\) \| (\S.*) \|$", text, re.MULTILINE)
    assert all(name == link for name, link, _ in rows)
    assert sorted(name.rstrip("/") for name, _, _ in rows) == sorted(present())
    parts = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    assert parts.keys() == FOLDERS.keys() - {"job_types"}
    for name, part in parts.items():
        shown = "".join(re.findall(r"^```console\n(.*?)^```$", part, re.DOTALL | re.MULTILINE))
        programs = re.findall(r"examples/\S+\.(?:py|mjs)", shown)
        assert programs, name
        assert [program for program in programs if not (ROOT / program).exists()] == []
        assert all(program.startswith(f"examples/{name}/") for program in programs)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_runs(name: str, finished: dict[str, Done]) -> None:
    done = finished[name]
    assert done.returncode == 0, done.stdout + done.stderr


def test_run_job_ends_as_its_job_ended(dev: Dev) -> None:
    """A client that turned every end into 0 or 1 would be the first lie in the chain."""
    base = command_of("run_job.py", dev)
    failed = execute(*base, "--", "bash", "-c", "echo out; echo err >&2; exit 4")
    assert (failed.returncode, failed.stdout) == (4, "out\n")
    assert failed.stderr.startswith("err\nfailed, ")
    assert execute(*base, "--timeout", "1", "--", "sleep", "60").returncode == 124
    assert execute(*base, "--", "no-such-program").returncode == 127


def test_run_job_hands_everything_after_its_own_options_on(dev: Dev) -> None:
    base = command_of("run_job.py", dev)
    for words in (["bash", "-c", "echo $#", "x", "--timeout", "-h"], ["--", "bash", "-c", "echo $#", "x", "--", "y"]):
        assert execute(*base, *words).stdout == "2\n"


@pytest.mark.parametrize("name", ["run_job.py", "run_many.py"])
def test_a_missing_token_file_is_a_sentence(name: str, tmp_path: Path) -> None:
    done = execute(sys.executable, f"examples/{name}", "--token-file", tmp_path / "none")
    assert done.returncode != 0
    assert "No such file or directory. Does `fumehood dev` run?" in done.stderr
    assert "Traceback" not in done.stderr


def test_run_job_tells_a_refusal_from_a_result(dev: Dev, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("wrong", encoding="utf-8")
    refused = execute(sys.executable, "examples/run_job.py", "--url", dev.node_url, "--token-file", wrong)
    assert refused.returncode == 70
    assert "refused with 401" in refused.stderr


def test_run_many_gets_every_answer_right(finished: dict[str, Done]) -> None:
    assert finished["run_many.py"].stdout.endswith("30 of 30 right\n")


def test_worker_api_sh_shows_what_it_says(finished: dict[str, Done]) -> None:
    lines = finished["worker_api.sh"].stdout.splitlines()
    assert [line for line in lines if line.startswith("-> ")] == [
        "-> 200, reason: ",
        "-> 200, reason: ",
        "-> 409, reason: ",
        "-> 200, reason: ",
        "-> 200, reason: not_started",
    ]
    answers = [json.loads(line) for line in lines if line.startswith("{")]
    assert answers[0] == answers[1]
    assert answers[3]["status"] == "timeout"
    assert "exit_code" not in answers[3]
