"""Which server the commands speak to, as whom, and what they say when it does not answer."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from fumehood.cli import client, dev
from fumehood.cli.client import Api, ApiError, BusyError, opened, part
from fumehood.cli.dev_ready import Ready
from fumehood.cli.exits import FAILED, NO_ANSWER, CommandError, NoAnswerError
from fumehood.cli.processes import held_port
from fumehood.errors import ConfigurationError
from fumehood.sdk import own_dev
from fumehood.sdk.connection import DEFAULT_URL
from fumehood.settings import ClientSettings
from tests.conftest import unavailable
from tests.unit.api_server import Answer, ApiServer, api_server, problem

KEY = "fh_secret-key"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as made:
        yield made


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture
def api(server: ApiServer, slept: list[float]) -> Iterator[Api]:
    with closing(Api(server.url, KEY, sleep=slept.append)) as made:
        yield made


# --- asking ------------------------------------------------------------------------------------------------


def test_the_key_is_in_one_header(api: Api, server: ApiServer) -> None:
    server.answers["GET /v1/x"] = Answer({"a": 1})
    assert api.get("/v1/x", {"a": "b", "none": None, "label": ["x=1", "y=2"]}) == {"a": 1}
    (asked,) = server.asked
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.query == [("a", "b"), ("label", "x=1"), ("label", "y=2")]


def test_a_name_cannot_lead_to_another_path() -> None:
    assert part("../keys?x=1#y") == "..%2Fkeys%3Fx%3D1%23y"


def test_a_question_is_asked_again_when_the_server_says_later(api: Api, server: ApiServer, slept: list[float]) -> None:
    busy = problem(503, "broker-unavailable", "the broker is away")
    after = [Answer(busy.body, 503, {**busy.headers, "retry-after": text}) for text in ("2", "600", "soon")]
    server.answers["GET /v1/x"] = [*after, Answer({})]
    assert api.get("/v1/x") == {}
    assert slept == [2.0, client.LONGEST_WAIT_SECONDS, 1.0]


def test_patience_ends(api: Api, server: ApiServer, slept: list[float]) -> None:
    server.answers["GET /v1/x"] = problem(503, "broker-unavailable", "the broker is away")
    with pytest.raises(BusyError, match="the broker is away") as caught:
        api.get("/v1/x")
    assert (len(server.asked), len(slept)) == (client.TRIES, client.TRIES - 1)
    assert caught.value.exit_code == NO_ANSWER


def test_bytes_that_are_named_by_what_they_are_are_sent_again(api: Api, server: ApiServer, slept: list[float]) -> None:
    server.answers["POST /v1/x"] = [problem(503, "broker-unavailable", "the broker is away"), Answer({})]
    assert api.send_named("/v1/x", lambda: iter([b"a", b"b"])) == {}
    assert ([asked.body for asked in server.asked], len(slept)) == ([b"ab", b"ab"], 1)


def test_an_order_is_given_once(api: Api, server: ApiServer, slept: list[float]) -> None:
    server.answers["POST /v1/x"] = problem(503, "broker-unavailable", "the broker is away")
    with pytest.raises(BusyError):
        api.post("/v1/x", {})
    assert (len(server.asked), slept) == (1, [])


def cut(after: bytes = b"{") -> Answer:
    return Answer(pieces=(after,), whole=False)


def test_a_question_that_was_cut_off_is_asked_again(api: Api, server: ApiServer, slept: list[float]) -> None:
    server.answers["GET /v1/x"] = [cut(), cut(), Answer({"a": 1})]
    assert api.get("/v1/x") == {"a": 1}
    assert slept == [client.BACK_OFF_SECONDS] * 2


def test_a_connection_that_the_server_closed_is_no_trouble_for_a_question(slept: list[float]) -> None:
    """It hangs up on the first request without a word, as one that was kept open too long does."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as beside:

        def serve() -> None:
            for said in (b"", answer):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(said)

        served = beside.submit(serve)
        with closing(Api(f"http://127.0.0.1:{listener.getsockname()[1]}", None, sleep=slept.append)) as api:
            assert api.get("/v1/x") == {}
        served.result(120)
    assert slept == [client.BACK_OFF_SECONDS]


@pytest.mark.parametrize("method", ["post", "put", "delete"])
def test_an_order_that_was_cut_off_may_have_been_heard(
    api: Api, server: ApiServer, slept: list[float], method: str
) -> None:
    server.answers[f"{method.upper()} /v1/x"] = cut()
    with pytest.raises(NoAnswerError, match="may have been done all the same"):
        getattr(api, method)("/v1/x", *([{}] if method == "put" else []))
    assert (len(server.asked), slept) == (1, [])


