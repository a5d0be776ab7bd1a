"""The server's API as the commands see it: calls that give plain values, or an error that says what to do.

Answers are not held to models: a command line of this version must be able to read what a later server adds. The key
is in one header and nowhere else; redirects are not followed, so that it goes to the server that was named alone.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer

from fumehood.cli import completing
from fumehood.cli.exits import CommandError, NoAnswerError
from fumehood.cli.show import plain
from fumehood.sdk.connection import find_connection
from fumehood.sdk.problems import MAY_BE_DONE, may_be_done

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
"""A server answers within milliseconds, or is in trouble; half a minute outlasts an election of the broker's."""
SILENCE_SECONDS = 60.0
"""A stream says something, if only that it is alive, several times in a minute. One that does not has died unseen."""
LATER = (429, 503)
BROKEN = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
"""The connection was there, and went: mostly one that was kept open and that the server closed at the same moment."""
TRIES = 4
BACK_OFF_SECONDS = 1.0
"""Between two tries, where the server does not say how long."""
IDEMPOTENCY_HEADER = "idempotency-key"
BYTES = "application/octet-stream"
LONGEST_WAIT_SECONDS = 10.0
"""Between two tries of a question: what the server asks for, but no longer than a person at a terminal waits."""

Query = Mapping[str, str | int | list[str] | None]

Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="The server; else FUMEHOOD_URL, the context's, this machine's."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file", metavar="FILE", help="A file (mode 0600) with the key; else FUMEHOOD_API_KEY, the context's."
    ),
]
ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        autocompletion=completing.contexts,
        help="A server and its key, as `fumehood login` keeps them; else FUMEHOOD_CONTEXT, the current one.",
    ),
]
InsecureHttp = Annotated[
    bool,
    typer.Option("--insecure-http", help="Send the key over http:// to another machine, where others may read it."),
]


