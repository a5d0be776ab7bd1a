"""One server, as one caller sees it: calls that give plain values, or an error that says what to do.

Answers are not held to models: a client of this version must be able to read what a later server adds. The key is in
one header and nowhere else; redirects are not followed, so that it goes to the server that was named alone.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from fumehood.errors import ClientClosedError, FumehoodError, NoAnswerError
from fumehood.sdk import asking, problems
from fumehood.sdk.aio import here
from fumehood.sdk.asking import (
    BACK_OFF_SECONDS,
    BYTES,
    EVENTS,
    LONGEST_WAIT_SECONDS,
    TRIES,
    Patience,
    Query,
    Wish,
    part,
)
from fumehood.sdk.sse import EventReader, ServerEvent

if TYPE_CHECKING:
    from fumehood.sdk.connection import Connection

__all__ = ["AsyncTransport", "Query", "ServerEvent", "part"]

PIECE_BYTES = 256 * 1024
"""Of a file on its way."""
END = "end"
"""The event behind which nothing comes."""


class AsyncTransport:
    """Asks one server. Any number of tasks may use it at once."""

    def __init__(self, connection: Connection, *, http: httpx.AsyncClient | None = None) -> None:
        """`http`: used as it is, for a server in the same process."""
        self.url = connection.url.rstrip("/")
        self._has_key = connection.key is not None
        self._closed = False
        self._because: Callable[[], FumehoodError] = _closed
        self._flows: set[httpx.Response] = set()
        key = connection.key
        self._http = http or httpx.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {key}"} if key is not None else {},
            timeout=asking.TIMEOUT,
            limits=asking.LIMITS,
            verify=asking.trust(self.url),
            mounts={"http://": None, "https://": None} if connection.direct else None,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    async def aclose(self, because: Callable[[], FumehoodError] | None = None) -> None:
        """Asks nothing any more. Whoever still follows or asks something is told so, or `because` of what."""
        self._because = because or self._because
        self._closed = True
        for answer in list(self._flows):
            here.hang_up(answer)
        await self._http.aclose()

    # --- asking --------------------------------------------------------------------------------------------

    async def get(self, path: str, query: Query | None = None, *, seconds: float | None = None) -> Any:
        """A question may be asked again: where the server says "later", or is cut off, it is."""
        return await self._again(Wish("GET", path, query, seconds=seconds))

    async def post(
        self,
        path: str,
        body: Any = None,
        *,
        content: bytes | None = None,
        query: Query | None = None,
        again: bool = False,
        idempotency_key: str | None = None,
        seconds: float | None = None,
    ) -> Any:
        """An order. `again`: the caller has named what it makes, so that the second time finds what the first one
        made; with an `idempotency_key`, too. `content`: bytes as they are, in place of a body of JSON."""
        media_type = BYTES if content is not None else None
        wish = Wish("POST", path, query, body, media_type, idempotency_key, seconds)
        if again or idempotency_key is not None:
            return await self._again(wish, content)
        return await self._call(wish, content)

    async def put(
        self,
        path: str,
        body: Any = None,
        *,
        content: bytes | AsyncIterator[bytes] | None = None,
        media_type: str | None = None,
        query: Query | None = None,
    ) -> Any:
        """Puts something where its name says. Not asked again here: pieces that went out are gone."""
        kind = media_type or (BYTES if content is not None else None)
        return await self._call(Wish("PUT", path, query, body, kind, seconds=asking.SILENCE_SECONDS), content)

    async def delete(self, path: str, query: Query | None = None, *, seconds: float | None = None) -> Any:
        """Removes what the path names. Not asked again: the second time would not find it."""
        return await self._call(Wish("DELETE", path, query, seconds=seconds))

    async def _again(self, wish: Wish, content: bytes | None = None) -> Any:
        """Of several failed tries, the first after which it may have been done is the one that is raised."""
        maybe_done: FumehoodError | None = None
        tried = 1
        while True:
            try:
                return await self._call(wish, content)
            except FumehoodError as error:
                maybe_done = maybe_done or (error if error.may_be_done else None)
                if error.retry_after_seconds is None or tried == TRIES:
                    raise maybe_done or error from None
                wait = error.retry_after_seconds or BACK_OFF_SECONDS * (tried - 1)
            tried += 1
            await here.sleep(min(wait, LONGEST_WAIT_SECONDS))

    async def _call(self, wish: Wish, content: bytes | AsyncIterator[bytes] | None = None) -> Any:
        with self._told(wish.method):
            answer = await self._http.request(
                wish.method,
                wish.path,
                params=wish.params,
                json=wish.body,
                content=content,
                headers=wish.headers,
                timeout=wish.timeout,
            )
        if not answer.is_success:
            raise problems.refusal(self.url, self._has_key, answer)
        if not answer.content:
            return None
        try:
            return answer.json()
        except ValueError:
            raise problems.stranger(self.url, answer) from None

    # --- what goes on for longer ---------------------------------------------------------------------------

    @asynccontextmanager
    async def download(self, path: str, query: Query | None = None) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of a file, in pieces. One that ends before its announced length is an error, whatever came."""
        async with self._flowing(Wish("GET", path, query)) as answer:
            yield self._whole(answer)

    async def _whole(self, answer: httpx.Response) -> AsyncIterator[bytes]:
        came, announced = 0, answer.headers.get("content-length")
        with self._told("GET"):
            async for piece in answer.aiter_bytes(PIECE_BYTES):
                came += len(piece)
                yield piece
        if announced is None or announced != str(came):
            raise NoAnswerError(f"{self.url} sent {came} bytes of {announced or 'an unknown number'}").advise(
                "ask again"
            )

    async def events(
        self,
        path: str,
        *,
        query: Query | Callable[[], Query] | None = None,
        last_event_id: str | None = None,
        patient: bool = False,
        signs: bool = False,
        until: float | None = None,
    ) -> AsyncGenerator[ServerEvent, None]:
        """What a stream of events tells, taken up again behind the last event that came when it breaks, for some
        minutes. Ends when the server has nothing more to tell (204), or after an event that is called `end`. `patient`:
        a server that is away at the beginning is waited for, too. `signs`: signs of life are told, without data.
        `until`: when it is over in any case, by the monotonic clock."""
        patience, heard, ended = Patience(), patient, False
        while not ended and not asking.is_over(until):
            asked = query() if callable(query) else query  # of what came, where that is what the question is about
            wish = Wish("GET", path, asked, seconds=asking.left(until), last_event_id=last_event_id)
            try:
                async with self._flowing(wish, EVENTS) as answer:
                    heard = True
                    if answer.status_code == 204:
                        return
                    async with here.closing(self._events(answer)) as found:
                        async for event in found:
                            patience.went_well()
                            last_event_id = event.id or last_event_id
                            if signs or event.data is not None:
                                yield event
                            ended = ended or event.event == END
                            if asking.is_over(until):
                                return
                if ended:
                    return
                raise NoAnswerError(f"{self.url} has no news").advise("ask again")
            except FumehoodError as error:
                if ended:
                    return  # all of it was told
                pause = patience.next_pause(time.monotonic(), error.retry_after_seconds or 0.0)
                if not heard or pause is None or not problems.is_passing(error):
                    raise
            await here.sleep(min(pause, asking.left(until)))

    async def _events(self, answer: httpx.Response) -> AsyncGenerator[ServerEvent, None]:
        reader = EventReader()
        with self._told("GET"):
            async for piece in answer.aiter_bytes():
                for event in reader.feed(piece):
                    yield event

    @asynccontextmanager
    async def _flowing(self, wish: Wish, accept: str = "*/*") -> AsyncIterator[httpx.Response]:
        """An answer whose body is read by the block."""
        request = self._http.build_request(
            wish.method,
            wish.path,
            params=wish.params,
            headers={**wish.headers, "accept": accept},
            timeout=asking.STREAM_TIMEOUT if wish.seconds is None else wish.timeout,
        )
        with self._told(wish.method):
            answer = await self._http.send(request, stream=True)
        self._flows.add(answer)
        try:
            if not answer.is_success:
                with self._told(wish.method):
                    await answer.aread()
                raise problems.refusal(self.url, self._has_key, answer)
            yield answer
        finally:
            self._flows.discard(answer)
            await answer.aclose()

    # --- what went wrong -----------------------------------------------------------------------------------

    @contextmanager
    def _told(self, method: str) -> Iterator[None]:
        """What the network did, in words for people. Whoever still asks when everything is over is told so."""
        if self._closed:
            raise self._because()
        try:
            yield
        except (httpx.TransportError, httpx.InvalidURL, httpx.StreamError) as error:
            if self._closed:
                raise self._because() from None
            raise problems.trouble(self.url, method, error) from None


def _closed() -> FumehoodError:
    return ClientClosedError("this client was closed").advise()
