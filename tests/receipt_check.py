"""A list with the key of one state folder, for tests that check what its process signed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fumehood.node.signing import ReceiptKeys
from fumehood.verify.keylist import KeyList, ListedKey
from fumehood.verify.receipt import Statement, check


def key_list(state: Path, worker: str) -> KeyList:
    """As an operator makes it; the process must have made its key before."""
    keys = ReceiptKeys(state)
    listed = ListedKey(key_id=keys.current.key_id, public_key=keys.public_key_hex, worker=worker, not_before=keys.since)
    return KeyList(version=1, issued_at=keys.since, keys=(listed,))


def checked(receipt: Any, state: Path, worker: str) -> Statement:
    return check(receipt, key_list(state, worker))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
