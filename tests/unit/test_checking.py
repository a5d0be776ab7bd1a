"""What `fumehood verify` decides: outputs against receipts, and whole jobs against their verdicts."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.cli.verify_jobs import _declared, _judge, _merging
from fumehood.errors import UnverifiedError
from fumehood.verify import checking
from fumehood.verify.checking import Output, Report, check_keys, check_receipt
from fumehood.verify.dsse import from_file, to_file
from fumehood.verify.job_checking import Known, check_job
from fumehood.wire.canonical import canonical_json
from fumehood.wire.jobs import Adjudication
from tests.unit.job_document_world import JOB_ID, JUDGE, REGISTRY, TYPE, Job, answer, receipt_of
from tests.unit.receipt_world import NOON, key_list, key_of, listed, receipt, sha256

WORKERS = [*(f"w{number}" for number in range(9)), "j"]
KEYS = key_list(*(listed(name) for name in WORKERS))
STDOUT = b"hello\n"
MAJORITY, NONE, JUDGED, MERGE = (
    Adjudication.MAJORITY_VOTE,
    Adjudication.NONE,
    Adjudication.JUDGE_MODEL,
    Adjudication.MERGE,
)


def known(job: Job) -> Known:
    request = REGISTRY.request(TYPE, job.payload)
    return Known(
        lambda name, response: _declared(REGISTRY, name, response),
        request.compute_hash(),
        request.verification,
        lambda outputs: _judge(TYPE, request, outputs),
        _merging(REGISTRY, TYPE, request),
    )


def reasons(report: Report) -> list[str]:
    return [one.reason for one in report.checks if not one.ok]


# --- receipts and their outputs ----------------------------------------------------------------------------


def test_an_output_is_found_by_its_hash_or_by_its_name() -> None:
    report = check_receipt(receipt(), KEYS, [Output.of("a", STDOUT), Output.of("b", STDOUT, "stdout")])
    assert report.ok
    assert [one.detail for one in report.checks[1:]] == ["is stdout, as it was signed"] * 2


def test_an_output_under_another_name_is_refused() -> None:
    report = check_receipt(receipt(), KEYS, [Output.of("a", STDOUT, "stderr")])
    assert reasons(report) == ["output_mismatch"]
    report = check_receipt(receipt(), KEYS, [Output.of("a", STDOUT, "stdut")])
    assert reasons(report) == ["no_such_output"]
    assert "did you mean stdout?" in report.checks[-1].detail


def test_json_is_compared_by_its_value() -> None:
    value = {"b": [1.0, "é"], "a": None}
    envelope = receipt(outputs={"response": canonical_json(value)})
    for text in (b'{"a": null, "b": [1, "\\u00e9"]}', b'{"b":[1.0,"\xc3\xa9"],"a":null}\n'):
        assert check_receipt(envelope, KEYS, [Output.of("f", text)]).ok
    assert not check_receipt(envelope, KEYS, [Output.of("f", b'{"a":null,"b":[1,"e"]}')]).ok


@given(st.binary(min_size=1, max_size=64), st.data())
def test_every_byte_of_an_output_counts(data: bytes, choice: st.DataObject) -> None:
    envelope = receipt(outputs={"stdout": data})
    place = choice.draw(st.integers(0, len(data) - 1))
    other = choice.draw(st.integers(0, 255).filter(lambda byte: byte != data[place]))
    changed = data[:place] + bytes([other]) + data[place + 1 :]
    assert check_receipt(envelope, KEYS, [Output.of("f", data)]).ok
    assert reasons(check_receipt(envelope, KEYS, [Output.of("f", changed)])) == ["output_mismatch"]
    assert reasons(check_receipt(envelope, KEYS, [Output.of("f", changed, "stdout")])) == ["output_mismatch"]


def test_nothing_is_said_of_outputs_where_the_receipt_does_not_hold() -> None:
    report = check_receipt(receipt("stranger"), KEYS, [Output.of("a", STDOUT)])
    assert reasons(report) == ["unknown_key"]
    assert not report.chains


def test_a_chain_leads_from_the_request_to_the_outputs() -> None:
    (chain,) = check_receipt(receipt(), KEYS).view()["chains"]
    assert chain["request"]["sha256"] == sha256("request")
    assert chain["image"] == {"digest": f"sha256:{sha256('image')}", "evidence": {"policy": "p1", "rule": "base"}}
    assert chain["outputs"]["stdout"] == sha256(STDOUT)
    assert chain["worker"]["id"] == "w1"


def test_a_list_older_than_the_receipt_is_told() -> None:
    later = check_receipt(receipt(finished_at=NOON + dt.timedelta(hours=1)), KEYS)
    assert any("`fumehood receipts fetch`" in note for note in later.notes)
    assert not any("`fumehood receipts fetch`" in note for note in check_receipt(receipt(), KEYS).notes)


def test_what_a_file_holds_is_known_by_its_form() -> None:
    assert checking.is_envelope(receipt())
    assert checking.is_job(Job().document())
    assert not checking.is_published(receipt())
    assert check_keys(KEYS).ok


def test_a_report_without_a_check_is_not_good() -> None:
    assert not Report("receipt", ()).ok


# --- jobs that hold ----------------------------------------------------------------------------------------

HOLD = {
    "single": Job(["ab"], NONE),
    "majority of all": Job(["ab", "ab", "ab"], MAJORITY),
    "majority of most": Job(["ba", "ab", "ab"], MAJORITY),
    "no majority": Job(["ab", "ba"], MAJORITY),
    "judged": Job(["ab", "ba"], JUDGED, index=1),
    "merged": Job(["ab", "ba"], MERGE),
}


@pytest.mark.parametrize("job", HOLD.values(), ids=HOLD)
def test_a_job_holds_with_and_without_its_request(job: Job) -> None:
    for knowledge in (Known(), known(job)):
        report = check_job(job.document(), KEYS, known=knowledge)
        assert report.ok, report.view()
        assert len(report.chains) == len(job.answers) + (job.adjudication is JUDGED)


def test_what_nobody_signed_is_said() -> None:
    notes = check_job(HOLD["merged"].document(), KEYS).notes
    assert any("signed by nobody" in note for note in notes)
    assert any("the server's word" in note for note in notes)
    assert not any("the server's word" in note for note in check_job(**full("judged")).notes)


def full(name: str) -> dict[str, Any]:
    return {"document": HOLD[name].document(), "keys": KEYS, "known": known(HOLD[name])}


def test_outputs_are_those_of_the_chosen_execution() -> None:
    document = HOLD["majority of most"].document()
    result = Output.of("r", canonical_json(document["result"]), "response")
    outvoted = Output.of("r", canonical_json(document["verdict"]["candidates"][0]["response"]), "response")
    assert check_job(document, KEYS, [result]).ok
    assert reasons(check_job(document, KEYS, [outvoted])) == ["output_mismatch"]


# --- jobs that do not --------------------------------------------------------------------------------------

Spoil = Callable[[dict[str, Any]], object]


def candidate(document: dict[str, Any], number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = document["verdict"]["candidates"][number]
    return found


def lie(document: dict[str, Any]) -> None:
    """The server shows another answer than was signed."""
    candidate(document)["response"]["topk"].reverse()


def swap(document: dict[str, Any]) -> None:
    """The server gives out the answer that lost."""
    document["result"] = candidate(document)["response"]


def replay(document: dict[str, Any]) -> None:
    """An old receipt of the same request, from another job."""
    one = candidate(document)
    old = {"run_id": "run-0", "step_id": "execution-0"}
    one["receipt"] = receipt_of("w0", "execution-0", TYPE, document["request_sha256"], one["response"], task=old)
    document["receipts"][0] = one["receipt"]


def twice(document: dict[str, Any]) -> None:
    """One worker answers for two."""
    one = candidate(document, 2)
    one |= {"worker": "w1", "key_id": key_of("w1").key_id, "response": candidate(document, 1)["response"]}
    one["receipt"] = receipt_of("w1", "execution-2", TYPE, document["request_sha256"], one["response"])
    document["receipts"][2] = one["receipt"]


def pretend(document: dict[str, Any]) -> None:
    """A worker signs the hash that wins, beside an answer that does not have it."""
    one, honest = candidate(document, 1), candidate(document, 2)["declared_sha256"]
    one["response"] = answer("ba", "w1")
    one["receipt"] = receipt_of("w1", "execution-1", TYPE, document["request_sha256"], one["response"], declared=honest)
    document["result"] = one["response"]
    document["receipts"][1] = one["receipt"]


def other_request(document: dict[str, Any]) -> None:
    document["request_sha256"] = "0" * 64


def stray(document: dict[str, Any]) -> None:
    document["receipts"].append(receipt("w5"))


def setter(*path: str | int, to: Any) -> Spoil:
    def spoil(document: dict[str, Any]) -> None:
        here: Any = document
        for part in path[:-1]:
            here = here[part]
        here[path[-1]] = to

    spoil.__name__ = ".".join(map(str, path))
    return spoil


SPOILT: list[tuple[str, Spoil, str]] = [
    ("majority of most", lie, "output_mismatch"),
    ("majority of most", swap, "result_mismatch"),
    ("majority of all", replay, "task_mismatch"),
    ("majority of all", twice, "not_distinct"),
    ("majority of most", pretend, "output_mismatch"),
    ("single", other_request, "request_mismatch"),
    ("single", stray, "task_mismatch"),
    ("single", setter("job_id", to="run-2"), "task_mismatch"),
    ("single", setter("job_type", to=JUDGE), "request_mismatch"),
    ("single", setter("status", to="failed"), "verdict_mismatch"),
    ("single", setter("result", to={"topk": []}), "result_mismatch"),
    ("single", setter("verdict", "redundancy", to=3), "verdict_mismatch"),
    ("single", setter("verdict", "candidates", 0, "worker", to="w1"), "task_mismatch"),
    ("single", setter("verdict", "candidates", 0, "key_id", to=key_of("w1").key_id), "task_mismatch"),
    ("single", setter("verdict", "candidates", 0, "declared_sha256", to="0" * 64), "output_mismatch"),
    ("single", setter("verdict", "candidates", 0, "response", to=None), "not_an_answer"),
    ("single", setter("verdict", "candidates", 0, "receipt", to=None), "no_receipt"),
    ("single", setter("verdict", "candidates", to=[]), "verdict_mismatch"),
    ("single", setter("verdict", to=None), "no_verdict"),
    ("single", setter("verdict", to={}), "malformed"),
    ("majority of most", setter("verdict", "chosen", to=0), "verdict_mismatch"),
    ("majority of most", setter("verdict", "chosen", to=2), "verdict_mismatch"),
    ("majority of most", setter("verdict", "agreed", to=3), "verdict_mismatch"),
    ("majority of most", setter("verdict", "outcome", to="single"), "verdict_mismatch"),
    ("no majority", setter("verdict", "outcome", to="majority"), "verdict_mismatch"),
    ("judged", setter("verdict", "judge", "index", to=0), "output_mismatch"),
    ("judged", setter("verdict", "judge", "order", to=[0, 0]), "verdict_mismatch"),
    ("judged", setter("verdict", "judge", "worker", to="w0"), "not_distinct"),
    ("judged", setter("verdict", "judge", "request_sha256", to="0" * 64), "request_mismatch"),
    ("judged", setter("verdict", "judge", "response", "reason", to="another"), "output_mismatch"),
    ("judged", setter("verdict", "judge", to=None), "no_receipt"),
    ("judged", setter("verdict", "chosen", to=1), "verdict_mismatch"),
    ("merged", setter("result", to={"topk": []}), "result_mismatch"),
]


@pytest.mark.parametrize(("name", "spoil", "reason"), SPOILT, ids=lambda given: getattr(given, "__name__", str(given)))
def test_a_job_that_does_not_hold_is_refused(name: str, spoil: Spoil, reason: str) -> None:
    told = full(name)
    spoil(told["document"])
    report = check_job(**told)
    assert not report.ok
    assert reason in reasons(report), report.view()


def test_a_judge_that_saw_other_answers_is_found_with_the_request_alone() -> None:
    document = HOLD["judged"].document()
    judge = document["verdict"]["judge"]
    judge["request_sha256"] = sha256("another question")
    judge["receipt"] = receipt_of("j", "judge", JUDGE, judge["request_sha256"], judge["response"])
    document["receipts"][-1] = judge["receipt"]
    report = check_job(document, KEYS)
    assert report.ok
    assert any("the judge saw these answers is the server's word" in note for note in report.notes)
    assert reasons(check_job(document, KEYS, known=known(HOLD["judged"])))[0] == "request_mismatch"


def test_one_who_was_set_aside_is_no_vote() -> None:
    """A liar among three: the server does not count it, and neither is it counted here."""
    document = HOLD["majority of most"].document()
    liar = candidate(document)
    liar["response"] = answer("ab", "w0")
    liar |= {"accepted": False, "rejected": "output_mismatch"}
    report = check_job(document, KEYS)
    assert report.ok, report.view()
    assert any("execution 0 does not count" in note for note in report.notes)
    document["verdict"]["agreed"] = 3
    assert reasons(check_job(document, KEYS)) == ["verdict_mismatch"]


def test_votes_are_more_than_half_of_what_was_asked_for() -> None:
    """A server that drops those who disagree cannot make a majority of the rest."""
    document = HOLD["no majority"].document()
    candidate(document, 1).update(accepted=False, rejected="set_aside")
    document |= {"status": "succeeded", "result": candidate(document)["response"]}
    document["verdict"] |= {"outcome": "majority", "chosen": 0, "agreed": 1}
    assert reasons(check_job(document, KEYS)) == ["verdict_mismatch"]


def test_a_job_without_a_result_is_not_verified() -> None:
    document = HOLD["majority of all"].document()
    lost = candidate(document, 1)
    lost.update(accepted=False, response=None, receipt=None, declared_sha256=None, error={"code": "not_started"})
    document |= {"status": "failed", "result": None}
    document["verdict"] |= {"outcome": "error", "agreed": 0, "chosen": None}
    del document["receipts"][1]
    report = check_job(document, KEYS)
    assert reasons(report) == ["no_result"]
    assert "too_few_workers" in report.checks[-1].detail


def test_a_revoked_key_takes_its_jobs_with_it() -> None:
    keys = key_list(*(listed(name) for name in WORKERS[1:]), listed("w0", revoked_at=NOON, revoked_because="stolen"))
    report = check_job(HOLD["majority of all"].document(), keys)
    assert reasons(report)[0] == "revoked_key"
    assert "stolen" in report.checks[0].detail


def test_a_type_that_nobody_knows_is_held_to_its_receipts() -> None:
    document = HOLD["majority of most"].document()
    pretend(document)
    assert check_job(document, KEYS, known=Known()).ok, "which only whoever knows the type can tell"


@given(st.data())
def test_no_byte_of_an_answer_or_its_receipt_changes_unseen(choice: st.DataObject) -> None:
    document = HOLD["single"].document()
    told = {part: candidate(document)[part] for part in ("receipt", "response", "worker", "key_id", "declared_sha256")}
    data = to_file(told)
    place = choice.draw(st.integers(0, len(data) - 1))
    other = choice.draw(st.integers(0, 255).filter(lambda byte: byte != data[place]))
    try:
        changed = from_file(data[:place] + bytes([other]) + data[place + 1 :])
    except UnverifiedError:  # no JSON any more
        return
    candidate(document).update(changed)
    for part in told.keys() - changed.keys():
        del candidate(document)[part]
    if document["verdict"]["candidates"] == copy.deepcopy(HOLD["single"].document())["verdict"]["candidates"]:
        return
    assert not check_job(document, KEYS, known=known(HOLD["single"])).ok


def test_the_job_is_named() -> None:
    assert any(one.about == JOB_ID for one in check_job(HOLD["single"].document(), KEYS).checks)
