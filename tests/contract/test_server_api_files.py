"""The server's files in `contracts/` are current, and the document says what the door does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fumehood.control.callers import Scope
from fumehood.control.http import orders, sign_in, web
from fumehood.control.http.app import PATHS
from fumehood.control.http.openapi import document, files, main
from fumehood.control.http.rules import OPENAPI_PATH, RULES
from fumehood.control.http.schema import PROBLEMS
from fumehood.door.problems import KINDS

CONTRACTS = Path(__file__).parents[2] / "contracts"


@pytest.mark.parametrize("path", sorted(files()))
def test_a_committed_file_is_current(path: str) -> None:
    """After a change: `python -m fumehood.control.http.openapi`."""
    assert (CONTRACTS / path).read_text(encoding="utf-8") == files()[path]


def test_the_files_can_be_written_anywhere(tmp_path: Path) -> None:
    main(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")} == set(files())


def test_every_path_is_in_the_document_with_its_token() -> None:
    made = document()
    assert {*made["paths"], OPENAPI_PATH, *web.PATHS} == set(PATHS)
    assert "422" not in json.dumps(made)
    for path, operations in made["paths"].items():
        for method, operation in operations.items():
            scope = RULES[method.upper(), path].scope
            assert operation.get("x-fumehood-scope") == scope
            if path.startswith("/v1/"):
                token = "bridgeToken" if scope is Scope.WORKERS else "adminToken"
                assert operation["security"] == ([] if path in (*orders.OPEN_PATHS, *sign_in.PATHS) else [{token: []}])
                assert {"401", "403", "503"} <= set(operation["responses"])
            for response in operation["responses"].values():
                assert "X-Request-Id" in response["headers"]


def test_every_problem_has_a_status() -> None:
    assert set(PROBLEMS) <= set(KINDS) | {"internal"}