def test_what_became_of_a_question_is_its_last_answer(api: Api, server: ApiServer) -> None:
    server.answers["GET /v1/x"] = [
        problem(503, "broker-unavailable", "later"),
        problem(404, "not-found", "no such run"),
    ]
    with pytest.raises(ApiError, match="no such run"):
        api.get("/v1/x")


@pytest.mark.parametrize(
    ("status", "code", "may_be_done"),
    [
        (503, "broker-unavailable", True),
        (503, "worker-lost", True),
        (503, "worker-replaced", True),
        (503, "a-code-of-a-newer-server", True),
        (503, "no-worker", False),
        (502, "image-unavailable", False),
        (503, "overloaded", False),
        (429, "quota", False),
        (500, "internal", True),
        (409, "conflict", False),
    ],
)
def test_an_order_that_the_server_passed_on_may_have_been_carried_out(
    api: Api, server: ApiServer, status: int, code: str, may_be_done: bool
) -> None:
    server.answers["POST /v1/x"] = problem(status, code, "not now")
    with pytest.raises(CommandError) as caught:
        api.post_named("/v1/x", {}, made="x_id")
    assert caught.value.may_be_done is may_be_done
    assert ("may have been done all the same" in caught.value.detail) is may_be_done


@pytest.mark.parametrize("body", [None, [], {"message": "welcome to this hotel"}])
def test_an_order_that_something_else_accepted_may_have_been_carried_out(
    api: Api, server: ApiServer, body: object
) -> None:
    server.answers["POST /v1/x"] = Answer(body)
    with pytest.raises(NoAnswerError, match="did not answer as a Fumehood server does") as caught:
        api.post_named("/v1/x", {}, made="x_id")
    assert caught.value.may_be_done


def test_a_list_is_read_to_its_bound(api: Api, server: ApiServer) -> None:
    server.answers["GET /v1/x"] = [Answer({"xs": [1, 2], "next": "b"}), Answer({"xs": [3], "next": "c"})]
    assert api.listed("/v1/x", "xs", {"q": "v"}, most=3, page=2, cursor="cursor") == ([1, 2, 3], "c")
    assert [dict(asked.query) for asked in server.asked] == [
        {"q": "v", "limit": "2"},
        {"q": "v", "limit": "1", "cursor": "b"},
    ]


def test_a_redirect_is_not_followed(api: Api, server: ApiServer) -> None:
    server.answers["GET /v1/x"] = Answer(None, 307, {"location": f"{server.url}/v1/elsewhere"})
    with pytest.raises(CommandError, match="not as a Fumehood server does"):
        api.get("/v1/x")
    assert [asked.path for asked in server.asked] == ["/v1/x"]


# --- what went wrong ---------------------------------------------------------------------------------------


def test_a_refusal_is_in_the_servers_words_with_the_requests_id(api: Api, server: ApiServer) -> None:
    server.answers["GET /v1/x"] = problem(409, "conflict", "it has \x1b[31mended", problems=["line 1: \x1b[2J"])
    with pytest.raises(ApiError) as caught:
        api.get("/v1/x")
    error = caught.value
    assert error.detail == "it has  [31mended (conflict, request req-1)"
    assert (error.status, error.problem, error.problems) == (409, "conflict", ("line 1:  [2J",))
    assert error.exit_code == FAILED


def test_a_wrong_key_is_not_repeated(api: Api, server: ApiServer) -> None:
    server.answers["GET /v1/x"] = problem(401, "unauthenticated", "who are you?")
    with pytest.raises(ApiError, match="rejected this key: give one with --key-file") as caught:
        api.get("/v1/x")
    assert KEY not in caught.value.detail


def test_no_key_is_told_apart_from_a_wrong_one(server: ApiServer) -> None:
    server.answers["GET /v1/x"] = problem(401, "unauthenticated", "who are you?")
    with closing(Api(server.url, None)) as api, pytest.raises(ApiError, match="asks for a key"):
        api.get("/v1/x")
    assert "authorization" not in server.asked[0].headers


def test_no_server_is_one_sentence() -> None:
    url = f"http://127.0.0.1:{held_port()}"
    with closing(Api(url, KEY)) as api, pytest.raises(NoAnswerError, match="`fumehood dev` starts one") as caught:
        api.get("/v1/x")
    assert KEY not in caught.value.detail


def test_an_answer_that_does_not_come_is_no_answer(api: Api, server: ApiServer, slept: list[float]) -> None:
    server.answers["GET /v1/x"] = cut()
    with pytest.raises(NoAnswerError, match=r"gave no answer \(RemoteProtocolError\)$"):
        api.get("/v1/x")
    assert (len(server.asked), len(slept)) == (client.TRIES, client.TRIES - 1)


