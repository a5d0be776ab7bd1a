"""One connection to NATS, without the traps of its client.

What is different from a bare `nats.connect`, and why:

- it reconnects for ever instead of 60 times, with a growing and random pause, so that a thousand clients do not return
  in one instant;
- every request has a timeout of 2 s: the client does not fail what was in flight when a connection broke. Calls that
  may be repeated are repeated, up to a deadline (`retrying`);
- the client swallows cancellation in places (while it flushes); here a cancelled task is always cancelled;
- a denied publish shows only as a message to the error callback and a timeout: a request ends with
  `BrokerDeniedError` as soon as the message comes. All other errors of the callback are counted by kind;
- a PONG that comes too late does not end the client's read loop (`_Client`), and a connection that hears nothing is
  replaced, whatever state the client reports (`_watch`);
- `nats.js` is not used at all: its calls raise on empty acks, drop TTLs and wait without bounds.

Nothing of the client's own types or errors leaves this package.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import re
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from fumehood.errors import (
    BrokerDeniedError,
    BrokerError,
    BrokerFullError,
    BrokerUnavailableError,
    ConfigurationError,
    FumehoodError,
    PayloadTooLargeError,
)

T = TypeVar("T")
_log = logging.getLogger(__name__)

WRONG_LAST_SEQUENCE = 10071
"""A compare-and-set lost."""
WRITE_IN_FLIGHT = 10164
"""A compare-and-set met another write that is not decided yet (replicated streams only): wait, then ask again."""
_FULL = frozenset({10047, 10077})
"""Insufficient resources; store failed, which is how `maximum bytes exceeded` is reported."""
_TOO_LARGE = frozenset({10054})
_PASSING = frozenset({10003, 10004, 10005, 10008, 10009, 10023, 10076, 10202})
"""No leader, no quorum, too few peers yet, shutting down: the same call may succeed in a moment."""

_NOBODY = 503
"""The server's own word for a question that nobody listens for."""

_DENIED = re.compile(r'permissions violation for (?:publish|subscription) to "([^"]+)"', re.IGNORECASE)
_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_CANCEL_SECONDS = 0.1

_WATCH_SECONDS = 2.0
_SILENT_ROUNDS = 5
"""A connection is replaced after so many looks at it, so many seconds apart, without any sign of life. It counts looks
rather than seconds, so that a process that stood still itself does not blame its connection."""


class ApiRefusalError(BrokerError):
    """The server answered with an error of its own numbering. Never leaves this package unless nobody expected it."""

    def __init__(self, number: int, description: str) -> None:
        super().__init__(f"the broker refused: {description} ({number})")
        self.number = number


class NoRespondersError(BrokerUnavailableError):
    """Nobody listens: no such consumer or stream, or not yet a leader."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach the broker. Secrets come in files or are never shown."""

    servers: tuple[str, ...]
    name: str = "fumehood"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    nkey_seed_file: Path | None = None
    credentials_file: Path | None = None
    tls_ca_file: Path | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    inbox_prefix: str = "_INBOX"
    """Where answers come in. Workers have one of their own, which they alone may listen to."""
    connect_timeout: float = 10.0
    request_timeout: float = 2.0
    """Longer than any healthy answer, shorter than an election: a request that meets one is repeated."""
    retry_seconds: float = 12.0
    """Seconds that repeatable calls are repeated for: an election takes up to 9."""

    @property
    def encrypted(self) -> bool:
        """Whether anything may be said only through TLS."""
        return self.tls_ca_file is not None or any(server.startswith("tls://") for server in self.servers)

    def tls(self) -> ssl.SSLContext | None:
        if self.tls_ca_file is None:
            return None
        context = ssl.create_default_context(cafile=str(self.tls_ca_file))
        if self.tls_cert_file is not None:
            context.load_cert_chain(str(self.tls_cert_file), self.tls_key_file and str(self.tls_key_file))
        return context


@dataclass(frozen=True, slots=True)
class Stored:
    """The server's ack of a publish."""

    stream: str
    seq: int
    duplicate: bool


Handler = Callable[[Msg], None]


class Backoff:
    """Growing pauses, each a random part of its bound."""

    def __init__(self, first: float = _PAUSE, longest: float = _LONGEST_PAUSE) -> None:
        self._next, self._longest = first, longest

    def step(self) -> float:
        pause = self._next * (0.5 + random.random() / 2)
        self._next = min(self._longest, self._next * 2)
        return pause


