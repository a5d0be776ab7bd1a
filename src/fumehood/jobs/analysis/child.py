"""`python -m fumehood.jobs.analysis.child`: reads one chunk as JSON from stdin, and says on stdout what it found.

Here, and only here, the code of others is parsed. Before it is looked at, this process bounds itself (memory, processor
time, file sizes, open files) and whatever it starts; its parent gave it an empty folder to work in and no environment,
kills it when it takes too long, and believes nothing of the answer but its form.
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
from dataclasses import asdict
from typing import Any

from fumehood.jobs.analysis.tools import ToolError, end_with_parent

PR_SET_NO_NEW_PRIVS = 38
MAX_SYMBOLS = 5_000
MAX_FINDINGS = 2_000
MAX_IMPORTS = 1_000


def analyse(language: str, content: str, *, whole: bool) -> dict[str, Any]:
    """With lines from 1, within the chunk."""
    from fumehood.jobs.analysis import calls, flow, queries, symbols, tools
    from fumehood.jobs.analysis.checks import CHECKS
    from fumehood.jobs.analysis.code import Code
    from fumehood.jobs.analysis.findings import combine
    from fumehood.jobs.analysis.languages import BY_NAME
    from fumehood.jobs.analysis.special import SPECIAL
    from fumehood.jobs.analysis.syntax import parse

    syntax = parse(BY_NAME[language], content)
    code = Code(syntax)
    found = [*queries.find(syntax), *calls.find(code), *flow.find(code)]
    for check in (*CHECKS, *SPECIAL.get(language, ())):
        found.extend(check(code))
    asked = tools.run(language, content, whole=whole)
    if asked is not None:
        found.extend(asked[1].findings)
    return {
        "error_share": syntax.error_share(),
        "lead": symbols.lead(syntax),
        "symbols": [asdict(one) for one in symbols.defined(syntax)[:MAX_SYMBOLS]],
        "imports": [asdict(one) for one in symbols.imported(syntax)[:MAX_IMPORTS]],
        "findings": [asdict(one) for one in combine(found)[:MAX_FINDINGS]],
        "tool": asked[0] if asked else None,
        "tool_read": asked[1].read if asked else False,
    }


def bound(limits: dict[str, int]) -> None:
    """Holds for the analysers too: limits are inherited, and nobody can raise them again."""
    for kind, most in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    end_with_parent()
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def main() -> int:
    asked = json.load(sys.stdin)
    bound(asked["limits"])
    try:
        answer = analyse(asked["language"], asked["content"], whole=asked["whole"])
    except ToolError as error:
        answer = {"failed": str(error)}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
