"""Writes frames.json: the golden frames of contracts/warden-protocol.md, built from its tables and nothing else.

Shares no code with either end of the protocol. Run it again only when the contract changes.
"""

import hashlib
import json
import struct
import zlib
from pathlib import Path
from typing import Any

NONCE = bytes(range(16))
OWNER, WARDEN = "to_warden", "to_owner"


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">I", len(raw)) + raw


def texts(values: list[str]) -> bytes:
    return struct.pack(">I", len(values)) + b"".join(text(value) for value in values)


def frame(kind: int, payload: bytes, command: int = 0, seq: int = 0) -> bytes:
    head = b"FHW1" + struct.pack(">B3xIQI", kind, command, seq, len(payload))
    return head + struct.pack(">I", zlib.crc32(head + payload)) + payload


def spec(fields: dict[str, Any]) -> bytes:
    numbers = [fields[name] for name in ("kind", "flags", "rows", "columns", "uid", "gid", "timeout_ms", "mode")]
    head = struct.pack(">BBHHIIII", *numbers) + struct.pack(">QQ", fields["offset"], fields["length"])
    return head + text(fields["directory"]) + texts(fields["argv"]) + texts(fields["environment"])


def a_spec(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "kind": 0, "flags": 0, "rows": 0, "columns": 0, "uid": 65532, "gid": 65532, "timeout_ms": 0, "mode": 0,
        "offset": 0, "length": 0, "directory": "/workspace", "argv": ["true"], "environment": [],
    }  # fmt: skip
    return fields | changes


SPECS = {
    "exec": a_spec(flags=1 | 2 | 8, timeout_ms=300_000, argv=["python3", "-c", "print('grüße')"],
                   environment=["PATH=/usr/local/bin:/usr/bin:/bin", "EMPTY="]),
    "exec_pty": a_spec(flags=4 | 8, rows=24, columns=80, argv=["/bin/sh"], environment=["TERM=xterm"]),
    "read": a_spec(kind=1, offset=4096, length=1 << 33, argv=["data/large.bin"]),
    "write": a_spec(kind=2, flags=16, mode=0o644, argv=["src/new/main.py"], timeout_ms=10_000),
    "list": a_spec(kind=3, argv=["."]),
    "stat": a_spec(kind=4, argv=["file"]),
    "remove": a_spec(kind=5, flags=16, argv=["build"]),
    "mkdir": a_spec(kind=6, flags=16, mode=0o755, argv=["a/b/c"]),
    "exec_waits": a_spec(flags=1 | 2 | 8 | 32, timeout_ms=300_000, argv=["cat"]),
}  # fmt: skip

OUT, ERR = b"hello\n", b""
EXITS = {
    "exited": {"state": 1, "stage": 0, "flags": 0, "code": 3},
    "signaled": {"state": 2, "stage": 0, "flags": 1, "code": 9},
    "timed_out": {"state": 3, "stage": 0, "flags": 0, "code": 9},
    "not_started": {"state": 4, "stage": 4, "flags": 0, "code": 2},
}
TIMES = {"started": 1_700_000_000_000, "ended": 1_700_000_001_500, "duration_us": 1_500_250,
         "user_us": 1_000_000, "system_us": 20_000, "max_rss_kib": 10_240}  # fmt: skip


def exit_payload(end: dict[str, int], out: bytes, err: bytes) -> bytes:
    head = struct.pack(">BBBxi", end["state"], end["stage"], end["flags"], end["code"])
    streams = b"".join(struct.pack(">Q", len(data)) + hashlib.sha256(data).digest() for data in (out, err))
    return head + struct.pack(">QQQQQQ", *TIMES.values()) + streams


