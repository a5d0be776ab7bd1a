"""Keys, lists and receipts for tests: always the same ones, so that what fails once fails again."""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import Any

from fumehood.verify.dsse import SigningKey
from fumehood.verify.keylist import KeyList, ListedKey
from fumehood.verify.receipt import Asked, Claim, Image, Kind, Outcome, Worker, issue

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, tzinfo=dt.UTC)
ROOT = SigningKey.from_seed(hashlib.sha256(b"root").digest())
OTHER_ROOT = SigningKey.from_seed(hashlib.sha256(b"another root").digest())


def key_of(worker: str) -> SigningKey:
    return SigningKey.from_seed(hashlib.sha256(worker.encode()).digest())


def sha256(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def listed(worker: str, **more: Any) -> ListedKey:
    key = key_of(worker)
    said = {"not_before": NOON - dt.timedelta(days=1), **more}
    return ListedKey(key_id=key.key_id, public_key=key.public_key.hex(), worker=worker, **said)


def key_list(*keys: ListedKey, version: int = 1) -> KeyList:
    return KeyList(version=version, issued_at=NOON, keys=keys)


def claim(worker: str = "w1", **more: Any) -> Claim:
    said: dict[str, Any] = {
        "kind": Kind.SANDBOX_RUN,
        "worker": Worker(id=worker, key_id=key_of(worker).key_id),
        "task": {"run_id": "r1", "step_id": "a", "attempt": 1},
        "request": Asked(sha256=sha256("request"), type="worker-api", tenant="default", by="admin"),
        "outcome": Outcome(status="succeeded", exit_code=0),
        "image": Image(digest=f"sha256:{sha256('image')}", evidence={"policy": "p1", "rule": "base"}),
        "observed": {"isolation": "runsc", "network": "none"},
        "started_at": NOON - dt.timedelta(seconds=2),
        "finished_at": NOON,
        "software": "fumehood 0",
    }
    return Claim(**(said | more))


def receipt(worker: str = "w1", outputs: dict[str, bytes] | None = None, **more: Any) -> dict[str, Any]:
    subjects = {name: sha256(data) for name, data in (outputs or {"stdout": b"hello\n", "stderr": b""}).items()}
    return issue(claim(worker, **more), subjects, key_of(worker))
