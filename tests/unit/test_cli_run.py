"""`fumehood run` without a server that runs anything: what it asks, what it prints of what comes, and how it exits.

The server here only says what it is told; what a real one does is in `tests/e2e/test_run.py`.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.cli import leaving, output, run_request, run_watch
from fumehood.cli.client import Api
from fumehood.cli.denial import DENIALS, STAGES, advice_to_operator
from fumehood.cli.main import main
from fumehood.cli.output import Printed, Sink, harmless
from fumehood.cli.run_end import end_of
from fumehood.cli.stream import Patience
from fumehood.images import DenialReason
from fumehood.images.run_rules import LIMITS_NOT_ALLOWED, NETWORK_NOT_ALLOWED, USER_NOT_ALLOWED
from fumehood.wire.sandbox import SANDBOX_TASK, NetworkProfile, RunReason
from tests.unit.api_server import Answer, ApiServer, Asked, api_server, problem
from tests.waiting import wait_until

RUN_ID = "01a1df3651e61ed7089b7118ce08b8d6"
DIGEST = "sha256:" + "a" * 64
IMAGE = "127.0.0.1:5055/base:1"
STREAM = f"GET /runs/{RUN_ID}/logs/stream"
SSE = {"content-type": "text/event-stream"}
TURNING = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""What turns the direction of a line."""
GREETING = b"retry: 1000\n\n"
END = b'event: end\ndata: {"attempt":1,"stdout":0,"stderr":0}\n\n'
CREATED = {"run_id": RUN_ID, "pod_name": f"run-{RUN_ID}", "status": "queued", "image_digest": DIGEST}


def frame(event: str, place: str, **data: Any) -> bytes:
    return f"id: {place}\nevent: {event}\ndata: {json.dumps(data)}\n\n".encode()


STORY = [
    frame("start", "1.0.0", attempt=1, node="n"),
    frame("stdout", "1.7.0", offset=0, text="one\ntwo"),
    frame("stderr", "1.7.5", offset=0, text="oh\u2028\n"),
    frame("stdout", "1.14.5", offset=7, text=" drei\x1b\n"),
]


def told(*frames: bytes, whole: bool = True) -> Answer:
    return Answer(headers=SSE, pieces=(GREETING, *frames), whole=whole)


def run_view(status: str = "succeeded", **more: Any) -> dict[str, Any]:
    return {"run_id": RUN_ID, "status": status, "reason": "exit", "exit_code": 0, "detail": None, **more}


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as made:
        made.answers |= {
            "POST /runs": Answer(CREATED, 201),
            f"GET /runs/{RUN_ID}": Answer(run_view()),
            f"GET /runs/{RUN_ID}/logs": Answer({"run_id": RUN_ID, "stdout": "a\n", "stderr": "b\n", "truncated": True}),
            f"POST /runs/{RUN_ID}/stop": Answer(status=202),
            STREAM: told(*STORY, END),
        }
        yield made


