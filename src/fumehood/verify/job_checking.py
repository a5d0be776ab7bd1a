"""What can be said of a whole job by whoever does not believe the server: every receipt, and the verdict once more.

The document of `/v1/jobs/{id}` is the server's word. What of it is signed is checked against the keys, what follows
from that is computed again, and what is neither is told in a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fumehood.errors import FumehoodError, UnverifiedError
from fumehood.verify import adjudication
from fumehood.verify.adjudication import Candidate, Decision, Outcome
from fumehood.verify.checking import CLAIM_ONLY, Chain, Findings, Output, Report, check_outputs, note_age
from fumehood.verify.keylist import KeyList
from fumehood.verify.receipt import Kind, Statement, check
from fumehood.wire.base import Sha256
from fumehood.wire.canonical import json_sha256
from fumehood.wire.jobs import MAX_REDUNDANCY, Adjudication, Verification

JUDGE_TYPE, JUDGE_STEP = "oa.candidate_judge.v1", "judge"

Responses = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Known:
    """What the reader knows by himself. Without it, some things are the server's word, and the report says so. Each of
    these may raise `UnverifiedError`."""

    declared: Callable[[str, Mapping[str, Any]], str] | None = None
    """By job type and response: the hash of what is compared. None: this reader does not know the type."""
    request_sha256: str | None = None
    verification: Verification | None = None
    """Of the request."""
    judge_sha256: Callable[[Responses], str] | None = None
    """The hash of what a judge is asked about these answers, without their provenance."""
    merged_sha256: Callable[[Responses], str] | None = None
    """The hash of what these answers are merged to."""


# --- the document ------------------------------------------------------------------------------------------


class _Part(BaseModel):
    """A later server may say more."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)


Execution = Annotated[int, Field(ge=0, lt=MAX_REDUNDANCY)]


class _Candidate(_Part):
    execution: Execution
    accepted: bool
    rejected: str | None = None
    worker: str | None = None
    key_id: str | None = None
    declared_sha256: Sha256 | None = None
    response: dict[str, Any] | None = None
    receipt: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    @property
    def about(self) -> str:
        return f"execution {self.execution}"


class _Judge(_Part):
    index: Execution
    order: tuple[Execution, ...]
    worker: str
    request_sha256: Sha256
    response: dict[str, Any]
    receipt: dict[str, Any]


class _Verdict(_Part):
    outcome: Outcome
    redundancy: Annotated[int, Field(ge=1, le=MAX_REDUNDANCY)]
    adjudication: Adjudication
    agreed: int
    chosen: Execution | None = None
    candidates: Annotated[tuple[_Candidate, ...], Field(max_length=MAX_REDUNDANCY)] = ()
    judge: _Judge | None = None


class _Job(_Part):
    job_id: str
    job_type: str
    status: str
    request_sha256: Sha256
    result: dict[str, Any] | None = None
    verdict: _Verdict | None = None
    receipts: Annotated[tuple[dict[str, Any], ...], Field(max_length=MAX_REDUNDANCY + 1)] = ()


def _read(document: Any) -> _Job:
    try:
        return _Job.model_validate(document)
    except ValidationError as error:
        places = sorted({".".join(map(str, fault["loc"])) for fault in error.errors(include_input=False)})
        raise UnverifiedError("malformed", f"this is no job as a server tells of it: {', '.join(places[:5])}") from None


# --- the whole ---------------------------------------------------------------------------------------------


def check_job(document: Any, keys: KeyList, outputs: Iterable[Output] = (), known: Known | None = None) -> Report:
    """Every receipt, that they are of this job, and that the verdict follows from them."""
    findings = Findings()
    try:
        job = _read(document)
        if job.verdict is None:
            raise UnverifiedError("no_verdict", f"the job is {job.status}: there is nothing that could be verified")
    except UnverifiedError as error:
        findings.bad("job", "", error)
        return findings.report("job")
    _Checking(job, job.verdict, keys, known or Known(), findings).run(outputs)
    return findings.report("job")


