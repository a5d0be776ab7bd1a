"""The rows of the table: what is measured, and beside what."""

from __future__ import annotations

from dataclasses import dataclass

TRUE = ("true",)
PYTHON = ("python3", "-c", "print(1)")
CODE = "print(1)"
OUTPUTS = {TRUE: "", PYTHON: "1\n"}

BARE_TRUE, BARE_PYTHON, BARE_EXEC, BARE_EXEC_PYTHON = "bare-true", "bare-python", "bare-exec", "bare-exec-python"
BARE_TRUE_ANSWER, BARE_PYTHON_ANSWER = "bare-true-answer", "bare-python-answer"
FLOOR_TRUE, FLOOR_PYTHON, JETSTREAM = "floor-true", "floor-python", "jetstream"
WARM_TRUE, WARM_PYTHON, PYTHON_EXEC = "warm-true", "warm-python", "python-exec"
COLD_TRUE, COLD_PYTHON = "cold-true", "cold-python"
COLD_TRUE_GONE, COLD_PYTHON_GONE, REMOVAL = "cold-true-gone", "cold-python-gone", "removal"
SESSION, SESSION_PYTHON, SESSION_HTTP, RUN = "session", "session-python", "session-http", "run"
LLM_FIRST, LLM_NEXT, LLM_REMOVAL = "llm-sandbox-first", "llm-sandbox-next", "llm-sandbox-removal"
LLM_POOLED = "llm-sandbox-pooled"
REX_FIRST, REX_NEXT, REX_REMOVAL = "swe-rex-first", "swe-rex-next", "swe-rex-removal"

BARE, FLOOR, OURS, PEER = "bare engine", "floor", "fumehood", "peer"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    whose: str
    what: str
    against: str | None = None
    """The row of the bare engine that it is a ratio of."""


_PYTHON = "`python3 -c 'print(1)'`"
ROWS = {
    BARE_TRUE: Row(BARE, "create, attach, start, read, wait, remove: `true`"),
    BARE_PYTHON: Row(BARE, f"the same: {_PYTHON}"),
    BARE_TRUE_ANSWER: Row(BARE, "the same without the removal: `true`", BARE_TRUE),
    BARE_PYTHON_ANSWER: Row(BARE, f"the same without the removal: {_PYTHON}", BARE_PYTHON),
    BARE_EXEC: Row(BARE, "exec in a running container: `true`"),
    BARE_EXEC_PYTHON: Row(BARE, f"exec in a running container: {_PYTHON}"),
    FLOOR_TRUE: Row(FLOOR, "the runtime alone, without an engine: `true`", BARE_TRUE),
    FLOOR_PYTHON: Row(FLOOR, f"the runtime alone, without an engine: {_PYTHON}", BARE_PYTHON),
    JETSTREAM: Row(FLOOR, "one message stored by JetStream, acknowledged"),
    WARM_TRUE: Row(OURS, "a job on the node over HTTP, claimed warm: `true`", BARE_TRUE),
    WARM_PYTHON: Row(OURS, f"a job on the node over HTTP, claimed warm: {_PYTHON}", BARE_PYTHON),
    PYTHON_EXEC: Row(OURS, "pythonExec at a worker, interpreter waiting: `print(1)`", BARE_PYTHON),
    RUN: Row(OURS, "`POST /runs` to its end, through server, queue and node: `true`", BARE_TRUE),
    COLD_TRUE: Row(OURS, "a job on the node over HTTP, cold, to the answer: `true`", BARE_TRUE),
    COLD_PYTHON: Row(OURS, f"a job on the node over HTTP, cold, to the answer: {_PYTHON}", BARE_PYTHON),
    COLD_TRUE_GONE: Row(OURS, "a job on the node over HTTP, cold, until gone: `true`", BARE_TRUE),
    COLD_PYTHON_GONE: Row(OURS, f"a job on the node over HTTP, cold, until gone: {_PYTHON}", BARE_PYTHON),
    REMOVAL: Row(OURS, "from the answer until its container is gone"),
    SESSION: Row(OURS, "a command in a session, at its worker: `true`", BARE_EXEC),
    SESSION_HTTP: Row(OURS, "a command in a session, over HTTP through a server: `true`", BARE_EXEC),
    SESSION_PYTHON: Row(OURS, f"a command in a session, at its worker: {_PYTHON}", BARE_EXEC_PYTHON),
    LLM_FIRST: Row(PEER, "llm-sandbox: open a session, first answer: `print(1)`", BARE_PYTHON),
    LLM_POOLED: Row(PEER, "llm-sandbox: a container of its pool, first answer: `print(1)`", BARE_PYTHON),
    LLM_NEXT: Row(PEER, "llm-sandbox: next command: `print(1)`", BARE_EXEC_PYTHON),
    LLM_REMOVAL: Row(PEER, "llm-sandbox: close"),
    REX_FIRST: Row(PEER, f"swe-rex: start a deployment, first answer: {_PYTHON}", BARE_PYTHON),
    REX_NEXT: Row(PEER, f"swe-rex: next command: {_PYTHON}", BARE_EXEC_PYTHON),
    REX_REMOVAL: Row(PEER, "swe-rex: stop"),
}