@pytest.fixture
def fumehood(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> Command:
    for name in list(os.environ):
        if name.startswith("FUMEHOOD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FUMEHOOD_URL", server.url)
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["fumehood", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsysbinary.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0, printed.out.decode(), printed.err.decode())

    return run


# --- what is asked -----------------------------------------------------------------------------------------


def asked_for(server: ApiServer) -> dict[str, Any]:
    (asked,) = [one for one in server.asked if (one.method, one.path) == ("POST", "/runs")]
    found: dict[str, Any] = asked.json
    return found


def test_a_run_asks_for_what_was_typed(fumehood: Command, server: ApiServer) -> None:
    words = "--cpu 0.5 --memory 2g --timeout 90s --network dns-only --env A=1 -e B=x=y --attempts 3"
    assert fumehood("run", IMAGE, *words.split(), "--", "echo", "-n", "--cpu").code == 0
    assert asked_for(server) == {
        "image_ref": IMAGE,
        "args": ["echo", "-n", "--cpu"],
        "resources": {"cpu_millis": 500, "memory_mb": 2048, "timeout_seconds": 90},
        "network_policy_profile": "dns-only",
        "env_allowlist": {"A": "1", "B": "x=y"},
        "max_attempts": 3,
    }


def test_without_a_word_the_image_decides_what_runs(fumehood: Command, server: ApiServer) -> None:
    assert fumehood("run", IMAGE).code == 0
    body = asked_for(server)
    assert body.keys() & {"command", "args"} == set()
    assert body["resources"] == {"cpu_millis": 1000, "memory_mb": 512, "timeout_seconds": 300}
    assert (body["network_policy_profile"], body["max_attempts"]) == ("deny-all", 1)


def test_an_entrypoint_is_replaced_only_where_that_is_said(fumehood: Command, server: ApiServer) -> None:
    assert fumehood("run", IMAGE, "--command", "--", "sh", "-c", "x").code == 0
    body = asked_for(server)
    assert (body["command"], "args" in body) == (["sh", "-c", "x"], False)


def test_a_key_goes_along_and_one_is_made_where_none_is_given(fumehood: Command, server: ApiServer) -> None:
    fumehood("run", IMAGE, "--idempotency-key", "order-1")
    fumehood("run", IMAGE)
    fumehood("run", IMAGE)
    keys = [one.headers["idempotency-key"] for one in server.asked if one.method == "POST"]
    assert keys[0] == "order-1"
    assert len(set(keys)) == 3


def test_an_answer_that_did_not_come_is_asked_for_again_with_the_same_key(fumehood: Command, server: ApiServer) -> None:
    busy = problem(503, "broker-unavailable", "later")
    server.answers["POST /runs"] = [busy, Answer(pieces=(b"{",), whole=False), Answer(CREATED, 201)]
    assert fumehood("run", IMAGE).code == 0
    keys = [one.headers["idempotency-key"] for one in server.asked if one.method == "POST"]
    assert (len(keys), len(set(keys))) == (3, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--cpu many", "--cpu: write cores (2, 0.5) or thousandths of one (500m), not 'many'"),
        ("--memory 1t", "--memory: write MiB (512, 512m) or GiB (2g), not '1t'"),
        ("--timeout soon", "--timeout: 'soon' is not a duration"),
        (
            "--network dns_only",
            "--network dns_only: there are deny-all, dns-only, localhost, restricted, full; did you",
        ),
        ("--env HOME", "--env HOME: write it like NAME=VALUE; nothing of your own environment goes along"),
        ("--env 1A=hidden", "--env 1A=…: a name has letters, digits and _, and begins with no digit"),
        ("--env A=hidden --env A=hidden", "--env A is there twice"),
        ("--command", "--command: say behind -- what to run instead of the image's entrypoint"),
    ],
)
def test_a_wrong_word_is_one_line_and_runs_nothing(fumehood: Command, server: ApiServer, words: str, said: str) -> None:
    done = fumehood("run", IMAGE, *words.split())
    assert (done.code, done.out, server.asked) == (2, "", [])
    assert done.err.startswith(f"fumehood: {said}")
    assert "hidden" not in done.err


@pytest.mark.parametrize(
    ("text", "millis"), [("1", 1000), ("0.5", 500), (".25", 250), ("500m", 500), ("8", 8000), ("1.001", 1001)]
)
def test_cores(text: str, millis: int) -> None:
    assert run_request.cpu_millis(text) == millis


@pytest.mark.parametrize(("text", "mib"), [("64", 64), ("512m", 512), ("512MiB", 512), ("2g", 2048), ("2Gi", 2048)])
def test_memory(text: str, mib: int) -> None:
    assert run_request.memory_mib(text) == mib


@pytest.mark.parametrize(("text", "seconds"), [("30", 30), ("30s", 30), ("5m", 300), ("1500ms", 2), ("1ms", 1)])
def test_a_timeout_is_never_shorter_than_it_was_said(text: str, seconds: int) -> None:
    assert run_request.timeout_seconds(text) == seconds


def test_names_that_are_written_twice_are_the_same() -> None:
    """The command line does not load `wire` for them."""
    assert set(run_request.NETWORKS) == set(NetworkProfile)
    assert run_watch.SANDBOX_TASK == SANDBOX_TASK


# --- what comes --------------------------------------------------------------------------------------------

OUT, ERR = "one\ntwo drei\x1b\n", "oh\u2028\n"


def test_streams_come_out_as_they_went_in(fumehood: Command) -> None:
    done = fumehood("run", IMAGE, "--", "x")
    assert (done.code, done.out, done.err) == (0, OUT, ERR)


