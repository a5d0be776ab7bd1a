"""Golden frames for the C side: `check PROGRAM` compares how it understands them, `seeds FOLDER` writes a corpus."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

FRAMES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "contracts/golden/warden/frames.json").read_text()
)
NUMBERS = ("kind", "flags", "rows", "columns", "uid", "gid", "timeout_ms", "mode", "offset", "length")


def expected() -> list[str]:
    lines = []
    for frame in FRAMES:
        if frame["name"].startswith("start_"):
            spec = next(f["fields"]["spec"] for f in FRAMES if f["name"] == frame["name"].replace("start", "spec"))
            flags = spec["flags"] | (8 if spec["kind"] == 2 else 0)  # write always has its stdin
            numbers = [str(flags if name == "flags" else spec[name]) for name in NUMBERS]
            strings = "|".join([spec["directory"], *spec["argv"], *spec["environment"]])
            lines.append(f"same spec {' '.join(numbers)} {strings}")
            lines.append("good")
        elif frame["name"] == "shutdown":
            continue
        else:
            lines.append("same good")
    return [*lines, "same shutdown"]


def check(program: str) -> None:
    ordered = sorted(FRAMES, key=lambda frame: str(frame["name"]) == "shutdown")
    text = "".join(frame["hex"] + "\n" for frame in ordered)
    said = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    if said != expected():
        sys.exit("\n".join(f"{a!r} {b!r}" for a, b in zip(said, expected(), strict=False) if a != b) or "golden: lines")
    print(f"golden: {len(FRAMES)} frames understood")


def operation(what: int, slot: int = 0, n: int = 0, rest: bytes = b"") -> bytes:
    return bytes([what, slot]) + n.to_bytes(2, "big") + rest


def framed(frame: dict[str, Any]) -> bytes:
    raw = bytes.fromhex(frame["hex"])
    head = bytes([frame["type"], frame["command"] & 255]) + (len(raw) - 28).to_bytes(2, "big")
    return operation(1, 0, 0, head + raw[28:])


def acknowledged(kind: int, number: int) -> bytes:
    payload = number.to_bytes(8, "big")
    return operation(1, 0, 0, bytes([kind, 1, 0, len(payload)]) + payload)


def seeds(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    every = b""
    life = [operation(6, n=4), operation(5, n=9000), operation(133, n=90), operation(4, n=50), operation(10, n=40),
            operation(7), operation(8), operation(4, n=100)]  # fmt: skip
    for frame in FRAMES:
        raw = bytes.fromhex(frame["hex"])
        (folder / f"raw_{frame['name']}").write_bytes(operation(0, rest=len(raw).to_bytes(2, "big") + raw))
        (folder / f"framed_{frame['name']}").write_bytes(framed(frame))
        if frame["direction"] == "to_warden" and frame["name"] != "shutdown":
            every += framed(frame)
            if frame["name"].startswith("start_"):
                every += b"".join(life[:5])
                spec = next(f for f in FRAMES if f["name"] == frame["name"].replace("start", "spec"))
                (folder / f"life_{frame['name']}").write_bytes(framed(spec) + framed(frame) + b"".join(life))
    (folder / "everything").write_bytes(every + b"".join(life))
    begun = b"".join(framed(f) for f in FRAMES if f["name"] in ("spec_exec", "start_exec")) + b"".join(life[:4])
    acks = acknowledged(11, 2) + operation(4, n=10) + acknowledged(6, 3) + operation(11)
    held = b"".join(framed(f) for f in FRAMES if f["name"] in ("spec_exec_waits", "start_exec_waits"))
    begin = framed(next(f for f in FRAMES if f["name"] == "begin"))
    kept = held + life[0] + operation(9, n=900) + begin + begin + operation(9, n=30_000) + operation(9, n=30_000)
    (folder / "waits").write_bytes(kept + b"".join(life[1:]) + begin)
    (folder / "acknowledged").write_bytes(begun + acks + b"".join(life[5:]) + acknowledged(11, 4) + operation(4, n=10))


if __name__ == "__main__":
    if sys.argv[1] == "check":
        check(sys.argv[2])
    else:
        seeds(Path(sys.argv[2]))
