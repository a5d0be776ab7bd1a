"""`client.workflows`: definitions are applied, looked at, and run."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from fumehood.errors import ForbiddenError, InvalidDefinitionError
from fumehood.sdk.aio.runs import AsyncRun
from fumehood.sdk.aio.transport import AsyncTransport, part
from fumehood.sdk.run_values import RunStatus, WorkflowVersion
from fumehood.sdk.workflow import Workflow
from fumehood.wire.yaml_lines import YamlDocument, YamlError

PAGE = 1000
LIMIT = 100_000
YAML, JSON = "application/yaml", "application/json"


class AsyncWorkflows:
    """Workflows by their names."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def apply(self, workflow: Workflow | Mapping[str, Any] | str) -> WorkflowVersion:
        """Make a definition the current one of its name: as it was built, as a document, or as YAML text. Runs that
        are under way keep the one they have. `InvalidDefinitionError` names everything that is wrong with it.

            wf = Workflow("greeting")
            wf.task("greet", "greet", with_={"name": wf.input.name})
            assert (await client.workflows.apply(wf)).name == "greeting"
        """
        name, content, kind = _document(workflow)
        said = await self._transport.put(f"/v1/workflows/{part(name)}", content=content, media_type=kind)
        return WorkflowVersion.of(said)

    async def get(self, name: str, *, digest: str | None = None) -> WorkflowVersion:
        """A workflow with its current definition, or with the one of that digest."""
        return WorkflowVersion.of(await self._transport.get(f"/v1/workflows/{part(name)}", {"digest": digest}))

    async def list(self, *, limit: int = LIMIT) -> AsyncGenerator[WorkflowVersion, None]:
        """Workflows by name, without their definitions."""
        after: str | None = None
        while limit > 0:
            answer = await self._transport.get("/v1/workflows", {"after": after, "limit": min(PAGE, limit)})
            for said in answer["workflows"][:limit]:
                yield WorkflowVersion.of(said)
            limit -= len(answer["workflows"])
            after = answer.get("next")
            if after is None:
                return

    async def run(
        self,
        workflow: str | Workflow | WorkflowVersion,
        input: Any = None,  # noqa: A002 - the API's word
        *,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncRun:
        """Start a run of a workflow that was applied. It is safe with the server when this returns, and started once
        however often the network made us ask. The same `idempotency_key` and input again, within 7 days, is the same
        run; `labels` are what it can be found by.

            run = await client.workflows.run("hello", labels={"team": "red"})
            assert (await run.wait(timeout=60)).labels == {"team": "red"}
        """
        name = workflow if isinstance(workflow, str) else workflow.name
        key = idempotency_key or f"sdk-{secrets.token_hex(16)}"
        body = {"input": input, "labels": dict(labels or {}), "idempotency_key": key}
        said = await self._transport.post(f"/v1/workflows/{part(name)}/runs", body, again=True)
        run = AsyncRun(self._transport, {"status": RunStatus.QUEUED.value, "workflow": name, **said})
        if idempotency_key is None:
            return run
        try:
            return await run.refresh()  # it may be one that was started before
        except ForbiddenError:  # a key that may start runs, and not read them
            return run


def _document(workflow: Workflow | Mapping[str, Any] | str) -> tuple[str, bytes, str]:
    """The name, the content and its type: what is wrong with the rest is for the server to say."""
    if isinstance(workflow, str):
        try:
            found = YamlDocument(workflow).value
        except YamlError as error:
            raise InvalidDefinitionError([str(error)]).advise() from None
        content, kind = workflow.encode(), YAML
    else:
        found = workflow.to_dict() if isinstance(workflow, Workflow) else workflow
        content, kind = json.dumps(found, allow_nan=False).encode(), JSON
    name = found.get("name") if isinstance(found, Mapping) else None
    if not isinstance(name, str) or not name:
        raise InvalidDefinitionError(["a workflow has a name"]).advise()
    return name, content, kind