@pytest.mark.parametrize("whole", [True, False], ids=["closed", "cut"])
def test_a_stream_that_breaks_after_each_event_brings_each_once(
    fumehood: Command, server: ApiServer, whole: bool
) -> None:
    places = [None, "1.0.0", "1.7.0", "1.7.5", "1.14.5"]

    def one_more(asked: Asked) -> Answer:
        number = places.index(asked.headers.get("last-event-id"))
        return told(*STORY[number : number + 1], *([END] if number >= len(STORY) - 1 else []), whole=whole)

    server.answers[STREAM] = one_more
    done = fumehood("run", IMAGE)
    assert (done.code, done.out) == (0, OUT)
    assert "".join(line for line in done.err.splitlines(keepends=True) if not line.startswith("fumehood:")) == ERR


def test_nothing_at_all_is_how_a_server_says_that_all_was_seen(fumehood: Command, server: ApiServer) -> None:
    server.answers[STREAM] = [told(*STORY), Answer(status=204)]
    assert fumehood("run", IMAGE).out == OUT


PIECES = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text(min_size=1, max_size=5)), max_size=8)


@given(pieces=PIECES, breaks=st.lists(st.integers(0, 4), max_size=8))
def test_wherever_it_breaks_nothing_is_missed_or_told_twice(pieces: list[tuple[str, str]], breaks: list[int]) -> None:
    """The server tells from behind the id that it is given; a stream ends after as many events as it is told to."""
    frames, done = [frame("start", "1.0.0", attempt=1)], {"stdout": 0, "stderr": 0}
    for stream, text in pieces:
        offset = done[stream]
        done[stream] += len(text.encode("utf-8", "surrogatepass"))
        frames.append(frame(stream, f"1.{done['stdout']}.{done['stderr']}", offset=offset, text=text))
    ids = [one.split(b"\n")[0].removeprefix(b"id: ").decode() for one in frames]
    left = iter(breaks)

    class Server:
        def stream(self, path: str, *, last_event_id: str | None) -> Any:
            rest = frames[ids.index(last_event_id) + 1 if last_event_id else 0 :]
            many = next(left, None)
            return _Open([GREETING, *(rest[:many] if many is not None else [*rest, END])])

    seen = list(Printed(Server(), "x", Patience(sleep=lambda _: None)).events())  # type: ignore[arg-type]
    assert [event["event"] for event in seen[:1]] == ["start"]
    assert [(event["event"], event["text"]) for event in seen[1:]] == pieces


class _Open:
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def __enter__(self) -> Iterator[bytes]:
        return iter(self._chunks)

    def __exit__(self, *_: object) -> None:
        pass


def test_what_is_left_out_is_said_once_and_on_a_line_of_its_own(fumehood: Command, server: ApiServer) -> None:
    paused = frame("cut", "1.3.3", stream="stdout", offset=3, resumes_at=None)
    start = [frame("start", "1.0.0", attempt=1), frame("stderr", "1.0.3", offset=0, text="abc")]
    rest = [
        frame("cut", "1.9.3", stream="stdout", offset=3, resumes_at=9),
        frame("stdout", "1.10.3", offset=9, text="z"),
    ]
    server.answers[STREAM] = [told(*start, paused), told(paused), told(paused, *rest, END)]
    assert fumehood("run", IMAGE).err.splitlines() == [
        "abc",
        "fumehood: there may be more of stdout than is shown here",
        "fumehood: 6 bytes of stdout are left out here",
    ]


def test_another_attempt_is_told(fumehood: Command, server: ApiServer) -> None:
    server.answers[STREAM] = told(*STORY[:2], frame("start", "2.0.0", attempt=2), END)
    assert "fumehood: attempt 2 begins, and prints from the start" in fumehood("run", IMAGE).err


@given(st.text())
def test_on_a_terminal_nothing_is_left_that_it_would_obey(text: str) -> None:
    shown = harmless(text)
    assert len(shown) == len(text)
    assert all(
        shown[at] in (text[at], *"\N{REPLACEMENT CHARACTER}␡") or ord(text[at]) < 0x20 for at in range(len(text))
    )
    assert not any((ord(one) < 0x20 and one not in "\t\n\r") or 0x7F <= ord(one) < 0xA0 for one in shown)
    assert "\r" not in shown.replace("\r\n", "")
    assert not set(shown) & TURNING


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("all is well\rDENIED", "all is well␍DENIED"),
        ("a\r\nb\r\r\n", "a\r\nb␍\r\n"),
        ("\r", "␍"),
        ("a\u061cb", "a\ufffdb"),
    ],
)
def test_nothing_writes_over_what_was_read(text: str, shown: str) -> None:
    assert harmless(text) == shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(st.lists(st.text(alphabet="a\r\n", max_size=5), max_size=8))
