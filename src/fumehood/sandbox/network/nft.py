"""The kernel's firewall, through the `nft` program. What it says of its own is kept out of what callers see."""

from __future__ import annotations

import asyncio
import json
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fumehood.errors import NetworkUnavailableError

SECONDS: Final = 20.0
OWN_NETWORK: Final = Path("/proc/self/ns/net")
_PLACES: Final = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
"""Not the caller's PATH: this runs as root."""


def find_program(name: str) -> str | None:
    return shutil.which(name, path=_PLACES)


async def apply(rules: str) -> None:
    """All of it, or nothing."""
    await _nft("-f", "-", given=rules)


async def apply_within(namespace: Path, rules: str) -> None:
    """The same in another network, which must not be our own."""
    nsenter = find_program("nsenter")
    if nsenter is None or not _is_another(namespace):
        raise NetworkUnavailableError(
            "the sandbox's network cannot be entered from the node: see that it has `nsenter`"
        )
    status, _ = await _run([nsenter, f"--net={namespace}", _program(), "-f", "-"], given=rules)
    if status != 0:
        raise NetworkUnavailableError("the sandbox's own network could not be closed")


async def check(rules: str) -> None:
    """Would `apply` work here? Raises what stands in the way."""
    await _nft("-c", "-f", "-", given=rules)


async def shown(table: str) -> str:
    """A table as the kernel has it, for comparing; empty when there is none. Without what changes by itself."""
    status, out = await _run([_program(), "-j", "-s", "list", "table", "inet", table])
    return _lasting(out) if status == 0 else ""


def _lasting(listed: str) -> str:
    """Handles are the kernel's own numbers; what is in a set that forgets was put there by traffic."""
    entries = [one for entry in json.loads(listed)["nftables"] for one in entry.items()]
    for kind, one in entries:
        one.pop("handle", None)
        if kind == "set" and "timeout" in one:
            one.pop("elem", None)
    return json.dumps(entries, indent=1)


async def delete(table: str) -> None:
    await _nft("-f", "-", given=f"table inet {table}\ndelete table inet {table}\n")


async def tables() -> list[str]:
    found = json.loads(await _nft("-j", "list", "tables"))
    entries = [entry["table"] for entry in found.get("nftables", ()) if "table" in entry]
    return [str(table["name"]) for table in entries if table["family"] == "inet"]


async def _nft(*words: str, given: str = "") -> str:
    status, out = await _run([_program(), *words], given=given)
    if status != 0:
        raise NetworkUnavailableError(
            "the firewall of sandbox networks cannot be set: the node must run as root (CAP_NET_ADMIN), in the host's "
            "own network, on a kernel with nf_tables"
        )
    return out


def _is_another(namespace: Path) -> bool:
    try:
        return namespace.stat().st_ino != OWN_NETWORK.stat().st_ino
    except OSError:
        return False


def _program() -> str:
    program = find_program("nft")
    if program is None:
        raise NetworkUnavailableError("sandboxes with a network need `nft`: install nftables on the node")
    return program


async def _run(words: Sequence[str], *, given: str = "") -> tuple[int, str]:
    try:
        stdin = PIPE if given else DEVNULL  # a program that reads nothing may have ended before it is given nothing
        process = await asyncio.create_subprocess_exec(*words, stdin=stdin, stdout=PIPE, stderr=DEVNULL)
    except OSError as error:
        raise NetworkUnavailableError(f"a program of the node could not be started ({error.strerror})") from error
    try:
        async with asyncio.timeout(SECONDS):
            out, _ = await process.communicate(given.encode() if given else None)
    except TimeoutError:
        raise NetworkUnavailableError(f"`nft` did not answer within {SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
    return int(process.returncode or 0), out.decode("utf-8", "replace")
