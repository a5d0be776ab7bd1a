"""The policy file: what is right becomes a policy, what is wrong is refused whole, with the line and the reason."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fumehood.errors import ConfigurationError
from fumehood.images import policy_schema
from fumehood.images.operator_files import OperatorFiles
from fumehood.images.policy_file import MAX_BYTES, read_policy
from fumehood.images.policy_schema import PolicyDocument, files, schema
from fumehood.images.run_rules import Maxima
from fumehood.wire.sandbox import NetworkProfile
from tests.unit.policy_world import GOOD, INDENTED, PEM, Says, policy, public_key
from tests.unit.signing_world import Authority

CONTRACTS = Path(__file__).parents[2] / "contracts"

HEAD = "version: 1\nname: p\n"
NO_RULES = HEAD + "rules: []\n"


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        policy(folder, text)
    prefix = f"the policy file {folder}/policy.yaml is wrong: "
    assert caught.value.detail.startswith(prefix)
    return caught.value.detail.removeprefix(prefix)


# --- what is right -------------------------------------------------------------------------------------------------


def test_all_that_a_file_says_is_in_the_policy(tmp_path: Path) -> None:
    made = policy(tmp_path)
    assert made.name == "production"
    assert made.sha256 == hashlib.sha256(GOOD.encode()).hexdigest()
    assert [(str(rule.pattern), rule.trust) for rule in made.rules] == [
        ("registry.example/team/*", "release"),
        ("127.0.0.1:*/**", None),
    ]
    assert [key.name for key in made.trusts["release"].keys] == ["ci"]
    assert made.run_rules.users == {"sandbox"}
    assert made.run_rules.networks == {NetworkProfile.DENY_ALL, NetworkProfile.DNS_ONLY, NetworkProfile.RESTRICTED}
    assert made.egress.allows("pypi.org", 443) == "pypi.org:443"
    assert made.run_rules.maxima == Maxima(4000, 8192, 3600)


def test_what_is_left_out_is_the_least(tmp_path: Path) -> None:
    made = policy(tmp_path, NO_RULES)
    assert made.rules == ()
    assert made.run_rules.users == {"sandbox"}
    assert made.run_rules.networks == {NetworkProfile.DENY_ALL, NetworkProfile.LOCALHOST}
    assert not made.egress
    assert made.run_rules.maxima == Maxima()


def test_a_key_may_stand_in_a_file_beside_the_policy(tmp_path: Path) -> None:
    (tmp_path / "ci.pub").write_text(PEM)
    made = policy(tmp_path, NO_RULES + "trust: {t: {keys: [{name: ci, file: ci.pub}]}}\n")
    absolute = policy(tmp_path, NO_RULES + f"trust: {{t: {{keys: [{{name: ci, file: {tmp_path}/ci.pub}}]}}}}\n")
    assert made.trusts == absolute.trusts
    assert made.trusts["t"].keys[0].fingerprint.startswith("sha256:")


def test_json_is_yaml_too(tmp_path: Path) -> None:
    document = yaml.safe_load(GOOD)
    assert policy(tmp_path, json.dumps(document)).run_rules == policy(tmp_path, GOOD).run_rules


# --- what is wrong: a line and a reason for each -------------------------------------------------------------------

KEY = f"""\
{NO_RULES}trust:
  t:
    keys:
      - name: ci
        pem: |
          {INDENTED}
