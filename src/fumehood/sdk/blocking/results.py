# Made by scripts/derive-sync from sdk/aio/results.py; edit that, not this.
"""How a command ended, with what its worker signed about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fumehood.sdk.blocking.transport import Transport
from fumehood.sdk.values import CommandStatus, Ended

if TYPE_CHECKING:
    from fumehood.sdk.blocking.receipts import Receipt


@dataclass(frozen=True, slots=True, repr=False)
class CommandResult(Ended):
    """How a command ended, and what it printed.

    `status` says how, in one word; `exit_code` and `signal` are there where it ended with one. `stdout` and `stderr`
    are text, `stdout_bytes` and `stderr_bytes` the same as it was printed; where something of them is missing,
    `stdout_truncated` and `stderr_truncated` say so. `ok` is exit code 0 and nothing else; `check()` raises without it.

        result = sb.commands.run("echo hello; exit 3")
        assert result.stdout == "hello\\n"
        assert (result.status, result.exit_code, result.ok) == ("exited", 3, False)
    """

    transport: Transport = field(kw_only=True, repr=False, compare=False)
    path: str = field(kw_only=True, repr=False, compare=False)
    """The command's, in the API."""
    request: Mapping[str, Any] | None = field(kw_only=True, repr=False, compare=False, default=None)
    """What was asked for, where this program did."""
    _receipts: list[Receipt] = field(init=False, repr=False, compare=False, default_factory=list)

    @property
    def receipt(self) -> Receipt:
        """What the worker signed about it, which is checked against what is here: the command that was sent, how it
        ended, and each stream that is whole here; the notes name what is not at hand. It is fetched when it is first
        needed, which must be while the sandbox is there.

        result = sb.commands.run(["env"], cwd="/tmp", env={"WHO": "you"}, timeout=60)
        assert (result.receipt.verify()).ok
        """
        if self._receipts:
            return self._receipts[0]
        from fumehood.sdk.blocking.receipts import Receipt  # what checks signatures takes its time to load
        from fumehood.sdk.verification import Holding

        here = {
            "stdout": None if self.stdout_truncated else self.stdout_bytes,
            "stderr": None if self.stderr_truncated else self.stderr_bytes,
        }
        holding = Holding(
            task={"command_id": self.command_id},
            outputs={name: data for name, data in here.items() if data is not None},
            parts=tuple(name for name, data in here.items() if data is None),
            ended={
                "status": str(self.status),
                "exit_code": self.exit_code,
                **({"signal": self.signal} if self.status is CommandStatus.SIGNALED else {}),
            },
            request=self.request,
        )
        self._receipts.append(Receipt(self.transport, f"{self.path}/receipt", holding=holding))
        return self._receipts[0]
