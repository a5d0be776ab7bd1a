"""Many runs at once, and very long output: all of them end, in order, and nothing grows with them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runs_process import Cell

MIB = 1024 * 1024
SLOTS = 4
GROWTH = 64 * MIB
"""More than any process may grow by, whatever it is given: buffers, caches and the interpreter's own slack."""
KEPT = 2 * 512 * 1024


def rss(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


async def all_at_once(path: Path, image: str, count: int) -> dict[str, object]:
    env = {"FUMEHOOD_SLOTS": str(SLOTS), "FUMEHOOD_ORPHAN_SECONDS": "30"}
    with Cell(path, env=env) as cell:
        (node,), server = cell.nodes, cell.servers[0]
        assert (await cell.until(await cell.create(image, "true")))["status"] == "succeeded"
        sizes = {"node": rss(node.pid), "server": rss(server.pid)}
        began = time.monotonic()
        runs = [await cell.create(image, "true") for _ in range(count)]
        queued = time.monotonic() - began
        found = [await cell.until(run_id, timeout=30 + count) for run_id in runs]
        took = time.monotonic() - began
        grown = {"node": rss(node.pid) - sizes["node"], "server": rss(server.pid) - sizes["server"]}
        await cell.clean()
    assert {run["status"] for run in found} == {"succeeded"}
    started = [run["started_at"] for run in found]
    for early, late in zip(started, started[2 * SLOTS :], strict=False):
        assert early <= late, "whoever came first began first"
    assert max(grown.values()) < GROWTH, grown
    return {
        "runs": count,
        "slots": SLOTS,
        "queued_seconds": round(queued, 1),
        "seconds": round(took, 1),
        "runs_a_second": round(count / took, 2),
        **{f"{name}_grew_mib": round(size / MIB, 1) for name, size in grown.items()},
    }


async def much_output(path: Path, image: str, mebibytes: int) -> dict[str, object]:
    """Each mebibyte begins with its number: so it can be told which were kept."""
    script = f"i=0; while [ $i -lt {mebibytes} ]; do printf '%08d' $i; head -c {MIB - 8} /dev/zero | tr '\\0' x; "
    script += "i=$((i+1)); done"
    limits = {"cpu_millis": 2000, "memory_mb": 128, "timeout_seconds": 3600}
    with Cell(path, env={"FUMEHOOD_ORPHAN_SECONDS": "30"}) as cell:
        (node,), server = cell.nodes, cell.servers[0]
        assert (await cell.until(await cell.create(image, "true")))["status"] == "succeeded"
        sizes = {"node": rss(node.pid), "server": rss(server.pid)}
        node.reset_peak()
        began = time.monotonic()
        run_id = await cell.create(image, "sh", "-c", script, resources=limits)
        reader = asyncio.create_task(read_all(cell, run_id))
        on_disk: list[int] = []
        watching = asyncio.create_task(watch(node.state_dir / "output", on_disk))
        run = await cell.until(run_id, timeout=1800)
        took = time.monotonic() - began
        seen = await asyncio.wait_for(reader, 120)
        watching.cancel()
        grown = {"node": node.rss_bytes(peak=True) - sizes["node"], "server": rss(server.pid) - sizes["server"]}
        kept = await cell.logs(run_id)
        await cell.clean()
    assert run["status"] == "succeeded"
    check_kept(kept, mebibytes)
    check_seen(seen, mebibytes)
    assert max(grown.values()) < GROWTH, grown
    assert max(on_disk) < 32 * MIB
    return {
        "mebibytes": mebibytes,
        "seconds": round(took, 1),
        "mebibytes_a_second": round(mebibytes / took, 1),
        "on_disk_mib": round(max(on_disk) / MIB, 1),
        "told_live_mib": round(seen["told"] / MIB, 1),
        **{f"{name}_grew_mib": round(size / MIB, 1) for name, size in grown.items()},
    }


async def read_all(cell: Cell, run_id: str) -> dict[str, Any]:
    """As a client that is cut off again and again: every byte that is told is told once, and gaps are said."""
    await cell.until(run_id, "running", "succeeded")
    seen: dict[str, Any] = {"place": 0, "told": 0, "cuts": 0, "first": "", "last": ""}
    last: str | None = None
    while True:
        pieces = 0
        async for event in cell.stream(run_id, after=last):
            last = event.id or last
            if event.name == "end":
                return seen
            if event.name == "cut":
                seen["cuts"] += 1
            if event.name == "stdout":
                text, offset = event.data["text"], event.data["offset"]
                assert offset == seen["place"] or seen["cuts"], "a gap that nobody told"
                assert offset >= seen["place"], "told twice"
                seen["place"], seen["told"] = offset + len(text), seen["told"] + len(text)
                seen["first"], seen["last"] = seen["first"] or text[:8], text[-8:]
                pieces += 1
            if pieces >= 20:
                break


async def watch(folder: Path, sizes: list[int]) -> None:
    """The size of what lies in a folder, again and again, until cancelled."""
    while True:
        sizes.append(await asyncio.to_thread(size_of, folder))
        await asyncio.sleep(0.1)


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def check_kept(kept: dict[str, Any], mebibytes: int) -> None:
    text = kept["stdout"]
    assert kept["truncated"] is True
    assert text.startswith("00000000xxx")
    assert "bytes left out" in text
    assert text.endswith("x")
    assert len(text) <= KEPT + 100
    left_out = int(text.partition("[… ")[2].partition(" bytes")[0])
    assert left_out == mebibytes * MIB - KEPT


def check_seen(seen: dict[str, Any], mebibytes: int) -> None:
    assert seen["first"] == "00000000"
    assert seen["place"] == mebibytes * MIB, "the end was told"
    assert seen["cuts"] >= 1
    assert seen["told"] <= 10 * MIB


def note(found: dict[str, object], record_property: Callable[[str, object], None]) -> None:
    print("at size: " + ", ".join(f"{name} {value}" for name, value in found.items()))
    for name, value in found.items():
        record_property(name, value)


@pytest.mark.storm
@pytest.mark.timeout(600)
async def test_fifty_runs_at_once_all_end_in_their_order(
    tmp_path: Path, base_image: str, record_property: Callable[[str, object], None]
) -> None:
    note(await all_at_once(tmp_path, base_image, 50), record_property)


@pytest.mark.record
@pytest.mark.timeout(3600)
async def test_five_hundred_runs_at_once_all_end_in_their_order(
    tmp_path: Path, base_image: str, record_property: Callable[[str, object], None]
) -> None:
    note(await all_at_once(tmp_path, base_image, 500), record_property)


@pytest.mark.storm
@pytest.mark.timeout(600)
async def test_a_hundred_mebibytes_of_output_are_bounded_everywhere(
    tmp_path: Path, base_image: str, record_property: Callable[[str, object], None]
) -> None:
    note(await much_output(tmp_path, base_image, 100), record_property)


@pytest.mark.record
@pytest.mark.timeout(3600)
async def test_a_gibibyte_of_output_is_bounded_everywhere(
    tmp_path: Path, base_image: str, record_property: Callable[[str, object], None]
) -> None:
    note(await much_output(tmp_path, base_image, 1024), record_property)