def _raise_if_cancelled() -> None:
    """The client may have swallowed it."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class _NotEncryptedError(nats.errors.Error):
    """The server wants to go on in plain text."""


class _Client(Client):
    """A client whose connection can be watched and replaced from outside, and that survives a late PONG.

    The bare client settles the future of a `flush()` that timed out or was cancelled a second time when its PONG
    arrives. The error ends the read loop, without a reconnect, while the client still calls itself connected.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signs_of_life = 0
        """Grows with each PONG and with each attempt to reconnect."""

    async def _process_pong(self) -> None:
        self.signs_of_life += 1
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _connect_to_server(self, server: Any) -> None:
        self.signs_of_life += 1
        await super()._connect_to_server(server)

    async def _attempt_reconnect(self) -> None:
        self.abort()
        try:
            await super()._attempt_reconnect()
        except Exception as error:  # noqa: BLE001 - whatever it is, the watch sees that this task has ended
            await self._error_cb(error)

    def abort(self) -> None:
        """Drop the TCP connection. An orderly close waits until the peer has taken everything that is buffered, which
        a dead peer never does."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    def ping(self) -> None:
        """Ask for a sign of life. Unlike the client's own ping this never waits for a full buffer."""
        if self.is_connected and self._transport:
            self._pongs.append(asyncio.get_running_loop().create_future())
            with contextlib.suppress(OSError, RuntimeError):  # then no answer comes either
                self._transport.write(b"PING\r\n")

    @property
    def defunct(self) -> bool:
        """A task that the current state depends on has ended."""
        if self.is_closed:
            return False
        needed = (self._reading_task, self._flusher_task) if self.is_connected else (self._reconnection_task,)
        return any(task is None or task.done() for task in needed)

    async def replace_connection(self) -> None:
        """Reconnect from any state but closed. Subscriptions and unsent messages are kept."""
        if self._reconnection_task is not None and not self._reconnection_task.done():
            self.abort()
            self._reconnection_task.cancel()
            await asyncio.wait({self._reconnection_task}, timeout=_WATCH_SECONDS)
        if self.is_closed:
            return
        self._status = Client.RECONNECTING
        self._ps.reset()
        self._reconnection_task = asyncio.get_running_loop().create_task(self._attempt_reconnect())


