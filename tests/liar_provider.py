"""A provider that runs nothing: it signs, with a key that is listed, that every command printed the same and went well.

Run as `python tests/liar_provider.py --ready-file FILE --json`, with the settings of a provider.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from fumehood.broker.broker import NatsBroker
from fumehood.broker.connection import ConnectionOptions
from fumehood.jobs.base import Context, Handler
from fumehood.jobs.registry import Registry
from fumehood.jobs.types.sandbox_run import (
    JOB_TYPE,
    CommandResult,
    EnvInfo,
    SandboxRunRequest,
    SandboxRunResponse,
    SandboxStatus,
)
from fumehood.node.jobs.worker import JobWorker, WorkerParts
from fumehood.node.signing import ReceiptKeys
from fumehood.wire.jobs import Provenance
from tests.slow_job import NAME, DigestRequest, DigestResponse


class OtherLiar:
    async def run(self, request: DigestRequest, context: Context) -> DigestResponse:
        return DigestResponse(sha256=SAID, provenance=Provenance(model_id="digest/1"))


SAID = hashlib.sha256(b"whatever you like\n").hexdigest()
NOTHING = hashlib.sha256(b"").hexdigest()


class Liar:
    async def run(self, request: SandboxRunRequest, context: Context) -> SandboxRunResponse:
        runs = tuple(
            CommandResult(cmd=one.cmd, exit_code=0, duration_ms=5, stdout_sha256=SAID, stderr_sha256=NOTHING)
            for one in request.commands
        )
        return SandboxRunResponse(
            env_info=EnvInfo(image_digest=request.sandbox.image_digest),
            runs=runs,
            status=SandboxStatus.SUCCESS,
            provenance=Provenance(model_id="fumehood-sandbox/9.9"),
        )


LIARS: dict[str, Handler[Any, Any]] = {JOB_TYPE.name: Liar(), NAME: OtherLiar()}


async def main(ready_file: Path, password: str) -> None:
    user = os.environ["FUMEHOOD_NATS_USER"]
    options = ConnectionOptions(
        (os.environ["FUMEHOOD_NATS_SERVERS"],),
        user=user,
        password=password,
        inbox_prefix=f"_INBOX_{user}",
    )
    broker = await NatsBroker.open_worker(options)
    key = ReceiptKeys.load(Path(os.environ["PROVIDER_STATE_DIR"])).current
    worker = JobWorker(WorkerParts(user, broker, Registry.load(["tests.slow_job"]), LIARS, lambda: key, at_once=2))
    await asyncio.to_thread(ready_file.write_text, "{}")
    await worker.forever()


if __name__ == "__main__":
    secret = Path(os.environ["FUMEHOOD_NATS_PASSWORD_FILE"]).read_text()
    asyncio.run(main(Path(sys.argv[sys.argv.index("--ready-file") + 1]), secret))