@dataclass(slots=True)
class _Checking:
    job: _Job
    verdict: _Verdict
    keys: KeyList
    known: Known
    findings: Findings
    statements: dict[int, Statement] = field(default_factory=dict)
    """Of the executions whose receipts hold and count."""

    def run(self, outputs: Iterable[Output]) -> None:
        self._check_request()
        candidates = [self._candidate(one) for one in self.verdict.candidates]
        self._check_strays()
        try:
            decision = self._decided(candidates)
        except UnverifiedError as error:
            self.findings.bad("verdict", self.verdict.outcome.value, error)
            return
        self._check_verdict(decision)
        try:
            self._check_result()
        except UnverifiedError as error:
            self.findings.bad("result", self.job.job_id, error)
        chosen = self.statements.get(self.verdict.chosen if self.verdict.chosen is not None else -1)
        check_outputs(outputs, [chosen] if chosen is not None else list(self.statements.values()), self.findings)

    # --- what was asked ------------------------------------------------------------------------------------

    def _check_request(self) -> None:
        known, said = self.known, self.job.request_sha256
        if known.request_sha256 is None:
            self.findings.notes.append(
                "the request itself was not given: that request_sha256 is of what you asked for is the server's word"
            )
        else:
            other = "the job is of another request; what was said on the command line (`--redundancy`) is part of it"
            words = ("it is the request that was given", "request_mismatch", other)
            self.findings.same("request", said, said, known.request_sha256, words)
        if known.verification is not None:
            wanted = (known.verification.redundancy, known.verification.adjudication)
            asked = f"redundancy {wanted[0]} and {wanted[1].value}"
            words = (f"{asked}, as was asked", "verdict_mismatch", f"{asked} was asked, and something else was done")
            self.findings.same("verdict", "rules", (self.verdict.redundancy, self.verdict.adjudication), wanted, words)

    # --- the executions ------------------------------------------------------------------------------------

    def _candidate(self, one: _Candidate) -> Candidate:
        who = {"worker": one.worker or "", "key_id": one.key_id or ""}
        if one.receipt is None:
            return self._without_receipt(one, who)
        try:
            statement = check(one.receipt, self.keys)
            self._check_task(statement, one)
            declared = self._bound(statement, one)
        except UnverifiedError as error:
            return self._refused(one, who, error)
        if not one.accepted:
            self.findings.notes.append(f"{one.about} was set aside by the server ({one.rejected}); its receipt holds")
            return Candidate(one.execution, declared, rejected=one.rejected or "rejected", **who)
        self._holds(one.about, statement)
        self.statements[one.execution] = statement
        return Candidate(one.execution, declared, **who)

    def _without_receipt(self, one: _Candidate, who: Mapping[str, str]) -> Candidate:
        if one.accepted:
            error = UnverifiedError("no_receipt", "it counts, and has no receipt")
            self.findings.bad("receipt", one.about, error)
            return Candidate(one.execution, rejected=error.reason, **who)
        if one.rejected is not None:
            return Candidate(one.execution, rejected=one.rejected, **who)
        return Candidate(one.execution, failed=str((one.error or {}).get("code", "failed")), **who)

    def _refused(self, one: _Candidate, who: Mapping[str, str], error: UnverifiedError) -> Candidate:
        if one.accepted:
            self.findings.bad("receipt", one.about, error)
        else:
            self.findings.notes.append(f"{one.about} does not count: {error.detail} ({error.reason})")
        return Candidate(one.execution, rejected=one.rejected or error.reason, **who)

    def _holds(self, about: str, statement: Statement) -> None:
        claim = statement.predicate
        detail = f"signed by {claim.worker.id} with the key {claim.worker.key_id[:16]}, for this job and this answer"
        self.findings.good("receipt", about, detail)
        self.findings.chains.append(Chain(statement))
        note_age(claim, self.keys, self.findings)

    def _check_task(self, statement: Statement, one: _Candidate) -> None:
        claim = statement.predicate
        self._check_hand_out(statement, f"execution-{one.execution}")
        if (claim.worker.id, claim.worker.key_id) != (one.worker, one.key_id):
            raise UnverifiedError("task_mismatch", "the receipt is of another worker than the one that is named")
        if (claim.request.sha256, claim.request.type) != (self.job.request_sha256, self.job.job_type):
            raise UnverifiedError("request_mismatch", "the receipt is of another request")

    def _check_hand_out(self, statement: Statement, step: str) -> None:
        claim = statement.predicate
        if claim.kind is not Kind.JOB or (claim.task.get("run_id"), claim.task.get("step_id")) != (
            self.job.job_id,
            step,
        ):
            raise UnverifiedError("task_mismatch", "the receipt is of another job, or another part of this one")

    def _bound(self, statement: Statement, one: _Candidate) -> str:
        """The hash of what it declares, once its receipt binds all that is shown of it."""
        if one.response is None:
            raise UnverifiedError("not_an_answer", "there is a receipt, and no response that it is of")
        hashes = {"response": _hash(one.response), "outputs": _hash(_outputs(one.response))}
        if self.known.declared is not None:
            hashes["declared"] = self.known.declared(self.job.job_type, one.response)
        for name, sha256 in hashes.items():
            if statement.digest_of(name) != sha256:
                raise UnverifiedError("output_mismatch", f"the receipt binds another {name}")
        declared = statement.digest_of("declared")
        told = declared if one.rejected is not None and one.declared_sha256 is None else one.declared_sha256
        if declared is None or declared != told:
            raise UnverifiedError("output_mismatch", "the receipt binds another hash of what is compared")
        return declared

    def _check_strays(self) -> None:
        """What stands under `receipts` is what was looked at here."""
        seen = [one.receipt for one in self.verdict.candidates]
        seen += [self.verdict.judge.receipt] if self.verdict.judge is not None else []
        if any(one not in seen for one in self.job.receipts):
            error = UnverifiedError("task_mismatch", "there is a receipt that belongs to no part of the verdict")
            self.findings.bad("receipt", "receipts", error)

    # --- the verdict ---------------------------------------------------------------------------------------

    def _decided(self, candidates: Sequence[Candidate]) -> Decision:
        numbers = [one.execution for one in candidates]
        if numbers != list(range(self.verdict.redundancy)):
            raise UnverifiedError("verdict_mismatch", "there is not one candidate for each execution")
        decision = adjudication.decide(self.verdict.adjudication, self.verdict.redundancy, candidates)
        self._check_distinct(decision)
        return self._judged(decision) if decision.needs_judge else decision

    def _check_distinct(self, decision: Decision) -> None:
        if len(self.statements) < 2:
            return
        twice = {"not_distinct"} & {one.rejected for one in decision.candidates if one.execution in self.statements}
        words = ("distinct workers, with distinct keys", "not_distinct", "one worker, or one key, answered twice")
        self.findings.same("distinct", f"{len(self.statements)} executions", twice, set(), words)

    def _judged(self, decision: Decision) -> Decision:
        judge = self.verdict.judge
        if judge is None:
            if self.verdict.outcome is Outcome.ERROR:
                return adjudication.judge_failed(decision)
            raise UnverifiedError("no_receipt", "a judge was to decide, and nothing of it is told")
        try:
            statement = check(judge.receipt, self.keys)
            self._check_judge(statement, judge, decision)
        except UnverifiedError as error:
            self.findings.bad("judge", judge.worker, error)
            return adjudication.judge_failed(decision)
        self._holds("judge", statement)
        if self.known.judge_sha256 is None:
            self.findings.notes.append(
                "the request was not given: that the judge saw these answers is the server's word"
            )
        return adjudication.judged(decision, judge.order[judge.index])

    def _check_judge(self, statement: Statement, judge: _Judge, decision: Decision) -> None:
        """Servers draw the order from a secret of theirs, so that no provider knows it: what can be seen here is that
        each answer is in it once, and, where the request was given, that the judge was asked in this very order."""
        claim = statement.predicate
        self._check_hand_out(statement, JUDGE_STEP)
        if claim.worker.id != judge.worker or claim.worker.id in {one.worker for one in self.verdict.candidates}:
            raise UnverifiedError("not_distinct", "the judge is another worker than is named, or one of the judged")
        judged = sorted(one.execution for one in decision.candidates if one.counts)
        if sorted(judge.order) != judged or judge.index >= len(judged):
            raise UnverifiedError("verdict_mismatch", "the judge saw other answers than those that count")
        if (claim.request.sha256, claim.request.type) != (judge.request_sha256, JUDGE_TYPE):
            raise UnverifiedError("request_mismatch", "the judge was asked something else")
        if statement.digest_of("response") != _hash(judge.response) or judge.response.get("index") != judge.index:
            raise UnverifiedError("output_mismatch", "the judge said something else")
        self._check_judged(judge)

    def _check_judged(self, judge: _Judge) -> None:
        if self.known.judge_sha256 is not None:
            responses = {one.execution: one.response or {} for one in self.verdict.candidates}
            if self.known.judge_sha256([_outputs(responses[at]) for at in judge.order]) != judge.request_sha256:
                raise UnverifiedError("request_mismatch", "the judge was asked about other answers")

    def _check_verdict(self, decision: Decision) -> None:
        said = (self.verdict.outcome, self.verdict.chosen, self.verdict.agreed)
        found = (decision.outcome, decision.chosen, decision.agreed)
        words = (
            _verdict_words(decision, self.verdict.redundancy),
            "verdict_mismatch",
            f"the server says {_brief(*said)}, and the receipts come to {_brief(*found)}",
        )
        agree = self.findings.same("verdict", self.verdict.outcome.value, found, said, words)
        status = _STATUS.get(self.verdict.outcome, "succeeded")
        if self.job.status != status:
            error = UnverifiedError("verdict_mismatch", f"the job should be {status}, and is told to be something else")
            self.findings.bad("job", self.job.job_id, error)
        if agree and decision.outcome is Outcome.ERROR:
            error = UnverifiedError("no_result", f"the job has no result: {decision.reason or 'nothing was decided'}")
            self.findings.bad("result", "", error)

    def _check_result(self) -> None:
        chosen, result = self.verdict.chosen, self.job.result
        if self.verdict.outcome is Outcome.MERGED:
            self._check_merged(result)
            return
        answer = next((one.response for one in self.verdict.candidates if one.execution == chosen), None)
        if answer is None and result is None:
            self.findings.notes.append("there is no result that one answer could be compared with")
            return
        words = (f"it is the answer of execution {chosen}", "result_mismatch", "the result is not the chosen answer")
        self.findings.same("result", self.job.job_id, _hash(result), _hash(answer), words)
        if result is not None:
            self.findings.notes.append(CLAIM_ONLY if self.verdict.redundancy == 1 else _AGREEMENT)

    def _check_merged(self, result: Mapping[str, Any] | None) -> None:
        if result is None:
            raise UnverifiedError("result_mismatch", "the answers were merged, and what they were merged to is missing")
        if self.known.merged_sha256 is None:
            self.findings.notes.append("a merged result is signed by nobody: the server made it of the answers above")
            return
        answers = [one.response or {} for one in self.verdict.candidates]
        words = ("it is what the answers above are merged to", "result_mismatch", "the answers merge to another result")
        self.findings.same("result", self.job.job_id, _hash(result), self.known.merged_sha256(answers), words)


_STATUS = {Outcome.NO_MAJORITY: "disputed", Outcome.ERROR: "failed"}
_AGREEMENT = "distinct keys are distinct machines only as far as whoever listed the keys made sure of it"


def _outputs(response: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in response.items() if name != "provenance"}


def _hash(value: Any) -> str:
    try:
        return json_sha256(value)
    except FumehoodError:
        raise UnverifiedError("not_an_answer", "the response has no canonical form") from None


def _brief(outcome: Outcome, chosen: int | None, agreed: int) -> str:
    return outcome.value if chosen is None else f"{outcome.value} for execution {chosen} with {agreed} agreeing"


def _verdict_words(decision: Decision, redundancy: int) -> str:
    match decision.outcome:
        case Outcome.MAJORITY:
            return f"{decision.agreed} of {redundancy} declare the same as execution {decision.chosen}"
        case Outcome.SINGLE:
            return "one execution was asked for, and this is its answer"
        case Outcome.JUDGED:
            return f"the judge chose execution {decision.chosen}"
        case Outcome.NO_MAJORITY:
            return f"no answer is that of more than half of {redundancy}"
        case _:
            return decision.outcome.value
