"""Proofs: what shows that whoever speaks about a sandbox, or an execution of a job, was handed its task.

Anybody who works for a cell may write to any run's history, and what a sandbox did is believed by people who never see
it: which image ran, whether it was signed, how it ended. So the task of a sandbox bears a seal over which hand-out it
is, and nothing that is said about one counts without it. Only servers can make it, only nodes and providers are handed
such tasks, and it is not among what they write down for others. It says nothing about what is said: a node is believed,
and a provider as far as its receipt goes.
"""

from __future__ import annotations

import hashlib
import hmac

from fumehood.broker.ports import Broker
from fumehood.wire.protocol import StepEvent

LABEL = "sandbox task"


class Proofs:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def of(self, run_id: str, step_id: str, age: tuple[int, int, int]) -> str:
        """The proof of one hand-out: of one attempt, iteration and resumption. No part of it can hold a NUL."""
        sealed = "\0".join((run_id, step_id, *map(str, age)))
        return hmac.new(self._broker.derived_key(LABEL), sealed.encode(), hashlib.sha256).hexdigest()

    def hold(self, event: StepEvent) -> bool:
        """Whether an event bears the proof of the very hand-out that it names; one that names none proves nothing."""
        if event.proof is None or event.attempt is None or event.iteration is None or event.resumption is None:
            return False
        wanted = self.of(event.run_id, event.step_id, (event.attempt, event.iteration, event.resumption))
        return hmac.compare_digest(event.proof, wanted)
