"""From the policy file's text to a policy, or to one error that names every line that is wrong. Never to half a policy.

The files that a policy names (public keys, trusted roots) are part of it: they are read with it, and one that cannot be
read or understood makes the whole wrong. Errors repeat nothing of a file's content but the names of its words.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fumehood.errors import ConfigurationError, InvalidReferenceError
from fumehood.images import policy_schema
from fumehood.images.egress import EgressRule, EgressRules
from fumehood.images.operator_files import OperatorFiles
from fumehood.images.pattern import ImagePattern
from fumehood.images.policy import OperatorPolicy, Rule, SignatureVerifier
from fumehood.images.policy_schema import PolicyDocument
from fumehood.images.policy_trust import read_trusts
from fumehood.images.reference import ImageReference
from fumehood.images.run_rules import Maxima, RunRules
from fumehood.wire.base import plain_words
from fumehood.wire.sandbox import NetworkProfile
from fumehood.wire.yaml_lines import Problem, YamlDocument, YamlError

MAX_BYTES: Final = 128 * 1024
"""Hundreds of rules. YAML is slow to read, and a reload happens while others wait."""
_SHOWN: Final = 5


def read_policy(path: Path, verifier: SignatureVerifier, files: OperatorFiles) -> OperatorPolicy:
    """The policy of a file, or `ConfigurationError` with lines and reasons. `files` remembers all that was read."""
    try:
        content = files.read(path, MAX_BYTES)
        document = YamlDocument(content.decode())
        parsed = PolicyDocument.model_validate(document.value)
    except OSError as error:
        raise ConfigurationError(f"the policy file {error}") from None
    except UnicodeDecodeError:
        raise _refused(path, ["it is not UTF-8"]) from None
    except YamlError as error:
        raise _refused(path, [str(error)]) from None
    except ValidationError as error:
        raise _refused(path, [document.problem(*found) for found in _shape_problems(error)]) from None
    trusts, problems = read_trusts(parsed, path.parent, files)
    rules = _rules(parsed, problems)
    run_rules = _run_rules(parsed, problems)
    repositories = _job_repositories(parsed, rules, problems)
    if problems:
        raise _refused(path, [document.problem(*found) for found in problems])
    sha256 = hashlib.sha256(content).hexdigest()
    return OperatorPolicy(parsed.name, sha256, rules, trusts, run_rules, verifier, repositories)


def _refused(path: Path, problems: Iterable[str]) -> ConfigurationError:
    found = sorted(set(problems), key=_line)
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return ConfigurationError(f"the policy file {path} is wrong: {'; '.join(found[:_SHOWN] + more)}")


def _line(problem: str) -> int:
    number = problem.removeprefix("line ").partition(":")[0]
    return int(number) if number.isdigit() else 0


# --- its shape ---------------------------------------------------------------------------------------------


def _shape_problems(error: ValidationError) -> Iterator[Problem]:
    for problem in error.errors(include_url=False, include_input=False):
        yield [part for part in problem["loc"] if part != "[key]"], _words(problem)


def _words(problem: ErrorDetails) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        nearest = difflib.get_close_matches(str(problem["loc"][-1]), _known_words(), n=1)
        return "unknown field" + (f"; did you mean {nearest[0]}?" if nearest else "")
    if kind == "string_pattern_mismatch":
        return policy_schema.FORMS.get(str(context.get("pattern")), "has a form that is not allowed")
    return plain_words(kind, problem["msg"], context)


def _known_words() -> list[str]:
    models = [one for one in vars(policy_schema).values() if isinstance(one, type) and issubclass(one, BaseModel)]
    return sorted({name for model in models for name in model.model_fields})


# --- its meaning -------------------------------------------------------------------------------------------


def _rules(document: PolicyDocument, problems: list[Problem]) -> tuple[Rule, ...]:
    numbers: dict[ImagePattern, int] = {}
    made: list[Rule] = []
    for number, entry in enumerate(document.rules):
        if entry.trust is not None and entry.trust not in document.trust:
            there = ", ".join(sorted(document.trust)) or "none"
            problems.append((("rules", number, "trust"), f"there is no trust of this name; there are: {there}"))
        try:
            pattern = ImagePattern.parse(entry.match)
        except ValueError as error:
            problems.append((("rules", number, "match"), str(error)))
            continue
        before = min((numbers[wider] for wider in pattern.wider() if wider in numbers), default=None)
        if before is not None:
            dead = f"no image gets to this rule: rules[{before}] matches all of them; put the narrower rule first"
            problems.append((("rules", number, "match"), dead))
        numbers.setdefault(pattern, number)
        made.append(Rule(pattern, entry.trust))
    return tuple(made)


def _run_rules(document: PolicyDocument, problems: list[Problem]) -> RunRules:
    restricted = NetworkProfile.RESTRICTED in document.networks
    if restricted and document.egress is None:
        reason = "restricted leads nowhere without egress.allow: add it, or take restricted away"
        problems.append((("networks", document.networks.index(NetworkProfile.RESTRICTED)), reason))
    if document.egress is not None and not restricted:
        problems.append((("egress",), "it counts for the network restricted only, which networks does not allow"))
    limits = document.limits.model_dump() if document.limits is not None else {}
    return RunRules(
        frozenset(document.users), frozenset(document.networks), _egress(document, problems), Maxima(**limits)
    )


def _egress(document: PolicyDocument, problems: list[Problem]) -> EgressRules:
    made: list[EgressRule] = []
    for number, text in enumerate(document.egress.allow if document.egress is not None else ()):
        try:
            made.append(EgressRule.parse(text))
        except ValueError as error:
            problems.append((("egress", "allow", number), str(error)))
    return EgressRules(tuple(made))


def _job_repositories(document: PolicyDocument, rules: tuple[Rule, ...], problems: list[Problem]) -> tuple[str, ...]:
    """In their one spelling. Whoever names one that no rule admits did not mean what he wrote."""
    made: list[str] = []
    for number, text in enumerate(document.jobs.repositories if document.jobs is not None else ()):
        where = ("jobs", "repositories", number)
        try:
            reference = ImageReference.parse(text)
        except InvalidReferenceError as error:
            problems.append((where, error.detail))
            continue
        if "@" in text or ":" in text.rpartition("/")[2]:
            problems.append((where, "it is a repository: HOST/NAME, without a tag and without a digest"))
        elif reference.name in made:
            problems.append((where, "it is named twice"))
        elif not any(rule.pattern.matches(reference) for rule in rules):
            problems.append((where, "no rule is for it, and so no image of it would be admitted"))
        made.append(reference.name)
    return tuple(made)
