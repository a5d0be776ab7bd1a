"""Jobs as a server tells of them, made by providers that sign what they answer: to be spoilt by tests."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fumehood.jobs.registry import Registry
from fumehood.jobs.types.candidate_judge import JudgeRequest
from fumehood.verify import adjudication
from fumehood.verify.adjudication import Candidate
from fumehood.verify.receipt import Asked, Kind, Outcome, issue
from fumehood.wire.canonical import json_sha256
from fumehood.wire.job_api import JobView
from fumehood.wire.jobs import Adjudication
from tests.unit.receipt_world import claim, key_of

TYPE = "oa.retrieval_rerank.v1"
JUDGE = "oa.candidate_judge.v1"
JOB_ID = "run-1"
REGISTRY = Registry.load()
PAYLOAD = {"user_task": "find it", "candidates": [{"id": "a", "content": "x"}, {"id": "b", "content": "y"}], "k": 2}


def answer(order: str, worker: str) -> dict[str, Any]:
    """A ranking, in somebody's words."""
    ranked = [{"rank": at, "id": name, "score": 1 / at} for at, name in enumerate(order, 1)]
    return REGISTRY.response(TYPE, {"topk": ranked, "provenance": {"model_id": f"model of {worker}"}}).typed()


@dataclass
class Job:
    """One answer for each worker; `rules` are the request's verification."""

    answers: Sequence[str] = ("ab",)
    adjudication: Adjudication = Adjudication.NONE
    index: int = 0
    """What a judge says, in the order that it saw."""
    workers: Sequence[str] = field(default_factory=lambda: [f"w{number}" for number in range(9)])

    @property
    def payload(self) -> dict[str, Any]:
        rules = {"mode": "objective", "redundancy": len(self.answers), "adjudication": self.adjudication.value}
        return {**PAYLOAD, "verification": rules}

    @property
    def request_sha256(self) -> str:
        return REGISTRY.request(TYPE, self.payload).compute_hash()

    def document(self) -> dict[str, Any]:
        candidates = [self._candidate(number, order) for number, order in enumerate(self.answers)]
        known = [
            Candidate(one["execution"], one["declared_sha256"], worker=one["worker"], key_id=one["key_id"])
            for one in candidates
        ]
        decision = adjudication.decide(self.adjudication, len(known), known)
        judge = result = None
        if decision.needs_judge:
            order = adjudication.shuffled(decision, JOB_ID)
            judge = self._judge(order, candidates)
            decision = adjudication.judged(decision, order[self.index])
        if decision.needs_merge:
            merge = REGISTRY.type(TYPE).merge
            assert merge is not None
            responses = [REGISTRY.response(TYPE, one["response"]) for one in candidates]
            result = merge(REGISTRY.request(TYPE, self.payload), responses).typed()
        if decision.chosen is not None:
            result = candidates[decision.chosen]["response"]
        said = {
            "job_id": JOB_ID,
            "job_type": TYPE,
            "schema_version": "1.0.0",
            "status": "disputed" if decision.outcome is adjudication.Outcome.NO_MAJORITY else "succeeded",
            "request_sha256": self.request_sha256,
            "verification": self.payload["verification"],
            "result": result,
            "verdict": {
                "outcome": decision.outcome.value,
                "mode": "objective",
                "redundancy": len(known),
                "adjudication": self.adjudication.value,
                "agreed": decision.agreed,
                "chosen": decision.chosen,
                "candidates": candidates,
                "judge": judge,
            },
            "receipts": [one["receipt"] for one in candidates] + ([judge["receipt"]] if judge else []),
        }
        return copy.deepcopy(JobView.model_validate(said).model_dump(mode="json"))

    def _candidate(self, number: int, order: str) -> dict[str, Any]:
        worker = self.workers[number]
        response = answer(order, worker)
        signed = receipt_of(worker, f"execution-{number}", TYPE, self.request_sha256, response)
        return {
            "execution": number,
            "worker": worker,
            "key_id": key_of(worker).key_id,
            "accepted": True,
            "declared_sha256": _declared(TYPE, response),
            "response": response,
            "receipt": signed,
        }

    def _judge(self, order: Sequence[int], candidates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        outputs = [{"topk": candidates[at]["response"]["topk"]} for at in order]
        asked = {
            "job_type": TYPE,
            "request": REGISTRY.request(TYPE, self.payload).typed(),
            "candidates": outputs,
        }
        sha256 = JudgeRequest.model_validate(asked).compute_hash()
        said = {"index": self.index, "reason": "it is better", "provenance": {"model_id": "judge"}}
        response = REGISTRY.response(JUDGE, said).typed()
        return {
            "index": self.index,
            "order": list(order),
            "reason": "it is better",
            "worker": "j",
            "key_id": key_of("j").key_id,
            "request_sha256": sha256,
            "response": response,
            "receipt": receipt_of("j", "judge", JUDGE, sha256, response),
        }


def receipt_of(
    worker: str, step: str, job_type: str, request_sha256: str, response: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    outputs = {name: value for name, value in response.items() if name != "provenance"}
    subjects = {
        "response": json_sha256(dict(response)),
        "outputs": json_sha256(outputs),
        "declared": more.pop("declared", None) or _declared(job_type, response),
    }
    said = {
        "kind": Kind.JOB,
        "task": {"run_id": JOB_ID, "step_id": step, "attempt": 1, "iteration": 0},
        "request": Asked(sha256=request_sha256, type=job_type, tenant="default", by="admin"),
        "outcome": Outcome(status="answered"),
        "image": None,
        **more,
    }
    return issue(claim(worker, **said), subjects, key_of(worker))


def _declared(job_type: str, response: Mapping[str, Any]) -> str:
    return json_sha256(REGISTRY.response(job_type, response).declared())
