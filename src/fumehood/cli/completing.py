"""What a shell may complete beyond commands and options: names that only a file or a server knows.

A completion is a favour: it answers within a second, with nothing where anything is in the way, and never says a word
of its own. It asks the server that the line so far names, with the key that belongs there.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 1.0
MOST = 100
"""Names that are offered. Whoever has more types another letter."""


def contexts(incomplete: str) -> list[str]:
    """Names of contexts."""
    return _within(_contexts, incomplete)


def workflows(ctx: Any, incomplete: str) -> list[str]:
    return _asked(ctx, incomplete, "/v1/workflows", "workflows", "name")


def runs(ctx: Any, incomplete: str) -> list[str]:
    """The newest runs."""
    return _asked(ctx, incomplete, "/v1/runs", "runs", "run_id")


def sessions(ctx: Any, incomplete: str) -> list[str]:
    return _asked(ctx, incomplete, "/v1/sandboxes", "sandboxes", "sandbox_id")


def schedules(ctx: Any, incomplete: str) -> list[str]:
    return _asked(ctx, incomplete, "/v1/schedules", "schedules", "name")


def _contexts() -> list[str]:
    from fumehood.sdk.context_store import ContextStore

    return list(ContextStore().read().entries)


def _asked(ctx: Any, incomplete: str, path: str, items: str, field: str) -> list[str]:
    import httpx  # noqa: F401 - before the clock runs: loading it is not the server's fault

    from fumehood.sdk import connection  # noqa: F401

    return _within(lambda: _names(ctx.params, path, items, field), incomplete)


def _names(said: dict[str, Any], path: str, items: str, field: str) -> list[str]:
    """One question, once: whoever has to wait types the name himself."""
    import httpx

    from fumehood.sdk.connection import find_connection

    key_file = said.get("key_file")
    found = find_connection(
        url=said.get("server"),
        key_file=Path(key_file) if key_file is not None else None,
        context=said.get("context"),
        insecure_http=said.get("insecure_http"),
    )
    headers = {} if found.key is None else {"authorization": f"Bearer {found.key}"}
    mounts: dict[str, None] | None = {"http://": None, "https://": None} if found.direct else None
    trust = found.url.startswith("https:") or ssl.SSLContext(
        ssl.PROTOCOL_TLS_CLIENT
    )  # whom to trust takes long to read
    with httpx.Client(headers=headers, timeout=SECONDS, mounts=mounts, verify=trust) as http:
        answer = http.get(f"{found.url}{path}", params={"limit": MOST})
    answer.raise_for_status()
    return [str(one[field]) for one in answer.json()[items]]


def _within(find: Callable[[], list[str]], incomplete: str) -> list[str]:
    """What is found in time. Whatever goes wrong is not said: somebody is typing. A thread that is late is left
    behind, since it ends with the process."""
    found: list[str] = []

    def look() -> None:
        try:
            found.extend(find())
        except Exception:  # noqa: BLE001 - a word here would stand in the middle of what is being typed
            return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return [name for name in list(found) if name.startswith(incomplete) and name.isprintable()][:MOST]
