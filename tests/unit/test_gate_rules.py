"""The checker of `tests/gate_rules.py`: what it finds in small files, and what it lets pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.gate_rules import MARKS, ROOT, check


def found(source: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.rule) for finding in check(dedent(source).lstrip("\n"))]


def in_a_test(body: str, head: str = "") -> str:
    return f"import asyncio, os, random, resource, socket, time\n{head}def test():\n" + "".join(
        f"    {line}\n" for line in dedent(body).strip().splitlines()
    )


def test_the_marks_are_those_of_pytests_options() -> None:
    assert {"timed", "storm", "hostile", "gvisor", "variant", "example", "quarantine", "record"} == MARKS


@pytest.mark.parametrize(
    "body",
    [
        "began = time.monotonic()\nassert time.monotonic() - began < 5",
        "began = time.perf_counter_ns()\ntook = (time.perf_counter_ns() - began) / 1e9\nassert 1 <= took <= 2",
        "began: float = time.time()\nassert 5 > round(time.time() - began)",
        "took = []\ntook.append(time.process_time())\nassert max(took) < 1, 'slow'",
        "took = [time.monotonic()]\nassert all(one < 1 for one in took)",
        "began, name = time.monotonic(), 'x'\nassert began == 3",
        "loop = asyncio.get_running_loop()\nassert loop.time() < 9",
        "before = asyncio.get_running_loop().time()\nassert before < 9",
        "assert resource.getrusage(resource.RUSAGE_SELF).ru_utime < 1",
        "assert os.times().user < 1 and True",
        "self.began = time.monotonic()\nassert self.began < 9",
        "def inner():\n    assert began < 9\nbegan = time.monotonic()",
        "end = time.monotonic() + 9\nwhile not ready():\n    assert time.monotonic() < end",
        "if (now := time.time()) > 3:\n    assert now < 4",
    ],
)
def test_an_assertion_that_a_clock_reads_less_is_found(body: str) -> None:
    assert [rule for _, rule in found(in_a_test(body))] == ["clock"]


@pytest.mark.parametrize(
    "body",
    [
        "began = time.monotonic()\ntime_bounds.check(time.monotonic() - began, 5)",
        "began = time.monotonic()\nassert time.monotonic() - began >= 0.5",
        "at = time.time()\nassert told <= time.time()",
        "clock = Clock()\nassert clock.time() < 5 and clock.now() - clock.began < 3",
        "end = time.monotonic() + 5\nwhile time.monotonic() < end:\n    pass",
        "answer = ask(deadline=time.monotonic() + 5)\nassert answer < 5",
        "assert verify(token, now=time.time()) == 1",
    ],
)
def test_other_uses_of_clocks_are_not(body: str) -> None:
    assert found(in_a_test(body)) == []


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import time\ntime.sleep(1)\n", 2),
        ("import asyncio\nasync def helper():\n    await asyncio.sleep(PAUSE / 2)\n", 3),
        ("from time import sleep as rest\ndef f():\n    rest(0.1)\n", 3),
        ("import asyncio as aio\nquick = lambda seconds: aio.sleep(seconds)\n", 2),
        ("import time\nclass World:\n    def wait(self):\n        time.sleep(delay)\n", 4),
    ],
)
def test_a_pause_is_found(source: str, line: int) -> None:
    assert found(source) == [(line, "sleep")]


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n",
        "async def f(clock):\n    await clock.sleep(5)\n",
        "CODE = 'import time; time.sleep(60)'\n",
        "def f(wf):\n    wf.sleep('rest', 5)\n",
    ],
)
def test_what_takes_no_time_is_no_pause(source: str) -> None:
    assert found(source) == []


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("import random\nx = random.choice([1, 2])\n", 2),
        ("import random\nx = random.Random()\n", 2),
        ("from random import shuffle\ndef f(x):\n    shuffle(x)\n", 3),
        ("import random\nrandom.seed()\n", 2),
        ("import random\nx = random.SystemRandom()\n", 2),
    ],
)
def test_a_choice_without_a_seed_is_found(source: str, line: int) -> None:
    assert found(source) == [(line, "random")]


@pytest.mark.parametrize(
    "source",
    [
        "import random\nx = random.Random(4).choice([1, 2])\n",
        "import secrets, uuid\nname = f'run-{uuid.uuid4()}-{secrets.token_hex(4)}'\n",
        "def f(random):\n    random.shuffle([1, 2])\n",
    ],
)
def test_choices_with_a_seed_and_names_are_not(source: str) -> None:
    assert found(source) == []


@pytest.mark.parametrize(
    "body",
    [
        "with socket.socket() as s:\n    s.bind(('127.0.0.1', 0))\n    return s.getsockname()[1]",
        "with socket.socket() as s:\n    s.bind(('', 0))\n    port: int = s.getsockname()[1]\n    return port",
        "with socket.create_server(('', 0)) as s:\n    port = s.getsockname()[1]\nstart(port)",
        "with socket.create_server(('', 0)) as s:\n    port = s.getsockname()[1]\nassert start(port) == 3",
        "s = socket.socket()\ns.bind(('', 0))\nport = s.getsockname()[1]\ns.close()\nreturn port",
    ],
)
def test_a_port_whose_socket_is_closed_is_found(body: str) -> None:
    assert [rule for _, rule in found(in_a_test(body))] == ["port"]


@pytest.mark.parametrize(
    "body",
    [
        "s = socket.socket()\ns.bind(('', 0))\nreturn s, s.getsockname()[1]",
        "with socket.socket() as s:\n    s.bind(('', 0))\n    yield s.getsockname()[1]",
        "with socket.create_server(('', 0)) as s:\n    start(s.getsockname()[1])",
        "with socket.create_server(('', 0)) as s:\n    port = s.getsockname()[1]\nassert said == f'port {port}'",
        "with socket.socket() as s:\n    s.bind(('', 0))\n    done = run(s.getsockname()[1])\nassert done() == []",
        "with socket.create_server(('', 8080)) as s:\n    return s.getsockname()[1]",
        "with socket.socket() as s:\n    s.connect(there)\n    return s.getsockname()[0]",
    ],
)
def test_a_port_whose_socket_is_held_is_not(body: str) -> None:
    assert found(in_a_test(body)) == []


PAUSE = "    def test(self):\n        time.sleep(1)\n"


@pytest.mark.parametrize(
    "source",
    [
        "import time\npytestmark = pytest.mark.storm\ntime.sleep(1)\n",
        "import time\npytestmark = [pytest.mark.usefixtures('x'), pytest.mark.timed]\ntime.sleep(1)\n",
        "import time\n@pytest.mark.hostile\nclass Tests:\n" + PAUSE,
        "import time\nclass Tests:\n    pytestmark = pytest.mark.record\n" + PAUSE,
        "import time\n@pytest.mark.timed\ndef test_a(): ...\ndef helper():\n    time.sleep(1)\n",
        in_a_test("time.sleep(1)", "@pytest.mark.timed\n"),
        in_a_test("time.sleep(1)", "@pytest.mark.quarantine(reason='x')\n"),
        in_a_test("time.sleep(1)", "@pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.timed)])\n"),
    ],
)
def test_what_the_gate_leaves_out_may_do_it(source: str) -> None:
    assert found(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\npytestmark = pytest.mark.usefixtures('x')\ntime.sleep(1)\n",
        in_a_test("time.sleep(1)", "@pytest.mark.anything\n"),
        in_a_test("time.sleep(1)", "@pytest.mark.parametrize('a', [0, pytest.param(1, marks=pytest.mark.timed)])\n"),
        "import time\n@pytest.mark.timed\ndef test_a(): ...\ndef test_b(): ...\ndef helper():\n    time.sleep(1)\n",
    ],
)
def test_what_the_gate_runs_may_not(source: str) -> None:
    assert [rule for _, rule in found(source)] == ["sleep"]


def test_a_comment_with_a_reason_allows_one_line() -> None:
    assert found("import time\ntime.sleep(1)  # gate: sleep the kernel counts in seconds\ntime.sleep(1)\n") == [
        (3, "sleep")
    ]


@pytest.mark.parametrize(
    "comment", ["# gate: sleep", "# gate:", "# gate: nap because", "# gate: random not what this is"]
)
def test_a_comment_without_a_reason_or_a_cause_is_found(comment: str) -> None:
    assert (2, "comment") in found(f"import time\ntime.sleep(1)  {comment}\n")


def test_it_prints_where_and_ends_with_one(tmp_path: Path) -> None:
    """And with nothing for the file that has all the looking in it."""
    bad = tmp_path / "bad.py"
    bad.write_text("import time\n\ntime.sleep(1)\n")
    words = [sys.executable, "-m", "tests.gate_rules"]
    done = subprocess.run([*words, str(bad)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{bad}:3: sleep: ")
    done = subprocess.run([*words, "tests/waiting.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