def to_warden() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def add(name: str, kind: int, payload: bytes, command: int = 0, **fields: Any) -> None:
        rows.append({"name": name, "direction": OWNER, "type": kind, "command": command, "seq": 0, "fields": fields,
                     "hex": frame(kind, payload, command).hex()})  # fmt: skip

    add("hello", 1, NONCE + struct.pack(">HI", 1, 30_000), nonce=NONCE.hex(), version=1, orphan_ms=30_000)
    for command, (name, fields) in enumerate(SPECS.items(), 1):
        body = spec(fields)
        add(f"spec_{name}", 2, struct.pack(">I", 0) + body, command, offset=0, data=body.hex(), spec=fields)
        add(f"start_{name}", 3, struct.pack(">I", len(body)), command, total=len(body))
    add("stdin", 4, struct.pack(">Q", 0) + b"first line\n", 1, offset=0, data=b"first line\n".hex())
    add("stdin_eof", 5, struct.pack(">Q", 11), 1, offset=11)
    add("ack", 6, struct.pack(">Q", 2**40 + 7), seq_acked=2**40 + 7)
    add("ack_command", 11, struct.pack(">Q", 2**40 + 7), 1, seq_acked=2**40 + 7)
    add("signal_group", 7, bytes([15, 0]), 1, signal=15, scope=0)
    add("signal_everything", 7, bytes([9, 1]), 1, signal=9, scope=1)
    add("resize", 8, struct.pack(">HH", 50, 132), 2, rows=50, columns=132)
    add("ping", 9, b"pingpong", data=b"pingpong".hex())
    add("begin", 12, struct.pack(">I", 60_000), 9, timeout_ms=60_000)
    add("shutdown", 10, b"")
    return rows


def to_owner() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def add(name: str, kind: int, payload: bytes, command: int = 0, seq: int = 0, **fields: Any) -> None:
        rows.append({"name": name, "direction": WARDEN, "type": kind, "command": command, "seq": seq,
                     "fields": fields, "hex": frame(kind, payload, command, seq).hex()})  # fmt: skip

    fresh = NONCE + struct.pack(">HQIH", 1, 1, 0, 0)
    add("welcome_fresh", 129, fresh, nonce=NONCE.hex(), version=1, next_seq=1, highest=0, commands=[])
    add("welcome", 129, NONCE + struct.pack(">HQIH", 1, 12, 5, 2) + struct.pack(">IBQIBQ", 3, 2, 0, 5, 1, 262_144),
        nonce=NONCE.hex(), version=1, next_seq=12, highest=5,
        commands=[{"id": 3, "state": 2, "stdin": 0}, {"id": 5, "state": 1, "stdin": 262_144}])  # fmt: skip
    add("started", 130, struct.pack(">I", 17), 1, 1, pid=17)
    add("output_stdout", 131, struct.pack(">BQ", 1, 0) + OUT, 1, 2, stream=1, offset=0, data=OUT.hex())
    add("output_stderr", 131, struct.pack(">BQ", 2, 2**32) + b"\x00FHW1", 1, 3, stream=2, offset=2**32,
        data=b"\x00FHW1".hex())  # fmt: skip
    for seq, (name, end) in enumerate(EXITS.items(), 4):
        out = b"" if name == "not_started" else OUT
        streams = {"stdout_bytes": len(out), "stdout_sha256": hashlib.sha256(out).hexdigest(),
                   "stderr_bytes": 0, "stderr_sha256": hashlib.sha256(ERR).hexdigest()}  # fmt: skip
        add(f"exit_{name}", 132, exit_payload(end, out, ERR), 1, seq, **end, **TIMES, **streams)
    add("stdin_ack", 133, struct.pack(">Q", 11), 1, taken=11)
    add("pong", 134, b"pingpong", data=b"pingpong".hex())
    reasons = ["duplicate command id", "too many commands", "malformed spec", "unknown command",
               "stdin out of window", "spec too large"]  # fmt: skip
    for code, reason in enumerate(reasons, 1):
        add(f"refused_{code}", 135, bytes([code]) + reason.encode(), 9, code=code, text=reason)
    return rows


if __name__ == "__main__":
    target = Path(__file__).with_name("frames.json")
    target.write_text(json.dumps(to_warden() + to_owner(), indent=1, ensure_ascii=False) + "\n")