def test_a_terminal_is_shown_the_same_however_the_text_is_cut(pieces: list[str]) -> None:
    """But for a carriage return at the very end, of which nobody knows yet what it is."""
    terminal, whole = Terminal(), "".join(pieces)
    sink = Sink(terminal)
    for piece in pieces:
        sink.write(piece)
    assert terminal.getvalue() == harmless(whole.removesuffix("\r"))
    assert sink.is_fresh == (not whole or whole.endswith("\n"))


def test_elsewhere_than_on_a_terminal_a_carriage_return_is_one() -> None:
    pipe = io.TextIOWrapper(io.BytesIO())
    Sink(pipe).write("a\rb\r")
    assert pipe.buffer.getvalue() == b"a\rb\r"


def test_a_pipe_that_nobody_reads_leaves_the_run_alone(server: ApiServer, tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "FUMEHOOD_URL": server.url}
    many = [frame("stdout", f"1.{n}.0", offset=n, text="x" * 65_536 + "\n") for n in range(40)]
    server.answers[STREAM] = told(STORY[0], *many, END)
    shell = '"$0" -m fumehood run image | head -c 1 > /dev/null; echo "${PIPESTATUS[0]}"'
    done = subprocess.run(
        ["bash", "-c", shell, sys.executable], env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout == "141\n", done.stderr
    assert (
        done.stderr == f"fumehood: nobody reads the output; {RUN_ID} goes on, `fumehood runs stop {RUN_ID}` ends it\n"
    )


# --- how it ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "code", "words"),
    [
        (run_view(), 0, ""),
        (run_view("succeeded", reason=None, exit_code=None), 0, ""),
        (run_view("failed", exit_code=3), 3, ""),
        (run_view("timed_out", reason="timeout", exit_code=None), 124, "took longer than its --timeout"),
        (run_view("failed", reason="oom", exit_code=137), 137, "more memory than --memory gave it"),
        (run_view("failed", reason="signal", exit_code=134, detail="signal 6"), 134, "ended by a signal: signal 6"),
        (run_view("stopped", reason="stopped", exit_code=None), 143, "was stopped"),
        (run_view("failed", reason="image_error", exit_code=127, detail="no x"), 127, "did not start: no x"),
        (run_view("failed", reason="image_error", exit_code=None, detail="gone"), 125, "did not start: gone"),
        (run_view("failed", reason="node_lost", exit_code=None), 122, "nobody knows how far it came"),
        (run_view("failed", reason="internal", exit_code=None), 122, "for no fault of its own"),
        (run_view("failed", reason="later", exit_code=None, detail="a\x1bb"), 122, "ended as failed: a b"),
    ],
)
def test_each_end_has_a_code_and_says_what_it_does_not_say(
    fumehood: Command, server: ApiServer, run: dict[str, Any], code: int, words: str
) -> None:
    server.answers[f"GET /runs/{RUN_ID}"] = Answer(run)
    done = fumehood("run", IMAGE)
    assert done.code == code
    last = done.err.removeprefix(ERR)
    assert words in last
    assert last.count("\n") == bool(words)


def test_every_reason_is_told_apart() -> None:
    ends = {reason: end_of(run_view("failed", reason=reason.value, exit_code=None)) for reason in RunReason}
    del ends[RunReason.EXIT]
    assert len({end.line for end in ends.values()}) == len(ends)
    assert all(end.code for end in ends.values())


def test_for_programs_there_is_one_document_and_nothing_else(fumehood: Command, server: ApiServer) -> None:
    server.answers[f"GET /runs/{RUN_ID}"] = Answer(run_view("failed", exit_code=3))
    done = fumehood("run", IMAGE, "--json")
    found = json.loads(done.out)
    assert (done.code, done.err) == (3, "")
    assert (found["exit_code"], found["stdout"], found["stderr"], found["truncated"]) == (3, "a\n", "b\n", True)


def test_detached_is_the_id_alone(fumehood: Command, server: ApiServer) -> None:
    assert fumehood("run", "-d", IMAGE).out == f"{RUN_ID}\n"
    assert [one.path for one in server.asked] == ["/runs"]


