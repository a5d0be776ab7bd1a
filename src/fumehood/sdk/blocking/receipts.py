# Made by scripts/derive-sync from sdk/aio/receipts.py; edit that, not this.
"""Receipts: what a worker signed about something that it did, and whether that holds."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from fumehood.errors import InvalidRequestError, NotFoundError, SandboxGoneError, UnexpectedAnswerError
from fumehood.sdk import receipt_keys
from fumehood.sdk.blocking import here
from fumehood.sdk.blocking.transport import Transport, part
from fumehood.sdk.verification import Held, Holding, Trust, Verification, outputs_of, verified
from fumehood.verify.dsse import to_file
from fumehood.verify.keylist import read_published
from fumehood.wire.receipt_api import RECEIPT_KEYS_PATH

NOT_YET = "it comes with the end, from workers that sign: wait for that first"


class Receipt:
    """What a worker signed, fetched when it is needed.

    It is checked here, against the root that you pinned and the list of keys that it signed, as `fumehood verify` does:
    no server is asked for its opinion.

        result = sb.commands.run("echo hello")
        found = result.receipt.verify()
        assert found.ok and found.worker
        assert not result.receipt.verify(against="goodbye")
    """

    def __init__(
        self, transport: Transport | None, path: str, *, holding: Holding | None = None, missing: str = NOT_YET
    ) -> None:
        """`holding`: what it has to be about, and is checked against each time. `missing`: what to do if there is
        none."""
        self._transport, self._path, self._missing = transport, path, missing
        self._holding = holding or Holding()
        self._envelope: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._path}>"

    @classmethod
    def of(cls, envelope: Mapping[str, Any], *, holding: Holding | None = None) -> Self:
        """One that came with something else."""
        made = cls(None, "of what came with it", holding=holding)
        made._envelope = dict(envelope)
        return made

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """One that was saved."""
        document = here.in_thread(receipt_keys.document_in, Path(path))
        if isinstance(document, dict) and "payloadType" not in document and isinstance(document.get("receipt"), dict):
            document = document["receipt"]  # an answer that came with its receipt
        made = cls(None, str(path))
        made._envelope = document
        return made

    @property
    def envelope(self) -> dict[str, Any]:
        """The DSSE envelope, once it was fetched."""
        if self._envelope is None:
            raise InvalidRequestError("the receipt was not fetched yet").advise("call fetch() or verify() before")
        return self._envelope

    def fetch(self) -> Self:
        """Get it from the server, once. `NotFoundError` where there is none: of what has not ended, or of what ran
        where nobody signs."""
        if self._envelope is None and self._transport is not None:
            try:
                found = self._transport.get(self._path)
            except SandboxGoneError as error:
                raise error.advise(
                    "receipts go with their sandbox: fetch(), save() or verify() while it is there"
                ) from None
            except NotFoundError as error:
                raise error.advise(self._missing) from None
            if not isinstance(found, dict):
                raise UnexpectedAnswerError("the server sent something else than a receipt").advise()
            self._envelope = found
        return self

    def save(self, path: str | Path) -> None:
        """Write it to a file, whole or not at all: `fumehood verify FILE` checks it there."""
        self.fetch()
        here.in_thread(_write, Path(path), to_file(self.envelope))

    def verify(
        self,
        against: Held | Mapping[str, Held] | None = None,
        *,
        root: str | None = None,
        keys_file: str | Path | None = None,
    ) -> Verification:
        """Whether it holds, and is about what it came with; with `against`, also whether this output is one of those
        signed: bytes, a text, a `Path`, or several by their names in the receipt (`{"stdout": "…"}`).

        A receipt that does not hold is told by what is returned, which is false then. `CannotVerifyError` says that
        nothing could be checked, since no root is pinned or no list of keys is there. `root` and `keys_file` are for
        whoever keeps these elsewhere.
        """
        trust = Trust(root, None if keys_file is None else Path(keys_file))
        here.in_thread(trust.found)  # before anything is fetched that could not be checked
        self.fetch()
        outputs = here.in_thread(outputs_of, against)
        return here.in_thread(verified, self.envelope, outputs, self._holding, trust)


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{secrets.token_hex(16)}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


class Receipts:
    """Receipts by what they are about."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def of_run(self, run_id: str, step: str | None = None) -> Receipt:
        """Of a run of an image, or of a sandbox step of a workflow's run."""
        if step is None:
            return Receipt(
                self._transport,
                f"/runs/{part(run_id)}/receipt",
                holding=Holding(task={"run_id": run_id}),
                missing=f"if it is a run of a workflow, name a `step`: each has its own receipt; else {NOT_YET}",
            )
        path = f"/v1/runs/{part(run_id)}/steps/{part(step)}/receipt"
        return Receipt(self._transport, path, holding=Holding(task={"run_id": run_id, "step_id": step}))

    def of_command(self, command_id: str) -> Receipt:
        """Of a command of a worker, like those of `client.python`."""
        holding = Holding(task={"command_id": command_id})
        return Receipt(self._transport, f"/v1/commands/{part(command_id)}/receipt", holding=holding)

    def load(self, path: str | Path) -> Receipt:
        """One that was saved."""
        return Receipt.load(path)

    def fetch_keys(self, root: str | None = None) -> int:
        """Keep the server's list of keys for checking offline, if it is by the root that you rely on; gives its
        version. With `root` that is pinned for good, as by `fumehood receipts fetch --root HEX`."""
        relied_on = here.in_thread(receipt_keys.relied_on, root)
        document = self._transport.get(RECEIPT_KEYS_PATH)
        version = read_published(document, relied_on).version
        if root is not None:
            here.in_thread(receipt_keys.pin, relied_on)
        here.in_thread(receipt_keys.keep_keys, document, None, relied_on)
        return version
