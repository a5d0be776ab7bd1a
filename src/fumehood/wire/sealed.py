"""Tasks that bear a proof: what is said about them is believed by people who never see it.

Sandboxes, the executions of jobs, and the judging of what these gave. Only whoever was handed such a task can answer
it (`control/proofs.py`), and its lease lies where no worker may write.
"""

from __future__ import annotations

from fumehood.wire.sandbox import SANDBOX_TASK

JOB_TASK = "fumehood.job."
"""Before the name of a job type: the task type that its providers take."""
ADJUDICATE_TASK = "fumehood.adjudicate"
"""What servers take: from what providers said to what counts."""


def job_task(job_type: str) -> str:
    return JOB_TASK + job_type


def is_sealed(task_type: str) -> bool:
    return task_type in (SANDBOX_TASK, ADJUDICATE_TASK) or task_type.startswith(JOB_TASK)
