"""The registry of job types: what it finds, what it refuses, and in which words."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood.errors import ConfigurationError, InvalidRequestError, NotFoundError, UnsupportedVersionError
from fumehood.jobs.base import JobRequest, JobResponse, JobType, SchemaVersion, Workbench
from fumehood.jobs.registry import Registry
from fumehood.jobs.unknown import unknown
from fumehood.wire.jobs import Adjudication, Mode, Option, Verification

MODULE = """
from fumehood.jobs.base import JobRequest, JobResponse, JobType, SchemaVersion
from fumehood.wire.jobs import Adjudication, Mode, Verification

class EchoRequest(JobRequest):
    text: str
    verification: Verification = Verification(mode=Mode.OBJECTIVE, redundancy=1, adjudication=Adjudication.NONE)

class EchoResponse(JobResponse):
    text: str

JOB_TYPE = JobType(name="oa.text_echo.v1", version=SchemaVersion(1, 2, 3), about="Says it again.",
                   request=EchoRequest, response=EchoResponse, handlers={"local": lambda workbench: None})
"""
OURS = {"oa.candidate_judge.v1", "oa.code_chunk_analysis.v1", "oa.retrieval_rerank.v1", "oa.sandbox_run.v1"}


class EchoRequest(JobRequest):
    text: str
    loud: Option[bool] = None
    verification: Verification = Verification(mode=Mode.OBJECTIVE, redundancy=1, adjudication=Adjudication.NONE)


class EchoResponse(JobResponse):
    text: str


def nobody(workbench: Workbench) -> Any:
    raise ConfigurationError("nobody does this")


ECHO: JobType[EchoRequest, EchoResponse] = JobType(
    name="oa.text_echo.v1",
    version=SchemaVersion(1, 2, 3),
    about="Says it again.",
    request=EchoRequest,
    response=EchoResponse,
    handlers={"local": nobody},
)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], str]]:
    """Writes a module that can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    made: list[str] = []

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        made.append(name)
        return name

    yield write
    for name in made:
        sys.modules.pop(name, None)


def test_it_finds_ours() -> None:
    assert set(Registry.load()) == OURS


def test_it_finds_the_modules_of_others(module: Callable[[str, str], str]) -> None:
    registry = Registry.load([module("someone_elses_echo", MODULE)])
    assert set(registry) == OURS | {"oa.text_echo.v1"}
    assert list(registry) == sorted(registry)
    assert registry.request("oa.text_echo.v1", {"text": "a"}).typed()["text"] == "a"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nothing_of_this_name", "cannot be imported"),
        ("1 +", "cannot be imported: SyntaxError"),
        ("raise RuntimeError('no')", "cannot be imported: RuntimeError"),
        ("", "has no JOB_TYPE"),
        ("JOB_TYPE = 'oa.text_echo.v1'", "has no JOB_TYPE"),
        (MODULE.replace("oa.text_echo.v1", "oa.sandbox_run.v1"), "two modules say what oa.sandbox_run.v1 is"),
        (MODULE.replace("oa.text_echo.v1", "echo"), "called like oa.text_echo.v1"),
        (MODULE.replace("SchemaVersion(1", "SchemaVersion(2"), "the major must be the one in its name"),
    ],
)
def test_a_module_that_is_none_is_a_fault_of_the_operators(
    module: Callable[[str, str], str], text: str, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        Registry.load([module("a_wrong_module", text)])


def test_the_same_module_twice_is_one_type(module: Callable[[str, str], str]) -> None:
    name = module("an_echo_named_twice", MODULE)
    assert len(Registry.load([name, name])) == len(OURS) + 1


def test_what_nobody_has_heard_of() -> None:
    registry = Registry([ECHO])
    with pytest.raises(NotFoundError, match=r"there are oa\.text_echo\.v1"):
        registry.request("oa.text_shout.v1", {})
    with pytest.raises(NotFoundError):
        registry.response("oa.text_shout.v1", {})
    assert "oa.text_shout.v1" not in registry


# --- what a type must have ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", "echo", "oa.Echo.v1", "oa.echo", "oa.echo.v0", "oa.echo.v01", "oa.a b.v1", "x" * 99]
)
def test_a_type_has_a_name_of_the_contract(name: str) -> None:
    with pytest.raises(ValueError, match="called like"):
        replace(ECHO, name=name)


class Bare(JobRequest):
    text: str


def test_a_type_has_a_default_verification() -> None:
    with pytest.raises(ValueError, match="Bare must give one"):
        JobType(
            name="oa.text_bare.v1",
            version=SchemaVersion(1, 0, 0),
            about="",
            request=Bare,
            response=EchoResponse,
            handlers={"local": nobody},
        )