def test_a_run_that_is_not_over_when_its_output_is_is_waited_for(fumehood: Command, server: ApiServer) -> None:
    under_way = Answer(run_view("running", reason=None, exit_code=None))
    server.answers[f"GET /runs/{RUN_ID}"] = [under_way, under_way, Answer(run_view("failed", exit_code=9))]
    assert fumehood("run", IMAGE).code == 9


def test_every_denial_has_its_stage_and_advice_for_both() -> None:
    told = {*DenialReason, USER_NOT_ALLOWED, NETWORK_NOT_ALLOWED, LIMITS_NOT_ALLOWED}
    assert DENIALS.keys() == told
    for reason, denial in DENIALS.items():
        assert denial.stage in STAGES
        evidence = {"denial_reason": reason, "registry": "r", "repository": "a", "resolved_digest": DIGEST}
        assert denial.caller
        assert "{" not in denial.caller + advice_to_operator(evidence)


DENIED = {
    "registry_allowed": True, "signature_verified": False, "denial_reason": "signature_missing", "image": IMAGE,
    "policy": "strict", "rule": "ours", "resolved_digest": DIGEST, "detail": "no signature is there",
}  # fmt: skip


def test_a_denial_says_what_was_asked_what_was_found_and_what_to_do(fumehood: Command, server: ApiServer) -> None:
    server.answers["POST /runs"] = problem(403, "policy-denied", "no", policy_evidence=DENIED)
    done = fumehood("run", IMAGE)
    assert (done.code, done.out) == (125, "")
    assert done.err.splitlines() == [
        f"fumehood: {IMAGE} was not run: denied by the server's policy strict (signature_missing)",
        "  ✓ the registry ✓ what the name means ✗ the signature: no signature is there",
        "  → have this digest signed by somebody whom the policy trusts",
    ]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("invalid_image_ref", "this is not the name of an image"),
        ("digest_resolution_failed", "the server could not find the image"),
    ],
)
def test_what_the_policy_did_not_decide_is_not_blamed_on_it(
    fumehood: Command, server: ApiServer, reason: str, words: str
) -> None:
    evidence = {"denial_reason": reason, "image": IMAGE, "policy": "strict", "detail": "no"}
    server.answers["POST /runs"] = problem(403, "policy-denied", "no", policy_evidence=evidence)
    assert fumehood("run", IMAGE).err.splitlines()[0] == f"fumehood: {IMAGE} was not run: {words} ({reason})"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"denial_reason": "registry_not_allowed", "detail": "not this one"}, "  ✗ the registry: not this one"),
        (
            {"denial_reason": "digest_resolution_failed", "detail": "503"},
            "  ✓ the registry ✓ what the name means ✗ the signature: 503",
        ),
        (
            {"denial_reason": "network_not_allowed", "signature_verified": True, "key": "k"},
            "  ✓ the registry ✓ what the name means ✓ the signature ✗ how it is run: no signature is there",
        ),
        ({"denial_reason": "of_a_later_server", "detail": "new\x1b"}, "  ✗ new "),
        ({"denial_reason": None, "detail": None}, "  ✗ no (policy-denied, request req-1)"),
    ],
)
def test_each_denial_is_at_its_stage(fumehood: Command, server: ApiServer, changes: dict[str, Any], line: str) -> None:
    server.answers["POST /runs"] = problem(403, "policy-denied", "no", policy_evidence=DENIED | changes)
    assert line in fumehood("run", IMAGE).err.splitlines()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            problem(400, "invalid-request", "resources.cpu_millis: must be at most 8000"),
            "--cpu: resources.cpu_millis: must",
        ),
        (problem(400, "invalid-request", "env_allowlist.A: no"), "--env: env_allowlist.A: no"),
        (problem(403, "forbidden", "this key lacks the scope"), "this key lacks the scope"),
        (problem(409, "conflict", "this idempotency key was used before"), "this idempotency key was used before"),
        (Answer(pieces=(b"<html>",), status=404), "http://"),
    ],
)
def test_what_was_refused_was_not_run(fumehood: Command, server: ApiServer, answer: Answer, said: str) -> None:
    server.answers["POST /runs"] = answer
    done = fumehood("run", IMAGE)
    assert (done.code, done.err.startswith(f"fumehood: {said}")) == (125, True), done.err


def test_no_server_is_not_run_either(fumehood: Command) -> None:
    done = fumehood("run", IMAGE, "--server", "http://127.0.0.1:1")
    assert (done.code, "no server answers" in done.err) == (125, True)


