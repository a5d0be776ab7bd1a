"""`python peer_process.py PEER`, in the peers' own environment: one peer, asked for one life after the other.

The first line of standard input is a JSON document with the image and the runtime; it answers `ready`. Each further
line is one life of a sandbox, answered by its times in seconds. Nothing of Fumehood is imported here, and what a peer
costs to import is not counted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Life = Callable[[], dict[str, float]]
CODE = "print(1)"


def llm_sandbox(document: dict[str, Any]) -> Life:
    """A session of its own each time. Its setup, a virtual environment with a newer pip, is left out."""
    from llm_sandbox import SandboxSession  # type: ignore[import-not-found]

    def life() -> dict[str, float]:
        began = time.perf_counter()
        session = SandboxSession(
            image=document["image"],
            lang="python",
            keep_template=True,
            skip_environment_setup=True,
            workdir="/tmp",
            runtime_configs={"runtime": document["runtime"], "network_mode": "none"},
        )
        session.open()
        try:
            _check(session.run(CODE).stdout)
            first = time.perf_counter()
            _check(session.run(CODE).stdout)
            second = time.perf_counter()
        finally:
            session.close()
        return {"first": first - began, "next": second - first, "removal": time.perf_counter() - second}

    return life


def llm_sandbox_pool(document: dict[str, Any]) -> Life:
    """Its own pool; a container that was used goes back and is used again, as it does by default. Its image has the
    virtual environment that a pooled session calls."""
    from llm_sandbox.pool import PoolConfig, create_pool_manager  # type: ignore[import-not-found]
    from llm_sandbox.pool import PooledSandboxSession as Pooled

    pool = create_pool_manager(
        backend="docker",
        config=PoolConfig(min_pool_size=2, max_pool_size=4),
        lang="python",
        image=document["image"],
        skip_environment_setup=True,
        runtime_configs={"runtime": document["runtime"], "network_mode": "none"},
    )

    def life() -> dict[str, float]:
        began = time.perf_counter()
        session = Pooled(pool_manager=pool)
        session.open()
        try:
            _check(session.run(CODE).stdout)
            return {"first": time.perf_counter() - began}
        finally:
            session.close()

    life.close = pool.close  # type: ignore[attr-defined]
    return life


def swe_rex(document: dict[str, Any]) -> Life:
    """Its image has its server in it already: it would install that each time otherwise."""
    from swerex.deployment.docker import DockerDeployment  # type: ignore[import-not-found]
    from swerex.runtime.abstract import Command  # type: ignore[import-not-found]

    command = Command(command=["python3", "-c", CODE])

    async def once() -> dict[str, float]:
        began = time.perf_counter()
        deployment = DockerDeployment(
            image=document["image"], pull="never", docker_args=["--runtime", document["runtime"]], startup_timeout=60
        )
        await deployment.start()
        try:
            _check((await deployment.runtime.execute(command)).stdout)
            first = time.perf_counter()
            _check((await deployment.runtime.execute(command)).stdout)
            second = time.perf_counter()
        finally:
            await deployment.stop()
        return {"first": first - began, "next": second - first, "removal": time.perf_counter() - second}

    return lambda: asyncio.run(once())


def _check(output: str) -> None:
    if output.strip() != "1":
        raise ValueError(f"a wrong answer: {output!r}")


PEERS = {"llm-sandbox": llm_sandbox, "llm-sandbox-pool": llm_sandbox_pool, "swe-rex": swe_rex}


def main() -> None:
    logging.disable(logging.CRITICAL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a peer prints is no answer
    life = PEERS[sys.argv[1]](json.loads(sys.stdin.readline()))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    try:
        for _ in iter(sys.stdin.readline, ""):
            print(json.dumps(life()), file=answers, flush=True)
    finally:
        getattr(life, "close", lambda: None)()


if __name__ == "__main__":
    main()