class _EncryptedClient(_Client):
    """The client encrypts only where the server asks for it, and would tell anybody in between its password."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and not info.get("tls_required"):
            raise _NotEncryptedError("the server does not require TLS")
        await super()._process_info(info, initial_connection)


class Connection:
    """Made by `open`, closed by `close`. Belongs to one event loop."""

    def __init__(self, options: ConnectionOptions, client: _Client) -> None:
        self.options = options
        self.errors: Counter[str] = Counter()
        """What the error callback was told, by kind."""
        self._client = client
        self._refused = asyncio.Event()
        self._refusal = ""
        self._on_denial: dict[str, set[Callable[[], None]]] = {}
        """By subject in lower case, what to call when the server refuses to let us publish there."""
        self._reconnected: set[Callable[[], None]] = set()
        self._per_connection: dict[Subscription, Callable[[], None]] = {}
        """Subscriptions that end with the present connection, and whom to tell then."""
        self._answers: dict[str, Handler] = {}
        self._answer_prefix = ""
        self._answer_ready: asyncio.Future[None] | None = None
        self._count = 0
        self._backoff = Backoff()
        self._watching: asyncio.Task[None] | None = None

    # --- life ------------------------------------------------------------------------------------------

    @classmethod
    async def open(cls, options: ConnectionOptions) -> Connection:
        client = _EncryptedClient() if options.encrypted else _Client()
        made = cls(options, client)
        try:
            async with asyncio.timeout(options.connect_timeout):
                await made._connect()
        except TimeoutError:
            await _close(client)
            raise BrokerUnavailableError("the broker does not answer") from None
        except ConfigurationError:
            await _close(client)
            raise
        except nats.errors.Error as error:
            await _close(client)
            raise _translated(error) from error
        except OSError as error:
            await _close(client)
            raise BrokerUnavailableError("the broker cannot be reached") from error
        except asyncio.CancelledError:
            await _close(client)
            raise
        made._watching = asyncio.create_task(made._watch(), name="broker-connection-watch")
        return made

    async def _connect(self) -> None:
        """The client tries for ever, also where trying again cannot help: then the first refusal is enough."""
        connecting = asyncio.create_task(self._client.connect(**self._arguments()))
        refused = asyncio.create_task(self._refused.wait())
        try:
            await asyncio.wait((connecting, refused), return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():
                raise ConfigurationError(self._refusal)
            await connecting
        finally:
            refused.cancel()
            while not connecting.done():  # `wait_for` of Python 3.11 can lose a cancellation, and the client goes on
                connecting.cancel()
                await asyncio.wait({connecting}, timeout=_CANCEL_SECONDS)
            await asyncio.gather(connecting, refused, return_exceptions=True)

    def _arguments(self) -> dict[str, Any]:
        options = self.options
        arguments: dict[str, Any] = {
            "servers": list(options.servers),
            "name": options.name,
            "inbox_prefix": options.inbox_prefix,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.2,
            "connect_timeout": 2,
            "reconnect_to_server_handler": self._next_server,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnect,
            "reconnected_cb": self._on_reconnect,
            "tls": options.tls(),
            "user": options.user,
            "password": options.password,
            "nkeys_seed": options.nkey_seed_file and str(options.nkey_seed_file),
            "user_credentials": options.credentials_file and str(options.credentials_file),
        }
        return {name: value for name, value in arguments.items() if value is not None}

    def _next_server(self, servers: list[Any], _info: dict[str, Any]) -> tuple[Any, float]:
        """A random one of those that failed least, after a growing pause."""
        fewest = min(server.reconnects for server in servers)
        return random.choice([server for server in servers if server.reconnects == fewest]), self._backoff.step()

    async def _on_error(self, error: Exception) -> None:
        self.errors[type(error).__name__] += 1
        if isinstance(error, _NotEncryptedError):
            self._refusal = "the broker does not offer TLS: refusing to send the password in plain text"
        elif "authorization violation" in str(error).lower():
            self._refusal = "the broker refused our credentials"
        if self._refusal:
            self._refused.set()
        denied = _DENIED.search(str(error))
        if denied:
            self.errors["denied"] += 1
            for tell in tuple(self._on_denial.get(denied[1].lower(), ())):  # the client reports it in lower case
                tell()
        _log.debug("broker_error", extra={"kind": type(error).__name__})

    async def _on_disconnect(self) -> None:
        """Before the client connects again and repeats its subscriptions."""
        for subscription, tell in list(self._per_connection.items()):
            tell()
            await self.unsubscribe(subscription, drain=False)

    async def _on_reconnect(self) -> None:
        self._backoff = Backoff()
        for tell in tuple(self._reconnected):
            tell()

    async def _watch(self) -> None:
        """Replace a connection that hears nothing, whatever state the client reports."""
        silent, last = 0, 0
        while not self._client.is_closed:
            await asyncio.sleep(_WATCH_SECONDS)
            silent = silent + 1 if self._client.signs_of_life == last else 0
            last = self._client.signs_of_life
            defunct = self._client.defunct
            try:
                if defunct or silent >= _SILENT_ROUNDS:
                    self.errors["replaced"] += 1
                    _log.warning("broker_connection_replaced", extra={"reason": "defunct" if defunct else "silent"})
                    silent = 0
                    await self._client.replace_connection()
                else:
                    self._client.ping()
            except Exception:  # noqa: BLE001 - the client's internals failed; the next look tries again
                _log.exception("broker_watch_failed")

    def on_reconnect(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Be told after each reconnection; the result ends it."""
        self._reconnected.add(tell)
        return lambda: self._reconnected.discard(tell)

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected)

    async def connected_within(self, seconds: float) -> bool:
        """Wait for the next connection, if there is none now."""
        if self.connected or self.closed:
            return self.connected
        back = asyncio.Event()
        forget = self.on_reconnect(back.set)
        try:
            async with asyncio.timeout(seconds):
                await back.wait()
        except TimeoutError:
            return False
        finally:
            forget()
        return True

    @property
    def closed(self) -> bool:
        """For good: by `close`, or because the server threw this user out. Nothing connects again."""
        return bool(self._client.is_closed)

    async def close(self) -> None:
        """Send what is still to be sent, then leave. May be called twice."""
        if self._watching is not None:
            self._watching.cancel()
        if self._client.is_closed:
            return
        flushed = False
        try:
            async with asyncio.timeout(self.options.request_timeout):
                if self._client.is_connected:
                    await self._client.flush()
            flushed = True
        except (nats.errors.Error, TimeoutError, OSError):
            self.errors["flush"] += 1
        finally:
            if not flushed:
                self._client.abort()  # or closing would wait until a dead peer has taken what is buffered
            await _close(self._client)
        _raise_if_cancelled()

    # --- plain messages --------------------------------------------------------------------------------

    async def publish(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send, without an answer. While disconnected it waits in a bounded buffer."""
        try:
            await self._client.publish(subject, data, reply=reply, headers=dict(headers) if headers else None)
        except nats.errors.Error as error:
            raise _translated(error) from error
        _raise_if_cancelled()

    async def round_trip(self) -> None:
        """Until the server has taken in all that was said before: what is listened to, too."""
        if self._client.defunct:
            raise BrokerUnavailableError("the connection to the broker is being replaced")  # flush() would not wait
        try:
            async with asyncio.timeout(self.options.request_timeout):
                await self._client.flush()
        except (nats.errors.Error, TimeoutError, OSError) as error:
            _raise_if_cancelled()
            raise BrokerUnavailableError("the broker does not answer") from error
        _raise_if_cancelled()

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Msg:
        """One question, one answer. Answers come in on one subscription under a number; the client's own way makes an
        id and a timeout for each, which is a third of what a question costs."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Msg] = loop.create_future()
        reply, end = await self.listen(partial(_settle, answer))
        patience = loop.call_later(timeout or self.options.request_timeout, _fail, answer, nats.errors.TimeoutError)
        try:
            with self.on_denial(subject, partial(deny, answer)):
                await self._client.publish(subject, data, reply=reply, headers=dict(headers) if headers else None)
                message = await answer
        except nats.errors.Error as error:
            _raise_if_cancelled()
            raise _translated(error) from error
        finally:
            patience.cancel()
            end()
        _raise_if_cancelled()
        return message

    @contextlib.contextmanager
    def on_denial(self, subject: str, tell: Callable[[], None]) -> Iterator[None]:
        """Call `tell` when the server refuses to let us publish there: it never answers the question itself."""
        name = subject.lower()
        watchers = self._on_denial.setdefault(name, set())
        watchers.add(tell)
        try:
            yield
        finally:
            watchers.discard(tell)
            if not watchers:
                del self._on_denial[name]

    async def subscribe(
        self, subject: str, handler: Handler, *, lost: Callable[[], None] | None = None
    ) -> Subscription:
        """Listen until `unsubscribe`. With `lost`, only as long as the present connection lasts; it is called then."""

        async def call(message: Msg) -> None:
            handler(message)

        try:
            made = await self._client.subscribe(subject, cb=call)
        except nats.errors.Error as error:
            raise _translated(error) from error
        if lost is not None:
            self._per_connection[made] = lost
        _raise_if_cancelled()
        return made

    async def unsubscribe(self, subscription: Subscription, *, drain: bool = True) -> None:
        """Withdraw interest. With `drain`, return when everything that the server had sent until then was handled."""
        self._per_connection.pop(subscription, None)
        if self.closed:
            return
        try:
            async with asyncio.timeout(1.0):
                if drain:
                    await subscription.drain()  # type: ignore[no-untyped-call]
                else:
                    await subscription.unsubscribe()
        except (nats.errors.Error, TimeoutError, OSError):
            self.errors["unsubscribe"] += 1
        finally:  # the client keeps a subscription whose drain did not end, and repeats it on the next connection
            subscription._stop_processing()
            self._client._remove_sub(subscription._id)

    def new_inbox(self) -> str:
        return self._client.new_inbox()

    # --- several answers to one question ----------------------------------------------------------------

    async def listen(self, handler: Handler) -> tuple[str, Callable[[], object]]:
        """A subject whose messages go to the handler, until the second result is called. One subscription carries
        all of them, so this costs no round trip. Not for pulls: what a consumer delivers bears its own subject."""
        if self._answer_ready is None:
            await self._begin_listening()
        elif not self._answer_ready.done():
            await asyncio.shield(self._answer_ready)
        self._count += 1
        name = str(self._count)
        self._answers[name] = handler
        return f"{self._answer_prefix}.{name}", partial(self._answers.pop, name, None)

    async def _begin_listening(self) -> None:
        self._answer_ready = asyncio.get_running_loop().create_future()
        self._answer_prefix = self.new_inbox()
        try:
            await self.subscribe(f"{self._answer_prefix}.*", self._dispatch)
        except BaseException:
            ready, self._answer_ready = self._answer_ready, None
            ready.set_exception(BrokerUnavailableError("no inbox"))
            ready.exception()
            raise
        self._answer_ready.set_result(None)

    def _dispatch(self, message: Msg) -> None:
        handler = self._answers.get(message.subject.rpartition(".")[2])
        if handler is not None:
            handler(message)

    # --- JetStream -------------------------------------------------------------------------------------

    async def api(self, call: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
        """One call of the JetStream API."""
        data = json.dumps(body).encode() if body is not None else b""
        return _answered(await self.request(f"$JS.API.{call}", data, timeout=timeout))

    async def store(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> Stored:
        """Publish into a stream. Once; see `retrying`."""
        answer = _answered(await self.request(subject, data, headers=headers))
        try:
            return Stored(answer["stream"], answer["seq"], bool(answer.get("duplicate")))
        except (KeyError, TypeError):
            raise BrokerError("the answer to a publish is not an ack") from None

    async def retrying(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat what is safe to repeat while the broker is unavailable, up to `retry_seconds`."""
        until = time.monotonic() + self.options.retry_seconds
        backoff = Backoff()
        while True:
            try:
                return await attempt()
            except BrokerUnavailableError:
                pause = backoff.step()
                if time.monotonic() + pause >= until:
                    raise
            await asyncio.sleep(pause)


def _settle(answer: asyncio.Future[Msg], message: Msg) -> None:
    if answer.done():
        return
    if status(message) == _NOBODY:
        answer.set_exception(nats.errors.NoRespondersError())
    else:
        answer.set_result(message)


def _fail(answer: asyncio.Future[Any], error: type[Exception]) -> None:
    if not answer.done():
        answer.set_exception(error())


def deny(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(BrokerDeniedError("this connection may not do that"))


async def _close(client: Client) -> None:
    """The client stops half-way when it finds its socket dead while something is still to be sent, and leaves its tasks
    running; the second time there is nothing to send."""
    try:
        await client.close()
    except OSError:
        client._status = Client.DISCONNECTED
        await client.close()


def _answered(message: Msg) -> Any:
    try:
        answer = json.loads(message.data)
    except ValueError:
        raise BrokerError("the broker's answer is not JSON") from None
    if isinstance(answer, dict) and "error" in answer:
        raise _refused(answer["error"])
    return answer


def _refused(error: Mapping[str, Any]) -> FumehoodError:
    number, text = int(error.get("err_code", 0)), str(error.get("description", ""))
    if number in _FULL:
        return BrokerFullError(f"the broker is full: {text}")
    if number in _TOO_LARGE:
        return PayloadTooLargeError("the message is larger than its stream takes")
    if number in _PASSING or (number == 0 and error.get("code") == 503):
        return BrokerUnavailableError(f"the broker is not ready: {text}")
    return ApiRefusalError(number, text)


def _translated(error: Exception) -> Exception:
    """The client's errors in our own words."""
    match error:
        case nats.errors.MaxPayloadError():
            return PayloadTooLargeError("the message is larger than the broker takes")
        case nats.errors.NoRespondersError():
            return NoRespondersError("nobody answers there")
        case nats.errors.AuthorizationError():
            return ConfigurationError("the broker refused our credentials")
        case nats.errors.BadSubjectError():
            return BrokerError("not a subject")
        case _:
            return BrokerUnavailableError(f"no answer in time ({type(error).__name__})")


def header(message: Msg, name: str) -> str | None:
    headers = message.headers
    return headers.get(name) if headers else None


def status(message: Msg) -> int:
    """0 for a real message, else what the server says about the question."""
    text = header(message, "Status")
    return int(text) if text and not message.reply else 0


def user_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Without the broker's own and ours."""
    return {str(k): v for k, v in (headers or {}).items() if not str(k).startswith(("Nats-", "Fumehood-"))}


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1_000_000_000)
