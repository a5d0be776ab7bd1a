"""What a task asks for, by its words, and how near a finding is to it. No understanding is claimed: the words that were
recognised are named in the summary."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fumehood.jobs.analysis.catalogue import MEANINGS

TOPICS = {
    "security": (
        r"secur|vulnerab|attack|exploit|inject|auth|passw|secret|credential|crypt|xss|csrf|owasp|cve|cwe|malicious"
        r"|sanit|untrusted|hardcod|pentest|audit"
    ),
    "memory": r"memory|overflow|buffer|pointer|segfault|segmentation|use.after.free|dangling|alloc",
    "concurrency": r"concurren|race|thread|lock|deadlock|async|await|parallel|goroutine|mutex",
    "errors": r"error|exception|fail|panic|crash|handl|robust|unwrap",
    "resources": r"leak|resource|clos(e|ed|ing)\b|handle|descriptor|connection",
    "bug": r"\bbugs?\b|fault|wrong|correct|broken|defect|mistake|logic",
}
SECURITY_RULES = re.compile(r"S\d{3}$|rm-root|permissions")
_STOP = frozenset(
    {"the", "and", "for", "with", "that", "this", "from", "into", "what", "where", "which", "find", "look", "code"}
    | {"file", "function", "class", "does", "all", "any", "are", "how", "issue", "issues", "problem", "problems"}
)


@dataclass(frozen=True, slots=True)
class Wanted:
    topics: tuple[str, ...]
    words: frozenset[str]

    @classmethod
    def of(cls, task: str, user_task: str | None) -> Wanted:
        text = f"{task} {user_task or ''}".lower()
        topics = tuple(name for name, pattern in TOPICS.items() if re.search(pattern, text))
        return cls(topics, frozenset(words_of(text) - _STOP))

    def fits(self, meaning: str, text: str) -> bool:
        """Whether somebody with this task would want to hear of it."""
        known = MEANINGS.get(meaning)
        topics = known.topics if known else (("security",) if SECURITY_RULES.match(meaning) else ("bug",))
        return bool(set(topics) & set(self.topics)) or bool(self.words & words_of(f"{meaning} {text}".lower()))


def words_of(text: str) -> set[str]:
    """Words of names too: `findUser` and `find_user` hold `find` and `user`."""
    split = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text)
    return {word.lower() for word in re.findall(r"[A-Za-z]{3,40}", split)}