class ApiError(CommandError):
    """The server said no, in its own words."""

    def __init__(
        self,
        detail: str,
        *,
        status: int,
        problem: str,
        problems: tuple[str, ...] = (),
        evidence: Mapping[str, Any] | None = None,
        may_be_done: bool = False,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.may_be_done = may_be_done
        self.problem = problem
        """Its type without the prefix: `not-found`."""
        self.problems = problems
        self.evidence = evidence
        """What a denial by policy was decided on."""


class BusyError(NoAnswerError):
    """The server asks to come back later."""

    def __init__(self, detail: str, *, after_seconds: float, may_be_done: bool) -> None:
        super().__init__(detail, may_be_done=may_be_done)
        self.after_seconds = after_seconds


class BrokenError(NoAnswerError):
    """The connection went before the answer was whole."""


class Api:
    """One server, as one caller sees it; `direct` is without the proxies that the environment names."""

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        direct: bool = True,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url.rstrip("/")
        self._has_key = key is not None
        self._sleep = sleep
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=TIMEOUT,
            verify=_trust(self.url),
            mounts={"http://": None, "https://": None} if direct else None,
        )

    def close(self) -> None:
        self._http.close()

    # --- asking --------------------------------------------------------------------------------------------

    def get(self, path: str, query: Query | None = None, *, tries: int = TRIES) -> Any:
        """A question may be asked again: where the server says "later", or is cut off, it is."""
        return self._again(lambda: self._call("GET", path, query=query), tries)

    def post(self, path: str, body: object = None, *, query: Query | None = None) -> Any:
        return self._call("POST", path, query=query, body=body)

    def post_named(
        self, path: str, body: object, *, made: str, key: str | None = None, seconds: float | None = None
    ) -> dict[str, Any]:
        """An order that may be repeated, since the caller has named what it makes, in `body` or with an idempotency
        key: the second time finds what the first one made. `made`: the field of the answer that names it.
        `seconds`: how long it may take, where that is longer than other answers."""
        headers = {IDEMPOTENCY_HEADER: key} if key is not None else {}
        answer = self._again(lambda: self._call("POST", path, body=body, headers=headers, seconds=seconds), TRIES)
        if not isinstance(answer, dict) or made not in answer:
            said = f"{self.url} did not answer as a Fumehood server does (is the address right?)"
            raise NoAnswerError(said + MAY_BE_DONE, may_be_done=True)
        return answer

    def send(self, path: str, query: Query, content: bytes | Iterable[bytes]) -> Any:
        """Bytes as they are, or as they come."""
        return self._call("POST", path, query=query, content=content, media_type=BYTES)

    def send_named(self, path: str, pieces: Callable[[], Iterable[bytes]]) -> Any:
        """Bytes that are named by what they are may be sent again: the second time finds what the first one made."""
        return self._again(lambda: self.send(path, {}, pieces()), TRIES)

    def upload(self, path: str, query: Query, pieces: Iterable[bytes]) -> Any:
        """Bytes as they come, of which nobody holds all."""
        return self._call("PUT", path, query=query, content=pieces, media_type=BYTES)

    def _again(self, call: Callable[[], Any], tries: int) -> Any:
        """Of several tries the first that may have been done is told, whatever became of the rest."""
        maybe_done: CommandError | None = None
        while True:
            try:
                return call()
            except CommandError as error:
                maybe_done = maybe_done or (error if error.may_be_done else None)
                tries -= 1
                if tries <= 0 or not isinstance(error, BusyError | BrokenError):
                    raise maybe_done or error from None
                asked = error.after_seconds if isinstance(error, BusyError) else BACK_OFF_SECONDS
                wait = min(asked, LONGEST_WAIT_SECONDS)
            self._sleep(wait)

    def put(self, path: str, body: object) -> Any:
        return self._call("PUT", path, body=body)

    def put_text(self, path: str, content: bytes, media_type: str) -> Any:
        return self._call("PUT", path, content=content, media_type=media_type)

    def delete(self, path: str, query: Query | None = None) -> Any:
        return self._call("DELETE", path, query=query)

    def listed(
        self, path: str, items: str, query: Query | None = None, *, most: int, page: int, cursor: str = "after"
    ) -> tuple[list[Any], Any]:
        """At most so many of a list, in pages that the server bears; and where to go on, if there are more."""
        asked, found = dict(query or {}), list[Any]()
        while True:
            answer = self.get(path, {**asked, "limit": min(page, most - len(found))})
            found += answer[items]
            asked[cursor] = answer.get("next")
            if asked[cursor] is None or len(found) >= most:
                return found, asked[cursor]

    @contextmanager
    def stream(self, path: str, *, last_event_id: str | None = None) -> Iterator[Iterator[bytes]]:
        """The bytes of an answer that goes on for as long as there is news."""
        headers = {"accept": "text/event-stream"} | ({"last-event-id": last_event_id} if last_event_id else {})
        with self._flowing(path, headers) as pieces:
            yield pieces

    @contextmanager
    def download(self, path: str, query: Query) -> Iterator[Iterator[bytes]]:
        """The bytes of a file."""
        with self._flowing(f"{path}?{httpx.QueryParams(_given(query))}", {}) as pieces:
            yield pieces

    @contextmanager
    def _flowing(self, path: str, headers: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
        timeout = httpx.Timeout(TIMEOUT.connect, read=SILENCE_SECONDS)
        with self._told("GET"), self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
            if not answer.is_success:
                answer.read()
                raise self._refusal(answer)
            yield answer.iter_bytes()

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        content: bytes | Iterable[bytes] | None = None,
        media_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> Any:
        with self._told(method):
            answer = self._http.request(
                method,
                path,
                params=_given(query or {}),
                json=body,
                content=content,
                headers={**(headers or {}), **({"content-type": media_type} if media_type else {})},
                timeout=TIMEOUT if seconds is None else httpx.Timeout(seconds, connect=TIMEOUT.connect),
            )
        if not answer.is_success:
            raise self._refusal(answer)
        if not answer.content:
            return None
        try:
            return answer.json()
        except ValueError:
            raise self._stranger(answer) from None

    # --- what went wrong -----------------------------------------------------------------------------------

    @contextmanager
    def _told(self, method: str) -> Iterator[None]:
        """What the network did, in words for people. Threads that still ask when everything is over are told so."""
        if self._http.is_closed:
            raise CommandError(f"{self.url} is not asked any more")
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise NoAnswerError(
                    f"{self.url} has a certificate that this machine does not trust",
                    "those of an authority of your own are in the file that SSL_CERT_FILE names",
                ) from None
            raise NoAnswerError(
                f"no server answers at {self.url} ({plain(str(error))})",
                "`fumehood dev` starts one here; another one is named with --server or FUMEHOOD_URL",
            ) from None
        except httpx.TransportError as error:
            is_order = method != "GET"
            done = MAY_BE_DONE if is_order else ""
            kind = BrokenError if isinstance(error, BROKEN) else NoAnswerError
            raise kind(f"{self.url} gave no answer ({type(error).__name__}){done}", may_be_done=is_order) from None
        except httpx.InvalidURL:
            raise NoAnswerError(f"{self.url} is no address that can be asked") from None

    def _refusal(self, answer: httpx.Response) -> CommandError:
        try:
            problem = answer.json()
            detail, code = plain(str(problem["detail"])), str(problem["type"]).rpartition(":")[2]
        except (ValueError, KeyError, TypeError):
            return self._stranger(answer)
        if detail == "there is nothing at this path":
            detail = f"{self.url} does not know what was asked: it may be older than this command line"
        where = f"{plain(code)}, request {plain(str(problem.get('instance', 'unknown')))}"
        maybe_done = may_be_done(answer, code)
        end = f" ({where}){MAY_BE_DONE if maybe_done else ''}"
        if answer.status_code in LATER:
            wait = _seconds(answer.headers.get("retry-after"))
            return BusyError(f"{detail}{end}", after_seconds=wait, may_be_done=maybe_done)
        if answer.status_code == 401:
            detail = f"{self.url} rejected this key" if self._has_key else f"{self.url} asks for a key"
            detail += (
                ": give one with --key-file FILE, FUMEHOOD_API_KEY_FILE or FUMEHOOD_API_KEY, or with `fumehood login`"
            )
        problems = tuple(plain(str(one)) for one in problem.get("problems", ()))
        evidence = problem.get("policy_evidence")
        return ApiError(
            f"{detail}{end}",
            status=answer.status_code,
            problem=code,
            problems=problems,
            evidence=evidence if isinstance(evidence, dict) else None,
            may_be_done=maybe_done,
        )

    def _stranger(self, answer: httpx.Response) -> CommandError:
        """Something stands there that is no server of ours, or in front of one."""
        said = f"{self.url} answered {answer.status_code}, and not as a Fumehood server does (is the address right?)"
        if may_be_done(answer):
            return NoAnswerError(said + MAY_BE_DONE, may_be_done=True)
        return NoAnswerError(said) if answer.status_code >= 500 else CommandError(said)


def _trust(url: str) -> ssl.SSLContext | bool:
    """Certificates are checked. Where none will come nobody is trusted, since reading whom to trust takes longer than
    the rest of a command."""
    return True if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _given(query: Query) -> dict[str, str | int | list[str]]:
    return {name: value for name, value in query.items() if value is not None}


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isdecimal() else BACK_OFF_SECONDS


def part(name: str) -> str:
    """A name as a part of a path, whatever was typed."""
    return quote(name, safe="")


# --- which server, and as whom -----------------------------------------------------------------------------


@contextmanager
def opened(
    server: str | None, key_file: Path | None, insecure_http: bool = False, context: str | None = None
) -> Iterator[Api]:
    """The server that the flags and the settings name."""
    found = find_connection(url=server, key_file=key_file, context=context, insecure_http=insecure_http or None)
    api = Api(found.url, found.key, direct=found.direct)
    try:
        yield api
    finally:
        api.close()
