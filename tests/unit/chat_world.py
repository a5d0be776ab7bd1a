"""What the tests of jobs by a model share: an endpoint that forgets between tests, requests, and a worker's context."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from fumehood.jobs.base import ChatOptions, Workbench
from fumehood.jobs.types.candidate_judge import JudgeRequest
from fumehood.jobs.types.code_chunk_analysis import ChunkAnalysisRequest, CodeChunk, OutputConstraints
from fumehood.jobs.types.retrieval_rerank import RerankCandidate, RerankRequest
from tests.chat_server import KEY, MODEL, ChatServer, by_the_rules

CODE = 'import os\n\ndef run(command):\n    os.system(command)\n\nclass Vault:\n    password = "hunter2"\n'


@dataclass
class Worker:
    """A `Context` that remembers."""

    worker_id: str = "w1"
    task_id: str = "t1"
    tenant: str = "default"
    observed: dict[str, Any] = field(default_factory=dict)

    def prove(self, name: str, sha256: str) -> None:
        raise AssertionError("these jobs have nothing more to prove")

    def observe(self, **facts: Any) -> None:
        self.observed.update(facts)


def forget(server: ChatServer) -> None:
    fresh = ChatServer()
    for one in dataclasses.fields(fresh):
        if one.name not in ("url", "_lock"):
            setattr(server, one.name, getattr(fresh, one.name))
    assert server.says is by_the_rules


def bench(server: ChatServer, **options: Any) -> Workbench:
    given = ChatOptions(server.url, MODEL, KEY, timeout_seconds=5.0, deadline_seconds=10.0)
    return Workbench(chat=dataclasses.replace(given, **options))


def analysis(**constraints: int) -> ChunkAnalysisRequest:
    chunk = CodeChunk(path="src/vault.py", start_line=11, end_line=17, content=CODE, language="python")
    return ChunkAnalysisRequest(
        task="Find security issues", chunk=chunk, output_constraints=OutputConstraints.model_validate(constraints)
    )


def rerank(count: int, k: int = 10, **more: Any) -> RerankRequest:
    """The one that helps most is the last but one."""
    texts = [f"fn helper_{number}() {{}}" for number in range(count)]
    if count > 1:
        texts[-2] = "fn authentication_system() { login works }"
    candidates = tuple(RerankCandidate(id=f"id-{number}", content=text) for number, text in enumerate(texts))
    return RerankRequest(user_task="How does the authentication system work?", candidates=candidates, k=k, **more)


def verdict(count: int = 3) -> JudgeRequest:
    """The second one says the most."""
    answers = [{"summary": "s" * (30 if number == 1 else 3)} for number in range(count)]
    return JudgeRequest(job_type="oa.code_chunk_analysis.v1", request={"task": "t"}, candidates=tuple(answers))