@pytest.mark.parametrize(
    "later",
    [
        None,
        Answer(pieces=(b"{",), whole=False),
        problem(503, "overloaded", "later"),
        problem(500, "internal", "a fault"),
        problem(401, "unauthorized", "this key was revoked meanwhile"),
    ],
)
def test_a_request_without_an_answer_may_have_been_run(
    fumehood: Command, server: ApiServer, monkeypatch: pytest.MonkeyPatch, later: Answer | None
) -> None:
    monkeypatch.setattr("fumehood.cli.client.BACK_OFF_SECONDS", 0.0)
    cut = Answer(pieces=(b"{",), whole=False)
    server.answers["POST /runs"] = cut if later is None else [cut, *[later] * 3]
    done = fumehood("run", IMAGE)
    assert (done.code, "`fumehood runs ls` shows whether it runs" in done.err) == (122, True), done.err


def test_a_run_whose_output_a_proxy_withholds_is_not_ended_by_that(fumehood: Command, server: ApiServer) -> None:
    server.answers[f"GET /runs/{RUN_ID}/logs/stream"] = Answer(pieces=(b"<html>",), status=403)
    done = fumehood("run", IMAGE)
    assert (done.code, f"{RUN_ID} was started, but its state could not be read" in done.err) == (122, True), done.err


def test_a_receipt_of_an_earlier_run_does_not_pass_for_this_one(
    fumehood: Command, server: ApiServer, tmp_path: Path
) -> None:
    kept = tmp_path / "receipt.json"
    kept.write_text("{}")
    server.answers[f"GET /runs/{RUN_ID}/receipt"] = problem(404, "not-found", "there is none")
    done = fumehood("run", IMAGE, "--receipt", str(kept))
    assert (done.code, "was not written" in done.err, kept.exists()) == (0, True, False), done.err


def test_how_a_run_ended_is_told_although_its_output_is_not_there(fumehood: Command, server: ApiServer) -> None:
    server.answers[f"GET /runs/{RUN_ID}/logs"] = problem(404, "not-found", "gone")
    server.answers[f"GET /runs/{RUN_ID}"] = Answer(run_view("failed", reason="exit", exit_code=3))
    done = fumehood("run", IMAGE, "--json")
    assert (done.code, json.loads(done.out)["exit_code"]) == (3, 3)
    assert "its output is left out: gone" in done.err


# --- beside the output -------------------------------------------------------------------------------------

NODE = {"worker_id": "node", "task_types": [SANDBOX_TASK], "max_tasks": 8}
OTHER = {"worker_id": "w", "task_types": ["llm"], "max_tasks": 3}


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ([], "no node is connected; it waits for one"),
        ([OTHER], "no node is connected; it waits for one"),
        ([NODE, OTHER], "1 node with 8 slots, and 5 waiting for one"),
        ([NODE, {**NODE, "max_tasks": 2}], "2 nodes with 10 slots, and 5 waiting for one"),
        (None, "no node has taken it yet"),
    ],
)
def test_why_nothing_begins(server: ApiServer, workers: list[dict[str, Any]] | None, words: str) -> None:
    if workers is not None:
        server.answers["GET /v1/workers"] = Answer({"workers": workers, "next": None})
        types = [{"task_type": SANDBOX_TASK, "waiting": 5}, {"task_type": "llm", "waiting": 7}]
        server.answers["GET /v1/task-types"] = Answer({"task_types": types, "next": None})
    with closing(Api(server.url, None)) as api:
        assert run_watch.why_queued(api).startswith(words)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("queued", f"fumehood: {RUN_ID} is queued: no node has taken it yet\n"),
        ("starting", f"fumehood: {RUN_ID} is starting: a node has it, and gets its image ready\n"),
    ],
)
def test_whoever_waits_long_is_told_why(
    server: ApiServer, capsysbinary: pytest.CaptureFixture[bytes], status: str, words: str
) -> None:
    server.answers[f"GET /runs/{RUN_ID}"] = Answer(run_view(status))
    with closing(Api(server.url, None)) as api:
        notice = run_watch.QueueNotice(api, RUN_ID, output.Screen(), seconds=0.01)
        with notice:
            notice._timer.join(120)
    assert capsysbinary.readouterr().err.decode() == words