@pytest.mark.parametrize("status", [200, 404, 502])
def test_who_is_no_server_of_ours_is_said_to_be_none(api: Api, server: ApiServer, status: int) -> None:
    server.answers["GET /v1/x"] = Answer(status=status, pieces=(b"<html>", b"</html>"))
    with pytest.raises(CommandError, match=f"answered {status}, and not as a Fumehood server does"):
        api.get("/v1/x")


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Somebody with a certificate of his own making, and what one would have to trust for that."""
    if shutil.which("openssl") is None:
        unavailable("no openssl")
    words = (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -subj /CN=x"
    )
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *words.split(), *names], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with api_server(context) as made:
        made.answers["GET /v1/x"] = Answer({"secret": "seen"})
        yield made.url, tmp_path / "cert.pem"


def test_a_certificate_is_checked(stranger: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    url, authority = stranger
    with opened(url, None) as api, pytest.raises(NoAnswerError, match="does not trust"):
        api.get("/v1/x")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with opened(url, None) as api:
        assert api.get("/v1/x") == {"secret": "seen"}


# --- which server, and as whom -----------------------------------------------------------------------------


def secret(path: Path, text: str = KEY, mode: int = 0o600) -> Path:
    path.touch(mode)
    path.chmod(mode)
    path.write_text(f"{text}\n")
    return path


def presented(server: ApiServer) -> str | None:
    server.answers["GET /v1/x"] = Answer({})
    with opened(server.url, None) as api:
        api.get("/v1/x")
    return server.asked[-1].headers.get("authorization")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("FUMEHOOD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_key_comes_from_the_environment(server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUMEHOOD_API_KEY", "from-env")
    assert presented(server) == "Bearer from-env"
    monkeypatch.delenv("FUMEHOOD_API_KEY")
    monkeypatch.setenv("FUMEHOOD_API_KEY_FILE", str(secret(tmp_path / "key")))
    assert presented(server) == f"Bearer {KEY}"


def test_a_flag_beats_the_environment(server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUMEHOOD_API_KEY", "from-env")
    monkeypatch.setenv("FUMEHOOD_URL", "http://127.0.0.1:1")
    server.answers["GET /v1/x"] = Answer({})
    with opened(server.url, secret(tmp_path / "key")) as api:
        api.get("/v1/x")
    assert server.asked[-1].headers["authorization"] == f"Bearer {KEY}"


def test_a_key_that_others_can_read_is_refused(server: ApiServer, tmp_path: Path) -> None:
    file = secret(tmp_path / "key", mode=0o644)
    with pytest.raises(ConfigurationError, match="chmod 600") as caught, opened(server.url, file):
        pass
    assert KEY not in caught.value.detail


def test_a_key_in_the_configuration_is_held_to_the_same(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = secret(tmp_path / "fumehood.toml", f'client_token = "{KEY}"')
    monkeypatch.setenv("FUMEHOOD_CONFIG", str(config))
    assert presented(server) == f"Bearer {KEY}"
    config.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        presented(server)


def test_a_proxy_is_not_asked_for_what_is_on_this_machine(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert presented(server) is None


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "ftp://x", "http://", "http://user:pw@x", "http://x?y=1", "http://x:99999", "http://x#y"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="url must be like"):
        ClientSettings(url=url)


def test_two_keys_of_one_source_are_refused() -> None:
    env = {"FUMEHOOD_API_KEY": KEY, "FUMEHOOD_API_KEY_FILE": "/f"}
    with pytest.raises(ConfigurationError, match="give one of them") as caught:
        ClientSettings.load(env=env)
    assert KEY not in caught.value.detail
    with pytest.raises(ConfigurationError, match="visible ASCII") as caught:
        ClientSettings.load(env={"FUMEHOOD_API_KEY": "two words"})
    assert "two words" not in caught.value.detail
    assert KEY not in repr(ClientSettings(client_token=KEY))


@pytest.mark.parametrize("url", ["http://10.0.0.1:8080", "http://fumehood.example", "http://localhost.example"])
def test_a_key_does_not_leave_the_machine_in_the_clear(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(url, None) as api:
        assert api.url == url
    monkeypatch.setenv("FUMEHOOD_API_KEY", KEY)
    with pytest.raises(ConfigurationError, match="use https://") as caught, opened(url, None):
        pass
    assert KEY not in caught.value.detail
    with opened(url.replace("http:", "https:"), None), opened(url, None, insecure_http=True):
        pass
    monkeypatch.setenv("FUMEHOOD_INSECURE_HTTP", "1")
    with opened(url, None) as api:
        assert api.url == url


# --- one's own `dev` ---------------------------------------------------------------------------------------


def leave_word(state: Path, url: str, pid: int) -> None:
    state.mkdir(parents=True, exist_ok=True)
    secret(state / "api.token", "dev-token")
    secret(state / own_dev.WORD, json.dumps({"url": url, "pid": pid}))


def test_ones_own_dev_is_found_with_its_token(server: ApiServer, tmp_path: Path) -> None:
    assert presented(server) is None
    leave_word(tmp_path / ".local/state/fumehood", server.url, os.getpid())
    assert presented(server) == "Bearer dev-token"
    with opened(None, None) as api:
        assert api.url == server.url
    with opened(f"{server.url}/", None) as api:
        api.get("/v1/x")
    assert server.asked[-1].headers["authorization"] == "Bearer dev-token"


def test_what_is_said_counts_more_than_ones_own_dev(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_word(tmp_path / ".local/state/fumehood", server.url, os.getpid())
    with api_server() as other:
        assert presented(other) is None
        monkeypatch.setenv("FUMEHOOD_URL", other.url)
        with opened(None, None) as api:
            assert api.url == other.url
    monkeypatch.setenv("FUMEHOOD_API_KEY", "from-env")
    assert presented(server) == "Bearer from-env"


def test_without_a_dev_it_is_the_usual_address() -> None:
    with opened(None, None) as api:
        assert api.url == DEFAULT_URL


def test_it_is_where_dev_puts_it() -> None:
    assert dev.dev.__defaults__ is not None
    assert dev.dev.__defaults__[0] == own_dev.STATE


def test_dev_leaves_word_for_its_owner_alone(tmp_path: Path) -> None:
    facts = {
        "server_url": "http://127.0.0.1:8765", "nats_url": "nats://worker:secret@127.0.0.1:1", "tokens": {},
        "pids": {"server": 7, "nats": 9},
        "grpc_target": "127.0.0.1:2",
    }  # fmt: skip
    Ready(tmp_path, facts, []).tell(dev.console, None)
    word = tmp_path / own_dev.WORD
    assert json.loads(word.read_text()) == {
        "url": "http://127.0.0.1:8765", "pid": 7, "nats_url": "nats://127.0.0.1:1", "nats_pid": 9,
    }  # fmt: skip
    assert word.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """Process 7 listens at 8080; at 8081 another one does, at 8082 both do, and at 8083 nobody."""
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
    line = "   0: {}:{:04X} 00000000:0000 {} 00000000:00000000 00:00000000 00000000  1000        0 {} 1 0"
    lines = [
        line.format("0100007F", 8080, "0A", 11),
        line.format("0100007F", 8081, "0A", 12),
        line.format("0100007F", 8082, "0A", 13),
        line.format("00000000", 8082, "0A", 12),
        line.format("0100007F", 8083, "01", 11),
    ]
    files = tmp_path / "proc/7/fd"
    files.mkdir(parents=True)
    for number, inode in enumerate((11, 13)):
        (files / str(number)).symlink_to(f"socket:[{inode}]")
    (tmp_path / "proc/net").mkdir()
    (tmp_path / "proc/net/tcp").write_text("\n".join([head, *lines]) + "\n")
    return tmp_path / "proc"


@pytest.mark.parametrize(
    ("url", "pid", "found"),
    [
        ("http://127.0.0.1:8080", 7, True),
        ("http://127.0.0.1:8080", 8, False),
        ("http://127.0.0.1:8081", 7, False),
        ("http://127.0.0.1:8082", 7, False),
        ("http://127.0.0.1:8083", 7, False),
        ("http://localhost:8080", 7, False),
        ("https://127.0.0.1:8080", 7, False),
        ("http://127.0.0.1", 7, False),
    ],
    ids=["its own", "it has ended", "another's", "shared", "nobody's", "a name", "TLS", "another port"],
)
def test_it_is_given_to_nobody_else(tmp_path: Path, kernel: Path, url: str, pid: int, found: bool) -> None:
    """The token outlives a `dev` that is killed; whoever takes its port meanwhile must not be handed it."""
    leave_word(tmp_path / "state", url, pid)
    answer = own_dev.own_dev(state=tmp_path / "state", processes=kernel)
    assert answer == (own_dev.OwnDev(url, tmp_path / "state/api.token") if found else None)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": "http://127.0.0.1:x", "pid": 7}', '{"url": 1, "pid": "x"}'])
def test_a_word_that_is_none_leads_nowhere(tmp_path: Path, kernel: Path, text: str) -> None:
    secret(tmp_path / own_dev.WORD, text)
    assert own_dev.own_dev(state=tmp_path, processes=kernel) is None


def test_where_the_kernel_does_not_say_who_listens_nobody_gets_it(tmp_path: Path) -> None:
    leave_word(tmp_path, "http://127.0.0.1:8080", 7)
    assert own_dev.own_dev(state=tmp_path, processes=tmp_path / "none") is None