def test_a_default_must_be_allowed() -> None:
    with pytest.raises(ValueError, match="does not allow"):
        replace(ECHO, allowed=frozenset({Adjudication.MAJORITY_VOTE}))


def test_somebody_must_do_it() -> None:
    with pytest.raises(ValueError, match="no handler"):
        replace(ECHO, handlers={})


def test_without_a_way_to_merge_nothing_is_merged() -> None:
    assert ECHO.adjudications == frozenset(Adjudication) - {Adjudication.MERGE}
    merging = replace(ECHO, merge=lambda _, responses: responses[0])
    assert merging.adjudications == frozenset(Adjudication)
    asked = {"text": "a", "verification": {"adjudication": "merge"}}
    assert Registry([merging]).request(ECHO.name, asked).verification.adjudication is Adjudication.MERGE
    with pytest.raises(InvalidRequestError, match="has judge_model, majority_vote, none"):
        Registry([ECHO]).request(ECHO.name, asked)


# --- versions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0.0", "1.2.0", "1.2.9"])
def test_a_request_of_an_older_version_is_read(version: str) -> None:
    assert Registry([ECHO]).request(ECHO.name, {"text": "a"}, version=version).typed()["text"] == "a"


@pytest.mark.parametrize("version", ["1.3.0", "2.0.0", "0.9.0"])
def test_a_request_of_a_newer_version_is_refused(version: str) -> None:
    """It may say what this one does not understand, and would be run without that."""
    with pytest.raises(UnsupportedVersionError, match=r"supported is 1\.2\.3"):
        Registry([ECHO]).request(ECHO.name, {"text": "a"}, version=version)


@pytest.mark.parametrize(
    "version", ["", "1", "1.0", "1.0.0.0", "01.0.0", "1.0.x", "1.٣.0", " 1.0.0", "1.0.0\n", "-1.0.0"]
)
def test_a_version_is_three_numbers(version: str) -> None:
    with pytest.raises(InvalidRequestError, match="three numbers"):
        Registry([ECHO]).request(ECHO.name, {"text": "a"}, version=version)


NUMBERS = st.integers(0, 3)
VERSIONS = st.builds(SchemaVersion, NUMBERS, NUMBERS, NUMBERS)


@given(VERSIONS, VERSIONS, VERSIONS)
def test_reading_has_an_order(one: SchemaVersion, two: SchemaVersion, three: SchemaVersion) -> None:
    assert SchemaVersion.parse(str(one)) == one
    assert one.can_read(one)
    assert one.can_read(two) or two.can_read(one) or one.major != two.major
    assert not (one.can_read(two) and two.can_read(three)) or one.can_read(three)


# --- hashes ------------------------------------------------------------------------------------------------


@given(st.text(st.characters(codec="utf-8"), max_size=20), st.booleans(), st.sampled_from([None, True, False]))
def test_the_hash_is_of_what_was_asked_and_nothing_else(text: str, verified: bool, loud: bool | None) -> None:
    said: dict[str, Any] = {"text": text} | ({} if loud is None else {"loud": loud})
    written_out = {"verification": {"redundancy": 1, "mode": "objective", "adjudication": "none"}} if verified else {}
    registry = Registry([ECHO])
    asked = registry.request(ECHO.name, {"unknown": 1, **written_out, **said})
    assert asked.compute_hash() == registry.request(ECHO.name, said).compute_hash()
    assert registry.request(ECHO.name, asked.typed()) == asked
    assert asked.compute_hash() != registry.request(ECHO.name, {**said, "text": text + "!"}).compute_hash()


def test_a_handler_is_made_by_name_from_a_workbench() -> None:
    with pytest.raises(ConfigurationError, match="nobody does this"):
        ECHO.handlers["local"](Workbench())


def test_what_a_type_has_no_field_for_is_named_by_its_place() -> None:
    """It is ignored, as the contract says; who misspelt `redundancy` should not find out from a receipt."""
    payload = {
        "user_task": "x",
        "topk": 3,
        "candidates": [
            {"id": "1", "content": "a", "metadata": {"any": "thing"}},
            {"id": "2", "content": "b", "sore": 1},
        ],
        "verification": {"mode": "subjective", "redundency": 3},
    }
    kind = Registry.load()["oa.retrieval_rerank.v1"].request
    assert unknown(kind, payload) == ["topk", "candidates[1].sore", "verification.redundency"]
    assert unknown(kind, {"user_task": "x", "candidates": []}) == unknown(kind, None) == unknown(kind, [1]) == []
    assert len(unknown(kind, {f"x{number}": 1 for number in range(100)})) == 20