@pytest.mark.parametrize("number", leaving.SIGNALS)
def test_the_first_signal_asks_for_the_end_and_the_second_does_not_wait(
    server: ApiServer, capsysbinary: pytest.CaptureFixture[bytes], number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    with closing(Api(server.url, None)) as api:
        interrupts = run_watch.stopping(api, RUN_ID, output.Screen())
        with interrupts:
            signal.raise_signal(number)
            assert interrupts.asked
            wait_until(lambda: any(one.path.endswith("/stop") for one in server.asked))
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    assert signal.getsignal(number) is before
    assert "Ctrl-C again does not wait for its end" in capsysbinary.readouterr().err.decode()


# --- among the commands for runs ---------------------------------------------------------------------------


def test_logs_of_such_a_run_are_what_it_printed(fumehood: Command, server: ApiServer) -> None:
    done = fumehood("runs", "logs", RUN_ID)
    assert (done.code, done.out) == (0, "a\n")
    assert done.err.startswith("b\nfumehood: this is not all that it printed")
    assert fumehood("runs", "logs", RUN_ID, "--tail", "7").err == "b\n"
    lines = [dict(one.query)["tail_lines"] for one in server.asked if one.path.endswith("/logs")]
    assert lines == ["500", "7"]


def test_logs_are_followed_from_the_beginning(fumehood: Command) -> None:
    done = fumehood("runs", "logs", RUN_ID, "--follow")
    assert (done.code, done.out, done.err) == (0, OUT, ERR)
    lines = [json.loads(line) for line in fumehood("runs", "logs", RUN_ID, "--follow", "--json").out.splitlines()]
    assert [line["event"] for line in lines] == ["start", "stdout", "stderr", "stdout"]
    assert fumehood("runs", "logs", RUN_ID, "--follow", "--tail", "3").code == 2


def test_logs_of_a_workflow_have_no_tail(fumehood: Command) -> None:
    done = fumehood("runs", "logs", "run-0193ab0193ab0193ab0193ab0193ab01", "--tail", "3")
    assert (done.code, done.err) == (
        2,
        "fumehood: --tail is for what a sandbox printed: name a step that is one\n",
    )


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (run_view("failed", exit_code=3), f"{RUN_ID} ended with exit code 3"),
        (run_view("failed", reason="node_lost", exit_code=None), f"the node of {RUN_ID} was lost"),
        (run_view("stopped", reason="stopped", exit_code=None), f"{RUN_ID} was stopped"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_logs_that_are_followed_to_no_success_say_so(
    fumehood: Command, server: ApiServer, run: dict[str, Any], words: str, options: tuple[str, ...]
) -> None:
    """The exit code is that of having told what it printed."""
    server.answers[f"GET /runs/{RUN_ID}"] = [Answer(run_view("running")), Answer(run_view("running")), Answer(run)]
    done = fumehood("runs", "logs", RUN_ID, "--follow", *options)
    assert done.code == 0
    last = done.err if options else done.err.removeprefix(ERR)
    assert last.startswith(f"fumehood: {words}")
    assert last.count("\n") == 1


def test_such_a_run_is_stopped_by_its_own_api(fumehood: Command, server: ApiServer) -> None:
    server.answers[f"GET /runs/{RUN_ID}"] = Answer(run_view("running"))
    assert fumehood("runs", "stop", RUN_ID).out == f"{RUN_ID} was asked to end\n"
    server.answers[f"GET /runs/{RUN_ID}"] = [
        Answer(run_view("running")), Answer(run_view("running")), Answer(run_view("stopped")),
    ]  # fmt: skip
    assert fumehood("runs", "stop", RUN_ID, "--wait").out == f"{RUN_ID} has ended: stopped\n"
    assert [one.path for one in server.asked if one.method == "POST"] == [f"/runs/{RUN_ID}/stop"] * 2


@pytest.mark.parametrize("options", [(), ("--wait",)])
def test_such_a_run_that_had_ended_is_not_asked_to(
    fumehood: Command, server: ApiServer, options: tuple[str, ...]
) -> None:
    server.answers[f"GET /runs/{RUN_ID}"] = Answer(run_view("timed_out", reason="timeout", exit_code=None))
    done = fumehood("runs", "stop", RUN_ID, *options)
    assert (done.code, done.out) == (0, f"{RUN_ID} had ended already: timed out\n")
    assert [one.path for one in server.asked if one.method == "POST"] == []