"""

WRONG = {
    "nothing": ("", "line 1: must be an object"),
    "a text": ("hello", "line 1: must be an object"),
    "a list": ("- a\n- b\n", "line 1: must be an object"),
    "not YAML": ("version: 1\nname: [a\n", "line 3: "),
    "two documents": (NO_RULES + "---\n" + NO_RULES, "line 4: "),
    "a tab": ("version: 1\n\tname: p\n", "line 2: "),
    "a control character": ("version: 1\nname: p\x07\n", "line 2: a character that YAML does not allow"),
    "a duplicate key": (NO_RULES + "name: q\n", "line 4: the key 'name' is there twice"),
    "a duplicate key below": (
        HEAD + "rules:\n  - match: a.b/c\n    match: a.b/d\n",
        "line 5: the key 'match' is there",
    ),
    "an alias": (HEAD + "rules: &r []\ntrust: *r\n", "line 4: aliases are not allowed"),
    "a star without quotes": (HEAD + "rules:\n  - match: *.example/a\n", "line 4: "),
    "a merge": (HEAD + "rules: []\nlimits:\n  <<: {cpu_millis: 1}\n", "line 5: a key is a text, and nothing is merged"),
    "a key that is no text": (NO_RULES + "? [a]\n: b\n", "line 4: a key is a text"),
    "a tag": (HEAD + "rules: !!python/object:os.system []\n", "line 3: "),
    "an unknown key": (NO_RULES + "user: [sandbox]\n", "line 4: user: unknown field; did you mean users?"),
    "an unknown key below": (
        HEAD + "rules:\n  - match: r.example/a\n    unsinged: true\n",
        "line 5: rules[0].unsinged: unknown field; did you mean unsigned?",
    ),
    "no version": ("name: p\nrules: []\n", "line 1: version: is missing"),
    "another version": ("version: 2\nname: p\nrules: []\n", "line 1: version: must be 1"),
    "a version that is true": ("version: true\nname: p\nrules: []\n", "line 1: version: must be an integer"),
    "no name": ("version: 1\nrules: []\n", "line 1: name: is missing"),
    "a bad name": ("version: 1\nname: a b\nrules: []\n", "line 2: name: must be at most 64 letters"),
    "our own name": ("version: 1\nname: development\nrules: []\n", "line 2: name: development is the policy without"),
    "no rules": (HEAD, "line 1: rules: is missing"),
    "rules that are null": (HEAD + "rules:\n", "line 3: rules: must be an array"),
    "egress that is null": (NO_RULES + "egress:\n", "line 4: egress: null is not a value"),
    "a rule that says nothing": (
        HEAD + "rules:\n  - match: r.example/a\n",
        "line 4: rules[0]: exactly one of trust and",
    ),
    "a rule that says both": (
        HEAD + "rules:\n  - {match: r.example/a, unsigned: true, trust: t}\n",
        "line 4: rules[0]: exactly one of trust and unsigned is needed, not trust and unsigned",
    ),
    "unsigned: false": (
        HEAD + "rules:\n  - match: r.example/a\n    unsigned: false\n",
        "line 5: rules[0].unsigned: must be true",
    ),
    "unsigned: 1": (HEAD + "rules:\n  - match: r.example/a\n    unsigned: 1\n", "line 5: rules[0].unsigned: must be"),
    "a bad pattern": (
        HEAD + "rules:\n  - match: r.example/a\n    unsigned: true\n  - match: '*/**'\n    unsigned: true\n",
        "line 6: rules[1].match: a registry is named in full",
    ),
    "no such trust": (
        KEY.replace("rules: []", "rules:\n  - match: r.example/a\n    trust: x"),
        "line 5: rules[0].trust: there is no trust of this name; there are: t",
    ),
    "a rule that is never reached": (
        HEAD + "rules:\n  - {match: r.example/**, unsigned: true}\n  - {match: r.example/a, unsigned: true}\n",
        "line 5: rules[1].match: no image gets to this rule: rules[0] matches all of them",
    ),
    "the same rule twice": (
        HEAD + "rules:\n  - {match: r.example/a, unsigned: true}\n  - {match: r.example/a, unsigned: true}\n",
        "line 5: rules[1].match: no image gets to this rule",
    ),
    "a trust in nobody": (NO_RULES + "trust:\n  t: {}\n", "line 5: trust.t: a trust without keys and identities"),
    "a trust with a bad name": (NO_RULES + "trust:\n  a b: {}\n", "line 5: trust.a b: must be at most 64 letters"),
    "a key without text": (
        NO_RULES + "trust:\n  t:\n    keys: [{name: a}]\n",
        "line 6: trust.t.keys[0]: exactly one of",
    ),
    "a bad PEM": (
        KEY.replace("MF", "!!", 1),
        "line 8: trust.t.keys[0].pem: key ci: not a public key in PEM",
    ),
    "no PEM": (
        NO_RULES + "trust:\n  t:\n    keys:\n      - name: a\n        pem: hello\n",
        "line 8: trust.t.keys[0].pem: key a: not one public key in PEM",
    ),
    "a key file that is not there": (
        NO_RULES + "trust:\n  t:\n    keys:\n      - name: a\n        file: none.pub\n",
        "line 8: trust.t.keys[0].file: ",
    ),
    "two keys of one name": (
        KEY + KEY[KEY.index("      - name") :],
        ": trust.t.keys[1].name: another key of this trust has the same name",
    ),
    "identities without a root": (
        NO_RULES + "trust:\n  t:\n    identities: [{subject: a, issuer: b}]\n",
        "line 5: trust.t: identities and trusted_root belong together",
    ),
    "a root for nobody": (KEY + "    trusted_root: root.json\n", "line 5: trust.t: identities and trusted_root belong"),
    "a root that is not there": (
        NO_RULES + "trust:\n  t:\n    identities: [{subject: a, issuer: b}]\n    trusted_root: none.json\n",
        "line 7: trust.t.trusted_root: ",
    ),
    "an identity of nobody": (
        NO_RULES + "trust:\n  t:\n    identities: [{issuer: b}]\n    trusted_root: none.json\n",
        "line 6: trust.t.identities[0]: exactly one of subject and subject_pattern",
    ),
    "no such user": (NO_RULES + "users: [root]\n", "line 4: users[0]: must be 'sandbox' or 'image'"),
    "no user at all": (NO_RULES + "users: []\n", "line 4: users: must not be empty"),
    "no such network": (NO_RULES + "networks: [deny-all, lan]\n", "line 4: networks[1]: must be 'deny-all', "),
    "restricted without names": (
        NO_RULES + "networks:\n  - restricted\n",
        "line 5: networks[0]: restricted leads nowhere",
    ),
    "names without restricted": (
        NO_RULES + "egress: {allow: ['a.b:1']}\n",
        "line 4: egress: it counts for the network",
    ),
    "no names": (NO_RULES + "networks: [restricted]\negress: {allow: []}\n", "line 5: egress.allow: must not be empty"),
    "a bad name to connect to": (
        NO_RULES + "networks: [restricted]\negress:\n  allow:\n    - pypi.org\n",
        "line 7: egress.allow[0]: it is not NAME:PORT",
    ),
    "a limit that is none": (NO_RULES + "limits:\n  cpu_millis: 0\n", "line 5: limits.cpu_millis: must be at least 1"),
    "a limit that is a text": (
        NO_RULES + "limits: {memory_mib: 8G}\n",
        "line 4: limits.memory_mib: must be an integer",
    ),
    "a limit that is true": (
        NO_RULES + "limits: {memory_mib: true}\n",
        "line 4: limits.memory_mib: must be an integer",
    ),
    "a limit that is null": (NO_RULES + "limits: {memory_mib: }\n", "line 4: limits.memory_mib: null is not a value"),
    "too deep": ("[" * 5000, "line 1: it is nested too deeply"),
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, case: str) -> None:
    text, reason = WRONG[case]
    assert reason in refusal(tmp_path, text)


def test_all_lines_are_told_in_order_and_not_too_many(tmp_path: Path) -> None:
    rules = "".join(f"  - match: bad{number}\n    unsigned: true\n" for number in range(9))
    told = refusal(tmp_path, HEAD + "rules:\n" + rules)
    assert [part.partition(":")[0] for part in told.split("; ")] == [
        *(f"line {4 + 2 * number}" for number in range(5)),
        "and 4 more",
    ]


def test_a_root_that_is_none_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "root.json").write_text("{}")
    told = refusal(
        tmp_path, NO_RULES + "trust:\n  t:\n    identities: [{subject: a, issuer: b}]\n    trusted_root: root.json\n"
    )
    assert told.startswith("line 7: trust.t.trusted_root: ")


def test_a_pattern_that_is_none_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "root.json").write_bytes(Authority().trusted_root())
    identity = "{subject_pattern: '(a', issuer: b}"
    told = refusal(
        tmp_path,
        NO_RULES + f"trust:\n  t:\n    identities:\n      - {identity}\n    trusted_root: root.json\n",
    )
    assert told.startswith("line 7: trust.t.identities[0]: a subject_pattern is not a regular expression")


def test_a_private_key_is_not_repeated(tmp_path: Path) -> None:
    text = KEY.replace("PUBLIC KEY", "EC PRIVATE KEY")
    told = refusal(tmp_path, text)
    assert "a private key" in told
    assert PEM.splitlines()[1] not in told


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda file: None, "cannot be read: No such file or directory"),
        (lambda file: file.mkdir(), "is not a regular file"),
        (os.mkfifo, "is not a regular file"),
        (lambda file: file.write_bytes(b"\xff\xfe"), "it is not UTF-8"),
        (lambda file: file.write_text("#" * (MAX_BYTES + 1)), f"is larger than {MAX_BYTES} bytes"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, make: Any, reason: str) -> None:
    file = tmp_path / "policy.yaml"
    make(file)
    with pytest.raises(ConfigurationError) as caught:
        read_policy(file, Says(), OperatorFiles())
    assert str(file) in caught.value.detail
    assert reason in caught.value.detail


def test_a_file_that_everybody_can_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(GOOD)
    file.chmod(0o666)
    with pytest.raises(ConfigurationError, match=r"can be written by everybody.*chmod o-w"):
        read_policy(file, Says(), OperatorFiles())


def test_a_key_that_everybody_can_write_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "ci.pub"
    key.write_text(public_key())
    key.chmod(0o646)
    told = refusal(tmp_path, NO_RULES + "trust: {t: {keys: [{name: ci, file: ci.pub}]}}\n")
    assert "can be written by everybody" in told


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_any_text_is_a_policy_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """There is no third way."""
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(text, encoding="utf-8", errors="replace")
    with contextlib.suppress(ConfigurationError):
        assert read_policy(file, Says(), OperatorFiles()).sha256


# --- the schema ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(files()))
def test_the_committed_schema_is_current(name: str) -> None:
    """After a change: `python -m fumehood.images.policy_schema`."""
    assert (CONTRACTS / name).read_text(encoding="utf-8") == files()[name]


def test_the_schema_can_be_written_anywhere(tmp_path: Path) -> None:
    policy_schema.main(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(files())


@pytest.mark.parametrize("case", sorted(WRONG))
def test_the_schema_says_what_the_model_says(case: str) -> None:
    """An editor that knows the schema marks what the shape forbids."""
    try:
        document = yaml.safe_load(WRONG[case][0])
    except (yaml.YAMLError, RecursionError):
        return
    assert jsonschema_rs.validator_for(schema()).is_valid(document) == _fits(document)


def _fits(document: object) -> bool:
    """What one word says about another is not in the schema."""
    try:
        PolicyDocument.model_validate(document)
    except ValidationError as error:
        beyond = ("belong together", "trusts nobody", "is the policy without a file")
        return all(any(word in problem["msg"] for word in beyond) for problem in error.errors())
    return True


def test_a_good_file_fits_the_schema() -> None:
    assert jsonschema_rs.validator_for(schema()).is_valid(yaml.safe_load(GOOD))
