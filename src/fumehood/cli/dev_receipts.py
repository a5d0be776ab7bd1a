"""The receipts of `fumehood dev`: a root of its own, and a list with the keys of all that it runs.

Both lie in its state folder, where `fumehood verify` finds them by itself if that is the usual one. A root on the same
machine as what it vouches for is for development: elsewhere it is kept off the servers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fumehood.cli import receipt_files
from fumehood.cli.client import Api, ApiError
from fumehood.cli.receipts import PATH
from fumehood.errors import ConflictError, UnverifiedError
from fumehood.node.signing import ReceiptKeys
from fumehood.sdk.own_dev import RECEIPT_KEYS, RECEIPT_ROOT
from fumehood.settings.token_file import write_private
from fumehood.verify.dsse import SigningKey, to_file
from fumehood.verify.keylist import KeyList, published, read_published, root_of

ROOT_KEY = "receipt-root.key"


def enroll(folder: Path, url: str, token: str, workers: Mapping[str, Path]) -> list[str]:
    """Put the keys of workers, by their state folders, on the list that the server publishes. What could not be done is
    told: dev runs all the same."""
    api = Api(url, token)
    try:
        root = _root(folder / ROOT_KEY)
        before = _published(api)
        if before is not None and root_of(before) != root.public_key:
            return [
                "the server publishes a list of receipt keys by another root: enroll with `fumehood receipts enroll`"
            ]
        keys = read_published(before, root.public_key) if before is not None else _none()
        after, left_out = _with_all(keys, workers)
        document = published(after, root) if after is not keys else before
        if after is not keys:
            api.put(PATH, document)
        write_private(folder / RECEIPT_ROOT, root.public_key.hex())
        write_private(folder / RECEIPT_KEYS, to_file(document).decode().removesuffix("\n"))
    except (ApiError, UnverifiedError) as error:
        return [f"no receipt will count: {error.detail}"]
    finally:
        api.close()
    return left_out


def _root(path: Path) -> SigningKey:
    """Made once: whoever pinned it goes on with it."""
    return receipt_files.root_in(path) if path.exists() else receipt_files.new_root(path)


def _published(api: Api) -> Any | None:
    try:
        return api.get(PATH)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def _none() -> KeyList:
    return KeyList.model_construct(version=0, issued_at=dt.datetime.now(dt.UTC), keys=())


def _with_all(keys: KeyList, workers: Mapping[str, Path]) -> tuple[KeyList, list[str]]:
    """A key that somebody revoked stays revoked."""
    left_out: list[str] = []
    for worker, state in workers.items():
        its = ReceiptKeys.load(state)
        try:
            keys = keys.enrolled(worker, its.current.public_key, dt.datetime.now(dt.UTC), its.since)
        except ConflictError as error:
            left_out.append(f"receipts of {worker} do not count: {error.detail}")
    return keys, left_out
