"""A server that speaks OpenAI's chat protocol, on a real socket: `python tests/chat_server.py --port 8089`.

Requests are checked as the real one checks them. Its "model" is a handful of rules: it finds definitions and well-known
faults in code, orders candidates by the words that they share with the task, and judges by how much an answer says. So
what comes out has a meaning. A script makes it misbehave, one item for each request; when it is used up, the rules
answer.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import json
import re
import signal
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema_rs
from aiohttp import web

MODEL = "rules-1"
KEY = "sk-test-0123456789abcdef"
KNOWN = frozenset(
    {"model", "messages", "response_format", "temperature", "seed", "max_tokens", "max_completion_tokens", "n", "stop"}
    | {"top_p", "stream", "user"}
)
MAX_BODY = 64 * 1024 * 1024

Body = dict[str, Any]
Behaviour = Callable[[web.Request, Body], Awaitable[web.StreamResponse]]


# --- the rules -----------------------------------------------------------------------------------------------------

DEFINITION = re.compile(
    r"\b(def|class|fn|func|function|struct|trait|enum|interface|impl)\s+(?:\([^)]*\)\s*)?([A-Za-z_]\w*)"
)
FAULTS = (
    (re.compile(r"\beval\s*\("), "high", "evaluates text as code"),
    (re.compile(r"shell\s*=\s*True|os\.system\s*\("), "high", "hands text to a shell"),
    (re.compile(r"except\s*:"), "medium", "swallows every exception"),
    (re.compile(r"(password|secret|token)\s*=\s*[\"']"), "high", "holds a secret"),
    (re.compile(r"\bTODO\b|\bFIXME\b"), "low", "is not finished"),
)
IMPORT = re.compile(r"^\s*(?:from|import|use|require)\s+([\w.:/]+)")


def analyse(data: Body) -> Body:
    lines = [(int(number), text) for number, _, text in (line.partition(":") for line in data["code"].split("\n"))]
    symbols = [
        {"name": name, "kind": kind, "line": number, "description": None}
        for number, text in lines
        for kind, name in DEFINITION.findall(text)
    ]
    faults = [
        {"line": number, "severity": level, "description": f"This line {what}.", "suggestion": None}
        for number, text in lines
        for form, level, what in FAULTS
        if form.search(text)
    ]
    probes = [
        {"path": found.group(1).replace(".", "/"), "reason": "It is used here.", "priority": "low"}
        for _, text in lines
        if (found := IMPORT.match(text))
    ]
    names = ", ".join(str(one["name"]) for one in symbols) or "nothing by name"
    return {
        "summary": f"{data['path']} defines {names}.",
        "symbols": symbols,
        "suspected_faults": faults,
        "recommended_next_probes": probes,
        "confidence": 0.6,
    }


def words(text: str) -> set[str]:
    return {one.lower() for one in re.findall(r"[A-Za-z]{3,}", text.replace("_", " "))}


def rank(data: Body) -> Body:
    wanted = words(data["task"] + " " + data.get("rubric", ""))

    def score(candidate: Body) -> float:
        found = words(candidate["content"] + " " + candidate.get("path", ""))
        return round(len(wanted & found) / max(1, len(wanted)), 4)

    order = sorted(data["candidates"], key=lambda one: (-score(one), one["number"]))
    return {"ranking": [{"number": one["number"], "score": score(one), "why": "shared words"} for one in order]}


def judge(data: Body) -> Body:
    best = max(data["candidates"], key=lambda one: (len(json.dumps(one["answer"])), -one["number"]))
    return {"reason": f"Number {best['number']} says the most.", "number": best["number"]}


def by_the_rules(body: Body) -> str:
    """The first message of the user is the question, whatever came after it."""
    try:
        data = json.loads(next((one["content"] for one in body["messages"] if one["role"] == "user"), ""))
    except ValueError:
        return "I know a few rules about JSON documents, and nothing else."
    if "code" in data:
        return json.dumps(analyse(data))
    return json.dumps(judge(data) if "request" in data else rank(data))


# --- the protocol --------------------------------------------------------------------------------------------------


class RefusedError(Exception):
    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "server_error" if status >= 500 else "invalid_request_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass
class ChatServer:
    url: str = ""
    model: str = MODEL
    key: str = KEY
    refuses: set[str] = field(default_factory=set)
    """Fields, and forms of answer, that this endpoint does not know: `json_schema`, `max_tokens`, `seed` …"""
    script: list[Behaviour] = field(default_factory=list)
    says: Callable[[Body], str] = by_the_rules
    asked: list[Body] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    with_usage: bool = True
    was_asked: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post("/v1/chat/completions", self._completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/elsewhere/chat/completions", self._completions)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        try:
            self._authorise(request)
        except RefusedError as refused:
            return web.json_response(refused.body, status=refused.status)
        model = {"id": self.model, "object": "model", "created": 1_700_000_000, "owned_by": "tests"}
        return web.json_response({"object": "list", "data": [model]})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await read(request)
            with self._lock:
                self.asked.append(body)
                self.headers.append({name.lower(): value for name, value in request.headers.items()})
                self.was_asked.set()
                behaviour = self.script.pop(0) if self.script else None
            self._authorise(request)
            self._check(body)
            if behaviour is not None:
                return await behaviour(request, body)
            return self.completion(body, self._conforming(body))
        except RefusedError as refused:
            return web.json_response(refused.body, status=refused.status)

    def _conforming(self, body: Body) -> str:
        said = self.says(body)
        form = body.get("response_format", {})
        if form.get("type") == "json_schema" and self.says is by_the_rules:
            jsonschema_rs.validator_for(form["json_schema"]["schema"]).validate(json.loads(said))
        return said

    def _authorise(self, request: web.Request) -> None:
        if not self.key:
            return
        said = request.headers.get("authorization", "")
        if not hmac.compare_digest(said.encode(), f"Bearer {self.key}".encode()):
            shown = said.removeprefix("Bearer ")
            raise RefusedError(401, f"Incorrect API key provided: {shown}.", code="invalid_api_key")

    def _check(self, body: Body) -> None:
        for name in body.keys() - KNOWN:
            raise RefusedError(400, f"Unrecognized request argument supplied: {name}", param=name)
        for name in ("model", "messages"):
            if not body.get(name):
                raise RefusedError(400, f"Missing required parameter: '{name}'.", param=name)
        if body["model"] != self.model:
            raise RefusedError(404, f"The model '{body['model']}' does not exist.", code="model_not_found")
        self._check_fields(body)
        self._check_messages(body["messages"])
        self._check_form(body)

    def _check_fields(self, body: Body) -> None:
        if "max_tokens" in body and "max_tokens" in self.refuses:
            said = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
            raise RefusedError(400, said, code="unsupported_parameter", param="max_tokens")
        if body.get("temperature", 1) != 1 and "temperature" in self.refuses:
            said = "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is."
            raise RefusedError(400, said, code="unsupported_value", param="temperature")
        if "seed" in body and "seed" in self.refuses:
            raise RefusedError(422, "seed: Extra inputs are not permitted")
        if not 0 <= body.get("temperature", 1) <= 2:
            raise RefusedError(400, "Invalid 'temperature'.", param="temperature")
        limit = body.get("max_tokens", body.get("max_completion_tokens", 1))
        if not isinstance(limit, int) or limit < 1:
            raise RefusedError(400, "Invalid 'max_tokens': integer below minimum value.", param="max_tokens")

    def _check_messages(self, messages: list[Body]) -> None:
        for number, one in enumerate(messages):
            if one.get("role") not in ("system", "user", "assistant") or not isinstance(one.get("content"), str):
                raise RefusedError(400, f"Invalid value: 'messages[{number}]'.", param=f"messages[{number}]")

    def _check_form(self, body: Body) -> None:
        form = body.get("response_format", {"type": "text"})
        if form["type"] in self.refuses:
            # As llama.cpp says it: no `param`, and the number as `code`.
            known = {"text", "json_object", "json_schema"} - self.refuses
            raise RefusedError(400, f"response_format type must be one of {sorted(known)}, but got: {form['type']}")
        if form["type"] == "json_object" and "json" not in json.dumps(body["messages"]).lower():
            raise RefusedError(400, "'messages' must contain the word 'json' in some form.", param="messages")
        if form["type"] == "json_schema":
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", form["json_schema"]["name"]):
                raise RefusedError(400, "Invalid 'response_format.json_schema.name'.", param="response_format")
            check_strict(form["json_schema"]["schema"], ())

    def completion(
        self, body: Body, content: str | None, *, finish: str | None = None, refusal: str | None = None
    ) -> web.Response:
        """An answer of the usual kind; what it says is cut at as many tokens as were allowed."""
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 1 << 30
        said = content if content is None else content[: 4 * limit]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": said, "refusal": refusal},
            "logprobs": None,
            "finish_reason": finish or ("stop" if said == content else "length"),
        }
        made: Body = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": f"{self.model}-2025-01-01",
            "system_fingerprint": "fp_rules",
            "choices": [choice],
        }
        if self.with_usage:
            made["usage"] = usage(body, said)
        return web.json_response(made)


def usage(body: Body, said: str | None) -> Body:
    """Four characters are a token."""
    asked = sum(-(-len(one["content"]) // 4) for one in body["messages"])
    answered = -(-len(said or "") // 4)
    return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


async def read(request: web.Request) -> Body:
    try:
        body = await request.json()
    except ValueError:
        raise RefusedError(400, "We could not parse the JSON body of your request.") from None
    return body if isinstance(body, dict) else {}


def check_strict(schema: Body, path: tuple[str, ...]) -> None:
    """What `strict` demands of a schema."""
    where = f"Invalid schema for response_format: In context={path}"
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            raise RefusedError(400, f"{where}, 'additionalProperties' must be false.", param="response_format")
        if sorted(schema.get("required", [])) != sorted(schema["properties"]):
            raise RefusedError(400, f"{where}, 'required' must name every property.", param="response_format")
        for name, inner in schema["properties"].items():
            check_strict(inner, (*path, name))
    elif schema.get("type") == "array":
        check_strict(schema["items"], (*path, "items"))
    elif not path:
        raise RefusedError(400, f"{where}, the root must be an object.", param="response_format")


# --- misbehaviour --------------------------------------------------------------------------------------------------


def status(
    number: int, message: str = "That did not work.", *, code: str | None = None, retry_after: str | None = None
) -> Behaviour:
    async def behave(_: web.Request, __: Body) -> web.StreamResponse:
        headers = {} if retry_after is None else {"retry-after": retry_after}
        return web.json_response(RefusedError(number, message, code=code).body, status=number, headers=headers)

    return behave


def redirect(to: str) -> Behaviour:
    async def behave(_: web.Request, __: Body) -> web.StreamResponse:
        return web.Response(status=307, headers={"location": to})

    return behave


def raw(content: bytes, headers: dict[str, str] | None = None) -> Behaviour:
    async def behave(_: web.Request, __: Body) -> web.StreamResponse:
        return web.Response(body=content, headers={"content-type": "application/json", **(headers or {})})

    return behave


def says(server: ChatServer, content: str | None, **more: str) -> Behaviour:
    async def behave(_: web.Request, body: Body) -> web.StreamResponse:
        return server.completion(body, content, **more)

    return behave


def truncated(server: ChatServer) -> Behaviour:
    async def behave(_: web.Request, body: Body) -> web.StreamResponse:
        return server.completion(body, by_the_rules(body)[:20], finish="length")

    return behave


async def hang(_: web.Request, __: Body) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def cut(request: web.Request, _: Body) -> web.StreamResponse:
    """The connection is reset in the middle of the body."""
    response = web.StreamResponse(headers={"content-type": "application/json", "content-length": "1000"})
    await response.prepare(request)
    await response.write(b'{"id": "chatcmpl-')
    assert request.transport is not None
    request.transport.abort()
    return response


async def flood(request: web.Request, _: Body) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "application/json"})
    await response.prepare(request)
    with suppress(ConnectionError):
        while True:
            await response.write(b" " * 65536)
    return response


# --- running it ----------------------------------------------------------------------------------------------------


async def serve(server: ChatServer, port: int, stop: asyncio.Event, ready: Callable[[], None]) -> None:
    runner = web.AppRunner(server.app(), shutdown_timeout=0.1, handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        ready()
        await stop.wait()
    finally:
        await runner.cleanup()


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    """In a thread of its own, so that tests may have any number of event loops."""
    server, ready = ChatServer(), threading.Event()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve(server, 0, stop, ready.set))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert ready.wait(120), "the chat server did not start"
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(120)


async def main(server: ChatServer, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(server, port, stop, lambda: print(f"chat server on {server.url}", flush=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes any; the first line printed says which")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--api-key-file", type=Path, help="without it, no key is wanted")
    parser.add_argument("--refuse", action="append", default=[], help="json_schema, json_object, max_tokens, seed …")
    given = parser.parse_args()
    key = given.api_key_file.read_text().strip() if given.api_key_file else ""
    asyncio.run(main(ChatServer(model=given.model, key=key, refuses=set(given.refuse)), given.port))
