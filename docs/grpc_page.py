"""The gRPC reference, from the files in contracts/proto: what their comments say stands beside each field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from docs.writing import ROOT, code, page, prose, table
from fumehood.wire.console import codes
from fumehood.wire.console.codes import Capability, Reason

PROTO = ROOT / "contracts/proto/fumehood/console/v1"

_OPEN = re.compile(r"(service|message|oneof) (\w+) \{")
_FIELD = re.compile(r"(?:(repeated) )?(map<[\w, ]+>|\w+) (\w+) = (\d+);")
_CALL = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);")


@dataclass
class Thing:
    """A service or a message."""

    kind: str
    name: str
    about: str
    rows: list[list[str]] = field(default_factory=list)


def make() -> str:
    console, relay = (_read(name) for name in ("console.proto", "relay.proto"))
    names = {thing.name for _, things in (console, relay) for thing in things}
    limits = [
        ["one frame", f"{codes.MAX_FRAME_BYTES:,} bytes"],
        ["`data` of one frame", f"{codes.PIECE_BYTES:,} bytes"],
        ["`max_inflight` of a capability", f"{codes.MAX_INFLIGHT}"],
        ["`max_session_calls`", f"{codes.MAX_SESSION_CALLS}"],
        ["sessions that one worker keeps", f"{codes.MOST_SESSIONS:,}"],
    ]
    return page(
        "gRPC",
        prose(
            f"""
            {console[0]} The source of this page is
            [`console.proto`](../../contracts/proto/fumehood/console/v1/console.proto). How to run a worker:
            [run a worker](../howto/run-a-worker.md).
            """
        ),
        f"The one method is {code(codes.CONNECT_METHOD)}. "
        "Capabilities are " + ", ".join(code(one.value) for one in Capability) + ".",
        *_shown(console[1], names),
        "## Codes",
        "`Error.code` is one of these; what each means is in [errors](errors.md).",
        " ".join(code(one.value) for one in Reason),
        "## Limits",
        table(["of", "at most"], limits),
        "## Between servers",
        prose(
            f"""
            {relay[0]} They go over the broker, not over gRPC
            ([`relay.proto`](../../contracts/proto/fumehood/console/v1/relay.proto)).
            """
        ),
        *_shown(relay[1], names),
    )


def _shown(things: list[Thing], names: set[str]) -> Iterator[str]:
    for thing in things:
        yield f"### {thing.name}"
        if thing.about:
            yield prose(thing.about)
        if thing.kind == "service":
            yield table(
                ["method", "takes", "gives"], [[row[0], *(_link(one, names) for one in row[1:])] for row in thing.rows]
            )
        else:
            rows = [[number, code(name), _link(kind, names), about] for number, name, kind, about in thing.rows]
            yield table(["number", "field", "type", "what"], rows)


def _link(kind: str, names: set[str]) -> str:
    """A type, with a link where it is one of these messages."""
    return re.sub(r"\w+", lambda word: f"[{word[0]}](#{word[0].lower()})" if word[0] in names else word[0], kind)


def _read(name: str) -> tuple[str, list[Thing]]:
    """What the file says of itself, and its services and messages. Comments belong to what follows them."""
    things: list[Thing] = []
    head, comment, choice = "", [], ""
    for line in (PROTO / name).read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if text.startswith("//"):
            comment.append(text.removeprefix("//").strip())
            continue
        said, comment = " ".join(filter(None, comment)), []
        if text.startswith("syntax"):
            head = said
        elif opened := _OPEN.match(text):
            if opened[1] == "oneof":
                choice = f"One of these. {said}".strip()
            else:
                things.append(Thing(opened[1], opened[2], said))
        elif text == "}":
            choice = ""
        elif found := _CALL.match(text):
            things[-1].rows.append([code(found[1]), f"{found[2] or ''}{found[3]}", f"{found[4] or ''}{found[5]}"])
        elif found := _FIELD.match(text):
            kind = f"{found[1]} {found[2]}" if found[1] else found[2]
            things[-1].rows.append([found[4], found[3], kind, said or choice])
        else:
            assert not text or text.startswith(("package", "import")), text
    return head, things
